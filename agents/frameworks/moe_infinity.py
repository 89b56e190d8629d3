r"""One server runs the whole request, and loads the experts that it has no room for.  MoE-Infinity, arXiv 2401.14361
[reconstruction].

    host(home) = home, if it holds all experts;  else
                 argmin_h  delay there and back + t_h + L · max(device backlog, load backlog)                     (1)
    ahead      = the experts with the largest P of ``activations`` (3), when a layer's gate has spoken            (2)
    evict      = the expert with the least W of ``activations`` (4)                                               (3)

    t_h  time that an average request takes on h alone, loads included       L  layers: at each of them it queues

All experts lie in slow memory, and fast memory is a cache that begins with the largest W: usage in the calibration
text, early layers first.  What a gate has chosen is loaded first; (2) is loaded while nobody waits for the load
channel, one expert at a time and without interruption, and never in the place of something with a larger W
(``agents.store``).

The paper has one machine.  Everybody gets the same memory here, redundancy x all experts, so only so many servers can
hold everything: that many *hosts* are chosen, those that serve the users quickest; other homes pass their requests to
one of them, whole [ours].  With a redundancy of as many as there are servers, every home is its own host.  A server
whose two memories together cannot hold all experts is none; where slow memory alone is too small, the experts with the
largest W stay in fast memory for good.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.activations import Activations
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Feedback, Plan, View, next_server
from agents.frameworks.expected import Expected, Floats, delays, home_shares
from agents.frameworks.placements import budget_bytes
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.store import FAST_SHARE

#: Experts that a layer's plan names to be loaded ahead.  The next layer names them anew, and meanwhile a load channel
#: brings a handful.
MOST_AHEAD = 64
#: Sets of hosts that are all compared; beyond, hosts are added one by one.
MOST_SETS = 5000


class MoeInfinity(BaseFramework):
    """Equations (1) to (3)."""

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
        order = most_worth(Activations(profile.layers, profile.experts, _usage(calibration)))
        served_s = expected.layer_s(FULL).sum(axis=1) + np.array(
            [
                sum(float(expected.called[key]) for key in order[held:]) * size_bytes / server.device.load_bytes_per_s
                for held, server in zip(fast, cluster.servers, strict=True)
            ]
        )
        way_s = delays(cluster) + delays(cluster).T  # from home to host and back
        chosen = best_hosts(served_s[None, :] + way_s, home_shares(cluster), able, min(allowed, len(able)))
        replicas = []
        for place in chosen:
            name = cluster.names[place]
            lacking = every - cluster.servers[place].device.slow_bytes // size_bytes
            for rank, (layer, expert) in enumerate(order):
                resident = fast[place] >= every or rank < lacking
                replicas.append(Replica(layer=layer, expert=expert, server=name, precision=FULL, fast=resident))
        notes = {"hosts": {cluster.names[place]: float(served_s[place]) for place in chosen}}
        return Placement(replicas=tuple(sorted(replicas)), notes=notes)

    def begin(self, view: View) -> None:
        """Read the hosts from the placement; nothing is known of any request."""
        self._hosts: dict[str, float] = dict(view.placement.notes["hosts"])  # name -> t of (1)
        self._layers = view.profile.layers
        self._here = {(c.layer, c.expert): c for c in view.placement.replicas if c.server == view.server}
        self.activations = Activations(view.profile.layers, view.profile.experts, _usage(view.calibration))

    def worth(self) -> Callable[[tuple[int, int, str]], float]:
        """Equation (3)."""
        return lambda key: float(self.activations.worth()[key[0], key[1]])

    def enter(self, arrival: Arrival, view: View) -> str:
        """Equation (1)."""
        return self._host(arrival.home, view)

    def plan(self, demand: Demand, view: View) -> Plan:
        """Everything here, on a host, and (2) ahead; elsewhere at the host that (1) names."""
        if not demand.again:
            self.activations.saw(demand.request, demand.layer, ((e.expert, e.tokens) for e in demand.experts))
        host = self._host(view.server, view)
        choices = tuple(Choice(expert=e.expert, server=host) for e in demand.experts)
        ahead = self.activations.wanted(demand.request, demand.layer, MOST_AHEAD) if host == view.server else []
        prefetch = tuple(self._here[key] for key in ahead)
        return Plan(choices=choices, next_server=next_server(demand, host), prefetch=prefetch)

    def observe(self, feedback: Feedback) -> None:
        """A request that has passed the last layer becomes history."""
        if feedback.layer == self._layers - 1:
            self.activations.done(feedback.request)

    def _host(self, server: str, view: View) -> str:
        if server in self._hosts:
            return server

        def cost_s(host: str) -> tuple[float, str]:
            way_s = view.delay_s(server, host) + view.delay_s(host, server)
            queue_s = self._layers * max(view.backlog_s(host), view.load_backlog_s(host))
            return way_s + self._hosts[host] + queue_s, host

        return min([host for host in self._hosts if view.alive(host)] or self._hosts, key=cost_s)


def most_worth(activations: Activations) -> list[tuple[int, int]]:
    """All (layer, expert), the largest W first.

    >>> most_worth(Activations(2, 2, np.array([[0.5, 0.5], [0.9, 0.1]])))
    [(1, 0), (0, 0), (0, 1), (1, 1)]
    """
    worth = activations.worth()
    return sorted(np.ndindex(worth.shape), key=lambda key: (-worth[key], key))


def _usage(calibration: Calibration) -> Floats:
    usage: Floats = np.asarray(calibration.usage, dtype=np.float64).mean(axis=0)
    return usage


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
