"""Which engine shapes which link, and all of them behind one ``Shaper``.

The kernel's netem costs no process and keeps its own time, where the kernel has it; the relay follows recordings and
controls delay, and runs everywhere.  ``auto`` takes netem for every link that it can do, and the relay for the others.

>>> from testbed.topology import Direction, Link, Node, Topology
>>> cable = Direction(rate_bps=1e8, delay_s=0.001)
>>> pair = Topology(
...     name="t", nodes=(Node(name="a"), Node(name="b")), links=(Link(a="a", b="b", forward=cable, backward=cable),)
... )
>>> choose(pair, "auto", kernel_shapes=False), choose(pair, "auto", kernel_shapes=True)
({'a-b': 'relay'}, {'a-b': 'netem'})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from testbed.errors import TestbedError
from testbed.shaping.base import CablePlan, DirectionReport, Lateness, Shaper
from testbed.topology import Direction, Engine, Topology

ShaperName = Literal["auto", "relay", "netem"]
#: What one flow gets through the relay on a machine of two cores (``benchmarks/relay.py``); several links share it.
RELAY_CEILING_BPS = 9e9


def choose(topology: Topology, wanted: ShaperName, *, kernel_shapes: bool) -> dict[str, Engine]:
    """The engine of every link; TestbedError where ``wanted`` cannot do what the file asks."""
    if wanted == "relay" or (wanted == "auto" and not kernel_shapes):
        return {link.name: "relay" for link in topology.links}
    reasons = {link.name: _beyond_netem(link.forward) or _beyond_netem(link.backward) for link in topology.links}
    refused = "".join(f"\n  {link}: {reason}" for link, reason in reasons.items() if reason)
    if wanted == "netem" and refused:
        raise TestbedError(f"netem cannot shape these links; use --shaper auto or relay:{refused}")
    return {link: "relay" if reason else "netem" for link, reason in reasons.items()}


def beyond_the_relay(topology: Topology, engines: Mapping[str, Engine] | None = None) -> list[str]:
    """Links of the relay that ask for more than it carries: slower than their file unless the run is dilated."""
    return [
        link.name
        for link in topology.links
        if max(link.forward.rate_bps, link.backward.rate_bps) > RELAY_CEILING_BPS
        and (engines is None or engines[link.name] == "relay")
    ]


class Engines:
    """A ``Shaper`` that hands every link to its engine."""

    def __init__(self, shapers: Mapping[Engine, Shaper], engine_of: Mapping[str, Engine]) -> None:
        """``engine_of`` names the engine of every link, in the order of the file."""
        self._shapers, self._engine_of = shapers, engine_of

    def plug(self, cables: Sequence[CablePlan]) -> None:
        """Create both interfaces of every cable, or what is missing of them, and start shaping."""
        for engine, shaper in self._shapers.items():
            own = [cable for cable in cables if self._engine_of[cable.link] == engine]
            if own:
                shaper.plug(own)

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on one direction of ``link``; TestbedError if its engine cannot."""
        engine = self._engine_of[link]
        reason = _beyond_netem(direction) if engine == "netem" else ""
        if reason:
            raise TestbedError(f"{link} is shaped by netem: {reason}; bring the testbed up with --shaper relay")
        return self._shapers[engine].shape(link, source, direction)

    def report(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:
        """Every direction in the order of the file; ``reachable`` leaves out those whose relay is gone."""
        found = [report for shaper in self._shapers.values() for report in shaper.report(reachable=reachable)]
        order = {link: number for number, link in enumerate(self._engine_of)}
        return tuple(sorted(found, key=lambda report: order[report.link]))

    def lateness(self, *, reset: bool = False) -> Lateness:
        """How late the relay has been; the kernel does not tell."""
        relay = self._shapers.get("relay")
        return relay.lateness(reset=reset) if relay else Lateness()

    def dilate(self, dilation: float) -> None:
        """Run all links ``dilation`` times slower than what was and will be asked for."""
        for shaper in self._shapers.values():
            shaper.dilate(dilation)

    @property
    def dilation(self) -> float:
        """How many times slower all links run."""
        return next((shaper.dilation for shaper in self._shapers.values()), 1.0)

    def rewind(self, seed: int) -> None:
        """Begin recordings and chances anew."""
        for shaper in self._shapers.values():
            shaper.rewind(seed)

    def close(self) -> None:
        """Let go of what this process holds; the links stay."""
        for shaper in self._shapers.values():
            shaper.close()


def _beyond_netem(direction: Direction) -> str:
    """Why netem cannot shape a direction; nothing where it can."""
    from testbed.shaping import netem  # what it talks to the kernel with takes long to load

    return netem.supports(direction)
