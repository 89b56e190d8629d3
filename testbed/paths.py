r"""Which way packets go: shortest paths through a topology, and what to expect of them.

    cost(p) = (servers crossed by p, Σ delay over p, links of p, places in the file)   compared from left to right  (1)
    best(u, t) = min over neighbours v of u:  link(u, v) + best(v, t)                                               (2)

The first component keeps traffic off machines that have work of their own: a cable to the target beats every detour
over another server, even a quicker one, as on the real internet, where an edge server does not forward a stranger's
packets.  Routers forward.  A server forwards only where nothing else connects a pair.  The last two components settle
ties, so that every run takes the same way.

(2) holds because each component only adds up along a path.  One Dijkstra from every target therefore finds all next
hops towards it, and the next hops of different nodes agree (no loops).

    best(u, t) = best(u, v) + link(v, t)    where v is the only neighbour of t, and u is not t                      (3)

By (3) a node with one neighbour needs no search of its own: thousands of servers behind a few routers take as many
searches as there are routers.

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
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.topology import Direction, Topology

#: Delays are compared in whole picoseconds: sums of the same links in another order are then exactly equal.
PS_PER_S = 1e12
NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """All best paths towards one target, as a search found them.  Nodes are known by their places in the file."""

    target: int
    hop: array[int]  # of each node; NOWHERE where no path leads to the target, and at the target itself
    delay_ps: array[int]
    rate_bps: list[float]  # the slowest link; a list, because pairs share the numbers of few links

    def next_hop(self, source: int) -> int:
        return self.hop[source]

    def delays_ps(self, sources: Sequence[int]) -> list[int]:
        return [self.delay_ps[source] for source in sources]

    def rates_bps(self, sources: Sequence[int]) -> list[float]:
        return [self.rate_bps[source] for source in sources]

    def crossed(self) -> set[int]:
        """The nodes between some other node and the target: somebody's next hop that is not the target itself."""
        return set(self.hop) - {self.target, NOWHERE}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """The same for a target with one neighbour: the neighbour's paths, then the link between them (3)."""

    target: int
    neighbour: _Tree
    link_ps: int
    link_bps: float

    def next_hop(self, source: int) -> int:
        if source == self.neighbour.target:
            return self.target
        return NOWHERE if source == self.target else self.neighbour.hop[source]

    def delays_ps(self, sources: Sequence[int]) -> list[int]:
        delay_ps, link_ps, target = self.neighbour.delay_ps, self.link_ps, self.target
        return [0 if source == target else delay_ps[source] + link_ps for source in sources]

    def rates_bps(self, sources: Sequence[int]) -> list[float]:
        rate_bps, link_bps, target = self.neighbour.rate_bps, self.link_bps, self.target
        return [math.inf if source == target else min(rate_bps[source], link_bps) for source in sources]

    def crossed(self) -> set[int]:
        hop = self.neighbour.hop
        return set(hop[: self.target] + hop[self.target + 1 :]) - {NOWHERE}


class _Seconds(dict[int, float]):
    """Picoseconds in seconds, equal ones as one object: a million pairs have few different delays."""

    def __missing__(self, delay_ps: int) -> float:
        self[delay_ps] = delay_s = delay_ps / PS_PER_S
        return delay_s


class Paths:
    """All shortest paths of a topology, computed per target when first asked for."""

    def __init__(self, topology: Topology) -> None:
        self._names = tuple(node.name for node in topology.nodes)
        self._place = {name: place for place, name in enumerate(self._names)}
        self._is_server = tuple(node.kind == "server" for node in topology.nodes)
        self._directions: dict[tuple[str, str], Direction] = {}
        #: For each node, those that can send to it: (place, delay in ps, rate).
        self._senders: tuple[list[tuple[int, int, float]], ...] = tuple([] for _ in self._names)
        for link in topology.links:
            self._add(link.a, link.b, link.forward)
            self._add(link.b, link.a, link.backward)
        self._trees: dict[int, _Tree] = {}
        self._ways: dict[int, _Tree | _Behind] = {}

    def next_hop(self, source: str, target: str) -> str:
        """The neighbour that ``source`` sends packets for ``target`` to; KeyError where no path leads there."""
        place = self._towards(self._place[target]).next_hop(self._place[source])
        if place == NOWHERE:
            raise KeyError(f"no path from {source} to {target}")
        return self._names[place]

    def path(self, source: str, target: str) -> tuple[str, ...]:
        """The nodes that a packet meets, both ends included; KeyError where no path leads there."""
        nodes = [source]
        while nodes[-1] != target:
            nodes.append(self.next_hop(nodes[-1], target))
        return tuple(nodes)

    def directions(self, source: str, target: str) -> tuple[Direction, ...]:
        """The link directions that a packet crosses, in order."""
        return tuple(self._directions[hop] for hop in itertools.pairwise(self.path(source, target)))

    def delay_s(self, source: str, target: str) -> float:
        """One-way propagation from ``source`` to ``target``, without queueing."""
        return self._delay_ps(source, target) / PS_PER_S

    def expected_rtt_s(self, a: str, b: str) -> float:
        """What ping should show: there on one path, back on the other, without queueing."""
        return (self._delay_ps(a, b) + self._delay_ps(b, a)) / PS_PER_S

    def bottleneck_bps(self, source: str, target: str) -> float:
        """Rate of the slowest link on the way; infinite from a node to itself."""
        if source != target:
            self.next_hop(source, target)
        return self._towards(self._place[target]).rates_bps([self._place[source]])[0]

    def delays_s(self, names: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """``delay_s`` between every two of ``names``, as [from][to]; KeyError where a pair has no path."""
        places, seconds = self._connected(names), _Seconds()
        columns = [[seconds[ps] for ps in self._towards(target).delays_ps(places)] for target in places]
        return tuple(zip(*columns, strict=True))

    def bottlenecks_bps(self, names: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """``bottleneck_bps`` between every two of ``names``, as [from][to]; KeyError where a pair has no path."""
        places = self._connected(names)
        return tuple(zip(*(self._towards(target).rates_bps(places) for target in places), strict=True))

    def transit_nodes(self) -> frozenset[str]:
        """The nodes that the path of some other pair crosses."""
        crossed: set[int] = set()
        for place in range(len(self._names)):
            crossed |= self._towards(place).crossed()
        return frozenset(self._names[place] for place in crossed)

    def _delay_ps(self, source: str, target: str) -> int:
        if source != target:
            self.next_hop(source, target)
        return self._towards(self._place[target]).delays_ps([self._place[source]])[0]

    def _add(self, source: str, target: str, direction: Direction) -> None:
        self._directions[source, target] = direction
        delay_ps = round(direction.delay_s * PS_PER_S)
        self._senders[self._place[target]].append((self._place[source], delay_ps, direction.rate_bps))

    def _connected(self, names: Sequence[str]) -> list[int]:
        """The places of ``names``, all of which reach each other."""
        for name in names[1:]:
            self.next_hop(name, names[0])  # links lead both ways, so that this answers for every pair
        return [self._place[name] for name in names]

    def _towards(self, target: int) -> _Tree | _Behind:
        if target not in self._ways:
            if len(self._senders[target]) == 1:
                ((neighbour, link_ps, link_bps),) = self._senders[target]
                tree = self._tree(neighbour)
                self._ways[target] = _Behind(target=target, neighbour=tree, link_ps=link_ps, link_bps=link_bps)
            else:
                self._ways[target] = self._tree(target)
        return self._ways[target]

    def _tree(self, place: int) -> _Tree:
        if place not in self._trees:
            self._trees[place] = self._dijkstra(place)
        return self._trees[place]

    def _dijkstra(self, target: int) -> _Tree:
        size = len(self._names)
        tree = _Tree(
            target=target,
            hop=array("q", [NOWHERE]) * size,
            delay_ps=array("q", [0]) * size,
            rate_bps=[math.inf] * size,
        )
        settled = bytearray(size)
        # (servers crossed, delay in ps, links, place of the next hop): the order of these is the order of (1).
        best: list[tuple[int, int, int, int] | None] = [None] * size
        best[target] = start = (0, 0, 0, target)
        heap = [(start, target)]
        unreached, most_crossed = size - 1, 0
        while heap:
            (crossed, delay_ps, links, hop), place = heapq.heappop(heap)
            if settled[place]:
                continue
            settled[place] = True
            if place != target:
                tree.hop[place], tree.delay_ps[place] = hop, delay_ps
                crossed += self._is_server[place]
            # All others are reached over fewer servers than by way of this one: in a full mesh, the whole search.
            if not unreached and crossed > most_crossed:
                continue
            for sender, link_ps, rate_bps in self._senders[place]:
                if settled[sender]:
                    continue
                cost, known = (crossed, delay_ps + link_ps, links + 1, place), best[sender]
                if known is None or cost < known:
                    unreached -= known is None
                    most_crossed = max(most_crossed, crossed)
                    best[sender] = cost
                    tree.rate_bps[sender] = min(rate_bps, tree.rate_bps[place])
                    heapq.heappush(heap, (cost, sender))
        return tree


def routes(topology: Topology) -> dict[str, dict[str, str]]:
    """``routes(t)[node][target]`` is the neighbour to which ``node`` sends packets for ``target``."""
    paths, names = Paths(topology), [node.name for node in topology.nodes]
    return {node: {target: paths.next_hop(node, target) for target in names if target != node} for node in names}


def path(topology: Topology, a: str, b: str) -> tuple[str, ...]:
    """The nodes from ``a`` to ``b``; for more than one question keep a ``Paths``."""
    return Paths(topology).path(a, b)


def expected_rtt_s(topology: Topology, a: str, b: str) -> float:
    """Round trip between ``a`` and ``b`` without queueing; for more than one question keep a ``Paths``."""
    return Paths(topology).expected_rtt_s(a, b)


def bottleneck_bps(topology: Topology, a: str, b: str) -> float:
    """Slowest rate from ``a`` to ``b``; for more than one question keep a ``Paths``."""
    return Paths(topology).bottleneck_bps(a, b)
