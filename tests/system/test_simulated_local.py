"""Interleaved requests on servers that route to each other: whole runs in virtual time under a local scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.local.registry import LOCALS
from scenarios.timeline import Scenario, ServerFailure
from tests.support.simulated import ended_s, errors, every, requests, run, scenario, topology

SMALL = topology("small3")
HOMES = ["s2", "s3", "s1"]


def crowd(*, tokens: int = 8, output_tokens: int = 0, count: int = 18) -> Scenario:
    """Everybody at once, so that devices have a choice."""
    asked = requests(HOMES, [0.5] * count, tokens=tokens, output_tokens=output_tokens)
    return replace(scenario(asked), deadline_s=100.0, quality_budget=0.0)


@pytest.mark.parametrize(
    ("routing", "local"),
    [
        ("edgeshard", "bevy"),
        ("edgeshard", "oldest"),
        ("moe-infinity", "bevy"),
        ("greedy", "oldest"),
        ("hetroute", "bevy"),
    ],
)
def test_logits_are_those_of_one_process_whoever_is_in_a_batch(routing: str, local: str, tmp_path: Path) -> None:
    played = crowd()

    found = run(played, f"{routing}+{local}", SMALL, tmp_path)

    assert errors(found) == {}
    assert found.requests["exact"].to_list() == [True] * len(played.requests)


@pytest.mark.parametrize("local", LOCALS)
def test_generated_tokens_are_those_of_one_process(local: str, tmp_path: Path) -> None:
    played = crowd(output_tokens=4, count=9)

    found = run(played, f"edgeshard+{local}", SMALL, tmp_path)

    assert found.requests["exact"].to_list() == [True] * len(played.requests)
    assert found.requests["top1_agreement"].to_list() == [1.0] * len(played.requests)


@pytest.mark.parametrize("local", LOCALS)
def test_batches_make_a_crowd_faster_and_devices_less_busy(local: str, tmp_path: Path) -> None:
    alone = run(crowd(), "edgeshard", SMALL, tmp_path / "alone")
    batched = run(crowd(), f"edgeshard+{local}", SMALL, tmp_path / "batched")

    assert max(batched.requests["latency_s"]) < 0.9 * max(alone.requests["latency_s"])
    assert batched.servers["device_busy"].sum() < alone.servers["device_busy"].sum()


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("routing", ["edgeshard", "moe-infinity"])
def test_a_request_alone_takes_as_long_as_without_a_scheduler(routing: str, local: str, tmp_path: Path) -> None:
    played = crowd(count=1)

    alone = run(played, routing, SMALL, tmp_path / "alone")
    found = run(played, f"{routing}+{local}", SMALL, tmp_path / "found")

    assert found.requests["latency_s"].to_list() == pytest.approx(alone.requests["latency_s"].to_list(), rel=2e-3)


def test_depth_and_order_compose_and_the_ledger_is_kept(tmp_path: Path) -> None:
    asked = scenario(requests(HOMES, [0.5] * 12, tokens=8))

    found = run(asked, "edgeshard+skip-only+bevy", SMALL, tmp_path)

    assert errors(found) == {}
    assert found.layers["skipped_experts"].sum() > 0
    assert max(found.layers["quality_spent"]) <= asked.quality_budget + 1e-9


def test_a_run_repeats_bit_by_bit(tmp_path: Path) -> None:
    first, second = (run(crowd(), "edgeshard+bevy", SMALL, tmp_path / name) for name in ("first", "second"))

    assert first.requests["latency_s"].to_list() == second.requests["latency_s"].to_list()


def test_a_server_that_fails_leaves_nobody_hanging(tmp_path: Path) -> None:
    asked = replace(
        scenario(requests(["s2"], every(0.1, to_s=2.0), tokens=8)),
        failures=(ServerFailure(at_s=1.9, server="s3"),),
        deadline_s=3.0,
    )

    found = run(asked, "greedy+bevy", SMALL, tmp_path)

    ends = [error is None or "lost" in error or "no answer" in error for error in found.requests["error"].to_list()]
    assert ends == [True] * len(asked.requests)
    assert None in found.requests["error"].to_list()
    assert ended_s(found) < 10.0
