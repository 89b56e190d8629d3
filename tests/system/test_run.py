"""Whole runs on real packets: the command line, three servers, real agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analysis.load import load
from testbed.ledger import ledger_of
from testbed.load import load_topology
from testbed.network import Network

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "orchestrator.py")]


@pytest.fixture
def network(run_root: Path) -> Iterator[Network]:
    with Network.up(load_topology(ROOT / "topologies" / "small3.yaml"), name="run") as network:
        yield network


def start(results: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments, *([] if "--results" in arguments else ["--results", str(results)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
    )


def finish(process: subprocess.Popen[str], *, timeout_s: float = 120.0) -> str:
    output, _ = process.communicate(timeout=timeout_s)
    return output


def only_directory(results: Path) -> Path:
    (directory,) = results.iterdir()
    return directory


def manifest(directory: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / run / "manifest.json").read_text())
    return found


def test_a_comparison_on_real_packets_is_exact_and_complete(network: Network, tmp_path: Path) -> None:
    process = start(tmp_path, "compare", "link_congestion", "--frameworks", "local-first,edgeshard,hetroute",
                    "--duration", "4", "--rate", "4", "--dilation", "3")  # fmt: skip
    output = finish(process)
    assert process.returncode == 0, output

    comparison = load(only_directory(tmp_path))
    assert comparison.frameworks == ("local-first", "edgeshard", "hetroute")
    assert not comparison.interrupted
    for run in comparison.runs:
        assert run.requests["error"].null_count() == len(run.requests)
        assert run.layers.height == 32 * run.requests.height
        assert (run.events["actual_s"] - run.events["scheduled_s"]).max() < 0.5  # type: ignore[operator]
        assert run.links["bytes"].sum() > run.requests["sent_bytes"].sum()
        if run.manifest.framework != "hetroute":
            assert run.requests["exact"].all()
    assert not network.status().changed


def test_an_interrupted_run_keeps_what_was_collected(network: Network, tmp_path: Path) -> None:
    process = start(tmp_path, "run", "steady_load", "--framework", "edgeshard",
                    "--duration", "60", "--rate", "3", "--dilation", "2")  # fmt: skip
    wait_for(lambda: network.status().processes == 3)
    time.sleep(12.0)  # into the run
    process.send_signal(signal.SIGINT)
    output = finish(process, timeout_s=30.0)

    assert process.returncode == 130, output
    directory = only_directory(tmp_path)
    found = manifest(directory, "edgeshard-r0")
    assert found["complete"] is False
    assert found["counts"]["completed"] > 0
    assert json.loads((directory / "comparison.json").read_text())["finished"] is False
    assert network.status().processes == 0


def test_a_killed_agent_fails_its_requests_and_the_run_goes_on(network: Network, tmp_path: Path) -> None:
    process = start(tmp_path, "run", "steady_load", "--framework", "greedy",
                    "--duration", "12", "--rate", "3", "--dilation", "2")  # fmt: skip
    wait_for(lambda: network.status().processes == 3)
    time.sleep(12.0)
    victim = next(process.pid for process in ledger_of("run").processes("process") if server_of(process.pid) == "s3")
    os.kill(victim, signal.SIGKILL)
    output = finish(process)

    assert process.returncode == 0, output
    directory = only_directory(tmp_path)
    counts = manifest(directory, "greedy-r0")["counts"]
    assert counts["sent"] == counts["completed"] + counts["failed"]
    assert counts["completed"] > 0
    assert counts["failed"] > 0
    requests = pl.read_parquet(directory / "greedy-r0" / "requests.parquet")
    assert requests.filter(pl.col("latency_s").is_null())["error"].null_count() == 0
    assert "agents ended" in output


def test_agents_end_when_their_orchestrator_is_killed(network: Network, tmp_path: Path) -> None:
    process = start(tmp_path, "run", "steady_load", "--framework", "edgeshard", "--duration", "60", "--rate", "1")
    wait_for(lambda: network.status().processes == 3)
    time.sleep(5.0)
    process.kill()
    finish(process)

    # Without waiting for them to notice, the next run takes their place.
    again = start(
        tmp_path / "again", "run", "steady_load", "--framework", "edgeshard", "--duration", "1", "--rate", "2"
    )
    output = finish(again)
    assert again.returncode == 0, output
    assert "that an earlier run left behind" in output
    wait_for(lambda: network.status().processes == 0, timeout_s=40.0)


def test_a_second_run_on_the_same_testbed_is_refused(network: Network, tmp_path: Path) -> None:
    first = start(tmp_path / "first", "run", "steady_load", "--framework", "edgeshard", "--duration", "60")
    wait_for(lambda: network.status().processes == 3)
    second = start(tmp_path / "second", "run", "steady_load", "--framework", "edgeshard", "--duration", "1")
    output = finish(second)
    first.send_signal(signal.SIGINT)
    finish(first)

    assert second.returncode == 2
    assert output.strip() == "error: another run is using this testbed: wait for its end, or stop it"
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--framework", "hetruote"], "there is no framework 'hetruote'; did you mean 'hetroute'?"),
        (["--framework", "nothing.py"], "there is no framework file nothing.py"),
        (["--model", "nowhere"], "there is no model 'nowhere'"),
        (["--testbed", "other"], "testbed 'other' is not up"),
        (["--framework", "edgeshard", "--results", "/proc/nowhere"], "results cannot be written to /proc/nowhere"),
        (["--rate", "90000", "--duration", "90000"], "a run plays at most"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing_behind(
    network: Network, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    process = start(tmp_path / "results", "run", "steady_load", *arguments)
    output = finish(process)

    assert process.returncode == 2
    assert output.strip().startswith("error: ")
    assert len(output.strip().splitlines()) == 1
    assert expected in output
    assert not (tmp_path / "results").exists()
    assert network.status().processes == 0


def wait_for(condition: Any, *, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.2)


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def server_of(pid: int) -> str:
    words = command_line(pid)
    return words[words.index("--server") + 1] if "--server" in words else ""


def test_a_run_in_which_nothing_was_answered_says_why_and_fails(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "nonsense.py"
    file.write_text(
        "from agents.frameworks.base import BaseFramework\n\n\nclass Nonsense(BaseFramework):\n"
        "    name = 'nonsense'\n\n    def plan(self, demand, view):\n        return 42\n"
    )
    process = start(
        tmp_path / "results", "run", "steady_load", "--framework", str(file), "--duration", "1", "--rate", "2"
    )
    output = finish(process)

    assert process.returncode == 1
    assert "requests failed: nonsense, layer 0: plan() returned int, not a Plan" in output
    assert "error: no request was answered" in output
