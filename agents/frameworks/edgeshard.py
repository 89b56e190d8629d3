r"""Whole layers on servers in a chain, chosen by dynamic programming.  EdgeShard, arXiv 2405.14371 [reconstruction].

    minimise  enter(d_0) + sum_l t(l, d_l) + sum_{d_l != d_{l+1}} m(d_l, d_{l+1}) + leave(d_{L-1})              (1)
    subject to  bytes on d <= fast memory of d                                                                 (2)
                rate x (time that a request spends on d) <= C                                                  (3)

    enter, leave  delay between d and the home servers, averaged over arrivals; leave includes the output head

The programme itself is ``agents.frameworks.shards``..  Ours: (3) with C = 0.7, without which the chain of least
latency would overload its best servers; where it is infeasible C rises step by step, and where (2) is infeasible
too, layers beyond a server's fast memory go to its slow memory at the price of loading them.

Online there is nothing to choose: a(l) is the owner of layer l, and all experts of a layer are there..  The papers
run fp16; ``precision`` makes the same in int8 or int4, so that no gain is credited to routing that belongs to
quantisation.

In a cluster of more than ``MOST_CANDIDATES`` servers the programme sees a neighbourhood only [ours]: round every
server, those that are quickest for a layer and the way there; of these neighbourhoods the quickest that holds the
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.cluster import Cluster, part_of
from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Plan, View, next_server
from agents.frameworks.cost import head_s
from agents.frameworks.expected import Expected, Floats, delays, home_shares
from agents.frameworks.placements import budget_bytes, known_precision
from agents.frameworks.shards import Shards, best_shards, runs
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.store import FAST_SHARE

#: As many servers as the dynamic programme looks at.
MOST_CANDIDATES = 24
#: The C of (3), tightest first.
BUSY_LIMITS = (0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, float("inf"))


class EdgeShard(BaseFramework):
    """Layer sharding along the quickest chain of servers."""

    name = "edgeshard"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.precision = str(rest.pop("precision", FULL))
        super().__init__(rest)
        self._owners: tuple[str, ...] = ()

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Equations (1) to (3)."""
        known_precision(self.precision, profile, framework=self.name)
        if profile.layers * profile.experts * profile.expert_bytes[self.precision] > budget_bytes(cluster, profile):
            raise FrameworkError(
                f"{self.name} needs one copy of all experts; redundancy {cluster.redundancy:g} is too small"
            )
        near = neighbourhood(cluster, profile, calibration, self.precision)
        shards, fits = chain(near, profile, calibration, self.precision)
        room = list(fits)
        replicas = []
        for layer, owner in enumerate(shards.owners):
            fast = room[owner] > 0
            room[owner] -= 1
            for expert in range(profile.experts):
                server = near.names[owner]
                replicas.append(Replica(layer=layer, expert=expert, server=server, precision=self.precision, fast=fast))
        return Placement(replicas=tuple(replicas), notes={"owners": [near.names[owner] for owner in shards.owners]})

    def begin(self, view: View) -> None:
        """Read the chain from the placement."""
        self._owners = tuple(view.placement.notes["owners"])

    def enter(self, arrival: Arrival, view: View) -> str:  # noqa: ARG002
        """The owner of layer 0."""
        return self._owners[0]

    def plan(self, demand: Demand, view: View) -> Plan:  # noqa: ARG002
        """Every expert at the owner; then on to the next owner, or stay for the logits."""
        owner = self._owners[demand.layer]
        following = self._owners[min(demand.layer + 1, len(self._owners) - 1)]
        choices = tuple(Choice(expert=e.expert, server=owner, precision=self.precision) for e in demand.experts)
        return Plan(choices=choices, next_server=next_server(demand, following))


def chain(
    cluster: Cluster, profile: ModelProfile, calibration: Calibration, precision: str
) -> tuple[Shards, tuple[int, ...]]:
    """Equations (1) to (3), relaxed as little as necessary; with the number of layers that fit each fast memory."""
    expected = Expected(cluster, profile, calibration)
    service_s = expected.layer_s(precision)
    layer_bytes = profile.experts * profile.expert_bytes[precision]
    fits = tuple(int(FAST_SHARE * server.device.fast_bytes // layer_bytes) for server in cluster.servers)
    holds = np.array(
        [fit + server.device.slow_bytes // layer_bytes for fit, server in zip(fits, cluster.servers, strict=True)]
    )
    time_s = runs(service_s)
    head = np.array([head_s(server.device, profile, expected.tokens) for server in cluster.servers])
    delay_s, share = delays(cluster), home_shares(cluster)
    for spilled in (False, True):
        if spilled:
            time_s = time_s + spill_s(expected.layer_load_s(precision), np.array(fits))
        for limit in BUSY_LIMITS:
            run_s = np.where(cluster.arrival_rate_per_s * time_s <= limit, time_s, np.inf)
            found = best_shards(
                within(run_s, holds if spilled else np.array(fits)),
                move_s=expected.move_s(),
                enter_s=share @ delay_s,
                leave_s=delay_s @ share + head,
            )
            if found is not None:
                return found, fits
    raise FrameworkError(
        f"the servers have no room for {profile.name} in precision {precision}, not even in slow memory"
    )


def neighbourhood(cluster: Cluster, profile: ModelProfile, calibration: Calibration, precision: str) -> Cluster:
    """The part of a large cluster that the programme is to see; a small cluster as it is."""
    if len(cluster.servers) <= MOST_CANDIDATES:
        return cluster
    expected = Expected(cluster, profile, calibration)
    layer_bytes = profile.experts * profile.expert_bytes[precision]
    fits = np.array([int(FAST_SHARE * server.device.fast_bytes // layer_bytes) for server in cluster.servers])
    cost_s = expected.move_s() + expected.layer_s(precision).mean(axis=1)[None, :]
    cost_s[:, fits == 0] = np.inf
    nearest = np.argsort(cost_s, axis=1, kind="stable")[:, :MOST_CANDIDATES]  # (centres, candidates)
    total_s = np.take_along_axis(cost_s, nearest, axis=1).sum(axis=1)
    total_s[fits[nearest].sum(axis=1) < profile.layers] = np.inf
    chosen = sorted(nearest[int(total_s.argmin())].tolist())
    return part_of(cluster, chosen)


def within(run_s: Floats, layers: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """``run_s`` with runs of more than ``layers[d]`` layers on server d made infeasible."""
    index = np.arange(run_s.shape[1])
    length = index[None, :] - index[:, None]
    feasible: Floats = np.where(length[None] <= layers[:, None, None], run_s, np.inf)
    return feasible


def spill_s(layer_load_s: Floats, fits: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
    """Extra time of runs (servers, i, j) whose layers beyond ``fits[d]`` are loaded for every request."""
    total = np.concatenate([np.zeros((len(layer_load_s), 1)), layer_load_s.cumsum(axis=1)], axis=1)
    extra_s = np.zeros((len(layer_load_s), total.shape[1], total.shape[1]))
    for server, fit in enumerate(fits):
        for begin in range(total.shape[1] - 1 - int(fit)):
            loaded_from = begin + int(fit)
            extra_s[server, begin, loaded_from + 1 :] = total[server, loaded_from + 1 :] - total[server, loaded_from]
    return extra_s
