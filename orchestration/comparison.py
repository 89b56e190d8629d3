"""What to compare, decided in full before anything runs: the same arrivals, prompts and memory for every framework."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agents.cluster import Cluster, cluster_of
from agents.depth.registry import check_measured
from agents.errors import FrameworkError
from agents.frameworks.base import BaseFramework
from agents.frameworks.placements import check_placement
from agents.frameworks.registry import create, create_depth, parts
from agents.models.cloze import pieces_beside
from agents.models.model import Model
from agents.protocol import Placement
from orchestration.checks import check_scenario, in_order
from orchestration.references import References, sampling_of
from scenarios.timeline import Scenario
from scenarios.workload import MEAN_TOKENS, counted_shares
from testbed.errors import TestbedError
from testbed.topology import Topology

#: What a placement says of its progress is passed on when it has taken so long, s: nobody waits for less.
PATIENCE_S = 2.0

Progress = Callable[[str], None]


#: Frameworks see what gossip and their own measurements tell, or the true state at the moment at which they plan.
ESTIMATED, ORACLE = "estimated", "oracle"


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
    references: References


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare, decided in full before anything runs."""

    topology: Topology
    cluster: Cluster
    model: Model
    candidates: tuple[Candidate, ...]
    episodes: tuple[Episode, ...]
    view: str = ESTIMATED  # what frameworks see: ESTIMATED or ORACLE
    dilation: float = 1.0  # wall seconds per emulated second; ``orchestration.places.dilated`` decides it

    @property
    def scenario(self) -> Scenario:
        """The scenario of the first repeat; the others differ in their arrivals only."""
        return self.episodes[0].scenario

    @property
    def runs(self) -> list[tuple[Candidate, int]]:
        """Candidates in turn within each repeat, so that a drifting host touches all of them."""
        return [(candidate, repeat) for repeat in range(len(self.episodes)) for candidate in self.candidates]


def prepare(
    *,
    scenarios: Mapping[int, Scenario],
    topology: Topology,
    model: Model,
    frameworks: Sequence[str],
    redundancy: float,
    progress: Progress = lambda text: None,
) -> Comparison:
    """Decide everything: placements are made and checked here, before an agent starts.

    ``scenarios`` holds one scenario per repeat, by seed; ``progress`` hears of placements that take long.  TestbedError
    when a framework cannot place its experts.
    """
    scenarios = {seed: in_order(scenario) for seed, scenario in scenarios.items()}
    for scenario in scenarios.values():
        check_scenario(scenario, topology)
    first = next(iter(scenarios.values()))
    cluster = cluster_of(
        topology,
        arrival_rate_per_s=first.arrival_rate_per_s,
        tokens_per_request=MEAN_TOKENS,
        redundancy=redundancy,
        domain_shares=first.domain_shares
        or counted_shares(request for scenario in scenarios.values() for request in scenario.requests),
    )
    for name in frameworks:
        create_depth(name)  # a number that is wrong is said now
        check_measured(parts(name).depth or "none", model.facts, model.exits)
    pieces = pieces_beside(model.directory)
    episodes = tuple(_episode(scenario, seed, model, pieces) for seed, scenario in scenarios.items())
    # Depth policies run on the placement of the framework that they are composed with.
    routings = dict.fromkeys(parts(name).routing for name in frameworks)
    placements = {name: _placed(name, cluster, model, first.quality_budget, progress) for name in routings}
    return Comparison(
        topology=topology,
        cluster=cluster,
        model=model,
        candidates=tuple(Candidate(name=name, placement=placements[parts(name).routing]) for name in frameworks),
        episodes=episodes,
    )


def _episode(scenario: Scenario, seed: int, model: Model, pieces: Sequence[bytes] | None) -> Episode:
    prompts = {
        request.number: model.prompts.take(request.domain, request.prompt, request.tokens)
        for request in scenario.requests
    }
    references = References(model.twin, scenario.requests, prompts, pieces=pieces, sampling=sampling_of(scenario))
    return Episode(scenario=scenario, seed=seed, prompts=prompts, references=references)


def _placed(name: str, cluster: Cluster, model: Model, quality_budget: float, progress: Progress) -> Placement:
    framework = create(name)
    if isinstance(framework, BaseFramework):
        framework.progress = _patiently(f"placing {name}", progress)
    try:
        framework.measured(model.facts, model.exits, quality_budget=quality_budget)
        placement = framework.place(cluster, model.profile, model.calibration)
    except TestbedError:
        raise
    except (Exception, SystemExit) as error:  # a user's framework may raise anything; the traceback is chained
        raise FrameworkError(f"framework {name} cannot place: {type(error).__name__}: {error}") from error
    if not isinstance(placement, Placement):
        raise FrameworkError(f"framework {name}: place() returned {type(placement).__name__}, not a Placement")
    check_placement(placement, cluster, model.profile, framework=name)
    return placement


def _patiently(what: str, progress: Progress) -> Progress:
    begun_s = time.monotonic()

    def said(text: str) -> None:
        if time.monotonic() - begun_s >= PATIENCE_S:
            progress(f"{what}: {text}")

    return said
