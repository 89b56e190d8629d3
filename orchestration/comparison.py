"""One scenario under several frameworks, on one testbed: the same arrivals, prompts and placement memory for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agents.clock import WallClock
from agents.cluster import Cluster, cluster_of
from agents.frameworks.placements import check_placement
from agents.frameworks.registry import create
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.quantize import FULL
from agents.models.twin import Twin
from agents.protocol import Placement
from orchestration.fidelity import Verdict, judge
from orchestration.fleet import Fleet
from orchestration.host import CpuTime, versions
from orchestration.player import LEAD_S, Played, Player
from orchestration.recorder import write_json, write_run
from orchestration.references import Reference, references
from scenarios.timeline import Scenario
from scenarios.workload import MEAN_TOKENS
from testbed.network import Network
from testbed.topology import Topology
from testbed.verify import LinkMeasurement, calibrate

RESULT_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A twin with everything that lies beside its weights."""

    directory: Path
    twin: Twin
    profile: ModelProfile
    calibration: Calibration
    prompts: Prompts

    @classmethod
    def load(cls, directory: Path) -> Model:
        """TestbedError naming the file when one is missing or wrong."""
        twin = Twin.load(directory)
        return cls(
            directory=directory,
            twin=twin,
            profile=ModelProfile.load(twin.spec.name),
            calibration=Calibration.load(directory),
            prompts=Prompts.load(directory),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A framework with the placement it decided."""

    name: str
    options: Mapping[str, Any]
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare, decided in full before anything runs."""

    scenario: Scenario
    topology: Topology
    cluster: Cluster
    model: Model
    candidates: tuple[Candidate, ...]
    prompts: Mapping[int, Sequence[int]]
    repeats: int
    seed: int
    dilation: float

    @property
    def runs(self) -> list[tuple[Candidate, int]]:
        """Candidates in turn within each repeat, so that a drifting host touches all of them."""
        return [(candidate, repeat) for repeat in range(self.repeats) for candidate in self.candidates]


@dataclass(slots=True, kw_only=True)
class Watcher:
    """How a person follows a comparison; the defaults follow nothing."""

    say: Callable[[str], None] = lambda text: None
    begin: Callable[[str, float, int], None] = lambda what, seconds, requests: None
    tick: Callable[[float, int], None] = lambda seconds, ended: None
    end: Callable[[], None] = lambda: None
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)


def prepare(
    *,
    scenario: Scenario,
    topology: Topology,
    model: Model,
    frameworks: Sequence[str],
    repeats: int,
    seed: int,
    dilation: float,
    redundancy: float,
) -> Comparison:
    """Decide everything: placements are made and checked here, before an agent starts."""
    cluster = cluster_of(
        topology,
        arrival_rate_per_s=scenario.arrival_rate_per_s,
        tokens_per_request=MEAN_TOKENS,
        redundancy=redundancy,
    )
    candidates = []
    for name in frameworks:
        placement = create(name).place(cluster, model.profile, model.calibration)
        check_placement(placement, cluster, model.profile, framework=name)
        candidates.append(Candidate(name=name, options={}, placement=placement))
    return Comparison(
        scenario=scenario,
        topology=topology,
        cluster=cluster,
        model=model,
        candidates=tuple(candidates),
        prompts={
            request.number: model.prompts.take(request.domain, request.prompt, request.tokens)
            for request in scenario.requests
        },
        repeats=repeats,
        seed=seed,
        dilation=dilation,
    )


async def compare(comparison: Comparison, network: Network, results: Path, watcher: Watcher) -> Path:
    """Run everything and return the comparison's directory; what was collected is there even when interrupted."""
    scenario = comparison.scenario
    directory = results / f"{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{scenario.name}"
    directory.mkdir(parents=True)
    summary: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "scenario": scenario.name,
        "question": scenario.question,
        "frameworks": [label(candidate.name) for candidate in comparison.candidates],
        "repeats": comparison.repeats,
        "seeds": [comparison.seed],
        "runs": [],
        "finished": False,
    }
    write_json(directory / "comparison.json", summary)
    watcher.say("measuring every link against its file")
    calibration = calibrate(network)
    off = [entry for entry in calibration if not entry.ok]
    watcher.say(f"{len(calibration) - len(off)} of {len(calibration)} directions within tolerance")
    watcher.say(f"computing the reference answers of {len(scenario.requests)} requests in one process")
    answers = references(comparison.model.twin, scenario.requests, comparison.prompts)
    watcher.say(f"starting {len(comparison.cluster.servers)} agents")
    fleet = Fleet(
        sandboxes=network,
        servers=comparison.cluster.names,
        model=comparison.model.directory,
        run_directory=network.directory,
    )
    async with fleet:
        network.scale(comparison.dilation)
        try:
            for candidate, repeat in comparison.runs:
                if watcher.interrupted.is_set():
                    break
                name = f"{label(candidate.name)}-r{repeat}"
                watcher.begin(name, scenario.duration_s, len(scenario.requests))
                manifest, played = await _run(comparison, candidate, repeat, name, fleet, network, calibration, watcher)
                watcher.end()
                write_run(directory / name, manifest=manifest, scenario=scenario, played=played, references=answers)
                summary["runs"].append(name)
                write_json(directory / "comparison.json", summary)
                watcher.say(_line(name, manifest, played, scenario, answers))
        finally:
            restore(network)
    summary["finished"] = len(summary["runs"]) == len(comparison.runs) and not watcher.interrupted.is_set()
    write_json(directory / "comparison.json", summary)
    return directory


def restore(network: Network) -> None:
    """Put the topology's own values back in force, undilated."""
    network.scale(1.0)
    for link in network.topology.links:
        network.shape(link.name, link.a, link.forward)
        network.shape(link.name, link.b, link.backward)


def label(framework: str) -> str:
    """The name that stands in results: a file's stem for a user's framework."""
    return Path(framework).stem if framework.endswith(".py") else framework


async def _run(
    comparison: Comparison,
    candidate: Candidate,
    repeat: int,
    name: str,
    fleet: Fleet,
    network: Network,
    calibration: Sequence[LinkMeasurement],
    watcher: Watcher,
) -> tuple[dict[str, Any], Played]:
    scenario, dilation = comparison.scenario, comparison.dilation
    for link in network.topology.links:
        network.shape(link.name, link.a, link.forward)
        network.shape(link.name, link.b, link.backward)
    started_at = datetime.now(tz=UTC)
    clock = WallClock(origin_s=time.monotonic() + LEAD_S, dilation=dilation)
    player = Player(
        scenario=scenario,
        topology=comparison.topology,
        prompts=comparison.prompts,
        agents=fleet,
        links=network,
        clock=clock,
        dilation=dilation,
        progress=watcher.tick,
        interrupted=watcher.interrupted,
    )
    # Taking the configuration lasts as long as preparing the expert weights; emulated zero comes after it.
    origin_s = time.monotonic() + LEAD_S
    clock.rebase(origin_s=origin_s, dilation=dilation)
    await player.configure(
        run_id=name,
        framework=_absolute(candidate.name),
        options=dict(candidate.options),
        cluster=comparison.cluster,
        placement=candidate.placement,
        origin_s=origin_s,
    )
    shaping = network.shaping()
    network.reset_lateness()
    cpu = CpuTime.read()
    played = await player.play()
    host_busy = CpuTime.read().busy_share_since(cpu)
    verdict = judge(
        agents=[report.fidelity for report in played.collected.values()],
        relay_p99_s=network.lateness().p99_s / dilation,
        host_busy=host_busy,
        event_lateness_s=[event.actual_s - event.change.at_s for event in played.events],
        admission_lateness_s=[
            done.sent_s - request.at_s
            for request in scenario.requests
            if (done := played.done.get(request.number)) is not None
        ],
        links_off=sum(not entry.ok for entry in calibration),
        ended_agents=len(played.ended_agents),
        latency_s=sum(_latencies_s(played, scenario)),
        late_s=sum(done.late_s for done in played.done.values() if done.error is None),
        slo_s=scenario.slo_s,
    )
    completed = sum(done.error is None for done in played.done.values())
    manifest = {
        "format": RESULT_FORMAT,
        "run_id": name,
        "scenario": scenario.name,
        "framework": label(candidate.name),
        "framework_options": dict(candidate.options),
        "repeat": repeat,
        "seed": comparison.seed,
        "started_at": started_at.isoformat(timespec="seconds"),
        "duration_s": scenario.duration_s,
        "arrival_rate_per_s": scenario.arrival_rate_per_s,
        "dilation": dilation,
        "slo_s": scenario.slo_s,
        "deadline_s": scenario.deadline_s,
        "quality_budget": scenario.quality_budget,
        "versions": versions(),
        "topology": comparison.topology,
        "model": {
            "name": comparison.model.profile.name,
            "layers": comparison.model.profile.layers,
            "experts": comparison.model.profile.experts,
            "top_k": comparison.model.profile.top_k,
            "precisions": dict(comparison.model.profile.expert_bytes),
        },
        "placement": _placement_summary(candidate.placement, comparison),
        "shaping": [
            {"link": link, "source": source, **asdict(direction)} for (link, source), direction in shaping.items()
        ],
        "calibration": [asdict(entry) for entry in calibration],
        "counts": {
            "sent": len(played.submitted),
            "completed": completed,
            "failed": len(played.submitted) - completed,
        },
        "fidelity": verdict,
        "complete": played.complete,
    }
    return manifest, played


def _latencies_s(played: Played, scenario: Scenario) -> list[float]:
    """Latencies of the requests that were answered."""
    return [
        done.finished_s - request.at_s
        for request in scenario.requests
        if (done := played.done.get(request.number)) is not None and done.error is None
    ]


def _absolute(framework: str) -> str:
    """Agents have another working directory: a user's file is named in full."""
    return str(Path(framework).resolve()) if framework.endswith(".py") else framework


def _placement_summary(placement: Placement, comparison: Comparison) -> dict[str, Any]:
    sizes = comparison.model.profile.expert_bytes
    servers = {name: {"replicas": 0, "fast_bytes": 0, "slow_bytes": 0} for name in comparison.cluster.names}
    for replica in placement.replicas:
        entry = servers[replica.server]
        entry["replicas"] += 1
        entry["fast_bytes" if replica.fast else "slow_bytes"] += sizes[replica.precision]
    memory_bytes = sum(entry["fast_bytes"] + entry["slow_bytes"] for entry in servers.values())
    profile = comparison.model.profile
    return {
        "replicas": len(placement.replicas),
        "memory_bytes": memory_bytes,
        "redundancy": memory_bytes / (profile.layers * profile.experts * sizes[FULL]),
        "servers": servers,
        "precisions": {
            precision: sum(replica.precision == precision for replica in placement.replicas) for precision in sizes
        },
    }


def _line(
    name: str, manifest: Mapping[str, Any], played: Played, scenario: Scenario, answers: Mapping[int, Reference]
) -> str:
    latencies = sorted(_latencies_s(played, scenario))
    exact = sum(done.digest == answers[number].digest for number, done in played.done.items() if done.error is None)
    counts, verdict = manifest["counts"], manifest["fidelity"]
    text = f"{name}: {counts['completed']} of {counts['sent']} answered"
    if latencies:
        mean_ms = 1e3 * sum(latencies) / len(latencies)
        p99_ms = 1e3 * latencies[int(0.99 * (len(latencies) - 1))]
        text += f", mean {mean_ms:.0f} ms, P99 {p99_ms:.0f} ms, {exact} bit-exact"
    failed = _failed_checks(verdict)
    return f"{text}, fidelity {verdict.verdict}{failed}"


def _failed_checks(verdict: Verdict) -> str:
    bad = [f"{check.name} {check.value:.3g} {check.unit} > {check.bound:g}" for check in verdict.checks if not check.ok]
    return f" ({'; '.join(bad)})" if bad else ""
