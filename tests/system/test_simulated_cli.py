"""The command line in virtual time, where nobody is root and there may be no Linux."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from analysis.load import load
from orchestration import session
from orchestration.comparison import Comparison
from orchestration.stage import Stage, Watcher
from testbed import capabilities
from testbed.capabilities import Capability
from tests.support.simulated import (
    FIRST_COPY,
    ROOT,
    compared,
    every,
    requests,
    scenario,
    simulate,
    topology,
    user_framework,
)

SMALL = str(ROOT / "topologies" / "small3.yaml")


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A signal that nobody handles must not end the tests; afterwards the handler is what it was."""

    def unhandled(*_: Any) -> None:
        raise AssertionError("nobody handled the signal")

    before = signal.signal(signal.SIGINT, unhandled)
    yield
    found = signal.signal(signal.SIGINT, before)
    assert found is unhandled


def command(*arguments: str | Path) -> int:
    """Run the command line in this process."""
    with pytest.raises(SystemExit) as ended:
        orchestrator.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def quick(results: Path, *arguments: str | Path, framework: str = "edgeshard") -> tuple[str | Path, ...]:
    """A run of some requests."""
    return (
        "run", "steady_load", "--framework", framework, "--backend", "sim", "--topology", SMALL,
        "--rate", "4", "--duration", "1", "--results", results, *arguments,
    )  # fmt: skip


def only_directory(results: Path) -> Path:
    (directory,) = results.iterdir()
    return directory


def test_a_comparison_in_virtual_time_needs_no_testbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = command(
        "compare", "link_congestion", "--frameworks", "greedy,edgeshard", "--backend", "sim", "--topology", SMALL,
        "--rate", "3", "--duration", "1", "--repeats", "2", "--results", tmp_path / "results",
    )  # fmt: skip

    assert code == 0
    found = load(only_directory(tmp_path / "results"))
    assert [run.name for run in found.runs] == ["greedy-r0", "edgeshard-r0", "greedy-r1", "edgeshard-r1"]
    assert (found.notes, found.interrupted, found.unfaithful) == ((), (), ())
    for run in found.runs:
        assert run.requests["exact"].to_list() == [True] * run.manifest.counts.sent
        assert run.events["actual_s"].to_list() == run.events["scheduled_s"].to_list()
    assert "edgeshard-r1 (4 of 4): " in capsys.readouterr().out


def test_where_packets_are_impossible_runs_are_simulated_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Capability(name="root", available=False, detail="user 1000", needed_for="namespaces", remedy="sudo")
    monkeypatch.setattr(capabilities, "missing_for_netns", lambda: [root])
    monkeypatch.setattr(orchestrator, "DEFAULT_TOPOLOGY", Path(SMALL))

    code = command(
        "run", "steady_load", "--framework", "edgeshard", "--rate", "2", "--duration", "1",
        "--results", tmp_path / "results",
    )  # fmt: skip

    assert code == 0
    assert "cannot be emulated here (root: user 1000): simulating in virtual time" in capsys.readouterr().out
    manifest = json.loads((only_directory(tmp_path / "results") / "edgeshard-r0" / "manifest.json").read_text())
    assert manifest["backend"] == "sim"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--framework", "hetruote"], "there is no framework 'hetruote'; did you mean 'hetroute'?"),
        (["--framework", "nothing.py"], "there is no framework file nothing.py"),
        (["--framework", "{placeless}"], "placeless.py cannot place: ValueError: no room"),
        (["--topology", "nowhere.yaml"], "nowhere.yaml"),
        (["--topology", "{broken}"], "broken.yaml:2:1: not valid YAML"),
        (["--model", "nowhere"], "there is no model 'nowhere'"),
        (["--testbed", "other"], "--testbed names a testbed that is up; --backend sim needs none"),
        (["--rate", "90000", "--duration", "90000"], "a run plays at most"),
        (["--results", "{file}/results"], "results cannot be written to "),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing_behind(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("name: [small3\n")
    (tmp_path / "file").touch()
    body = "def place(self, cluster, profile, calibration):\n    raise ValueError('no room')"
    user_framework(tmp_path / "placeless.py", body)
    before = sorted(tmp_path.iterdir())
    places = {path.stem: path for path in before}

    code = command(*quick(tmp_path / "results", *(argument.format(**places) for argument in arguments)))

    output = capsys.readouterr()
    assert (code, output.out.strip()) == (2, "")
    assert output.err.startswith("error: ")
    assert expected in output.err
    assert "Traceback" not in output.err
    assert sorted(tmp_path.iterdir()) == before


def test_an_unknown_scenario_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", "steady_laod", "--backend", "sim", "--results", tmp_path / "results") == 2

    assert "there is no scenario 'steady_laod'; did you mean 'steady_load'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_which_nothing_was_answered_says_why_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nonsense = user_framework(tmp_path / "nonsense.py", "def plan(self, demand, view):\n    return 42")

    code = command(*quick(tmp_path / "results", framework=nonsense))

    output = capsys.readouterr()
    assert code == 1
    assert "requests failed: mine, layer 0: plan() returned int, not a Plan" in output.out
    assert "error: no request was answered" in output.err


def test_comparisons_that_begin_within_one_second_get_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Noon:
            return cls(2026, 1, 2, 12, 0, 0, tzinfo=tz)

    monkeypatch.setattr(session, "datetime", Noon)
    for _ in range(3):
        assert command(*quick(tmp_path / "results")) == 0

    names = sorted(directory.name for directory in (tmp_path / "results").iterdir())
    assert names == [f"20260102-120000-steady_load{suffix}" for suffix in ("", "-2", "-3")]


# --- interruptions ----------------------------------------------------------------------------------------------------


def interrupting(path: Path, *, times: int) -> str:
    """A framework during whose run somebody types Ctrl-C."""
    body = f"""
def observe(self, feedback):
    import signal
    if (feedback.request, feedback.layer) == (5, 3):
        for _ in range({times}):
            signal.raise_signal(signal.SIGINT)
"""
    return user_framework(path, FIRST_COPY + body)


def test_an_interrupted_run_keeps_what_was_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = interrupting(tmp_path / "once.py", times=1)

    code = command(
        "compare", "steady_load", "--frameworks", f"{once},edgeshard", "--backend", "sim", "--topology", SMALL,
        "--rate", "2", "--duration", "1000", "--results", tmp_path / "results",
    )  # fmt: skip

    assert code == 130
    said = capsys.readouterr()
    assert "interrupted: collecting what there is" in said.out
    assert "error: interrupted: 1 of 2 runs are in" in said.err
    directory = only_directory(tmp_path / "results")
    assert json.loads((directory / "comparison.json").read_text())["finished"] is False
    (run,) = load(directory).runs
    assert (run.name, run.manifest.complete) == ("once-r0", False)
    assert 0 < run.manifest.counts.completed < run.manifest.counts.sent < 50
    assert run.completed["exact"].all()
    assert "the run ended before the request did" in run.requests["error"].to_list()


def test_a_comparison_whose_agents_ended_early_says_so_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def cut_short(comparison: Comparison, stage: Stage, directory: Path, watcher: Watcher) -> int:
        return 1

    monkeypatch.setattr("orchestration.terminal.play", cut_short)

    code = command(
        "compare", "steady_load", "--frameworks", "edgeshard,greedy", "--backend", "sim", "--topology", SMALL,
        "--rate", "2", "--duration", "1", "--results", tmp_path / "results",
    )  # fmt: skip

    assert code == 1
    assert "agents have ended: 1 of 2 runs are in" in capsys.readouterr().err


def test_an_interrupted_run_leaves_no_work_behind(tmp_path: Path) -> None:
    on = topology("small3")
    watcher = Watcher()
    watcher.tick = lambda now_s, ended: watcher.interrupted.set() if now_s > 1.0 else None
    mine = user_framework(tmp_path / "mine.py", FIRST_COPY)  # that loads copies all the time
    asked = scenario(requests(["s1", "s2"], every(0.05, to_s=9.0)))

    found = simulate(compared(asked, [mine, "edgeshard"], on), tmp_path / "results", watcher).run

    assert not found.manifest.complete
    assert found.requests.height < 30


def test_who_interrupts_twice_gives_the_run_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = interrupting(tmp_path / "twice.py", times=2)

    code = command(*quick(tmp_path / "results", "--duration", "1000", framework=twice))

    assert code == 2
    assert capsys.readouterr().err.strip() == "error: given up: the run under way was not kept"
    assert [path.name for path in only_directory(tmp_path / "results").iterdir()] == ["comparison.json"]


# --- other machines ---------------------------------------------------------------------------------------------------

#: A machine that is no Linux: modules, functions and files that only Linux or Unix has are missing.
ELSEWHERE = """
import os, sys
for name in ("pyroute2", "fcntl", "termios", "resource", "pwd", "grp"):
    sys.modules[name] = None
for name in ("geteuid", "getuid", "sched_getaffinity", "setns", "unshare"):
    if hasattr(os, name):
        delattr(os, name)

def forbid(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "no such file", arguments[0])

sys.addaudithook(forbid)
import orchestrator
orchestrator.main(sys.argv[1:])
"""


def test_virtual_time_needs_neither_linux_nor_git(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *map(str, quick(tmp_path / "results"))],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )

    assert done.returncode == 0, done.stderr
    (run,) = load(only_directory(tmp_path / "results")).runs
    assert run.requests["exact"].all()
    assert "git" not in json.loads((run.path / "manifest.json").read_text())["versions"]
