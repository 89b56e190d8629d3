"""The same seed gives the same bytes: whatever the hash seed, what ran before, and how messages travel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from agents.codec import decode, decode_command, decode_report, encode, encode_management, wire_bytes
from agents.frameworks.registry import FRAMEWORKS
from agents.protocol import Command, Message, Report
from analysis.load import load
from orchestration import simulation
from orchestration.simulation import SimulatedFleet, SimulatedTransport
from scenarios.timeline import LinkChange, ServerFailure
from tests.support.simulated import ROOT, Outcome, compared, every, requests, scenario, simulate, topology

TABLES = ("requests", "layers", "links", "servers", "events")
#: What a manifest says of the moment and the machine.
OF_THE_HOST = ("started_at", "wall_s", "versions")

#: Five unequal servers, most of which reach each other over others, so that whoever sends first makes a difference.
TREE = """
name: tree5
devices:
  large: {peak: 77 TFLOP/s, memory: 768 GB/s, fast: 48 GB, slow: 512 GB, load: 24 GB/s}
  small: {peak: 42 TFLOP/s, memory: 205 GB/s, fast: 24 GB, slow: 96 GB, load: 64 GB/s}
nodes:
  s1: {device: large, users: 2}
  s2: {device: small, users: 5}
  s3: {device: large, users: 3}
  s4: {device: small}
  s5: {device: small}
links:
  - {between: [s1, s2], rate: 1 Gbit/s, delay: 2 ms, jitter: 1 ms}
  - {between: [s2, s3], rate: 500 Mbit/s, delay: 3 ms, loss: 1 %}
  - {between: [s2, s4], rate: 400 Mbit/s, delay: 2 ms}
  - {between: [s4, s5], rate: 400 Mbit/s, delay: 1 ms, loss: 0.5 %}
"""

#: Both kinds of requests, congestion, and a failure.
EVENTFUL = """
from dataclasses import replace

from scenarios.congestion import squeeze
from scenarios.steady_load import build as steady
from scenarios.timeline import ServerFailure


def build(setting):
    changes = squeeze(setting.topology, ["s1-s2"], from_s=0.8, to_s=1.1, rate_share=0.1, extra_delay_s=0.01)
    failures = (ServerFailure(at_s=2.0, server="s5"),)
    return replace(steady(setting), name="eventful", changes=changes, failures=failures, deadline_s=4.0)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of three processes that start at once: all frameworks under two hash seeds, hetroute alone."""
    directory = tmp_path_factory.mktemp("determinism")
    (directory / "eventful.py").write_text(EVENTFUL)
    (directory / "tree5.yaml").write_text(TREE)
    everything = ",".join(FRAMEWORKS)
    asked = {
        "zero": ("0", everything, []),
        "one": ("1", everything, []),
        "alone": ("2", "hetroute", ["--repeats", "2"]),
    }
    processes = {
        name: subprocess.Popen(
            [sys.executable, "orchestrator.py", "compare", str(directory / "eventful.py"), "--backend", "sim",
             "--topology", str(directory / "tree5.yaml"), "--frameworks", frameworks, "--rate", "6",
             "--duration", "1", "--generate-share", "0.3", "--results", str(directory / name), *more],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, (hash_seed, frameworks, more) in asked.items()
    }  # fmt: skip
    found = {}
    try:
        for name, process in processes.items():
            output, _ = process.communicate(timeout=300.0)
            assert process.returncode == 0, output
            (found[name],) = (directory / name).iterdir()
    finally:
        for process in processes.values():
            process.kill()  # those that still run because another one has failed
            process.communicate()
    return found


def same_bytes(one: Path, other: Path) -> list[str]:
    """Tables of two runs that have equal bytes."""
    return [
        name for name in TABLES if (one / f"{name}.parquet").read_bytes() == (other / f"{name}.parquet").read_bytes()
    ]


def manifest(run: Path) -> dict[str, Any]:
    read = json.loads((run / "manifest.json").read_text())
    return {key: value for key, value in read.items() if key not in OF_THE_HOST}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_processes_write_the_same_bytes_under_any_hash_seed(framework: str, places: dict[str, Path]) -> None:
    one, other = (places[name] / f"{framework}-r0" for name in ("zero", "one"))

    assert same_bytes(one, other) == list(TABLES)
    assert manifest(one) == manifest(other)
    assert manifest(one)["counts"]["sent"] > 4


def test_losses_a_failure_and_congestion_were_among_what_was_repeated(places: dict[str, Path]) -> None:
    runs = load(places["zero"]).runs

    assert sum(run.links["dropped"].sum() for run in runs) > 0
    assert max(run.events.height for run in runs) == 3
    requests = pl.concat([run.requests for run in runs])
    assert set(requests["kind"]) == {"generate", "score"}
    assert 0 < requests["error"].null_count() < requests.height


def test_what_was_played_before_does_not_touch_a_run(places: dict[str, Path]) -> None:
    after_others, alone = places["zero"] / "hetroute-r0", places["alone"] / "hetroute-r0"

    assert same_bytes(after_others, alone) == list(TABLES)
    assert manifest(after_others) == manifest(alone)


def test_another_seed_gives_another_run(places: dict[str, Path]) -> None:
    one, other = (places["alone"] / f"hetroute-r{repeat}" for repeat in (0, 1))

    assert same_bytes(one, other) == ["events"]  # the scenario's own moments
    assert manifest(one)["seed"] != manifest(other)["seed"]


# --- the wire ---------------------------------------------------------------------------------------------------------


class EncodedTransport(SimulatedTransport):
    """Sends what the frames on a socket would hold."""

    def send(self, target: str, message: Message) -> None:
        frames = encode(message)
        copy = decode(frames)
        assert wire_bytes(copy) == wire_bytes(message)
        super().send(target, copy)


class EncodedFleet(SimulatedFleet):
    """Commands and reports go through the codec, too."""

    def send(self, server: str, command: Command) -> None:
        super().send(server, decode_command(encode_management(command)))

    def _hear(self, report: Report) -> None:
        super()._hear(decode_report(encode_management(report)))


def eventful(directory: Path) -> Outcome:
    on = topology("small3")
    asked = requests(["s2", "s3"], every(0.1, to_s=1.0))
    generating = requests(["s1"], [0.6, 0.9], output_tokens=3)
    asked += tuple(replace(each, number=len(asked) + each.number) for each in generating)
    changes = (LinkChange(at_s=0.7, link="s1-s2", loss=0.05), LinkChange(at_s=0.9, link="s1-s2", restore=True))
    failures = (ServerFailure(at_s=1.4, server="s3"),)
    played = replace(scenario(asked), changes=changes, failures=failures, deadline_s=3.0)
    return simulate(compared(played, ["greedy", "edgeshard", "hetroute"], on), directory)


def test_messages_that_are_encoded_on_the_way_leave_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that two servers have in common is shared by accident."""
    by_reference = eventful(tmp_path / "by_reference")
    monkeypatch.setattr(simulation, "SimulatedTransport", EncodedTransport)
    monkeypatch.setattr(simulation, "SimulatedFleet", EncodedFleet)
    encoded = eventful(tmp_path / "encoded")

    for one, other in zip(by_reference.runs, encoded.runs, strict=True):
        assert same_bytes(one.path, other.path) == list(TABLES)
    answers = pl.concat([run.requests for run in by_reference.runs])
    assert 0 < answers["error"].null_count() < answers.height
    assert by_reference.payload_bytes == encoded.payload_bytes
    assert by_reference.said == encoded.said
