"""The scenario of TrimMoE's paper: a small grid from the command line to tables and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from analysis import depth
from analysis.depthpaper import PAGE, draw, line
from analysis.load import load
from orchestration.trimmoe_paper import main, parts
from scenarios.trimmoe_paper import DEFAULT, QUICK
from testbed.errors import TestbedError

TINY = replace(QUICK, duration_s=1.5, budgets=(0.02,), generating=("edgeshard", "edgeshard+calm:0.2"), generate_s=3.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trimmoe")
    assert main(["--quick", "--out", str(out)], default=DEFAULT, quick=TINY, draw=draw) == 0
    (made,) = out.iterdir()
    return made


def test_every_part_of_the_grid_is_a_comparison_and_a_table(directory: Path) -> None:
    page = (directory / PAGE).read_text()

    for part in parts(TINY):
        assert (directory / part.name / "comparison.json").is_file()
        assert f"## {part.name}" in page
    assert "| left out | bottleneck |" in page
    assert "TPOT (ms)" in page
    assert "traffic -77.2 %" in page


def test_what_was_decided_adds_up_to_every_call_of_every_layer(directory: Path) -> None:
    comparison = load(directory / "frameworks-switch-base-8")

    assert depth.with_depth(comparison) == ("trimmoe",)
    run = comparison.runs_of("trimmoe")[0]
    decided = depth.decided(run)
    assert decided is not None
    calls = decided.group_by("request", "layer").agg(pl.col("calls").sum()).join(run.requests, on="request")
    assert (calls["calls"] == calls["prompt_tokens"]).all()  # top-1
    mix = depth.mix(comparison, "trimmoe", ("layer", "decision"))
    for share in mix.group_by("layer").agg(pl.col("share").sum())["share"]:
        assert share == pytest.approx(1.0)


def test_the_figure_has_a_bar_per_layer_and_decision(directory: Path) -> None:
    figure = depth.mix_per_layer(load(directory / "frameworks-switch-base-8"), ("trimmoe",))

    (axes,) = figure.axes
    assert axes.get_xlabel() == "layer"
    assert "n = " in axes.get_title(loc="left")
    assert len(axes.patches) == 12 * len(depth.DECISIONS)
    assert (directory / "budgets.svg").is_file()


def test_trimming_saves_time_and_its_loss_is_measured(directory: Path) -> None:
    lines = {run.manifest.framework: line(run) for run in load(directory / "frameworks-switch-base-8").runs}

    assert lines["trimmoe"].mean_s < lines["edgeshard"].mean_s
    assert lines["edgeshard"].loss == 0.0
    assert 0.0 < (lines["trimmoe"].loss or 0.0) < 0.05


def test_a_table_without_a_column_is_named_with_it(directory: Path, tmp_path: Path) -> None:
    run = replace(load(directory / "frameworks-switch-base-8").runs_of("trimmoe")[0], path=tmp_path)
    pl.DataFrame({"request": [1]}).write_parquet(tmp_path / depth.DEPTH_FILE)

    with pytest.raises(TestbedError, match="column 'step' is missing"):
        depth.decided(run)


def test_parts_can_be_chosen_by_the_beginning_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", "nothing", "--out", str(tmp_path)], default=DEFAULT, quick=TINY, draw=draw) != 0

    assert "--only nothing fits no part: frameworks-mixtral-8x7b" in capsys.readouterr().err
