"""Where nodes stand: metros as discs, what is near (by delay) near each other, neighbours a readable distance apart.

Lengths are in units of the least distance between two nodes; the picture decides how much paper one unit gets.

Groups (``groups``) stand by the delays between them: a link is as long as

    |ab| = R_a + R_b + GAP + STRETCH · √(delay(a, b) / longest delay)                                              (1)

    R   radius of a group

wherever the whole plan allows it.  The root keeps short links apart, and opens triangles that true distances would
press flat, so that a link does not hide behind the metro halfway.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.drawing.groups import SPOKE, Group, arranged, on_rings, parts
from testbed.drawing.stress import Matrix, Points, embedded, flat, pushed_apart, shortest
from testbed.errors import TestbedError
from testbed.topology import Link, Topology

Point = tuple[float, float]

#: The work grows with the cube.
MAX_GROUPS = 1000
GAP = 0.7
STRETCH = 1.6
_HIT = 0.4  # nearer, a link seems to lead to a node
_FLATTER = (1.0, -1.0, 0.75)  # shapes that are tried for a metro, besides: as it is, mirrored, an oval
_TURNS = 36  # ways round that are tried for a metro
_ROUNDS = 3
_MOVES = 60
_MOST_MOVED = 60_000  # links times groups, above which groups are not moved off links
_MOST_TURNED = 400_000  # links times nodes of a metro, above which it is not turned


@dataclass(frozen=True, slots=True, kw_only=True)
class Disc:
    """A metro."""

    name: str
    centre: Point
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A place for every node, and the metros around them."""

    places: Mapping[str, Point]
    discs: tuple[Disc, ...]


def layout(topology: Topology) -> Layout:
    """The places of all nodes; TestbedError where there are more groups than can be arranged."""
    number = {node.name: place for place, node in enumerate(topology.nodes)}
    ends = np.array([(number[link.a], number[link.b]) for link in topology.links], dtype=int).reshape(-1, 2)
    found = parts(topology, ends)
    if len(found) > MAX_GROUPS:
        raise TestbedError(
            f"{topology.name}: {len(found)} nodes and metros are more than a picture can show ({MAX_GROUPS}): give the "
            "nodes metros, or take Mermaid text (-o FILE.mmd)"
        )
    groups = [arranged(topology, metro, members, ends) for metro, members in found]
    centres = _centres(groups, ends, topology.links)
    places = np.zeros((len(topology.nodes), 2))
    for group, centre in zip(groups, centres, strict=True):
        places[group.members] = centre + group.offsets
    for _ in range(_ROUNDS):
        for group, centre in zip(groups, centres, strict=True):
            places[group.members] = centre + _facing(group, centre, places, ends)
    discs = tuple(
        Disc(name=group.metro, centre=(float(centre[0]), float(centre[1])), radius=group.radius)
        for group, centre in zip(groups, centres, strict=True)
        if group.metro
    )
    return Layout(
        places={name: (float(places[place, 0]), float(places[place, 1])) for name, place in number.items()},
        discs=discs,
    )


def _centres(groups: Sequence[Group], ends: NDArray[Any], links: Sequence[Link]) -> Points:
    if len(groups) == 1:
        return np.zeros((1, 2))
    group_of = {member: place for place, group in enumerate(groups) for member in group.members}
    delays: Matrix = np.full((len(groups), len(groups)), np.inf)
    for (a, b), link in zip(ends.tolist(), links, strict=True):
        i, j = group_of[a], group_of[b]
        delays[i, j] = delays[j, i] = min(delays[i, j], (link.forward.delay_s + link.backward.delay_s) / 2)
    np.fill_diagonal(delays, np.inf)
    longest = delays[np.isfinite(delays)].max(initial=0.0) or 1.0
    radii = np.array([group.radius for group in groups])
    lengths = radii[:, None] + radii[None, :] + GAP + STRETCH * np.sqrt(delays / longest)  # (1)
    centres = flat(pushed_apart(embedded(shortest(lengths)), radii + 0.15))
    return _off_links(centres, radii, np.argwhere(np.triu(np.isfinite(delays))))


def _off_links(centres: Points, radii: NDArray[Any], pairs: NDArray[Any]) -> Points:
    """The centres moved until links pass by groups that they do not lead to, as far as that goes in a few steps."""
    if len(pairs) * len(centres) > _MOST_MOVED:
        return centres
    moved, own = centres.copy(), np.zeros((len(pairs), len(centres)), dtype=bool)
    own[np.arange(len(pairs))[:, None], pairs] = True
    for _ in range(_MOVES):
        off = moved[None, :, :] - _nearest(moved[pairs[:, 0]], moved[pairs[:, 1]], moved)
        gap = np.maximum(np.hypot(off[..., 0], off[..., 1]), 1e-6)
        missing = np.where(own, 0.0, np.maximum(0.0, radii[None, :] - gap))
        if not missing.any():
            break
        moved = pushed_apart(moved + 0.3 * (off / gap[..., None] * missing[..., None]).sum(axis=0), radii + 0.15)
    return moved


def _facing(group: Group, centre: NDArray[Any], places: Points, ends: NDArray[Any]) -> Points:
    """The group's offsets with regard to where its links lead."""
    inside = np.isin(ends, group.members)
    leaving = ends[inside.sum(axis=1) == 1]
    ringed = {group.members[index] for index in group.ring}
    if not ringed or np.isin(leaving, list(ringed)).any():
        return _turned(group, centre, places, ends[inside.any(axis=1)])
    far = places[leaving[~np.isin(leaving, group.members)]] - centre
    offsets = group.offsets.copy()
    on_rings(offsets, group.ring, SPOKE, np.arctan2(far[:, 1], far[:, 0]).tolist())
    return offsets


def _turned(group: Group, centre: NDArray[Any], places: Points, touching: NDArray[Any]) -> Points:
    """The group's offsets, turned so that its links are short and run across few of its nodes."""
    if len(group.members) < 2 or len(touching) * len(group.members) > _MOST_TURNED:
        return group.offsets
    found = places.copy()
    best, best_cost = group.offsets, math.inf
    for turn, flatter in itertools.product(range(_TURNS), _FLATTER):
        angle = 2 * math.pi * turn / _TURNS
        turning = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        offsets = group.offsets * np.array([1.0, flatter]) @ turning
        found[group.members] = centre + offsets
        starts, stops = found[touching[:, 0]], found[touching[:, 1]]
        length = np.hypot(*(stops - starts).T).sum() / len(touching)
        cost = 10 * crossed(starts, stops, found[group.members], touching, group.members) + length
        if cost < best_cost - 1e-6:
            best, best_cost = offsets, cost
    return best


def crossed(
    starts: Points,
    stops: Points,
    nodes: Points,
    ends: NDArray[Any],
    names: Sequence[int],
) -> float:
    """How much links run across nodes that they do not lead to: 0 where all keep clear, 1 for each full hit."""
    gap = np.hypot(*np.moveaxis(nodes[None, :, :] - _nearest(starts, stops, nodes), 2, 0))
    own = (ends[:, :1] == np.array(names)[None, :]) | (ends[:, 1:] == np.array(names)[None, :])
    return float(np.where(own, 0.0, np.square(np.maximum(0.0, 1 - gap / _HIT))).sum())


def _nearest(starts: Points, stops: Points, nodes: Points) -> NDArray[Any]:
    """The point of each link that is nearest to each node: (links, nodes, 2)."""
    along = stops - starts
    squared = np.maximum((along**2).sum(axis=1), 1e-12)
    share = ((nodes[None, :, :] - starts[:, None, :]) * along[:, None, :]).sum(axis=2) / squared[:, None]
    nearest: NDArray[Any] = starts[:, None, :] + share.clip(0, 1)[..., None] * along[:, None, :]
    return nearest
