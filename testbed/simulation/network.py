"""All links of a topology in virtual time, and messages that cross them.

Every direction of every link is the ``LinkModel`` that the relay uses, drawing from the same seed.  Bundles of packets
of different flows share a link in the order in which they come, and cross a path one link after the other; where a link
takes smaller bundles than the one before it, they are cut.

>>> import asyncio
>>> from testbed.simulation.loop import VirtualLoop
>>> from testbed.topology import Direction, Link, Node, Topology
>>> cable = Direction(rate_bps=8e6, delay_s=0.010)
>>> pair = Topology(
...     name="pair", nodes=(Node(name="a"), Node(name="b")), links=(Link(a="a", b="b", forward=cable, backward=cable),)
... )
>>> loop = VirtualLoop()
>>> network = SimulatedNetwork(pair, loop, deliver=lambda source, target, message: print(message, loop.time()))
>>> network.send("a", "b", 1000 - 52, "hello")
>>> loop.run_until_complete(asyncio.sleep(1.0))
hello 0.011
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from testbed.errors import TestbedError
from testbed.paths import Paths
from testbed.shaping.base import DirectionReport
from testbed.shaping.model import LinkModel
from testbed.simulation.bundle import Bundle
from testbed.simulation.flow import Flow
from testbed.simulation.loop import VirtualLoop
from testbed.tcp import bundle_for, initial_window
from testbed.topology import BITS_PER_BYTE, Direction, Topology

#: source, target, message
Deliver = Callable[[str, str, Any], None]


class SimulatedLane(LinkModel[Bundle]):
    """One direction of one link, which hands its bundles on to their flows."""

    __slots__ = ("_due_s", "_loop", "bundle", "byte_s", "delay_s", "exact", "link", "source", "target")

    def __init__(
        self, link: str, source: str, target: str, direction: Direction, rng: random.Random, loop: VirtualLoop
    ) -> None:
        # TCP drops what is corrupt or comes twice, so neither has to arrive here.
        super().__init__(direction, rng, now_s=loop.time(), copies=False)
        self.link, self.source, self.target = link, source, target
        self._loop = loop
        self._due_s = math.inf  # when the loop calls for the first bundle that is under way
        self._learn()

    def send(self, bundle: Bundle, now_s: float) -> bool:
        """Send; whether it will arrive."""
        if self.offer(now_s, bundle.size_bytes, bundle, count=bundle.packets) is not None:
            return False
        if self.next_due_s < self._due_s:
            self._call()
        return True

    def lost_later(self, packet: Bundle, now_s: float) -> None:
        """Tell the flow of a bundle that it will not arrive."""
        packet.flow.missed(packet, now_s)

    def crossed_s(self, now_s: float) -> float:
        """When something very small that is sent at ``now_s`` arrives: behind what is queued."""
        return self.clear_s(now_s) + self.delay_s

    def change(self, direction: Direction, now_s: float) -> None:
        """Put ``direction`` in force at ``now_s``."""
        super().change(direction, now_s)
        self._learn()
        if len(self):
            self._call()

    def rewind(self, seed: str, now_s: float) -> None:
        """Begin recordings and chances anew."""
        super().rewind(seed, now_s)
        if len(self):
            self._call()

    def report(self) -> DirectionReport:
        """What is in force and what was carried."""
        counters = self.counters(self._loop.time())
        return DirectionReport(
            link=self.link,
            source=self.source,
            target=self.target,
            applied=self.direction,
            packets=counters.packets,
            bytes=counters.bytes,
            dropped=counters.dropped,
            queued_bytes=counters.queued_bytes,
        )

    def _arrive(self, now_s: float) -> None:
        if now_s < self._due_s:
            return  # asked for before the link changed
        if self._waiting:
            self._serve(now_s)
        line = self._line
        while line and line[0][0] <= now_s:
            bundle = line.popleft()[3]
            bundle.flow.arrived(bundle, now_s)
        self._due_s = math.inf
        if len(self):
            self._call()

    def _call(self) -> None:
        self._due_s = self.next_due_s
        self._loop.tell_at(self._due_s, self._arrive)

    def _learn(self) -> None:
        direction = self.direction
        self.bundle = bundle_for(direction)
        self.delay_s = direction.delay_s
        self.byte_s = BITS_PER_BYTE / direction.rate_bps
        self.exact = not (direction.per_packet or direction.traced)


class SimulatedNetwork:
    """The links of a topology, at their values in the file until ``shape`` changes them."""

    def __init__(
        self,
        topology: Topology,
        loop: VirtualLoop,
        *,
        deliver: Deliver,
        seed: int = 0,
        paths: Paths | None = None,
    ) -> None:
        """``seed`` decides which packets are lost; ``deliver`` is called when a message has arrived."""
        self.topology = topology
        self._loop = loop
        self._deliver = deliver
        self._paths = paths or Paths(topology)
        self._lanes: dict[tuple[str, str], SimulatedLane] = {}  # source, target
        for link in topology.links:
            for source, target, direction in ((link.a, link.b, link.forward), (link.b, link.a, link.backward)):
                rng = random.Random(f"{seed}/{link.name}/{source}")  # noqa: S311 - physics, not secrets
                self._lanes[source, target] = SimulatedLane(link.name, source, target, direction, rng, loop)
        self._flows: dict[tuple[str, str], Flow] = {}
        self.sent = 0  # messages

    def send(self, source: str, target: str, size_bytes: int, message: object) -> None:
        """Send a message of so many bytes between two nodes; ``deliver`` is called with it when it has arrived."""
        flow = self._flows.get((source, target))
        if flow is None:
            flow = self._flows[source, target] = self._flow(source, target)
        self.sent += 1
        flow.send(size_bytes, message)

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on ``link`` from ``source``, at once; returns what is applied."""
        try:
            found = self.topology.link(link)
        except KeyError:
            raise TestbedError(f"topology {self.topology.name!r} has no link {link!r}") from None
        if source not in (found.a, found.b):
            raise TestbedError(f"{source!r} is no end of {found.name}")
        self._lanes[source, found.b if source == found.a else found.a].change(direction, self._loop.time())
        return direction

    def counters(self) -> tuple[DirectionReport, ...]:
        """What every direction has carried and dropped, and what waits in it now."""
        return tuple(lane.report() for lane in self._lanes.values())

    def shaping(self) -> dict[tuple[str, str], Direction]:
        """What is in force: (link, source) -> direction."""
        return {(report.link, report.source): report.applied for report in self.counters()}

    def state(self, source: str, target: str) -> tuple[float, float]:
        """One-way delay (s) of something very small that is sent now, and the rate (bit/s) of the slowest link."""
        now_s = at_s = self._loop.time()
        rate_bps = math.inf
        for hop in itertools.pairwise(self._paths.path(source, target)):
            lane = self._lanes[hop]
            at_s = lane.crossed_s(at_s)
            rate_bps = min(rate_bps, lane.direction.rate_bps)
        return at_s - now_s, rate_bps

    def _flow(self, source: str, target: str) -> Flow:
        there, back = (self._paths.path(*ends) for ends in ((source, target), (target, source)))
        return Flow(
            [self._lanes[hop] for hop in itertools.pairwise(there)],
            [self._lanes[hop] for hop in itertools.pairwise(back)],
            window=initial_window(self._paths, source, target),
            timers=self._loop,
            deliver=partial(self._deliver, source, target),
        )
