r"""One direction of a link as a pure model: packets go in, and come out when physics says so.

The relay calls it with the real clock and real packets, the simulator with virtual time and any object as packet.
It never asks for the time, sleeps or draws from a shared random source, so both see the same link.

    finish_i  = max(arrival_i, finish_{i-1}) + 8 · size_i / rate                 serialization, one packet at a time
    release_i = max(finish_i + max(0, delay + jitter · z_i), release_{i-1})       propagation, order kept
    backlog   = (finish_last - now) · rate / 8                                    bytes not yet on the cable

A packet that would push the backlog over the queue limit is dropped at the tail.  A lost packet occupies the sender's
line like any other and then never arrives.  Times are computed from times, never from when somebody called
``due``, so a late caller delays only what it is late for.

z_i is normal with mean 0 and variance 1, and wanders instead of jumping: two packets t apart have the correlation
exp(-t / 10 jitter).  Packets far apart are independent.  Independent draws for packets close together would not be
a link whose packets keep their order: everything would wait behind the slowest of its neighbours.

>>> link = LinkModel(Direction(rate_bps=8e6, delay_s=0.010), random.Random(0))
>>> link.offer(0.0, 1000, "hello"), link.offer(0.0, 1000, "world")
(None, None)
>>> link.next_due_s, link.due(0.0115), link.due(0.0125)
(0.011, ['hello'], ['world'])
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from testbed.topology import BITS_PER_BYTE, Direction

Packet = TypeVar("Packet")

#: Jitter forgets itself over this many times its own size.
JITTER_MEMORY = 10.0


class Drop(StrEnum):
    """Why a packet did not make it."""

    QUEUE = "queue"  # the queue was full
    LOSS = "loss"  # the cable lost it


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """What one direction has carried since it exists."""

    packets: int  # accepted and not lost
    bytes: int
    dropped: dict[str, int]  # packets by reason
    queued_bytes: int  # not yet on the cable, now


class LinkModel(Generic[Packet]):
    """One direction of a link: rate, delay, jitter in order, loss and a drop-tail queue in bytes."""

    __slots__ = (
        "_direction",
        "_dropped",
        "_free_s",
        "_jitter_s",
        "_last_release_s",
        "_line",
        "_loss",
        "_queue_s",
        "_rng",
        "_seconds_per_byte",
        "_z",
        "_z_at_s",
        "carried_bytes",
        "carried_packets",
    )

    def __init__(self, direction: Direction, rng: random.Random) -> None:
        self._rng = rng
        #: (release, finish of serialization, jitter draw, packet), oldest first
        self._line: deque[tuple[float, float, float, Packet]] = deque()
        self._free_s = -math.inf  # when the last accepted byte is on the cable
        self._last_release_s = -math.inf
        self._z, self._z_at_s = 0.0, -math.inf
        self._dropped = dict.fromkeys(Drop, 0)
        self.carried_packets = 0
        self.carried_bytes = 0
        self._adopt(direction)

    @property
    def direction(self) -> Direction:
        """What is in force."""
        return self._direction

    def offer(self, now_s: float, size_bytes: int, packet: Packet, *, count: int = 1) -> Drop | None:
        """Send a packet at ``now_s``.  None: it will come out of ``due``.  Otherwise the reason why it will not.

        ``count`` is how many packets of the wire travel together in this one (segmentation offload);
        ``size_bytes`` is what they all take on the wire.
        """
        free_s = self._free_s
        start_s = free_s if free_s > now_s else now_s
        service_s = size_bytes * self._seconds_per_byte
        if start_s > now_s and start_s + service_s - now_s > self._queue_s:
            self._dropped[Drop.QUEUE] += count
            return Drop.QUEUE
        self._free_s = finish_s = start_s + service_s
        if self._loss and self._rng.random() < self._loss:
            self._dropped[Drop.LOSS] += count
            return Drop.LOSS
        z = self._wander(finish_s) if self._jitter_s else 0.0
        self._line.append((self._release(finish_s, z), finish_s, z, packet))
        self.carried_packets += count
        self.carried_bytes += size_bytes
        return None

    def fits(self, now_s: float, size_bytes: int) -> bool:
        """Whether so much, offered at ``now_s`` packet by packet, would all be accepted by the queue."""
        free_s = self._free_s
        waiting_s = free_s - now_s if free_s > now_s else 0.0
        return waiting_s + size_bytes * self._seconds_per_byte <= self._queue_s

    def due(self, now_s: float) -> list[Packet]:
        """Take out every packet that has arrived at the far end by ``now_s``, in order."""
        line = self._line
        arrived = []
        while line and line[0][0] <= now_s:
            arrived.append(line.popleft()[3])
        return arrived

    @property
    def next_due_s(self) -> float:
        """When the next packet arrives at the far end; infinity if none is under way."""
        return self._line[0][0] if self._line else math.inf

    def change(self, direction: Direction, now_s: float) -> None:
        """Put ``direction`` in force at ``now_s``.

        What is on the cable arrives as it would have.  What is queued stays queued and leaves at the new rate, into
        the new delay and jitter; it is never reordered and never dropped, even if the new queue is smaller.
        """
        old_seconds_per_byte = self._seconds_per_byte
        self._adopt(direction)
        stretch = self._seconds_per_byte / old_seconds_per_byte
        if self._free_s > now_s:
            self._free_s = now_s + (self._free_s - now_s) * stretch
            # A faster link finishes earlier than jitter was last drawn for; it wanders on from there.
            self._z_at_s = min(self._z_at_s, self._free_s)
        queued = []
        while self._line and self._line[-1][1] > now_s:
            queued.append(self._line.pop())
        self._last_release_s = self._line[-1][0] if self._line else -math.inf
        for _, finish_s, z, packet in reversed(queued):
            finish_s = now_s + (finish_s - now_s) * stretch
            self._line.append((self._release(finish_s, z), finish_s, z, packet))

    def queued_bytes(self, now_s: float) -> int:
        """Bytes accepted and not yet on the cable."""
        return max(0, round((self._free_s - now_s) / self._seconds_per_byte)) if self._free_s > now_s else 0

    def counters(self, now_s: float) -> LinkCounters:
        """What this direction has carried and dropped, and what waits in it now."""
        return LinkCounters(
            packets=self.carried_packets,
            bytes=self.carried_bytes,
            dropped={reason.value: number for reason, number in self._dropped.items()},
            queued_bytes=self.queued_bytes(now_s),
        )

    def __len__(self) -> int:
        return len(self._line)

    def _adopt(self, direction: Direction) -> None:
        self._direction = direction
        self._seconds_per_byte = BITS_PER_BYTE / direction.rate_bps
        self._jitter_s = direction.jitter_s
        self._loss = direction.loss
        # Half a byte of grace: a queue of 10,000 bytes takes ten packets of 1000 whatever the rounding of sums.
        self._queue_s = (direction.effective_queue_bytes + 0.5) * self._seconds_per_byte

    def _release(self, finish_s: float, z: float) -> float:
        travel_s = self._direction.delay_s + self._jitter_s * z
        release_s = finish_s + travel_s if travel_s > 0 else finish_s
        if release_s < self._last_release_s:
            release_s = self._last_release_s
        self._last_release_s = release_s
        return release_s

    def _wander(self, at_s: float) -> float:
        kept = math.exp((self._z_at_s - at_s) / (JITTER_MEMORY * self._jitter_s))
        self._z = kept * self._z + math.sqrt(1 - kept * kept) * self._rng.gauss(0.0, 1.0)
        self._z_at_s = at_s
        return self._z


def dilated(direction: Direction, dilation: float) -> Direction:
    """The direction in a world that runs ``dilation`` times slower; its queue holds the same packets."""
    return replace(
        direction,
        rate_bps=direction.rate_bps / dilation,
        delay_s=direction.delay_s * dilation,
        jitter_s=direction.jitter_s * dilation,
        queue_bytes=direction.effective_queue_bytes,
    )
