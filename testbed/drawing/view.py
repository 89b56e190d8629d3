"""What is drawn: a topology as its file says, or as a running testbed has it now.

>>> there = Direction(rate_bps=1e9, delay_s=0.002)
>>> pair = Topology(name="pair", nodes=(Node(name="s1"), Node(name="s2")),
...                 links=(Link(a="s1", b="s2", forward=there, backward=there),))
>>> slower = Direction(rate_bps=1e8, delay_s=0.002)
>>> now = View(topology=pair, shaping={("s1-s2", "s1"): slower, ("s1-s2", "s2"): there})
>>> now.words(pair.links[0])
('s1 → s2: 100 Mbit/s, 2 ms', 's2 → s1: 1 Gbit/s, 2 ms')
>>> [way.changed for way in now.ways(pair.links[0])]
[True, False]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.topology import Direction, Link, Node, Topology
from testbed.units import format_flops, format_rate, format_size
from testbed.words import counted

_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a link as it is drawn."""

    source: str
    target: str
    direction: Direction
    changed: bool = False  # unlike the file
    shaped: bool = True  # False: nothing is in force, ``direction`` is what the file says

    @property
    def words(self) -> str:
        """``1 Gbit/s, 2 ms``; ``~`` stands before the mean of a recording.  Delays are all in ms, to be compared."""
        direction = self.direction
        rate = "~ " if direction.recorded_rate else ""
        delay = "~ " if direction.delay_trace else ""
        return (
            f"{rate}{format_rate(direction.rate_bps, digits=_DIGITS)}, {delay}{1e3 * direction.delay_s:.{_DIGITS}g} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A topology, and if it is up, its state."""

    topology: Topology
    #: (link, source) -> what is in force; a direction without entry is not shaped.  None: as the file says
    shaping: Mapping[tuple[str, str], Direction] | None = None
    broken: frozenset[str] = frozenset()  # nodes

    def ways(self, link: Link) -> tuple[Way, Way]:
        """Both directions, from ``a`` and from ``b``."""
        return self._way(link, link.a, link.b, link.forward), self._way(link, link.b, link.a, link.backward)

    def words(self, link: Link) -> tuple[str, ...]:
        """Rate and delay of a link: one line, or one for each direction where they differ."""
        forward, backward = self.ways(link)
        if forward.words == backward.words:
            return (forward.words,)
        return tuple(f"{way.source} → {way.target}: {way.words}" for way in (forward, backward))

    @property
    def title(self) -> str:
        """``edge10: 10 servers, 45 links``."""
        kinds = Counter(node.kind for node in self.topology.nodes)
        counts = [*(counted(kinds[kind], kind) for kind in ("server", "router") if kinds[kind])]
        return f"{self.topology.name}: {', '.join([*counts, counted(len(self.topology.links), 'link')])}"

    def _way(self, link: Link, source: str, target: str, written: Direction) -> Way:
        if self.shaping is None:
            return Way(source=source, target=target, direction=written)
        now = self.shaping.get((link.name, source))
        if now is None:
            return Way(source=source, target=target, direction=written, shaped=False)
        return Way(source=source, target=target, direction=now, changed=now != written)


def details(node: Node) -> tuple[str, ...]:
    """What a server computes with, and its share of the users, in short lines."""
    if node.device is None:
        return ()
    return (
        f"{format_flops(node.device.peak_flops_per_s, digits=3)}, {format_size(node.device.fast_bytes, digits=3)}",
        f"users {node.users:g}",
    )
