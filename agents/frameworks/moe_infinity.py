r"""One server runs the whole request, and loads the experts that it has no room for.  MoE-Infinity, arXiv 2401.14361
[reconstruction, in part].

    host(home) = home, if it holds all experts;  else
                 argmin_h  delay there and back + max(device backlog, load backlog)                               (1)
    pinned     = the experts with the largest  q_le · (1 - l / (L + 1))  that fit fast memory                     (2)

    q_le  probability that a request calls expert e of layer l (``expected``)        L  number of layers

The paper has one machine.  Everybody gets the same memory here, redundancy x all experts, so only so many servers can
hold everything: that many *hosts* are chosen, those that serve the users quickest; other homes pass their requests to
one of them, whole [ours].  With a redundancy of as many as there are servers, every home is its own host.  A server
whose two memories together cannot hold all experts is none.

Residency is (2): predicted reuse, early layers protected because nothing can be loaded ahead for them.  Room for the
experts of one layer stays free, where loads arrive; the store keeps what was used last there.

What is missing, because the seam between frameworks and the engine has no place for it:

- Prefetch.  ``activations`` records every request and predicts its next layers as the paper does, but nobody asks:
  a ``Plan`` cannot name copies to load, so every load waits for its layer's gate.
- Eviction by predicted reuse.  The store evicts the least recently used; what (2) pins is never evicted.

So this row is MoE-Infinity's placement with loading on demand.  Loading ahead could hide behind computing, and save as
much time as that takes at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.activations import Activations, depth_weight
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Feedback, Plan, View, next_server
from agents.frameworks.expected import Expected, Floats, delays, home_shares
from agents.frameworks.placements import Memory, budget_bytes
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.store import FAST_SHARE

#: Sets of hosts that are all compared; beyond, hosts are added one by one.
MOST_SETS = 5000


class MoeInfinity(BaseFramework):
    """Equations (1) and (2)."""

    name = "moe-infinity"

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """All experts on every host, the most wanted in fast memory."""
        size_bytes, every = profile.expert_bytes[FULL], profile.layers * profile.experts
        allowed = int(budget_bytes(cluster, profile) // (every * size_bytes))
        if not allowed:
            raise FrameworkError(
                f"{self.name} needs one copy of all experts; redundancy {cluster.redundancy:g} is too small"
            )
        expected = Expected(cluster, profile, calibration)
        fast = [int(FAST_SHARE * server.device.fast_bytes // size_bytes) for server in cluster.servers]
        able = [
            place
            for place, server in enumerate(cluster.servers)
            if fast[place] + server.device.slow_bytes // size_bytes >= every
        ]
        if not able:
            raise FrameworkError(f"{self.name} runs whole requests on one server, and none has room for {profile.name}")
        order = pinning_order(expected.called)
        pinned = [held if held >= every else max(0, held - profile.experts) for held in fast]
        served_s = expected.layer_s(FULL).sum(axis=1) + np.array(
            [
                sum(float(expected.called[key]) for key in order[held:]) * size_bytes / server.device.load_bytes_per_s
                for held, server in zip(pinned, cluster.servers, strict=True)
            ]
        )
        way_s = delays(cluster) + delays(cluster).T  # from home to host and back
        chosen = best_hosts(served_s[None, :] + way_s, home_shares(cluster), able, min(allowed, len(able)))
        memory, replicas = Memory(cluster), []
        for place in chosen:
            name = cluster.names[place]
            for rank, (layer, expert) in enumerate(order):
                resident = rank < pinned[place] or memory.slow_bytes[name] < size_bytes
                (memory.fast_bytes if resident else memory.slow_bytes)[name] -= size_bytes
                replicas.append(Replica(layer=layer, expert=expert, server=name, precision=FULL, fast=resident))
        return Placement(replicas=tuple(sorted(replicas)), notes={"hosts": [cluster.names[place] for place in chosen]})

    def begin(self, view: View) -> None:
        """Read the hosts from the placement; nothing is known of any request."""
        self._hosts: tuple[str, ...] = tuple(view.placement.notes["hosts"])
        self._last_layer = view.profile.layers - 1
        self.activations = Activations(view.profile.layers, view.profile.experts)

    def enter(self, arrival: Arrival, view: View) -> str:
        """Equation (1)."""
        return self._host(arrival.home, view)

    def plan(self, demand: Demand, view: View) -> Plan:
        """Everything here, on a host; elsewhere at the host that (1) names."""
        self.activations.saw(demand.request, demand.layer, ((e.expert, e.tokens) for e in demand.experts))
        host = self._host(view.server, view)
        choices = tuple(Choice(expert=e.expert, server=host) for e in demand.experts)
        return Plan(choices=choices, next_server=next_server(demand, host))

    def observe(self, feedback: Feedback) -> None:
        """A request that has passed the last layer becomes history."""
        if feedback.layer == self._last_layer:
            self.activations.done(feedback.request)

    def _host(self, server: str, view: View) -> str:
        if server in self._hosts:
            return server

        def cost_s(host: str) -> tuple[float, str]:
            way_s = view.delay_s(server, host) + view.delay_s(host, server)
            return way_s + max(view.backlog_s(host), view.load_backlog_s(host)), host

        return min([host for host in self._hosts if view.alive(host)] or self._hosts, key=cost_s)


def pinning_order(called: Floats) -> list[tuple[int, int]]:
    """All (layer, expert), those that (2) keeps in fast memory first.

    >>> pinning_order(np.array([[0.5, 0.9], [0.9, 0.3]]))
    [(0, 1), (1, 0), (0, 0), (1, 1)]
    """
    layers = called.shape[0]
    weight = called * np.array([depth_weight(layer, 0, layers) for layer in range(layers)])[:, None]
    return sorted(np.ndindex(called.shape), key=lambda key: (-weight[key], key))


def best_hosts(cost_s: Floats, share: Floats, able: Sequence[int], count: int) -> list[int]:
    """The ``count`` hosts that serve the average request soonest when nothing queues; a host serves its own users.

    ``cost_s`` (homes, servers) is what a request of a home takes at a server.  Where there are too many sets to
    compare, hosts are added one after the other.

    >>> best_hosts(np.array([[9.0, 2.0, 3.0], [9.0, 1.0, 9.0], [9.0, 9.0, 1.0]]), np.full(3, 1 / 3), [0, 1, 2], 2)
    [1, 2]
    """

    def mean_s(hosts: Iterable[int]) -> float:
        places = list(hosts)
        soonest = cost_s[:, places].min(axis=1)
        soonest[places] = cost_s[places, places]
        return float(share @ soonest)

    if len(list(itertools.islice(itertools.combinations(able, count), MOST_SETS + 1))) <= MOST_SETS:
        return list(min(itertools.combinations(able, count), key=mean_s))
    chosen: list[int] = []
    while len(chosen) < count:
        chosen.append(min((place for place in able if place not in chosen), key=lambda place: mean_s([*chosen, place])))
    return sorted(chosen)
