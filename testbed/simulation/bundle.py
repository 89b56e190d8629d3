"""What moves in the simulator: bundles of packets, and what a flow asks of the lanes that they cross."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from testbed.tcp import HEADER_BYTES, SEGMENT_BYTES

if TYPE_CHECKING:
    from testbed.simulation.flow import Flow


class Bundle:
    """Packets of one flow that travel as one."""

    __slots__ = ("acknowledged", "flow", "hop", "order", "packets", "payload_bytes", "sent_s", "size_bytes", "start")

    def __init__(self, flow: Flow, start: int, payload_bytes: int, packets: int) -> None:
        self.flow = flow
        self.start = start  # position in the flow's stream, in bytes
        self.payload_bytes = payload_bytes
        self.packets = packets
        self.size_bytes = payload_bytes + packets * HEADER_BYTES  # on the wire
        self.hop = 0
        self.order = 0  # packets that the flow had sent with the last one of this, repetitions included
        self.sent_s = 0.0
        self.acknowledged = False  # already, bundle by bundle of those that this stands for

    def split(self, packets: int) -> Bundle:
        """Cut off the first packets as a bundle of their own."""
        part = Bundle(self.flow, self.start, packets * SEGMENT_BYTES, packets)
        self.start += part.payload_bytes
        self.payload_bytes -= part.payload_bytes
        self.size_bytes -= part.size_bytes
        self.packets -= packets
        part.hop, part.order, part.sent_s = self.hop, self.order - self.packets, self.sent_s
        return part


class Lane(Protocol):
    """One direction of a link, as a flow sees it."""

    bundle: int  # packets that may cross as one
    byte_s: float  # to put a byte on the link
    delay_s: float
    exact: bool  # neither loss nor jitter: whatever fits the queue arrives when reckoned

    def send(self, bundle: Bundle, now_s: float) -> bool:
        """Send; whether it will arrive."""
        ...

    def fits(self, now_s: float, size_bytes: int) -> bool:
        """Whether the queue would take so much now."""
        ...

    def crossed_s(self, now_s: float) -> float:
        """When something very small that is sent at ``now_s`` arrives."""
        ...


class Timers(Protocol):
    """Where a flow asks for the time and for being called again."""

    def time(self) -> float:
        """Seconds."""
        ...

    def tell_at(self, when_s: float, callback: Callable[[float], object]) -> None:
        """Call back at that time, with the time."""
        ...
