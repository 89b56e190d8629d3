"""Links spread over several relays, behind one ``Shaper``.

What concerns one link goes to the relay that carries it; what concerns all goes to every relay at once, so that
recordings begin together and cables are put in side by side, and their answers are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from testbed.shaping.base import CablePlan, DirectionReport, Lateness
from testbed.shaping.client import RelayShaper
from testbed.shaping.lateness import merged
from testbed.topology import Direction

Answer = TypeVar("Answer")


class SpreadShaper:
    """A ``Shaper`` of one relay or more."""

    def __init__(self, carried: Mapping[RelayShaper, Sequence[str]]) -> None:
        """``carried`` are the links of every relay."""
        self._relays = tuple(carried)
        self._relay_of = {link: relay for relay, links in carried.items() for link in links}

    def plug(self, cables: Sequence[CablePlan]) -> None:
        """Create both interfaces of every cable, or what is missing of them, and start shaping."""
        own: dict[RelayShaper, list[CablePlan]] = {}
        for cable in cables:
            own.setdefault(self._relay_of[cable.link], []).append(cable)
        _at_once(list(own), lambda relay: relay.plug(own[relay]))

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on one direction of ``link``; returns what is applied."""
        return self._relay_of[link].shape(link, source, direction)

    def report(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:
        """Every direction, relay by relay; ``reachable`` leaves out relays that are gone."""
        reports = _at_once(self._relays, lambda relay: relay.report(reachable=reachable))
        return tuple(report for directions in reports for report in directions)

    def lateness(self, *, reset: bool = False) -> Lateness:
        """How late all relays together have been since the last reset."""
        return merged(_at_once(self._relays, lambda relay: relay.lateness(reset=reset)))

    def dilate(self, dilation: float) -> None:
        """Run all links ``dilation`` times slower than what was and will be asked for."""
        _at_once(self._relays, lambda relay: relay.dilate(dilation))

    def rewind(self, seed: int) -> None:
        """Begin recordings and chances anew, these from ``seed``."""
        _at_once(self._relays, lambda relay: relay.rewind(seed))

    @property
    def dilation(self) -> float:
        """How many times slower the links run; 1 where no relay is left that could tell."""
        found = [relay.in_force() for relay in self._relays if relay.alive()]
        # One that has just been started, and has no link yet, knows of no dilation yet.
        carrying = [dilation for dilation, links in found if links] or [dilation for dilation, _ in found]
        return next(iter(carrying), 1.0)

    def close(self) -> None:
        """Stop talking to the relays, which go on."""
        for relay in self._relays:
            relay.close()


def _at_once(relays: Sequence[RelayShaper], ask: Callable[[RelayShaper], Answer]) -> list[Answer]:
    """The answers of all, in their order; the first error once all have answered."""
    if len(relays) < 2:  # the usual case needs no thread
        return [ask(relay) for relay in relays]
    with ThreadPoolExecutor(len(relays)) as pool:
        asked = [pool.submit(ask, relay) for relay in relays]  # ``map`` would call off the others at the first error
    return [each.result() for each in asked]
