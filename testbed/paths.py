r"""Which way packets go: shortest paths through a topology, and what to expect of them.

    cost(p) = (servers crossed by p, Σ delay over p, links of p, places in the file)   compared from left to right  (1)
    best(u, t) = min over neighbours v of u:  link(u, v) + best(v, t)                                               (2)

The first component keeps traffic off machines that have work of their own: a cable to the target beats every detour
over another server, even a quicker one, as on the real internet, where an edge server does not forward a stranger's
packets.  Routers forward.  A server forwards only where nothing else connects a pair.  The last two components settle
ties, so that every run takes the same way.

(2) holds because each component only adds up along a path.  One Dijkstra from every target therefore finds all next
hops towards it, and the next hops of different nodes agree (no loops).

>>> from testbed.topology import Direction, Link, Node, Topology
>>> short, long = Direction(rate_bps=1e9, delay_s=0.001), Direction(rate_bps=1e8, delay_s=0.010)
>>> nodes = (Node(name="s1"), Node(name="s2"), Node(name="r", kind="router"))
>>> links = (Link(a="s1", b="r", forward=short, backward=short), Link(a="r", b="s2", forward=long, backward=short))
>>> paths = Paths(Topology(name="two", nodes=nodes, links=links))
>>> paths.path("s1", "s2"), round(paths.expected_rtt_s("s1", "s2"), 6), paths.bottleneck_bps("s2", "s1")
(('s1', 'r', 's2'), 0.013, 1000000000.0)
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping

from testbed.topology import Direction, Topology

#: Delays are compared in whole picoseconds: sums of the same links in another order are then exactly equal.
PS_PER_S = 1e12


class Paths:
    """All shortest paths of a connected topology, computed per target when first asked for."""

    def __init__(self, topology: Topology) -> None:
        self._names = tuple(node.name for node in topology.nodes)
        self._place = {name: place for place, name in enumerate(self._names)}
        self._is_server = tuple(node.kind == "server" for node in topology.nodes)
        self._directions: dict[tuple[str, str], Direction] = {}
        #: For each node, those that can send to it: (place, delay in ps).
        self._senders: tuple[list[tuple[int, int]], ...] = tuple([] for _ in self._names)
        for link in topology.links:
            self._add(link.a, link.b, link.forward)
            self._add(link.b, link.a, link.backward)
        self._next_hops: dict[str, Mapping[str, str]] = {}

    def next_hops(self, target: str) -> Mapping[str, str]:
        """For every other node that can reach ``target``, the neighbour that its packets for ``target`` go to."""
        if target not in self._next_hops:
            self._next_hops[target] = self._dijkstra(self._place[target])
        return self._next_hops[target]

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """The nodes that a packet meets, both ends included; KeyError where no path leads there."""
        hops, nodes = self.next_hops(target), [source]
        while nodes[-1] != target:
            nodes.append(hops[nodes[-1]])
        return tuple(nodes)

    def directions(self, source: str, target: str) -> tuple[Direction, ...]:
        """The link directions that a packet crosses, in order."""
        nodes = self.path(source, target)
        return tuple(self._directions[hop] for hop in itertools.pairwise(nodes))

    def delay_s(self, source: str, target: str) -> float:
        """One-way propagation from ``source`` to ``target``, without queueing."""
        return math.fsum(direction.delay_s for direction in self.directions(source, target))

    def expected_rtt_s(self, a: str, b: str) -> float:
        """What ping should show: there on one path, back on the other, without queueing."""
        return self.delay_s(a, b) + self.delay_s(b, a)

    def bottleneck_bps(self, source: str, target: str) -> float:
        """Rate of the slowest link on the way; infinite from a node to itself."""
        return min((direction.rate_bps for direction in self.directions(source, target)), default=math.inf)

    def transit_nodes(self) -> frozenset[str]:
        """The nodes that the path of some other pair crosses."""
        # Somebody's next hop that is not the target itself is crossed on the way there.
        return frozenset(hop for target in self._names for hop in self.next_hops(target).values() if hop != target)

    def _add(self, source: str, target: str, direction: Direction) -> None:
        self._directions[source, target] = direction
        self._senders[self._place[target]].append((self._place[source], round(direction.delay_s * PS_PER_S)))

    def _dijkstra(self, target: int) -> Mapping[str, str]:
        hop_of: dict[int, int] = {}
        # (servers crossed, delay in ps, links, place of the next hop, place): the heap's order is the order of (1).
        heap = [(0, 0, 0, target, target)]
        while heap:
            crossed, delay_ps, links, hop, place = heapq.heappop(heap)
            if place in hop_of:
                continue
            hop_of[place] = hop
            crossing = crossed + (place != target and self._is_server[place])
            for sender, link_ps in self._senders[place]:
                if sender not in hop_of:
                    heapq.heappush(heap, (crossing, delay_ps + link_ps, links + 1, place, sender))
        del hop_of[target]
        return {self._names[place]: self._names[hop] for place, hop in hop_of.items()}


def routes(topology: Topology) -> dict[str, dict[str, str]]:
    """``routes(t)[node][target]`` is the neighbour to which ``node`` sends packets for ``target``."""
    paths = Paths(topology)
    names = [node.name for node in topology.nodes]
    return {
        node: {target: paths.next_hops(target)[node] for target in names if node in paths.next_hops(target)}
        for node in names
    }


def path(topology: Topology, a: str, b: str) -> tuple[str, ...]:
    """The nodes from ``a`` to ``b``; for more than one question keep a ``Paths``."""
    return Paths(topology).path(a, b)


def expected_rtt_s(topology: Topology, a: str, b: str) -> float:
    """Round trip between ``a`` and ``b`` without queueing; for more than one question keep a ``Paths``."""
    return Paths(topology).expected_rtt_s(a, b)


def bottleneck_bps(topology: Topology, a: str, b: str) -> float:
    """Slowest rate from ``a`` to ``b``; for more than one question keep a ``Paths``."""
    return Paths(topology).bottleneck_bps(a, b)
