from __future__ import annotations

from typing import Any

import pytest

from agents.protocol import Fidelity
from orchestration.fidelity import judge

GOOD = Fidelity(
    jobs=100,
    overruns=0,
    busy_s=1.0,
    lag_p50_s=1e-4,
    lag_p99_s=5e-4,
    lag_max_s=1e-3,
    dropped_messages=0,
)
FACTS: dict[str, Any] = {
    "agents": [GOOD, GOOD],
    "relay_p99_s": 2e-4,
    "host_busy": 0.5,
    "event_lateness_s": [0.001],
    "admission_lateness_s": [1e-4] * 100,
    "links_off": 0,
    "ended_agents": 0,
    "latency_s": 20.0,
    "late_s": 0.5,
    "slo_s": 0.3,
}


def test_a_run_within_every_bound_passes() -> None:
    verdict = judge(**FACTS)
    assert verdict.verdict == "PASS"
    assert all(check.ok for check in verdict.checks)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"late_s": 1.1}, "host lateness"),
        ({"relay_p99_s": 0.004}, "relay lateness p99"),
        ({"host_busy": 0.95}, "host CPU"),
        ({"event_lateness_s": [0.001, 0.2]}, "event lateness"),
        ({"admission_lateness_s": [0.1] * 100}, "admission lateness p99"),
        ({"links_off": 1}, "links off their file"),
        ({"ended_agents": 1}, "agents ended"),
    ],
)
def test_each_bound_alone_turns_the_verdict(change: dict[str, Any], name: str) -> None:
    verdict = judge(**{**FACTS, **change})
    assert verdict.verdict == "WARN"
    assert [check.name for check in verdict.checks if not check.ok] == [name]


def test_a_run_without_anything_is_no_crash() -> None:
    nothing: dict[str, Any] = {**FACTS, "agents": [], "event_lateness_s": [], "admission_lateness_s": []}
    assert judge(**{**nothing, "latency_s": 0.0, "late_s": 0.0}).verdict == "PASS"
