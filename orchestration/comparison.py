"""One scenario under several frameworks, on one testbed: the same arrivals, prompts and placement memory for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agents.clock import WallClock
from agents.cluster import Cluster, cluster_of
from agents.errors import FrameworkError
from agents.frameworks.placements import check_placement
from agents.frameworks.registry import create
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.twin import Twin
from agents.protocol import Placement
from orchestration.fleet import Fleet
from orchestration.host import CpuTime
from orchestration.manifest import RESULT_FORMAT, HostFacts, describe, failures, label, one_line, verdict_on
from orchestration.player import LEAD_S, Played, Player
from orchestration.recorder import write_json, write_run
from orchestration.references import references
from scenarios.timeline import Scenario
from scenarios.workload import MEAN_TOKENS
from testbed.errors import TestbedError
from testbed.network import Network
from testbed.topology import Topology
from testbed.verify import calibrate


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
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One repeat: what happens, the same for every framework."""

    scenario: Scenario
    seed: int
    prompts: Mapping[int, Sequence[int]]  # request number -> token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare, decided in full before anything runs."""

    topology: Topology
    cluster: Cluster
    model: Model
    candidates: tuple[Candidate, ...]
    episodes: tuple[Episode, ...]
    dilation: float

    @property
    def scenario(self) -> Scenario:
        """The scenario of the first repeat; the others differ in their arrivals only."""
        return self.episodes[0].scenario

    @property
    def runs(self) -> list[tuple[Candidate, int]]:
        """Candidates in turn within each repeat, so that a drifting host touches all of them."""
        return [(candidate, repeat) for repeat in range(len(self.episodes)) for candidate in self.candidates]


@dataclass(slots=True, kw_only=True)
class Watcher:
    """How a person follows a comparison; the defaults follow nothing."""

    say: Callable[[str], None] = lambda text: None
    begin: Callable[[str, float, int], None] = lambda what, seconds, requests: None
    tick: Callable[[float, int], None] = lambda seconds, ended: None
    end: Callable[[], None] = lambda: None
    answered: int = 0  # requests, in all runs
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)


def prepare(
    *,
    scenarios: Mapping[int, Scenario],
    topology: Topology,
    model: Model,
    frameworks: Sequence[str],
    dilation: float,
    redundancy: float,
) -> Comparison:
    """Decide everything: placements are made and checked here, before an agent starts.

    ``scenarios`` holds one scenario per repeat, by seed.  TestbedError when a framework cannot place its experts.
    """
    first = next(iter(scenarios.values()))
    cluster = cluster_of(
        topology,
        arrival_rate_per_s=first.arrival_rate_per_s,
        tokens_per_request=MEAN_TOKENS,
        redundancy=redundancy,
    )
    episodes = tuple(
        Episode(
            scenario=scenario,
            seed=seed,
            prompts={
                request.number: model.prompts.take(request.domain, request.prompt, request.tokens)
                for request in scenario.requests
            },
        )
        for seed, scenario in scenarios.items()
    )
    return Comparison(
        topology=topology,
        cluster=cluster,
        model=model,
        candidates=tuple(Candidate(name=name, placement=_placed(name, cluster, model)) for name in frameworks),
        episodes=episodes,
        dilation=dilation,
    )


def _placed(name: str, cluster: Cluster, model: Model) -> Placement:
    framework = create(name)
    try:
        placement = framework.place(cluster, model.profile, model.calibration)
    except TestbedError:
        raise
    except (Exception, SystemExit) as error:  # a user's framework may raise anything; the traceback is chained
        raise FrameworkError(f"framework {name} cannot place: {type(error).__name__}: {error}") from error
    if not isinstance(placement, Placement):
        raise FrameworkError(f"framework {name}: place() returned {type(placement).__name__}, not a Placement")
    check_placement(placement, cluster, model.profile, framework=name)
    return placement


def _end_leftovers(network: Network, watcher: Watcher) -> None:
    """Agents of a run whose orchestrator was killed live on for some seconds and would be in the way."""
    ended = network.end_processes()
    if ended:
        watcher.say(f"ended {ended} processes that an earlier run left behind")


async def compare(comparison: Comparison, network: Network, results: Path, watcher: Watcher) -> Path:
    """Run everything and return the comparison's directory; what was collected is there even when interrupted."""
    scenario = comparison.scenario
    directory = results / f"{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{scenario.name}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise TestbedError(f"results cannot be written to {directory}: {error.strerror}") from None
    summary: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "scenario": scenario.name,
        "question": scenario.question,
        "frameworks": [label(candidate.name) for candidate in comparison.candidates],
        "repeats": len(comparison.episodes),
        "seeds": [episode.seed for episode in comparison.episodes],
        "runs": [],
        "finished": False,
    }
    write_json(directory / "comparison.json", summary)
    _end_leftovers(network, watcher)
    restore(network)  # a run that was killed may have left its congestion or its dilation
    # Both take seconds: in threads, so that an interruption is heard meanwhile.
    watcher.say("measuring every link against its file")
    calibration = await asyncio.to_thread(calibrate, network)
    off = [entry for entry in calibration if not entry.ok]
    watcher.say(f"{len(calibration) - len(off)} of {len(calibration)} directions within tolerance")
    requests = sum(len(episode.scenario.requests) for episode in comparison.episodes)
    watcher.say(f"computing the reference answers of {requests} requests in one process")
    twin = comparison.model.twin
    answers = [
        await asyncio.to_thread(references, twin, episode.scenario.requests, episode.prompts)
        for episode in comparison.episodes
    ]
    if watcher.interrupted.is_set():
        return directory
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
            for number, (candidate, repeat) in enumerate(comparison.runs, start=1):
                if fleet.ended():
                    watcher.say(f"the agents of {', '.join(fleet.ended())} have ended: no further runs")
                if watcher.interrupted.is_set() or fleet.ended():
                    break
                episode = comparison.episodes[repeat]
                name = f"{label(candidate.name)}-r{repeat}"
                about_s = comparison.dilation * episode.scenario.duration_s
                watcher.say(
                    f"playing {name} ({number} of {len(comparison.runs)}): "
                    f"{len(episode.scenario.requests)} requests, about {about_s:.0f} s"
                )
                watcher.begin(name, episode.scenario.duration_s, len(episode.scenario.requests))
                played, facts = await _run(comparison, candidate, episode, name, fleet, network, watcher)
                watcher.end()
                verdict = verdict_on(episode.scenario, played, facts, calibration)
                manifest = describe(comparison, candidate, repeat, name, played, facts, calibration, verdict)
                write_run(
                    directory / name,
                    manifest=manifest,
                    scenario=episode.scenario,
                    played=played,
                    references=answers[repeat],
                )
                summary["runs"].append(name)
                write_json(directory / "comparison.json", summary)
                watcher.answered += manifest["counts"]["completed"]
                watcher.say(failures(played))
                watcher.say(one_line(name, played, episode.scenario, answers[repeat], verdict))
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


async def _run(
    comparison: Comparison,
    candidate: Candidate,
    episode: Episode,
    name: str,
    fleet: Fleet,
    network: Network,
    watcher: Watcher,
) -> tuple[Played, HostFacts]:
    for link in network.topology.links:
        network.shape(link.name, link.a, link.forward)
        network.shape(link.name, link.b, link.backward)
    started_at = datetime.now(tz=UTC)
    clock = WallClock(origin_s=time.monotonic(), dilation=comparison.dilation)
    player = Player(
        scenario=episode.scenario,
        topology=comparison.topology,
        prompts=episode.prompts,
        agents=fleet,
        links=network,
        clock=clock,
        dilation=comparison.dilation,
        progress=watcher.tick,
        interrupted=watcher.interrupted,
    )
    await player.configure(
        run_id=name, framework=candidate.name, cluster=comparison.cluster, placement=candidate.placement
    )
    shaping = network.shaping()
    network.reset_lateness()
    cpu = CpuTime.read()
    origin_s = time.monotonic() + LEAD_S
    clock.rebase(origin_s=origin_s, dilation=comparison.dilation)
    player.start(origin_s=origin_s)
    played = await player.play()
    facts = HostFacts(
        started_at=started_at,
        host_busy=CpuTime.read().busy_share_since(cpu),
        relay_p99_s=network.lateness().p99_s / comparison.dilation,
        shaping=shaping,
    )
    return played, facts
