"""What stands in a run's manifest and in the line that is printed after it: docs/results.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.models.quantize import FULL
from agents.protocol import Placement
from orchestration.fidelity import Verdict, judge
from orchestration.host import versions
from orchestration.player import Played
from orchestration.references import Reference
from scenarios.timeline import Scenario
from testbed.topology import Direction

if TYPE_CHECKING:
    from orchestration.comparison import Candidate, Comparison
    from testbed.judging import LinkMeasurement

RESULT_FORMAT = 1
SHOWN_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What was measured of the host and the network around one run."""

    started_at: datetime
    wall_s: float  # from emulated zero to the last record; in virtual time with its preparation
    host_busy: float  # share of all cores, in [0, 1]
    relay_p99_s: float  # emulated seconds
    shaping: Mapping[tuple[str, str], Direction]  # read back before the first request


def label(framework: str) -> str:
    """The name that stands in results: a file's stem for a user's framework."""
    return Path(framework).stem if framework.endswith(".py") else framework


def latencies_s(played: Played, scenario: Scenario) -> list[float]:
    """Latencies of the requests that were answered, in their order of arrival."""
    return [
        done.finished_s - request.at_s
        for request in scenario.requests
        if (done := played.done.get(request.number)) is not None and done.error is None
    ]


def verdict_on(scenario: Scenario, played: Played, facts: HostFacts, calibration: Sequence[LinkMeasurement]) -> Verdict:
    """Judge a run by ``orchestration.fidelity``."""
    return judge(
        agents=[report.fidelity for report in played.collected.values()],
        relay_p99_s=facts.relay_p99_s,
        host_busy=facts.host_busy,
        event_lateness_s=[event.actual_s - event.change.at_s for event in played.events],
        admission_lateness_s=[
            done.sent_s - request.at_s
            for request in scenario.requests
            if (done := played.done.get(request.number)) is not None
        ],
        links_off=sum(not entry.ok for entry in calibration),
        ended_agents=len(played.ended_agents),
        latency_s=sum(latencies_s(played, scenario)),
        late_s=sum(done.late_s for done in played.done.values() if done.error is None),
        slo_s=scenario.slo_s,
    )


def describe(
    comparison: Comparison,
    candidate: Candidate,
    repeat: int,
    name: str,
    backend: str,
    played: Played,
    facts: HostFacts,
    calibration: Sequence[LinkMeasurement],
    verdict: Verdict,
) -> dict[str, Any]:
    """The manifest of one run."""
    episode, profile = comparison.episodes[repeat], comparison.model.profile
    scenario = episode.scenario
    completed = len(latencies_s(played, scenario))
    return {
        "format": RESULT_FORMAT,
        "run_id": name,
        "backend": backend,
        "scenario": scenario.name,
        "framework": label(candidate.name),
        "repeat": repeat,
        "seed": episode.seed,
        "started_at": facts.started_at.isoformat(timespec="seconds"),
        "duration_s": scenario.duration_s,
        "arrival_rate_per_s": scenario.arrival_rate_per_s,
        "dilation": comparison.dilation,
        "view": comparison.view,
        "wall_s": facts.wall_s,
        "slo_s": scenario.slo_s,
        "deadline_s": scenario.deadline_s,
        "quality_budget": scenario.quality_budget,
        "versions": versions(),
        "topology": comparison.topology,
        "model": {
            "name": profile.name,
            "summary": comparison.model.summary,
            "layers": profile.layers,
            "experts": profile.experts,
            "top_k": profile.top_k,
            "precisions": dict(profile.expert_bytes),
        },
        "placement": _placement(candidate.placement, comparison),
        "shaping": [
            {"link": link, "source": source, **asdict(direction)} for (link, source), direction in facts.shaping.items()
        ],
        "calibration": [asdict(entry) for entry in calibration],
        "counts": {
            "sent": len(played.submitted),
            "completed": completed,
            "failed": len(played.submitted) - completed,
        },
        "fidelity": verdict,
        "agents": {server: report.fidelity for server, report in sorted(played.collected.items())},
        "reviews": played.reviews,
        "loads": {server: report.loads for server, report in sorted(played.collected.items())},
        "ended_agents": played.ended_agents,
        "complaints": played.complaints,
        "complete": played.complete,
    }


def failures(played: Played) -> str:
    """The reasons for which requests failed, the most frequent first; nothing where none did."""
    reasons = Counter(done.error for done in played.done.values() if done.error is not None)
    lines = [f"{count} requests failed: {reason}" for reason, count in reasons.most_common(SHOWN_REASONS)]
    silent = len(played.submitted - played.done.keys())
    if silent:
        lines.append(f"{silent} requests had no end: their home server failed, or the run was stopped")
    lines += [f"agent {complaint}" for complaint in played.complaints[:SHOWN_REASONS]]
    return "\n".join(lines)


def one_line(name: str, played: Played, scenario: Scenario, answers: Mapping[int, Reference], verdict: Verdict) -> str:
    """What a person wants to know of a run at once."""
    latencies = latencies_s(played, scenario)
    text = f"{name}: {len(latencies)} of {len(played.submitted)} answered"
    if latencies:
        answered = [(done, answers[number]) for number, done in played.done.items() if not done.error]
        exact = sum(done.digest == reference.digest for done, reference in answered)
        kind = "bit-exact" if answered[0][1].measures_quality else "as recorded"
        mean_ms, p99_ms = 1e3 * np.mean(latencies), 1e3 * np.quantile(latencies, 0.99)
        text += f", mean {mean_ms:.0f} ms, P99 {p99_ms:.0f} ms, {exact} {kind}"
    bad = [f"{check.name} {check.value:.3g} {check.unit} > {check.bound:g}" for check in verdict.checks if not check.ok]
    return f"{text}, fidelity {verdict.verdict}" + (f" ({'; '.join(bad)})" if bad else "")


def _placement(placement: Placement, comparison: Comparison) -> dict[str, Any]:
    profile = comparison.model.profile
    sizes = profile.expert_bytes
    servers = {name: {"replicas": 0, "fast_bytes": 0, "slow_bytes": 0} for name in comparison.cluster.names}
    for replica in placement.replicas:
        entry = servers[replica.server]
        entry["replicas"] += 1
        entry["fast_bytes" if replica.fast else "slow_bytes"] += sizes[replica.precision]
    memory_bytes = sum(entry["fast_bytes"] + entry["slow_bytes"] for entry in servers.values())
    return {
        "replicas": len(placement.replicas),
        "memory_bytes": memory_bytes,
        "redundancy": memory_bytes / (profile.layers * profile.experts * sizes[FULL]),
        "servers": servers,
        "precisions": {
            precision: sum(replica.precision == precision for replica in placement.replicas) for precision in sizes
        },
    }
