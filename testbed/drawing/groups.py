"""The nodes of a picture in groups, and how those of one group stand to each other.

A group is a metro, a node without metro, or a hub without metro with many nodes that lead to it alone.  Inside, nodes
stand on rings around the routers (or around the one to which all others lead); nodes that are neither a star nor a mesh
stand by their links.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.drawing.stress import Points, embedded, pushed_apart, shortest
from testbed.topology import Topology

Ends = NDArray[Any]  # (links, 2): nodes of the topology, by place

#: So many nodes that lead to one node only stand around it like a metro.
BUNDLE = 7
#: Least distance of a node from the one that it stands around: words fit on the link.
SPOKE = 1.9
#: Links that leave a ring pass its nodes at this distance.
CLEAR = 0.55
_LEAVING = 3  # places on a ring that are kept free for them
_RING = 1.25  # distance of neighbours on a ring
_BETWEEN_RINGS = 1.1
_PADDING = 0.75  # of a disc around its outermost nodes
_SPARSE = 1.5  # links for each node, below which a group is no mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that stand together."""

    metro: str
    members: list[int]  # nodes of the topology, by place
    ring: list[int]  # indices of those around a single node, in their order
    offsets: Points  # of the members from the centre
    radius: float


def parts(topology: Topology, ends: Ends) -> list[tuple[str, list[int]]]:
    """The groups as (metro, members), in file order."""
    metros = [node.metro for node in topology.nodes]
    degrees = np.bincount(ends.ravel(), minlength=len(metros))
    hub_of = {
        leaf: hub
        for pair in ends.tolist()
        for leaf, hub in (pair, pair[::-1])
        if degrees[leaf] == 1 and degrees[hub] > 1 and not metros[leaf] and not metros[hub]
    }
    leaves = Counter(hub_of.values())
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, metro in enumerate(metros):
        hub = hub_of.get(place, place)
        found[(metro, -1) if metro else ("", hub if leaves[hub] >= BUNDLE else place)].append(place)
    return [(metro, members) for (metro, _), members in found.items()]


def arranged(topology: Topology, metro: str, members: list[int], ends: Ends) -> Group:
    """A group with its nodes in their places."""
    inner = {place: index for index, place in enumerate(members)}
    links = [(inner[a], inner[b]) for a, b in ends.tolist() if a in inner and b in inner]
    count = len(members)
    peers: dict[int, set[int]] = defaultdict(set)
    for a, b in links:
        peers[a].add(b)
        peers[b].add(a)
    core = _core([topology.nodes[place].kind == "router" for place in members], peers, len(links))
    rest = [index for index in range(count) if index not in core]
    around = {index: sorted(peers[index] & core) for index in rest}
    offsets, ring = np.zeros((count, 2)), list[int]()
    if count > 3 and links and len(links) < count * _SPARSE and not (core and all(around.values())):
        offsets = _by_links(count, links)  # a chain, a tree, a grid
    else:
        rest.sort(key=lambda index: (around[index], index))
        reach = on_rings(offsets, sorted(core), 0.0)
        on_rings(offsets, rest, reach + SPOKE if core else 0.0)
        ring = rest if len(core) == 1 else []
    reach = float(np.hypot(offsets[:, 0], offsets[:, 1]).max())
    radius = reach + (_PADDING if metro else 0.5)
    return Group(metro=metro, members=members, ring=ring, offsets=offsets, radius=radius)


def _core(routers: Sequence[bool], peers: dict[int, set[int]], links: int) -> set[int]:
    """Those around whom the others stand."""
    count = len(routers)
    hubs = {index for index in range(count) if len(peers[index]) == count - 1}
    if len(hubs) == 1 and links < count * _SPARSE:
        return hubs
    return {index for index in range(count) if routers[index]}


def on_rings(offsets: Points, indices: Sequence[int], least: float, leaving: Sequence[float] = ()) -> float:
    """Put nodes on as many rings as it takes, from a radius on; the outermost radius.

    ``leaving`` are angles at which links from the middle leave, where no node is put.
    """
    count = len(indices)
    if count == 0 or (count == 1 and not least):
        return 0.0
    rings = 1 + (count > 16) + (count > 60) + (count > 150)
    first = max(least, _RING * (count + _LEAVING) / rings / (2 * math.pi), 0.8)
    for place, angle in enumerate(_free_angles(count, leaving, math.asin(min(1.0, CLEAR / first)))):
        # The last one stands beside the first, so not on the same ring where others alternate.
        ring = rings - 1 if rings > 1 and place == count - 1 else place % rings
        radius = first + _BETWEEN_RINGS * ring
        offsets[indices[place]] = radius * math.cos(angle), radius * math.sin(angle)
    return first + _BETWEEN_RINGS * (rings - 1)


def _free_angles(count: int, leaving: Sequence[float], aside: float) -> list[float]:
    """Angles at equal steps around a circle from which the sectors around ``leaving`` are cut out."""
    whole = 2 * math.pi
    arcs = [(0.0, whole)]
    for angle in sorted(angle % whole for angle in leaving):
        for start, stop in ((angle - aside + turn, angle + aside + turn) for turn in (-whole, 0.0, whole)):
            arcs = [part for low, high in arcs for part in ((low, min(high, start)), (max(low, stop), high))]
            arcs = [(low, high) for low, high in arcs if high - low > 1e-9]
    if not arcs:  # links leave all around
        arcs = [(0.0, whole)]
    step = sum(high - low for low, high in arcs) / count
    angles: list[float] = []
    before = 0.0
    for low, high in arcs:
        while len(angles) < count and (len(angles) + 0.5) * step - before <= high - low + 1e-9:
            angles.append(low + (len(angles) + 0.5) * step - before)
        before += high - low
    return angles


def _by_links(count: int, links: Sequence[tuple[int, int]]) -> Points:
    lengths = np.full((count, count), np.inf)
    for a, b in links:
        lengths[a, b] = lengths[b, a] = 1.6
    placed = pushed_apart(embedded(shortest(lengths)), np.full(count, 0.55))
    centred: Points = placed - (placed.min(axis=0) + placed.max(axis=0)) / 2
    return centred
