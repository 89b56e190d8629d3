"""A sweep plays every cell once: what a cell is, who plays it, where it lies, and what its table says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agents.models.model import Model
from analysis import curves, style
from analysis.__main__ import app
from analysis.bootstrap import Bootstrap
from analysis.load import load, load_run
from analysis.metrics import metric
from analysis.seeds import Point, over_seeds, points, student
from analysis.sweep import (
    METRICS,
    SCHEMA,
    TRAFFIC,
    CellFile,
    FailureFile,
    SweepFile,
    load_sweep,
    write_table,
)
from orchestration.bench import Bench, CellError, Task, digest_of_model, source
from orchestration.cells import (
    MAX_CELLS,
    Chains,
    Grid,
    Identity,
    Source,
    cells,
    digest,
    digest_of_text,
    rates_in,
    seeds_in,
)
from orchestration.sweep import WORKER_BYTES, remembered_bytes, steady
from orchestration.sweepfiles import FAILED, MANIFEST_FILE, UNDER_WAY, SweepDirectory
from scenarios.timeline import Request, Scenario
from testbed.errors import TestbedError
from testbed.load import load_topology
from testbed.topology import Topology

from .analysis_data import HABITS, edit_manifest, write_comparison

ROOT = Path(__file__).parents[2]
TWIN = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
SMALL = load_topology(ROOT / "topologies" / "small3.yaml")
TEN = load_topology(ROOT / "topologies" / "edge10.yaml")


def scenario(rate_per_s: float = 8.0, seed: int = 0) -> Scenario:
    request = Request(number=0, at_s=1 / rate_per_s, home="s1", kind="score", domain="code", prompt=seed, tokens=8)
    return Scenario(
        name="steady", question="?", duration_s=2.0, arrival_rate_per_s=rate_per_s, requests=(request,), slo_s=0.3
    )


def timeline(topology: Topology, rate_per_s: float | None, seed: int) -> Scenario:
    return scenario(rate_per_s or 8.0, seed)


def grid(**changes: Any) -> Grid:
    values: dict[str, Any] = {
        "scenario": Source(asked="steady"),
        "frameworks": (Source(asked="edgeshard"), Source(asked="hetroute")),
        "topologies": (SMALL, TEN),
        "rates_per_s": (4.0, 8.0),
        "seeds": (0, 1),
        "model": "mixtral-8x7b",
        "model_files": "0123",
    }
    return Grid(**values | changes)


def names(**changes: Any) -> list[str]:
    return [cell.name for cell in cells(grid(**changes), timeline)]


IDENTITY = cells(grid(), timeline)[0].identity

# --- what people write ------------------------------------------------------------------------------------------------


def test_rates_are_lists_and_ranges_with_steps_in_the_order_they_are_written() -> None:
    assert rates_in("32, 4,8-16:4", option="--rates") == (32.0, 4.0, 8.0, 12.0, 16.0)
    assert rates_in("0.1-0.4:0.1", option="--rates") == (0.1, 0.2, 0.3, 0.4)  # without the dust of adding floats
    assert rates_in("1-2.5", option="--rates") == (1.0, 2.0)
    assert rates_in("5e-1", option="--rates") == (0.5,)


def test_seeds_are_whole_numbers() -> None:
    assert seeds_in("0-4,7,1e1", option="--seeds") == (0, 1, 2, 3, 4, 7, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--rates: '' has an empty entry; write for example 1,2,4 or 1-4 or 2-8:2"),
        ("4,,8", "--rates: '4,,8' has an empty entry; write for example 1,2,4 or 1-4 or 2-8:2"),
        ("4-x", "--rates: '4-x' is neither a number nor a range; write for example 1,2,4 or 1-4 or 2-8:2"),
        ("inf", "--rates: 'inf' is neither a number nor a range; write for example 1,2,4 or 1-4 or 2-8:2"),
        ("-4", "--rates: '-4' is neither a number nor a range; write for example 1,2,4 or 1-4 or 2-8:2"),
        ("8-4", "--rates: '8-4' counts down; write the smaller number first"),
        ("4-8:0", "--rates: '4-8:0' has no steps; write a step above 0"),
        ("4,8,4.0", "--rates: 4 is named twice"),
        ("1-8,40-50,4", "--rates: 4 is named twice"),
        ("0", "--rates: 0 requests/s is not between 0.001 and 100000"),
        ("1e999", "--rates: inf requests/s is not between 0.001 and 100000"),
        ("1-1e9", "--rates: '1-1e9' has more than 10000 values"),
    ],
)
def test_a_wrong_list_of_rates_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(TestbedError) as raised:
        rates_in(text, option="--rates")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.5", "--seeds: 1.5 is no seed; seeds are whole numbers"),
        ("0-1:0.5", "--seeds: 0.5 is no seed; seeds are whole numbers"),
        ("9223372036854775808", "--seeds: 9223372036854775808 is too large; seeds go up to 9223372036854775807"),
        ("1e999", "--seeds: 1E+999 is too large; seeds go up to 9223372036854775807"),
    ],
)
def test_a_wrong_list_of_seeds_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(TestbedError) as raised:
        seeds_in(text, option="--seeds")
    assert str(raised.value) == message


# --- what a cell is ---------------------------------------------------------------------------------------------------


def test_a_name_says_where_the_cell_stands_and_can_name_a_directory() -> None:
    assert names()[0] == f"steady-small3-edgeshard-4rps-seed0-{digest(IDENTITY)[:10]}"
    odd = msgspec.structs.replace(IDENTITY, framework="../a b/'c'", scenario="...", rate_per_s=0.125)
    assert odd.name == f"unnamed-small3-a_b_c-0.125rps-seed0-{digest(odd)[:10]}"


@pytest.mark.parametrize("field", Identity.__struct_fields__)
def test_whatever_decides_the_records_makes_another_cell(field: str) -> None:
    before = getattr(IDENTITY, field)
    other = {"scenario_text": "x", "framework_text": "x", "generate_share": 0.5}.get(field)
    if other is None:
        other = f"{before}x" if isinstance(before, str) else before + 1
    assert msgspec.structs.replace(IDENTITY, **{field: other}).name != IDENTITY.name


@pytest.mark.parametrize(
    "changes",
    [
        {"scenario": Source(asked="mine.py", text="1")},
        {"frameworks": (Source(asked="a.py", text="1"), Source(asked="b.py", text="2"))},
        {"topologies": (replace(SMALL, description="another"), replace(TEN, description="another"))},
        {"generate_share": 0.5},
        {"model_files": "4567"},
        {"redundancy": 3.0},
    ],
)
def test_what_is_asked_for_reaches_the_identity(changes: dict[str, Any]) -> None:
    assert not set(names()) & set(names(**changes))


def test_the_text_of_a_users_file_tells_cells_apart_and_its_directory_does_not() -> None:
    def of(asked: str, text: str) -> list[str]:
        return names(frameworks=(Source(asked=asked, text=text),))

    assert of("mine.py", "1") != of("mine.py", "2")
    assert of("mine.py", "1") == of("/elsewhere/mine.py", "1")


def test_a_scenario_that_has_changed_makes_other_cells_under_the_same_name_of_its_own() -> None:
    def changed(topology: Topology, rate_per_s: float | None, seed: int) -> Scenario:
        return replace(timeline(topology, rate_per_s, seed), deadline_s=1.0)

    assert not set(names()) & {cell.name for cell in cells(grid(), changed)}


def test_a_grid_that_grows_keeps_its_cells() -> None:
    grown = names(
        rates_per_s=(4.0, 8.0, 16.0), seeds=(0, 1, 2), frameworks=(*grid().frameworks, Source(asked="greedy"))
    )
    assert set(names()) < set(grown)
    assert len(grown) == len(set(grown)) == 2 * 3 * 3 * 3


def test_the_scenarios_own_rate_and_the_same_rate_asked_for_are_the_same_cell() -> None:
    assert names(rates_per_s=(None,)) == names(rates_per_s=(8.0,))


def test_first_come_all_networks_and_loads_of_a_seed_and_frameworks_stand_together() -> None:
    places = [
        (cell.identity.seed, cell.identity.topology, cell.identity.rate_per_s, cell.identity.framework)
        for cell in cells(grid(), timeline)
    ]
    assert places[:5] == [
        (0, "small3", 4.0, "edgeshard"),
        (0, "small3", 4.0, "hetroute"),
        (0, "small3", 8.0, "edgeshard"),
        (0, "small3", 8.0, "hetroute"),
        (0, "edge10", 4.0, "edgeshard"),
    ]
    assert [seed for seed, *_ in places] == [0] * 8 + [1] * 8


def test_a_network_that_is_named_twice_is_refused_whatever_the_name_of_its_file() -> None:
    with pytest.raises(TestbedError, match="two of the topologies describe the same network"):
        names(topologies=(SMALL, SMALL))


def test_a_scenario_that_takes_no_notice_of_the_rate_is_refused() -> None:
    with pytest.raises(TestbedError, match=r"steady plays the same at 4 and 8 requests/s: .*arrival_rate_per_s"):
        cells(grid(), lambda topology, rate_per_s, seed: scenario(8.0, seed))


def test_too_many_cells_are_refused_before_their_timelines_are_built() -> None:
    def never(topology: Topology, rate_per_s: float | None, seed: int) -> Scenario:
        raise AssertionError("built")

    with pytest.raises(TestbedError, match=f"a sweep has at most {MAX_CELLS}"):
        cells(grid(seeds=tuple(range(MAX_CELLS))), never)


def test_timelines_are_plain_values_even_if_a_scenario_draws_with_numpy() -> None:
    request = Request(
        number=0, at_s=np.float64(0.5), home="s1", kind="score", domain="code", prompt=np.int64(3), tokens=np.int64(8)
    )
    drawn = replace(scenario(), requests=(request,))
    assert type(steady(lambda *_: drawn, scenario="mine.py")(SMALL, None, 0).requests[0].prompt) is int


def test_a_scenario_that_cannot_be_built_is_named_with_the_network() -> None:
    def broken(topology: Topology, rate_per_s: float | None, seed: int) -> Scenario:
        raise KeyError("s9")

    with pytest.raises(TestbedError, match=r"scenario mine\.py cannot be built for small3: KeyError: 's9'"):
        steady(broken, scenario="mine.py")(SMALL, None, 0)


# --- who plays it -----------------------------------------------------------------------------------------------------


def test_a_chain_belongs_to_the_worker_that_began_it() -> None:
    asked = cells(grid(), timeline)  # four chains of four cells
    chains = Chains(asked)
    first, second = [], []
    for _ in range(4):
        first.append(chains.next_for(1))
        second.append(chains.next_for(2))

    assert first == list(asked[:4])
    assert second == list(asked[4:8])


def test_a_worker_without_work_takes_over_the_last_timelines_of_the_longest_chain() -> None:
    asked = cells(grid(topologies=(SMALL,), seeds=(0,), rates_per_s=(1.0, 2.0, 3.0)), timeline)
    chains = Chains(asked)

    assert chains.next_for(1) == asked[0]
    assert chains.next_for(2) == asked[2]  # a timeline begins there, two before the end of what is left
    assert [chains.next_for(1), chains.next_for(1)] == [asked[1], asked[4]]
    assert len(chains) == 2


def test_a_single_timeline_is_shared_between_two_workers() -> None:
    asked = cells(grid(topologies=(SMALL,), seeds=(0,), rates_per_s=(1.0,)), timeline)
    chains = Chains(asked)
    assert [chains.next_for(1), chains.next_for(2), chains.next_for(1), chains.next_for(2)] == [*asked, None, None]


@given(workers=st.lists(st.integers(0, 3), min_size=36, max_size=60), rates=st.integers(1, 3), seeds=st.integers(1, 3))
def test_every_cell_is_handed_out_once_whoever_asks_when(workers: list[int], rates: int, seeds: int) -> None:
    asked = cells(grid(rates_per_s=tuple(range(1, rates + 1)), seeds=tuple(range(seeds))), timeline)
    chains = Chains(asked)
    given_out = [cell for worker in workers if (cell := chains.next_for(worker)) is not None]
    assert sorted(cell.name for cell in given_out) == sorted(cell.name for cell in asked)
    assert len(chains) == 0


@given(machine_bytes=st.integers(2**28, 2**42), processes=st.integers(1, 256))
def test_all_workers_together_remember_no_more_than_a_quarter_of_the_memory(machine_bytes: int, processes: int) -> None:
    each = remembered_bytes(machine_bytes, processes)
    assert each >= 0
    assert each == 0 or processes * (each + WORKER_BYTES) <= machine_bytes / 4


# --- where it lies ----------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    made = SweepDirectory(tmp_path / "sweep")
    made.plan(cells(grid(), timeline), question="?", finished=False)
    return made


def play(directory: SweepDirectory, identity: Identity = IDENTITY) -> None:
    with directory.claimed(identity.name) as mine, directory.beside(identity.name) as beside:
        assert mine
        run = beside / "edgeshard-r0"
        run.mkdir()
        (run / MANIFEST_FILE).write_text("{}")
        assert not directory.is_finished(identity.name)
        directory.keep(identity, run, digest(identity))


def test_a_cell_is_finished_when_it_is_whole_and_in_its_place(directory: SweepDirectory) -> None:
    play(directory)

    assert directory.is_finished(IDENTITY.name)
    about = json.loads((directory.path / IDENTITY.name / "cell.json").read_text())
    assert about == {"name": IDENTITY.name, "digest": digest(IDENTITY), **msgspec.structs.asdict(IDENTITY)}
    assert list((directory.path / UNDER_WAY).iterdir()) == []


def test_a_cell_that_is_interrupted_leaves_nothing_that_counts(directory: SweepDirectory) -> None:
    def interrupted() -> None:
        with directory.beside(IDENTITY.name) as beside:
            (beside / "edgeshard-r0").mkdir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert not directory.is_finished(IDENTITY.name)
    assert list((directory.path / UNDER_WAY).iterdir()) == []


def test_what_a_killed_worker_left_is_begun_anew(directory: SweepDirectory) -> None:
    left = directory.path / UNDER_WAY / IDENTITY.name / "edgeshard-r0"
    left.mkdir(parents=True)
    (left / MANIFEST_FILE).write_text("{}")
    (directory.path / UNDER_WAY / f"{IDENTITY.name}.lock").touch()
    assert not directory.is_finished(IDENTITY.name)

    play(directory)
    assert directory.is_finished(IDENTITY.name)


def test_a_cell_is_claimed_by_one(directory: SweepDirectory) -> None:
    with directory.claimed(IDENTITY.name) as mine:
        assert mine
        with directory.claimed(IDENTITY.name) as theirs:
            assert not theirs
        with directory.claimed("another") as other:
            assert other
    with directory.claimed(IDENTITY.name) as again:
        assert again


def test_claims_do_without_fcntl(tmp_path: Path) -> None:
    """As on systems that have no such module."""
    script = f"""
import sys, warnings
sys.modules["fcntl"] = None
warnings.simplefilter("ignore")
from pathlib import Path
from orchestration.sweepfiles import UNDER_WAY, SweepDirectory
import orchestration.sweep
directory = SweepDirectory(Path({str(tmp_path)!r}))
(directory.path / UNDER_WAY).mkdir()
with directory.claimed("cell") as mine, directory.claimed("cell") as theirs:
    assert mine and not theirs
with directory.claimed("cell") as again:
    assert again
print("well")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "well\n", done.stderr


def test_a_failure_is_written_down_until_the_cell_is_finished(directory: SweepDirectory) -> None:
    directory.fail(IDENTITY, "no room for experts", "Traceback ...")
    file = directory.path / FAILED / f"{IDENTITY.name}.json"
    assert json.loads(file.read_text())["reason"] == "no room for experts"

    play(directory)
    assert not file.exists()


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TestbedError, match=r"the sweep cannot be written to .*file/sweep: Not a directory"):
        SweepDirectory(tmp_path / "file" / "sweep").plan(cells(grid(), timeline), question="?", finished=False)


# --- what it is played with -------------------------------------------------------------------------------------------


def test_files_that_changed_after_the_sweep_began_fail_the_cell(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("new")
    bench = Bench(TWIN, memory_bytes=0)
    files = digest_of_model(Model.load(TWIN))

    def task(**changes: Any) -> Task:
        identity = msgspec.structs.replace(IDENTITY, **changes)
        return Task(identity=identity, framework=str(file), topology=SMALL, scenario=scenario())

    with pytest.raises(CellError, match=r"mine\.py has changed since the sweep began; start it again"):
        bench.play(task(model_files=files, framework_text=digest_of_text("old")), tmp_path)
    with pytest.raises(CellError, match="the model has changed since the sweep began"):
        bench.play(task(framework_text=digest_of_text("new")), tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"nothing\.py cannot be read"):
        source(str(tmp_path / "nothing.py"))


def test_the_digest_of_a_model_sees_every_file_of_it(tmp_path: Path) -> None:
    shutil.copytree(TWIN, tmp_path / "twin")
    copied = digest_of_model(Model.load(tmp_path / "twin"))
    assert copied == digest_of_model(Model.load(TWIN))

    for file in sorted((tmp_path / "twin").iterdir()):
        content = file.read_bytes()
        if file.suffix == ".json":
            file.write_bytes(content + b"\n")
            assert digest_of_model(Model.load(tmp_path / "twin")) != copied, file
            file.write_bytes(content)
    (tmp_path / "twin" / "more").touch()
    assert digest_of_model(Model.load(tmp_path / "twin")) != copied


# --- what its table says ----------------------------------------------------------------------------------------------


def write_sweep(
    path: Path,
    *,
    frameworks: Sequence[str] = ("edgeshard", "hetroute"),
    rates: Sequence[float] = (4.0, 8.0),
    seeds: int = 3,
    contents: Sequence[str] = ("aaaa1", "bbbb2"),
    topology_names: Sequence[str] = ("edge10", "metro"),
) -> list[str]:
    """A made-up sweep; returns the names of its cells."""
    path.mkdir()
    asked = []
    for content, topology in zip(contents, topology_names, strict=True):
        for seed in range(seeds):
            for rate_per_s in rates:
                for framework in frameworks:
                    identity = msgspec.structs.replace(
                        IDENTITY,
                        topology=topology,
                        topology_content=content,
                        framework=framework,
                        rate_per_s=rate_per_s,
                        seed=seed,
                    )
                    habit = replace(HABITS[framework], median_s=HABITS[framework].median_s * rate_per_s)
                    made = write_comparison(
                        path, frameworks={framework: habit}, requests=30, layers=1, seed=seed, name="made"
                    )
                    edit_manifest(made / f"{framework}-r1", wall_s=1.5)
                    SweepDirectory(path).keep(identity, made / f"{framework}-r1", digest(identity))
                    shutil.rmtree(made)
                    asked.append(identity.name)
    write_plan(path, asked)
    return asked


def write_plan(path: Path, asked: Sequence[str]) -> None:
    plan = {"format": 1, "scenario": "steady", "question": "?", "cells": list(asked), "finished": True}
    (path / "sweep.json").write_text(json.dumps(plan))


def test_a_row_holds_what_analysis_says_of_the_run(tmp_path: Path) -> None:
    asked = write_sweep(tmp_path / "sweep", seeds=1)
    found = load_sweep(tmp_path / "sweep")

    assert found.table.schema == SCHEMA
    assert found.table["cell"].to_list() == asked
    assert found.notes == ()
    for row in found.table.iter_rows(named=True):
        run = load_run(tmp_path / "sweep" / row["cell"])
        for key in METRICS:
            assert row[key] == metric(key).measure([run], Bootstrap(resamples=5)).value, key
        assert row[TRAFFIC] == run.completed["sent_bytes"].mean()
        assert (row["sent"], row["completed"], row["failed"]) == (30, len(run.completed), 30 - len(run.completed))
        assert (row["verdict"], row["wall_s"], row["state"]) == ("PASS", 1.5, "finished")


def test_a_cell_is_a_run_that_analysis_can_load_alone(tmp_path: Path) -> None:
    asked = write_sweep(tmp_path / "sweep", seeds=1)
    assert load(tmp_path / "sweep" / asked[0]).frameworks == ("edgeshard",)


def test_cells_that_were_not_asked_for_are_not_shown(tmp_path: Path) -> None:
    asked = write_sweep(tmp_path / "sweep", seeds=1)
    write_plan(tmp_path / "sweep", asked[2:4])
    assert load_sweep(tmp_path / "sweep").table["cell"].to_list() == asked[2:4]


def test_cells_that_failed_or_are_missing_are_told(tmp_path: Path) -> None:
    asked = write_sweep(tmp_path / "sweep", seeds=1)
    for name in asked[:2]:
        shutil.rmtree(tmp_path / "sweep" / name)
    (tmp_path / "sweep" / FAILED).mkdir()
    failed = msgspec.structs.replace(IDENTITY, topology="edge10", topology_content="aaaa1")
    assert failed.name == asked[0]
    SweepDirectory(tmp_path / "sweep").fail(failed, "no room")

    found = load_sweep(tmp_path / "sweep")
    assert found.missing == 1
    assert found.table.row(0, named=True) | {"reason": "no room", "state": "failed", "sent": None} == found.table.row(
        0, named=True
    )
    assert found.notes == (
        "Not yet played: 1 of 8 cells. Call the sweep again.",
        "Failed: 1 of 8 cells. `failed/` says why.",
    )
    assert sum(point.seeds for point in points(found.table)) == len(asked) - 2


def test_cells_of_different_versions_of_the_testbed_are_told(tmp_path: Path) -> None:
    asked = write_sweep(tmp_path / "sweep", seeds=1)
    edit_manifest(tmp_path / "sweep" / asked[0], versions={"git": "fedc"})
    assert load_sweep(tmp_path / "sweep").notes == (
        "2 versions of the testbed played these cells: `versions` in manifests.",
    )


def test_two_networks_of_one_name_are_told_apart(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=1, topology_names=("edge10", "edge10"))
    table = load_sweep(tmp_path / "sweep").table
    assert table["topology"].unique(maintain_order=True).to_list() == ["edge10 (aaaa)", "edge10 (bbbb)"]


def test_the_table_is_written_as_parquet_and_csv(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=1)
    found = load_sweep(tmp_path / "sweep")
    write_table(found, tmp_path / "sweep")
    write_table(found, tmp_path / "sweep")  # again, over the first

    assert pl.read_parquet(tmp_path / "sweep" / "sweep.parquet").equals(found.table)
    assert pl.read_csv(tmp_path / "sweep" / "sweep.csv").columns == list(SCHEMA)
    assert not list((tmp_path / "sweep").glob(".sweep*"))


def test_what_we_write_is_what_analysis_reads(directory: SweepDirectory) -> None:
    assert set(CellFile.__struct_fields__) < set(Identity.__struct_fields__)
    plan = msgspec.json.decode((directory.path / "sweep.json").read_bytes(), type=SweepFile)
    assert plan.cells == tuple(names())
    directory.fail(IDENTITY, "why")
    failure = (directory.path / FAILED / f"{IDENTITY.name}.json").read_bytes()
    assert msgspec.json.decode(failure, type=FailureFile).cell.framework == "edgeshard"


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Any table of the t distribution.
    [
        (1, 12.706),
        (2, 4.303),
        (4, 2.776),
        (10, 2.228),
        (11, 2.201),
        (15, 2.131),
        (30, 2.042),
        (60, 2.000),
        (1000, 1.962),
    ],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=6e-4)


def test_a_mean_over_seeds_has_students_interval_and_a_single_seed_has_none() -> None:
    found = over_seeds([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.n) == (2.5, 4)
    assert found.high is not None
    assert found.high - 2.5 == pytest.approx(3.182 * 1.2909944 / 2, rel=1e-6)
    assert (over_seeds([2.0]).value, over_seeds([2.0]).low) == (2.0, None)
    assert over_seeds([]).value is None


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label().split(" ")[0]: (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def test_figures_show_the_means_of_each_framework_over_load_a_row_per_network(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep")
    means = points(load_sweep(tmp_path / "sweep").table)
    with style.context():
        latency, throughput = curves.latency_over_load(means, 0.3), curves.throughput_over_load(means)

    assert [axes.get_title(loc="left") for axes in latency.axes] == [
        "Mean latency, edge10\ndotted: SLO 300 ms",
        "P99 latency, edge10\n",
        "Mean latency, metro",
        "P99 latency, metro",
    ]
    for figure, keys in (
        (latency, ("latency_mean_s", "latency_p99_s")),
        (throughput, ("throughput_requests_per_s", "failed_share")),
    ):
        for place, axes in enumerate(figure.axes):
            topology, key = ("edge10", "metro")[place // 2], keys[place % 2]
            for framework in ("edgeshard", "hetroute"):
                own = [point for point in means if (point.topology, point.framework) == (topology, framework)]
                loads, values = lines(axes)[framework]
                assert loads == [4.0, 8.0]
                assert values == [metric(key).scale * (point.estimates[key].value or 0.0) for point in own]
            assert len(axes.collections) == 2  # a band for each framework
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [
            "edgeshard (n = 3 seeds)",
            "hetroute (n = 3 seeds)",
        ]


def test_a_band_that_reaches_below_zero_ends_out_of_sight_on_a_logarithmic_axis(tmp_path: Path) -> None:
    def point(framework: str, rate_per_s: float, *values: float) -> Point:
        estimates = {key: over_seeds(values) for key in ("latency_mean_s", "latency_p99_s")}
        return Point(topology="edge10", framework=framework, rate_per_s=rate_per_s, seeds=2, estimates=estimates)

    quick, slow = [point("hetroute", rate, 0.1, 0.2) for rate in (4.0, 8.0)], [point("greedy", 4.0, 30.0, 31.0)]
    with style.context():
        axes = curves.latency_over_load([*quick, *slow], 0.3).axes[0]
    lowest = min(float(path.vertices[:, 1].min()) for path in axes.collections[0].get_paths())
    assert axes.get_yscale() == "log"
    assert 0 < lowest < axes.get_ylim()[0] < 150


def test_the_offered_load_is_what_arrived(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=2)
    table = load_sweep(tmp_path / "sweep").table
    with style.context():
        dotted = curves.throughput_over_load(points(table)).axes[0].get_lines()[-1]
    assert list(dotted.get_xdata()) == [4.0, 8.0]
    mean = table.filter(pl.col("topology") == "edge10", pl.col("rate_per_s") == 4.0)["offered_requests_per_s"].mean()
    assert dotted.get_ydata()[0] == pytest.approx(mean)


def test_a_figure_of_one_load_and_one_seed_has_points_and_no_bands(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", rates=(8.0,), seeds=1)
    with style.context():
        figure = curves.latency_over_load(points(load_sweep(tmp_path / "sweep").table), None)
    assert [len(axes.collections) for axes in figure.axes] == [0, 0, 0, 0]
    assert lines(figure.axes[0])["hetroute"][0] == [8.0]


def test_python_m_analysis_draws_a_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", seeds=1)
    done = CliRunner().invoke(app, [str(tmp_path / "sweep"), "--out", str(tmp_path / "figures")])

    assert done.exit_code == 0, done.output
    assert "| edge10 | hetroute | 8 | 1 |" in done.output
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "latency_over_load.png",
        "latency_over_load.svg",
        "throughput_over_load.png",
        "throughput_over_load.svg",
        "sweep.md",
        "sweep.csv",
        "sweep.parquet",
    }


def test_a_sweep_without_finished_cells_cannot_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    write_plan(tmp_path / "sweep", names())
    done = CliRunner().invoke(app, [str(tmp_path / "sweep"), "--out", str(tmp_path / "figures")])
    assert done.exit_code == 2
    assert "holds no finished cell yet; call the sweep again" in done.output
