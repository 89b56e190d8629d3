"""The scenario of HetRoute's paper: a small grid from the command line to the table of claims, and how it goes on."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.bootstrap import Estimate
from analysis.hetrouteclaims import default_condition, gain, throughputs, verdict
from analysis.hetroutepaper import CLAIMS, PAGE, draw, reactions
from analysis.load import load
from analysis.papertable import KINDS, Condition, Grid, latencies_s, mix, read
from analysis.reaction import table
from orchestration.hetroute_paper import main, parts
from orchestration.papergrid import ASIDE, finished
from scenarios.hetroute_paper import DEFAULT, QUICK
from testbed.errors import TestbedError

TINY = replace(
    QUICK,
    duration_s=0.6,
    frameworks=("edgeshard", "hetroute"),
    loads_per_s=(),
    redundancies=(),
    budgets=(),
    ablations=(),
    spread_models=(),
    disturbed=("edgeshard",),
    disturbed_s=3.0,
    disturbed_rate_per_s=10.0,
)


def played(out: Path, *arguments: str) -> int:
    return main(["--quick", "--out", str(out), *arguments], default=DEFAULT, quick=TINY, draw=draw)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hetroute")
    assert played(out) == 0
    (made,) = out.iterdir()
    return made


def row(framework: str, seed: int, **values: object) -> dict[str, object]:
    usual: dict[str, object] = {
        "part": "default",
        "framework": framework,
        "model": "m",
        "rate_per_s": 40.0,
        "budget": 0.02,
        "redundancy": 2.0,
        "scenario": "steady_load",
        "backend": "sim",
        "seed": seed,
        "mean_s": 0.1,
        "within": 1.0,
    }
    return usual | values


def test_the_whole_grid_has_every_experiment_and_parts_of_distinct_names() -> None:
    found = list(parts(DEFAULT))
    names = [part.name for part in found]

    assert len(set(names)) == len(names)
    assert {part.rate_per_s for part in found} >= {10.0, 40.0, 80.0}
    assert {part.redundancy for part in found} == {1.0, 2.0, 3.0}
    assert {part.budget for part in found} == {0.005, 0.01, 0.02, 0.03}
    assert {part.model for part in found} == set(DEFAULT.models)
    assert [part.name for part in found if part.backend == "netns"] == ["emulated"]


def test_every_part_is_a_comparison_a_table_and_a_row_of_the_claims(directory: Path) -> None:
    page = (directory / PAGE).read_text()

    for part in parts(TINY):
        if part.backend == "sim":
            assert finished(directory / part.name, part)
            assert f"## {part.name}" in page
    with (directory / CLAIMS).open() as file:
        claims = {claim["what"]: claim for claim in csv.DictReader(file)}
    assert claims["mean latency against edgeshard"]["paper"] == "−59.0 %"
    assert claims["mean latency against edgeshard"]["against_int8"]
    assert "perplexity, full to served" in claims
    assert not (directory / ASIDE).exists()


def test_a_finished_grid_is_not_played_again_and_an_interrupted_one_goes_on(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (directory / "default" / "comparison.json").stat().st_mtime_ns
    (directory / "lower" / "part.json").unlink()
    (directory / "lower" / "comparison.json").unlink()
    for run in (directory / "lower").iterdir():
        for file in run.iterdir():
            file.unlink()
        run.rmdir()
    (directory / "lower").rmdir()
    for name in ("lower", "another"):
        (directory / ASIDE / name).mkdir(parents=True)  # what interruptions left

    assert played(directory) == 0

    assert (directory / "default" / "comparison.json").stat().st_mtime_ns == before
    assert (directory / "lower" / "comparison.json").is_file()
    assert "1 of 1: lower" in capsys.readouterr().err
    assert [left.name for left in (directory / ASIDE).iterdir()] == ["another"]


def test_a_directory_of_other_values_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(directory, "--seed", "9") != 0
    assert "was played with other values" in capsys.readouterr().err

    assert played(directory, "--topology", "topologies/small3.yaml") != 0
    assert "on edge10, not hetroute_paper on small3" in capsys.readouterr().err


def test_repeats_are_paired_by_seed_before_they_are_averaged() -> None:
    table = pl.DataFrame(
        [row("a", 0, mean_s=1.0), row("a", 1, mean_s=30.0), row("b", 0, mean_s=2.0), row("b", 1, mean_s=60.0)]
    )
    found = Grid(table).change("a", "b", default_condition(Grid(table)), "mean_s")

    assert (found.value, found.low, found.high) == (-0.5, -0.5, -0.5)


def test_throughput_is_the_load_up_to_which_the_mean_is_within_the_objective() -> None:
    means = {20.0: (0.1, 0.2), 40.0: (0.2, 0.5), 80.0: (0.4, 2.0)}
    rows = [
        row(name, seed, rate_per_s=rate, mean_s=both[place])
        for rate, both in means.items()
        for place, name in enumerate(("hetroute", "edgeshard"))
        for seed in (0, 1)
    ]
    grid = Grid(pl.DataFrame(rows))
    at = Condition(model="m", rate_per_s=40.0, budget=0.02, redundancy=2.0)

    assert throughputs(grid, "hetroute", at)[0] == pytest.approx(40 * math.sqrt(2))
    assert throughputs(grid, "edgeshard", at)[1] == pytest.approx(20 * 2 ** (1 / 3))
    assert gain(grid, "hetroute", "edgeshard", at, "throughput").value == pytest.approx(2 ** (7 / 6) - 1)


@pytest.mark.parametrize(
    ("value", "high", "said"),
    [(-0.7, -0.6, "yes"), (-0.6, -0.5, "yes, but not with the whole interval"), (-0.5, -0.4, "no")],
)
def test_an_aim_is_reached_by_the_value_and_by_the_whole_interval(value: float, high: float, said: str) -> None:
    assert verdict(Estimate(value=value, low=-0.9, high=high, n=3, method=""), -0.59) == said


def test_a_request_that_failed_counts_with_its_deadline(directory: Path) -> None:
    run = load(directory / "default").runs_of("edgeshard")[0]
    first = pl.col("request") == run.requests["request"][0]
    lost = run.requests.with_columns(
        pl.when(first).then(pl.lit("lost")).otherwise(pl.col("error")).alias("error"),
        pl.when(first).then(None).otherwise(pl.col("latency_s")).alias("latency_s"),
    )

    assert latencies_s(replace(run, requests=lost)).max() == run.manifest.deadline_s
    assert latencies_s(run).max() < 1.0


def test_every_expert_call_is_of_one_kind(directory: Path) -> None:
    grid = read(directory)

    for values in grid.table.select(KINDS).iter_rows():
        assert sum(values) == pytest.approx(1.0)
    run = load(directory / "default").runs_of("hetroute")[0]
    replaced = run.layers.with_columns(pl.col("experts").alias("substitute_experts"))
    assert mix(replace(run, layers=replaced))["substitute"] == pytest.approx(1.0)


def test_what_hetroute_expected_of_its_decisions_is_on_record(directory: Path) -> None:
    grid = read(directory)
    at = default_condition(grid)

    assert grid.mean("hetroute", at, "predicted_compute_s").value == pytest.approx(
        grid.mean("hetroute", at, "layer_s").value, rel=0.5
    )
    assert grid.mean("edgeshard", at, "predicted_compute_s").value is None
    assert "## Predicted cost of a decision" in (directory / PAGE).read_text()


def test_a_disturbance_is_held_against_the_same_requests_on_a_calm_day(directory: Path) -> None:
    ((reaction,),) = reactions(directory).values()

    before = reaction.slower[reaction.arrived_s < reaction.moments_s[0] - 0.1]
    assert np.allclose(before, 1.0)
    assert reaction.worst > 1.0
    assert reaction.during_s > reaction.calm_s
    assert len(reaction.recoveries_s) == len(reaction.moments_s) == 2
    assert "| server_slowdown | `edgeshard` |" in table({"server_slowdown": [reaction]})


def test_results_that_are_no_grid_are_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="holds no finished part"):
        read(tmp_path)


def test_only_the_default_point_runs_on_packets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert played(tmp_path, "--backend", "netns", "--only", "default") != 0

    assert "no part of this grid runs on --backend netns" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_part_remembers_its_condition(directory: Path) -> None:
    written = json.loads((directory / "server_slowdown" / "part.json").read_text())

    assert (written["scenario"], written["seeds"], written["budget"]) == ("server_slowdown", [0, 1], 0.02)
