"""Sweeps: the same records in whatever company; nothing is lost, and nothing played twice, whoever dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import orchestrator
from analysis.load import load
from orchestration.bench import Bench, CellError, Task, digest_of_model, source
from orchestration.cells import Cell, Grid, Source, cells
from scenarios.timeline import Scenario
from testbed.topology import Topology
from tests.support.simulated import FIRST_COPY, ROOT, TWIN, requests, scenario, topology, twin, user_framework

SMALL = str(ROOT / "topologies" / "small3.yaml")
TABLES = ("requests", "layers", "links", "servers", "events")
#: Tests that start several processes take some seconds each; all of them together would double the fast tests.
several_processes = pytest.mark.slow
#: A framework that says in ``started`` that it is about to place, and in which process, and then waits for ``go``.
PATIENT = (
    FIRST_COPY
    + """
def place(self, cluster, profile, calibration):
    import os, pathlib, time
    started, go = pathlib.Path({started!r}), pathlib.Path({go!r})
    (started / str(os.getpid())).touch()
    while not go.exists():
        time.sleep(0.01)
    return super().place(cluster, profile, calibration)
"""
)


def argv(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(ROOT / "orchestrator.py"), *map(str, arguments)]


def quick(
    into: Path, *, frameworks: str | Path = "edgeshard", rates: str = "4", processes: int = 1
) -> list[str | Path]:
    """A sweep of cells that take a moment each."""
    return [
        "sweep", "steady_load", "--frameworks", frameworks, "--rates", rates, "--topologies", SMALL,
        "--duration", "1", "--processes", str(processes), "--into", into,
    ]  # fmt: skip


def timeline(network: Topology, rate_per_s: float | None, seed: int) -> Scenario:
    """Some requests, the same whatever the seed, which then decides lost packets only."""
    homes = [node.name for node in network.servers]
    moments_s = [0.5 + number / (rate_per_s or 8.0) for number in range(1, 4)]
    return replace(scenario(requests(homes, moments_s)), arrival_rate_per_s=rate_per_s or 8.0)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(*arguments), cwd=ROOT, capture_output=True, text=True, check=False, env=environment())


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv(*arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


def until(condition: Callable[[], Any], *, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.02)


def finished(into: Path) -> dict[str, Path]:
    """Finished cells by framework, load and seed."""
    found = {}
    for file in into.glob("*/cell.json"):
        about = json.loads(file.read_text())
        found[f"{about['framework']} {about['rate_per_s']:g} {about['seed']}"] = file.parent
    return found


def fingerprint(run: Path) -> dict[str, str]:
    return {table: hashlib.sha256((run / f"{table}.parquet").read_bytes()).hexdigest() for table in TABLES}


def played(output: str) -> list[str]:
    """The cells that a call has played, by their titles."""
    return [line.split(":")[0] for line in output.splitlines() if "bit-exact, fidelity" in line]


class Patient:
    """Cells that wait for a sign, so that a test can act in their midst."""

    def __init__(self, directory: Path) -> None:
        self.started, self.go = directory / "started", directory / "go"
        self.started.mkdir()
        body = PATIENT.format(started=str(self.started), go=str(self.go))
        self.file = user_framework(directory / "patient.py", body)

    def pids(self) -> list[int]:
        """The processes that have begun to place."""
        return [int(file.name) for file in self.started.iterdir()]


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Patient]:
    made = Patient(tmp_path)
    yield made
    made.go.touch()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_records_are_the_same_bytes_in_a_comparison_and_in_sweeps_of_one_and_two_processes(tmp_path: Path) -> None:
    grid = ["--frameworks", "edgeshard,greedy,hetroute", "--topologies", SMALL, "--duration", "1.5"]
    for processes in ("1", "2"):
        asked = ["--rates", "4,8", "--seeds", "0-1", "--processes", processes, "--into", tmp_path / processes]
        done = run("sweep", "steady_load", *grid, *asked)
        assert done.returncode == 0, done.stdout + done.stderr
    alone = ["--frameworks", "hetroute", "--topologies", SMALL, "--duration", "1.5", "--rates", "8", "--seeds", "1"]
    assert run("sweep", "steady_load", *alone, "--into", tmp_path / "alone").returncode == 0
    compared = ["--frameworks", "edgeshard,greedy,hetroute", "--topology", SMALL, "--duration", "1.5", "--rate", "8"]
    done = run(
        "compare", "steady_load", "--backend", "sim", *compared, "--seed", "1", "--results", tmp_path / "compare"
    )
    assert done.returncode == 0, done.stdout + done.stderr

    one, two = finished(tmp_path / "1"), finished(tmp_path / "2")
    assert len(one) == len(two) == 3 * 2 * 2
    assert {place.name for place in one.values()} == {place.name for place in two.values()}
    for title in one:
        assert fingerprint(one[title]) == fingerprint(two[title]), title
    assert fingerprint(finished(tmp_path / "alone")["hetroute 8 1"]) == fingerprint(one["hetroute 8 1"])
    for other in load(next((tmp_path / "compare").iterdir())).runs:
        cell = one[f"{other.manifest.framework} 8 1"]
        assert fingerprint(other.path) == fingerprint(cell), other.name
        assert load(cell).runs[0].manifest.run_id == other.manifest.run_id


@pytest.mark.slow
def test_what_a_worker_keeps_between_cells_changes_no_record(tmp_path: Path) -> None:
    broken = user_framework(tmp_path / "broken.py", "def plan(self, demand, view):\n    raise SystemExit('enough')")
    small = topology("small3")
    devices = [node.device for node in small.nodes]
    nodes = tuple(
        replace(node, device=device) for node, device in zip(small.nodes, devices[1:] + devices[:1], strict=True)
    )
    lossy = tuple(replace(link, forward=replace(link.forward, loss=0.1)) for link in small.links)
    asked = cells(
        Grid(
            scenario=Source(asked="steady_load"),
            frameworks=(source("edgeshard"), source(broken), source("hetroute")),
            topologies=(small, replace(small, nodes=nodes, links=lossy)),
            rates_per_s=(4.0, 8.0),
            seeds=(0, 1),
            model="mixtral-8x7b",
            model_files=digest_of_model(twin()),
        ),
        timeline,
    )

    def played_on(bench: Bench, cell: Cell, directory: Path) -> dict[str, str]:
        directory.mkdir(parents=True)
        built = timeline(cell.topology, cell.rate_per_s, cell.identity.seed)
        task = Task(identity=cell.identity, framework=cell.framework, topology=cell.topology, scenario=built)
        return fingerprint(bench.play(task, directory)[0])

    kept = Bench(TWIN, memory_bytes=10**9)
    for cell in sorted(asked, key=lambda cell: (cell.identity.topology_content, cell.identity.timeline)):
        if cell.framework == broken:
            with pytest.raises(CellError, match="SystemExit: enough"):
                played_on(kept, cell, tmp_path / "kept" / cell.name)
            continue
        alone = played_on(Bench(TWIN, memory_bytes=0), cell, tmp_path / "alone" / cell.name)
        assert played_on(kept, cell, tmp_path / "kept" / cell.name) == alone, cell.identity.title


def test_nothing_is_played_twice_also_when_the_grid_grows(tmp_path: Path) -> None:
    into = tmp_path / "sweep"
    first = run(*quick(into))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "1 cells (1 framework x 1 load x 1 topology x 1 seed)" in first.stdout
    assert played(first.stdout) == ["edgeshard on small3, 4/s, seed 0"]
    records = fingerprint(finished(into)["edgeshard 4 0"])
    stamp = (finished(into)["edgeshard 4 0"] / "manifest.json").stat().st_mtime_ns

    again = run(*quick(into))
    assert played(again.stdout) == []
    assert "1 are finished, 0 to play" in again.stdout
    grown = run(*quick(into, rates="4,8", frameworks="edgeshard,greedy"))
    assert len(played(grown.stdout)) == 3
    assert "1 are finished, 3 to play" in grown.stdout
    assert pl.read_parquet(into / "sweep.parquet").height == 4
    assert pl.read_csv(into / "sweep.csv").height == 4

    narrowed = run(*quick(into, rates="8"))
    assert played(narrowed.stdout) == []
    assert len(finished(into)) == 4
    assert pl.read_parquet(into / "sweep.parquet")["rate_per_s"].to_list() == [8.0]
    assert fingerprint(finished(into)["edgeshard 4 0"]) == records
    assert (finished(into)["edgeshard 4 0"] / "manifest.json").stat().st_mtime_ns == stamp


@several_processes
def test_a_framework_that_was_edited_is_played_anew_beside_the_old_one(tmp_path: Path) -> None:
    file, into = tmp_path / "mine.py", tmp_path / "sweep"
    user_framework(file, FIRST_COPY)
    run(*quick(into, frameworks=file))
    file.write_text(file.read_text() + "\n# better\n")
    assert played(run(*quick(into, frameworks=file)).stdout) == ["mine on small3, 4/s, seed 0"]
    assert len(list(into.glob("*/cell.json"))) == 2
    assert pl.read_parquet(into / "sweep.parquet").height == 1


def test_cells_that_fail_are_told_written_down_and_tried_again(tmp_path: Path) -> None:
    picky = user_framework(
        tmp_path / "picky.py",
        FIRST_COPY + "\ndef place(self, cluster, profile, calibration):\n    raise ValueError('no [room]')",
    )
    rude = user_framework(tmp_path / "rude.py", "def plan(self, demand, view):\n    raise SystemExit('enough')")
    into = tmp_path / "sweep"
    for _ in range(2):
        done = run(*quick(into, frameworks=f"{picky},edgeshard,{rude}"))
        assert done.returncode == 1
        assert (
            f"picky on small3, 4/s, seed 0: failed: framework {picky} cannot place: ValueError: no [room]"
            in done.stdout
        )
        assert "rude on small3, 4/s, seed 0: failed: " in done.stdout
        assert "2 of 3 cells failed" in done.stderr
        assert "the same command tries them again" in done.stderr
        assert list(finished(into)) == ["edgeshard 4 0"]

    rows = pl.read_parquet(into / "sweep.parquet").select("framework", "state", "latency_mean_s", "reason")
    assert rows["state"].to_list() == ["failed", "finished", "failed"]
    assert rows["reason"][0] == f"framework {picky} cannot place: ValueError: no [room]"
    failures = [json.loads(file.read_text()) for file in (into / "failed").iterdir()]
    assert {failure["cell"]["framework"] for failure in failures} == {"picky", "rude"}
    assert all("Traceback" in failure["trace"] for failure in failures)


@several_processes
def test_an_overloaded_cell_is_a_result_and_no_failure(tmp_path: Path) -> None:
    hasty = tmp_path / "hasty.py"
    hasty.write_text(
        "from dataclasses import replace\n\nfrom scenarios.steady_load import build as steady\n\n\n"
        "def build(setting):\n    return replace(steady(setting), name='hasty', deadline_s=0.001)\n"
    )
    arguments = quick(tmp_path / "sweep")
    arguments[1] = hasty
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    row = pl.read_parquet(tmp_path / "sweep" / "sweep.parquet").row(0, named=True)
    assert (row["state"], row["failed_share"], row["latency_mean_s"]) == ("finished", 1.0, None)


def test_a_worker_that_is_killed_costs_its_cell_and_the_next_call_goes_on(tmp_path: Path, patient: Patient) -> None:
    asked = quick(tmp_path / "sweep", frameworks=f"{patient.file},edgeshard")
    process = start(*asked)
    until(patient.pids)
    os.kill(patient.pids()[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60.0)

    assert process.returncode == 1
    assert "patient on small3, 4/s, seed 0: failed: its process was ended by SIGKILL (out of memory?)" in output
    assert played(output) == ["edgeshard on small3, 4/s, seed 0"]  # another worker went on
    patient.go.touch()
    again = run(*asked)
    assert again.returncode == 0, again.stdout + again.stderr
    assert played(again.stdout) == ["patient on small3, 4/s, seed 0"]
    assert list((tmp_path / "sweep" / "failed").iterdir()) == []


@several_processes
def test_a_parent_that_is_killed_takes_its_workers_along_and_the_next_call_goes_on(
    tmp_path: Path, patient: Patient
) -> None:
    asked = quick(tmp_path / "sweep", frameworks=f"edgeshard,{patient.file}")
    process = start(*asked)
    until(patient.pids)
    worker = patient.pids()[0]
    process.kill()
    process.communicate(timeout=60.0)
    until(lambda: not is_running(worker), timeout_s=5.0)
    assert list(finished(tmp_path / "sweep")) == ["edgeshard 4 0"]
    assert any((tmp_path / "sweep" / ".under-way").iterdir())  # what was cut short, which counts for nothing

    patient.go.touch()
    again = run(*asked)
    assert again.returncode == 0, again.stdout + again.stderr
    assert played(again.stdout) == ["patient on small3, 4/s, seed 0"]
    assert list((tmp_path / "sweep" / ".under-way").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=several_processes)])
def test_an_interruption_ends_everything_within_two_seconds_and_says_how_to_go_on(
    tmp_path: Path, patient: Patient, number: signal.Signals
) -> None:
    asked = quick(tmp_path / "sweep", frameworks=f"edgeshard,{patient.file}", processes=2)
    process = start(*asked)
    until(patient.pids)
    until(lambda: finished(tmp_path / "sweep"))
    worker, begin_s = patient.pids()[0], time.monotonic()
    os.killpg(process.pid, number)  # as a terminal does
    output, _ = process.communicate(timeout=60.0)

    assert time.monotonic() - begin_s < 2.0
    assert process.returncode == 130
    assert "interrupted: 1 of 2 cells are finished; the same command goes on" in output
    assert "Traceback" not in output
    assert not is_running(worker)
    patient.go.touch()
    assert played(run(*asked).stdout) == ["patient on small3, 4/s, seed 0"]


@several_processes
def test_two_sweeps_share_a_directory_and_play_every_cell_once(tmp_path: Path, patient: Patient) -> None:
    asked = quick(tmp_path / "sweep", frameworks=f"{patient.file},edgeshard", rates="4,8")
    first = start(*asked)
    until(lambda: len(patient.pids()) == 1)
    second = start(*asked)  # finds the first cell taken and goes on with another
    until(lambda: len(patient.pids()) == 2)
    patient.go.touch()
    outputs = [process.communicate(timeout=120.0)[0] for process in (first, second)]

    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert len(played(outputs[0]) + played(outputs[1])) == 4
    assert set(played(outputs[0]) + played(outputs[1])) == {
        f"{framework} on small3, {rate}/s, seed 0" for framework in ("patient", "edgeshard") for rate in (4, 8)
    }
    assert "another sweep plays it" in outputs[1]
    assert pl.read_parquet(tmp_path / "sweep" / "sweep.parquet").height == 4


@several_processes
def test_a_lone_sweep_takes_over_what_another_leaves_when_it_dies(tmp_path: Path, patient: Patient) -> None:
    asked = quick(tmp_path / "sweep", frameworks=patient.file)
    first = start(*asked)
    until(lambda: len(patient.pids()) == 1)
    second = start(*asked)
    line = next(line for line in second.stdout or () if "plays it" in line)
    assert line.strip() == "patient on small3, 4/s, seed 0: another sweep plays it"
    first.kill()
    first.communicate(timeout=60.0)
    patient.go.touch()
    output, _ = second.communicate(timeout=60.0)

    assert second.returncode == 0
    assert played(output) == ["patient on small3, 4/s, seed 0"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rates", "4,4"], "--rates: 4 is named twice"),
        (["--seeds", "4-0"], "--seeds: '4-0' counts down"),
        (["--frameworks", "hetruote"], "did you mean 'hetroute'?"),
        (["--topologies", f"{SMALL},{SMALL}"], "two of the topologies describe the same network"),
        (["--topologies", "nowhere.yaml"], "no such file"),
        (["--model", "nowhere"], "there is no model 'nowhere'"),
        (["--into", "/proc/nowhere"], "the sweep cannot be written to /proc/nowhere"),
    ],
)
def test_bad_input_is_told_before_anything_is_played(
    tmp_path: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        orchestrator.main([str(word) for word in (*quick(tmp_path / "sweep"), *arguments)])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("error: ")
    assert expected in error
    assert not (tmp_path / "sweep").exists()


@several_processes
def test_a_scenario_that_draws_without_its_seed_is_refused(tmp_path: Path) -> None:
    fickle = tmp_path / "fickle.py"
    fickle.write_text(
        "import random\nfrom dataclasses import replace\n\nfrom scenarios.steady_load import build as steady\n\n\n"
        "def build(setting):\n    return replace(steady(setting), deadline_s=5 + random.random())\n"
    )
    arguments = quick(tmp_path / "sweep")
    arguments[1] = fickle
    done = run(*arguments)
    assert done.returncode == 2
    assert "plays something else each time that it is built" in done.stderr
