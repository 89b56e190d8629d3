"""Quality by hand: sums over requests, a row per domain, the worst marked; and results from before it was recorded."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from analysis import figures, style
from analysis.bootstrap import Bootstrap
from analysis.domains import WORST, by_domain, cells, csv_text, markdown, shown
from analysis.load import Comparison, Run, load
from analysis.metrics import metric
from analysis.schema import LATER

from .analysis_data import HABITS, write_comparison

B = Bootstrap(resamples=50)
TWO = {name: HABITS[name] for name in ("edgeshard", "hetroute")}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    results = tmp_path_factory.mktemp("results")
    return load(write_comparison(results, frameworks=TWO, requests=60, layers=2))


def with_columns(run: Run, **columns: list[object]) -> Run:
    """The first requests of a run, none failed, with these values."""
    n = len(next(iter(columns.values())))
    frame = run.requests.head(n).with_columns(error=pl.lit(None, dtype=pl.String), latency_s=0.1)
    given = {name: pl.Series(values, dtype=frame.schema[name]) for name, values in columns.items()}
    return replace(run, requests=frame.with_columns(**given))


def value(key: str, run: Run) -> float | None:
    return metric(key).measure([run], B).value


def test_accuracy_counts_predicted_tokens(two: Comparison) -> None:
    run = with_columns(two.runs[0], prompt_tokens=[11, 31], correct=[5, 9], reference_correct=[6, 12])

    assert value("accuracy", run) == pytest.approx(14 / 40)
    assert value("accuracy_reference", run) == pytest.approx(18 / 40)
    assert value("accuracy_change", run) == pytest.approx(-4 / 40)


def test_divergence_is_a_mean_over_positions(two: Comparison) -> None:
    run = with_columns(two.runs[0], prompt_tokens=[10, 30], kl=[0.004, 0.0])

    assert value("kl_divergence", run) == pytest.approx(0.001)


def test_a_request_whose_divergence_is_not_known_is_left_out_of_it(two: Comparison) -> None:
    run = with_columns(two.runs[0], prompt_tokens=[10, 30], kl=[0.004, None])

    found = metric("kl_divergence").measure([run], B)
    assert found.value == pytest.approx(0.004)
    assert found.n == 1


def test_cloze_accuracy_leaves_requests_without_items_out(two: Comparison) -> None:
    run = with_columns(
        two.runs[0], cloze_items=[4, 0, 1, None], cloze_hits=[1, 0, 1, None], reference_cloze_hits=[3, 0, 1, None]
    )

    found = metric("cloze_accuracy").measure([run], B)
    assert (found.value, found.n) == (pytest.approx(2 / 5), 2)
    assert value("cloze_accuracy_reference", run) == pytest.approx(4 / 5)
    assert value("cloze_change", run) == pytest.approx(-2 / 5)


def test_a_change_that_is_the_same_in_every_request_is_certain_however_hard_the_texts_are(two: Comparison) -> None:
    n = 40
    run = with_columns(
        two.runs[0],
        prompt_tokens=[11] * n,
        correct=[i % 10 for i in range(n)],
        reference_correct=[i % 10 + 1 for i in range(n)],
    )

    found = metric("accuracy_change").measure([run], B)
    plain = metric("accuracy").measure([run], B)

    assert (found.low, found.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert (plain.low or 0) < (plain.high or 0)


def test_generated_text_agrees_token_by_token_and_predicts_nothing(two: Comparison) -> None:
    run = with_columns(
        two.runs[0],
        kind=["generate", "score"],
        prompt_tokens=[50, 4],
        output_tokens=[6, 0],
        top1_agreement=[0.5, 1.0],
        nll=[None, 2.0],
        reference_nll=[None, 1.0],
        correct=[None, 1],
    )

    assert value("top1_agreement", run) == pytest.approx((0.5 * 6 + 4) / 10)
    assert value("nll_increase", run) == pytest.approx(1.0)
    assert value("accuracy", run) == pytest.approx(1 / 3)


def test_every_framework_has_a_row_of_all_text_and_one_per_domain(two: Comparison) -> None:
    rows = by_domain(two, two.frameworks, B)

    assert [(row.framework, row.domain) for row in rows] == [
        (framework, domain) for framework in ("edgeshard", "hetroute") for domain in (None, "code", "docs", "plays")
    ]
    parts = [row.estimates["nll_increase"].n for row in rows if row.framework == "hetroute"]
    assert parts[0] == sum(parts[1:])


def test_the_domain_that_loses_most_is_marked_and_none_of_an_exact_framework(two: Comparison) -> None:
    hurt = [
        replace(run, requests=run.requests.with_columns(nll=pl.col("reference_nll") * 1.5).filter(damaged).vstack(rest))
        for run in two.runs_of("hetroute")
        for damaged in [pl.col("domain") == "docs"]
        for rest in [run.requests.filter(~damaged)]
    ]
    comparison = replace(two, runs=(*two.runs_of("edgeshard"), *hurt))

    rows = by_domain(comparison, two.frameworks, B)

    assert [(row.framework, row.domain) for row in rows if row.worst] == [("hetroute", "docs")]
    assert f"| hetroute | docs {WORST} |" in markdown(rows)


def test_an_exact_framework_takes_one_row_of_the_table_and_loses_nothing(two: Comparison) -> None:
    rows = by_domain(two, two.frameworks, B)

    table = shown(rows)
    assert [row.domain for row in table if row.framework == "edgeshard"] == [None]
    assert [row.domain for row in table if row.framework == "hetroute"] == [None, "code", "docs", "plays"]
    exact = rows[0].estimates
    assert (exact["nll_increase"].value, exact["kl_divergence"].value) == (0.0, 0.0)
    assert exact["accuracy"].value == exact["accuracy_reference"].value
    assert (exact["accuracy_change"].value, exact["cloze_change"].value) == (0.0, 0.0)


def test_the_domains_own_difficulty_is_shown_even_if_nothing_was_lost(two: Comparison) -> None:
    rows = by_domain(two, ["edgeshard"], B)

    assert [row.domain for row in shown(rows)] == [None, "code", "docs", "plays"]


def test_the_csv_holds_every_number_of_every_row(two: Comparison) -> None:
    rows = by_domain(two, two.frameworks, B)

    found = list(csv.DictReader(io.StringIO(csv_text(rows))))

    assert len(found) == len(rows)
    lossy = next(row for row in found if row["framework"] == "hetroute" and row["domain"] == "all")
    assert float(lossy["kl_divergence"]) == pytest.approx(rows[4].estimates["kl_divergence"].value, rel=1e-5)
    assert float(lossy["kl_divergence_low"]) < float(lossy["kl_divergence"]) < float(lossy["kl_divergence_high"])


def test_the_figure_shows_every_lossy_framework_in_every_domain_with_its_interval(two: Comparison) -> None:
    rows = by_domain(two, two.frameworks, B)

    with style.context():
        figure = figures.quality_by_domain(rows)

    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["all", "code", "docs", "plays"]
    assert left.get_xlabel() == "%"
    assert right.get_xlabel() == "mnat/token"
    shown_kl = [container.lines[0].get_xdata()[0] for container in right.containers]  # type: ignore[attr-defined]
    assert shown_kl == pytest.approx([1e3 * (row.estimates["kl_divergence"].value or 0) for row in rows[4:]])
    assert "edgeshard" in figure.get_suptitle()


def test_results_from_before_quality_was_recorded_load_without_it(two: Comparison, tmp_path: Path) -> None:
    directory = write_comparison(tmp_path, frameworks=TWO, requests=12, layers=2)
    for file in directory.glob("*/requests.parquet"):
        pl.read_parquet(file).drop(*LATER["requests"]).write_parquet(file)

    old = load(directory)
    rows = by_domain(old, old.frameworks, B)

    assert list(old.runs[0].requests.columns) == list(two.runs[0].requests.columns)
    assert rows[0].estimates["perplexity"].value is not None
    assert rows[0].estimates["kl_divergence"].value is None
    assert cells(rows[0])[-2:] == ["–", "– (n = 0)"]


def test_a_replayed_trace_has_no_quality_to_show(two: Comparison) -> None:
    nothing = {name: pl.lit(None, dtype=pl.Float64) for name in ("nll", "reference_nll", "top1_agreement", "kl")}
    runs = tuple(replace(run, requests=run.requests.with_columns(**nothing)) for run in two.runs)

    assert by_domain(replace(two, runs=runs), two.frameworks, B) == ()
