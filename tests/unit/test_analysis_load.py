"""Loading results: complete, interrupted, missing and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from analysis.load import load, newest
from analysis.schema import TABLES
from testbed.errors import TestbedError

from .analysis_data import HABITS, edit_manifest, write_comparison

TWO = {name: HABITS[name] for name in ("edgeshard", "hetroute")}
DOCUMENT = Path(__file__).parents[2] / "docs" / "results.md"


def small(results: Path, **options: object) -> Path:
    return write_comparison(results, frameworks=TWO, requests=12, layers=2, failed_share=0.0, **options)  # type: ignore[arg-type]


def rewrite(run: Path, table: str, change: object) -> None:
    frame = pl.read_parquet(run / f"{table}.parquet")
    change(frame).write_parquet(run / f"{table}.parquet")  # type: ignore[operator]


def test_every_column_of_the_code_is_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for table, columns in TABLES.items():
        section = text[text.index(f"## {table}.parquet") :].split("\n## ")[0]
        assert [column for column in columns if f"`{column}`" not in section] == []


def test_the_newest_comparison_is_the_one_that_started_last(tmp_path: Path) -> None:
    small(tmp_path, name="20260102-000000-a")
    last = small(tmp_path, name="20260103-000000-a")
    (tmp_path / "20260104-not-a-result").mkdir()

    assert newest(tmp_path) == last


def test_without_results_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="run a scenario first"):
        newest(tmp_path / "nowhere")


def test_runs_come_in_file_order_with_requests_by_arrival(tmp_path: Path) -> None:
    comparison = load(small(tmp_path, repeats=2))

    assert comparison.frameworks == ("edgeshard", "hetroute")
    assert [run.manifest.repeat for run in comparison.runs_of("hetroute")] == [1, 2]
    assert comparison.runs[0].requests["scheduled_s"].is_sorted()
    assert comparison.notes == ()


def test_the_directory_of_a_single_run_is_a_comparison_of_one(tmp_path: Path) -> None:
    comparison = load(small(tmp_path) / "hetroute-r1")

    assert comparison.frameworks == ("hetroute",)
    assert len(comparison.runs) == 1


def test_missing_runs_are_said(tmp_path: Path) -> None:
    directory = small(tmp_path, repeats=2)
    (directory / "hetroute-r2" / "manifest.json").unlink()

    assert load(directory).notes == ("hetroute: 1 of 2 runs present.",)


def test_an_interrupted_run_is_loaded_as_far_as_it_got_and_said(tmp_path: Path) -> None:
    directory = small(tmp_path)
    run = directory / "hetroute-r1"
    edit_manifest(run, complete=False)
    (run / "servers.parquet").unlink()

    comparison = load(directory)

    assert [run.name for run in comparison.interrupted] == ["hetroute-r1"]
    assert comparison.notes == ("hetroute-r1 was interrupted: it holds 12 completed requests of 12 sent.",)
    assert comparison.runs[1].servers.is_empty()


def test_an_interrupted_comparison_finds_runs_that_its_file_does_not_list_yet(tmp_path: Path) -> None:
    directory = small(tmp_path)
    plan = json.loads((directory / "comparison.json").read_text())
    (directory / "comparison.json").write_text(json.dumps(plan | {"runs": [], "finished": False}))

    comparison = load(directory)

    assert [run.name for run in comparison.runs] == ["edgeshard-r1", "hetroute-r1"]
    assert comparison.notes == ("The comparison was interrupted before its last run.",)


def test_a_complete_run_may_not_lack_a_table(tmp_path: Path) -> None:
    directory = small(tmp_path)
    (directory / "hetroute-r1" / "layers.parquet").unlink()

    with pytest.raises(TestbedError, match=r"layers\.parquet: not a readable Parquet file"):
        load(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop("sent_bytes"), "column 'sent_bytes' is missing"),
        (lambda frame: frame.cast({"latency_s": pl.String}), "column 'latency_s' holds String, expected Float64"),
        (lambda frame: frame.cast({"moves": pl.Float64}), "column 'moves' holds Float64, expected Int64"),
        (
            lambda frame: frame.with_columns(home=pl.lit(None, dtype=pl.String)),
            "column 'home' misses 12 of 12 values",
        ),
    ],
)
def test_a_wrong_table_is_named_with_its_file_and_column(tmp_path: Path, change: object, message: str) -> None:
    directory = small(tmp_path)
    rewrite(directory / "hetroute-r1", "requests", change)

    with pytest.raises(TestbedError) as caught:
        load(directory)

    assert str(caught.value).startswith(f"{directory / 'hetroute-r1' / 'requests.parquet'}: {message}")


def test_harmless_differences_of_type_are_accepted(tmp_path: Path) -> None:
    directory = small(tmp_path)
    rewrite(
        directory / "hetroute-r1", "requests", lambda frame: frame.cast({"moves": pl.Int32, "home": pl.Categorical})
    )

    assert load(directory).runs[1].requests.schema["moves"] == pl.Int64


def test_not_a_number_counts_as_missing(tmp_path: Path) -> None:
    directory = small(tmp_path)
    rewrite(directory / "hetroute-r1", "requests", lambda frame: frame.with_columns(nll=pl.lit(float("nan"))))
    assert load(directory).runs[1].requests["nll"].null_count() == 12

    rewrite(directory / "hetroute-r1", "requests", lambda frame: frame.with_columns(sent_s=pl.lit(float("nan"))))
    with pytest.raises(TestbedError, match="column 'sent_s' misses 12 of 12 values"):
        load(directory)


def test_a_wrong_manifest_is_named_with_its_key(tmp_path: Path) -> None:
    directory = small(tmp_path)
    edit_manifest(directory / "hetroute-r1", fidelity=None)
    with pytest.raises(TestbedError, match=r"manifest\.json: .*missing required field `fidelity`"):
        load(directory)


def test_a_later_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    directory = small(tmp_path)
    edit_manifest(directory / "hetroute-r1", format=2)
    with pytest.raises(TestbedError, match="format 2, but this analysis reads format 1"):
        load(directory)


def test_a_directory_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="not a results directory"):
        load(tmp_path)
    with pytest.raises(TestbedError, match="no such results directory"):
        load(tmp_path / "nowhere")
