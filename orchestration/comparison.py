"""What to compare, decided in full before anything runs: the same arrivals, prompts and memory for every framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.cluster import Cluster, cluster_of
from agents.errors import FrameworkError
from agents.frameworks.placements import check_placement
from agents.frameworks.registry import create
from agents.models.model import Model
from agents.protocol import Placement
from orchestration.references import References
from scenarios.timeline import Scenario
from scenarios.workload import MEAN_TOKENS
from testbed.errors import TestbedError, did_you_mean
from testbed.topology import Topology


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
    dilation: float  # wall seconds per emulated second; 1 in virtual time

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
    dilation: float,
    redundancy: float,
) -> Comparison:
    """Decide everything: placements are made and checked here, before an agent starts.

    ``scenarios`` holds one scenario per repeat, by seed.  TestbedError when a framework cannot place its experts.
    """
    for scenario in scenarios.values():
        check_scenario(scenario, topology)
    first = next(iter(scenarios.values()))
    cluster = cluster_of(
        topology,
        arrival_rate_per_s=first.arrival_rate_per_s,
        tokens_per_request=MEAN_TOKENS,
        redundancy=redundancy,
    )
    episodes = tuple(_episode(scenario, seed, model) for seed, scenario in scenarios.items())
    return Comparison(
        topology=topology,
        cluster=cluster,
        model=model,
        candidates=tuple(Candidate(name=name, placement=_placed(name, cluster, model)) for name in frameworks),
        episodes=episodes,
        dilation=dilation,
    )


def check_scenario(scenario: Scenario, topology: Topology) -> None:
    """TestbedError when a timeline names what the topology has not, or asks links for what no link can be."""
    servers = {node.name for node in topology.servers}
    links = {name for link in topology.links for name in (link.name, f"{link.b}-{link.a}")}
    for request in scenario.requests:
        if request.home not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: request {request.number} arrives at {request.home!r}, which is no server "
                f"of {topology.name}{did_you_mean(request.home, servers)}"
            )
    for failure in scenario.failures:
        if failure.server not in servers:
            raise TestbedError(
                f"scenario {scenario.name}: {failure.server!r} is to fail, which is no server of {topology.name}"
                f"{did_you_mean(failure.server, servers)}"
            )
    for change in scenario.changes:
        if change.link not in links:
            raise TestbedError(
                f"scenario {scenario.name}: a change names the link {change.link!r}, which {topology.name} lacks"
                f"{did_you_mean(change.link, links)}"
            )
        rate_bps, delay_s, loss = change.rate_bps, change.delay_s, change.loss
        if (
            (rate_bps is not None and not 0 < rate_bps < math.inf)
            or (delay_s is not None and not 0 <= delay_s < math.inf)
            or (loss is not None and not 0 <= loss <= 1)
        ):
            raise TestbedError(
                f"scenario {scenario.name}: {change} at {change.at_s:g} s is no link: rates are above 0, delays not "
                "below 0, losses between 0 and 1"
            )


def _episode(scenario: Scenario, seed: int, model: Model) -> Episode:
    prompts = {
        request.number: model.prompts.take(request.domain, request.prompt, request.tokens)
        for request in scenario.requests
    }
    references = References(model.twin, scenario.requests, prompts)
    return Episode(scenario=scenario, seed=seed, prompts=prompts, references=references)


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
