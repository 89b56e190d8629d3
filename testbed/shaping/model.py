r"""One direction of a link as a pure model: packets go in, and come out when physics says so.

The relay calls it with the real clock and real packets, the simulator with virtual time and any object as packet.
It never asks for the time, sleeps or draws from a shared random source, so both see the same link.

    finish_i  = max(arrival_i, finish_{i-1}) + 8 · size_i / rate                 serialization, one packet at a time
    release_i = max(finish_i + max(0, delay + extra_i), release_{i-1})            propagation; order kept unless reorder
    backlog   = (finish_last - now) · rate / 8                                    bytes not yet on the cable

A packet that would push the backlog over the queue limit is dropped at the tail.  A lost packet occupies the sender's
line like any other and then never arrives.  Times are computed from times, never from when somebody called
``due``, so a late caller delays only what it is late for.  ``testbed.shaping.chance`` draws ``extra`` and what is lost.

Where the rate changes by itself (a recording), where the limit counts packets, or where CoDel judges a packet by how
long it has waited, packets wait in the queue until their service starts (``_waiting``).  Everywhere else a packet is
scheduled at once, which costs half as much.

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
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from testbed.shaping.chance import Chance
from testbed.shaping.codel import ControlledDelay
from testbed.shaping.service import Service, service_of, value_at
from testbed.topology import BITS_PER_BYTE, Direction

Packet = TypeVar("Packet")


class Drop(StrEnum):
    """Why a packet did not make it."""

    QUEUE = "queue"  # the queue was full
    LOSS = "loss"  # the cable lost it
    CODEL = "codel"  # the queue was not full, but slow for too long
    CORRUPT = "corrupt"  # its checksum is wrong, which ends it where nobody could carry the flipped bit


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """What one direction has carried since it exists."""

    packets: int  # accepted and not lost
    bytes: int
    dropped: dict[str, int]  # packets by reason
    queued_bytes: int  # not yet on the cable, now


class LinkModel(Generic[Packet]):
    """One direction of a link: a queue, a line that serves it, and the cable behind."""

    __slots__ = (
        "_chance",
        "_codel",
        "_copies",
        "_delay_trace",
        "_direction",
        "_dropped",
        "_free_s",
        "_jitters",
        "_last_release_s",
        "_line",
        "_most_bytes",
        "_most_packets",
        "_origin_s",
        "_patient",
        "_plain",
        "_queue_s",
        "_reorder",
        "_seconds_per_byte",
        "_service",
        "_spoil",
        "_waiting",
        "_waiting_bytes",
        "_waiting_packets",
        "carried_bytes",
        "carried_packets",
    )

    def __init__(
        self,
        direction: Direction,
        rng: random.Random,
        *,
        now_s: float = 0.0,
        spoil: Callable[[Packet, Callable[[int], int]], Packet] | None = None,
        copies: bool = True,
    ) -> None:
        """``spoil`` flips a bit of a packet, given what draws one of n; without it a corrupted packet is dropped.

        ``copies`` tells whether a duplicated packet comes out of ``due`` twice.  Recordings begin at ``now_s``.
        """
        self._chance = Chance(direction, rng)
        self._spoil, self._copies = spoil, copies
        #: (release, finish of serialization, normal draw, packet), in the order of release
        self._line: deque[tuple[float, float, float, Packet]] = deque()
        #: (arrival, bytes, packets, packet) of what is not scheduled yet, oldest first
        self._waiting: deque[tuple[float, int, int, Packet]] = deque()
        self._waiting_bytes = self._waiting_packets = 0
        self._free_s = -math.inf  # when the last scheduled byte is on the cable
        self._last_release_s = -math.inf
        self._dropped = dict.fromkeys(Drop, 0)
        self.carried_packets = 0
        self.carried_bytes = 0
        self._origin_s = now_s
        self._codel: ControlledDelay | None = None
        self._direction = direction
        self._service = service_of(direction, now_s)
        self._seconds_per_byte = BITS_PER_BYTE / direction.rate_bps
        self._adopt(direction, now_s, anew=True)

    @property
    def direction(self) -> Direction:
        """What is in force."""
        return self._direction

    def offer(self, now_s: float, size_bytes: int, packet: Packet, *, count: int = 1) -> Drop | None:
        """Send a packet at ``now_s``.  None: it waits, or is under way.  Otherwise the reason why it will not arrive.

        ``count`` is how many packets of the wire travel together in this one (segmentation offload);
        ``size_bytes`` is what they all take on the wire.
        """
        if self._patient:
            return self._queue(now_s, size_bytes, packet, count)
        free_s = self._free_s
        start_s = free_s if free_s > now_s else now_s
        service_s = size_bytes * self._seconds_per_byte
        if start_s > now_s and start_s + service_s - now_s > self._queue_s:
            self._dropped[Drop.QUEUE] += count
            return Drop.QUEUE
        self._free_s = finish_s = start_s + service_s
        if not self._plain:
            return self._send(finish_s, size_bytes, packet, count)
        release_s = finish_s + self._direction.delay_s
        if release_s < self._last_release_s:
            release_s = self._last_release_s
        self._last_release_s = release_s
        self._line.append((release_s, finish_s, 0.0, packet))
        self.carried_packets += count
        self.carried_bytes += size_bytes
        return None

    def fits(self, now_s: float, size_bytes: int) -> bool:
        """Whether so much, offered at ``now_s`` packet by packet, would all be accepted by the queue."""
        free_s = self._free_s
        waiting_s = free_s - now_s if free_s > now_s else 0.0
        return not self._patient and waiting_s + size_bytes * self._seconds_per_byte <= self._queue_s

    def due(self, now_s: float) -> list[Packet]:
        """Take out every packet that has arrived at the far end by ``now_s``, in order."""
        if self._waiting:
            self._serve(now_s)
        line = self._line
        arrived = []
        while line and line[0][0] <= now_s:
            arrived.append(line.popleft()[3])
        return arrived

    @property
    def next_due_s(self) -> float:
        """When to ask ``due`` next: a packet arrives or its service starts then; infinity if there is none."""
        at_s = self._line[0][0] if self._line else math.inf
        return min(at_s, self._free_s) if self._waiting else at_s

    def change(self, direction: Direction, now_s: float) -> None:
        """Put ``direction`` in force at ``now_s``.

        What is on the cable arrives as it would have.  What is queued stays queued and leaves at the new rate, into
        the new delay and jitter; it is never reordered and never dropped, even if the new queue is smaller.  A
        recording that was in force already goes on.
        """
        self._serve(now_s)
        self._chance.adopt(direction)
        self._adopt(direction, now_s)

    def rewind(self, seed: str, now_s: float) -> None:
        """Begin recordings and chances anew, these from ``seed``."""
        self._serve(now_s)
        self._chance.restart(seed, self._direction)
        self._adopt(self._direction, now_s, anew=True)

    def queued_bytes(self, now_s: float) -> int:
        """Bytes accepted and not yet on the cable."""
        in_service = self._service.carried_bytes(now_s, self._free_s) if self._free_s > now_s else 0.0
        return max(0, round(in_service)) + self._waiting_bytes

    def clear_s(self, now_s: float) -> float:
        """When everything accepted by now is on the cable, as far as that is known; ``now_s`` if it is already."""
        clear_s = self._free_s if self._free_s > now_s else now_s
        return clear_s + self._waiting_bytes * self._seconds_per_byte if self._waiting_bytes else clear_s

    def counters(self, now_s: float) -> LinkCounters:
        """What this direction has carried and dropped, and what waits in it now."""
        return LinkCounters(
            packets=self.carried_packets,
            bytes=self.carried_bytes,
            dropped={reason.value: number for reason, number in self._dropped.items()},
            queued_bytes=self.queued_bytes(now_s),
        )

    def lost_later(self, packet: Packet, now_s: float) -> None:
        """Called when a packet that ``offer`` had taken will not arrive after all; for those who follow packets."""

    def __len__(self) -> int:
        return len(self._line) + len(self._waiting)

    # --- packets that wait until their service starts ----------------------------------------------------------------

    def _queue(self, now_s: float, size_bytes: int, packet: Packet, count: int) -> Drop | None:
        self._serve(now_s)
        busy = self._free_s > now_s
        if busy or self._waiting:
            held = self._service.carried_bytes(now_s, self._free_s) if busy else 0.0
            # Half a byte of grace, as below.
            too_many_bytes = held + self._waiting_bytes + size_bytes > self._most_bytes + 0.5
            if too_many_bytes or self._waiting_packets + busy + count > self._most_packets:
                self._dropped[Drop.QUEUE] += count
                return Drop.QUEUE
        self._waiting.append((now_s, size_bytes, count, packet))
        self._waiting_bytes += size_bytes
        self._waiting_packets += count
        self._serve(now_s)
        return None

    def _serve(self, now_s: float) -> None:
        """Start the service of everything whose turn has come by ``now_s``, at the times when it came."""
        while self._waiting:
            came_s = self._waiting[0][0]
            start_s = self._free_s if self._free_s > came_s else came_s
            if start_s > now_s:
                return
            self._start(start_s)

    def _start(self, start_s: float) -> None:
        came_s, size_bytes, count, packet = self._waiting.popleft()
        self._waiting_bytes -= size_bytes
        self._waiting_packets -= count
        if self._codel and self._codel.drops(waited_s=start_s - came_s, now_s=start_s, left_bytes=self._waiting_bytes):
            self._dropped[Drop.CODEL] += count
            self.lost_later(packet, start_s)
            return
        self._free_s = finish_s = self._service.finish_s(start_s, size_bytes)
        if self._send(finish_s, size_bytes, packet, count) is not None:
            self.lost_later(packet, start_s)

    # --- the cable ----------------------------------------------------------------------------------------------------

    def _send(self, finish_s: float, size_bytes: int, packet: Packet, count: int) -> Drop | None:
        """Put a packet that is serialized by ``finish_s`` on the cable, and let chance do to it what it does there."""
        chance = self._chance
        if chance.loses and chance.lost():
            self._dropped[Drop.LOSS] += count
            return Drop.LOSS
        copies = 1
        if not self._plain:
            if chance.corrupted():
                if self._spoil is None:
                    self._dropped[Drop.CORRUPT] += count
                    return Drop.CORRUPT
                packet = self._spoil(packet, chance.spot)
            copies += chance.duplicated() and self._copies
        for _ in range(copies):
            z = chance.drawn(finish_s) if self._jitters else 0.0
            self._insert(finish_s, z, packet)
        self.carried_packets += count
        self.carried_bytes += size_bytes
        return None

    def _insert(self, finish_s: float, z: float, packet: Packet) -> None:
        travel_s = self._direction.delay_s
        if self._delay_trace is not None:
            travel_s = value_at(self._delay_trace, finish_s - self._origin_s)
        if self._jitters:
            travel_s += self._chance.extra_s(z)
        release_s = finish_s + travel_s if travel_s > 0 else finish_s
        line = self._line
        if self._reorder:
            place = len(line)
            while place and line[place - 1][0] > release_s:
                place -= 1
            line.insert(place, (release_s, finish_s, z, packet))
            self._last_release_s = line[-1][0]
            return
        if release_s < self._last_release_s:
            release_s = self._last_release_s
        self._last_release_s = release_s
        line.append((release_s, finish_s, z, packet))

    # --- what is in force ---------------------------------------------------------------------------------------------

    def _adopt(self, direction: Direction, now_s: float, *, anew: bool = False) -> None:
        old, self._direction = self._direction, direction
        recorded = anew or _recordings(direction) != _recordings(old)
        if recorded:
            self._origin_s = now_s
        self._jitters = direction.jitter_s > 0
        self._reorder = direction.reorder
        self._delay_trace = direction.delay_trace
        if anew or direction.codel != old.codel:
            self._codel = ControlledDelay(direction.codel) if direction.codel else None
        self._patient = bool(direction.codel or direction.queue_packets or direction.recorded_rate)
        self._plain = not (
            self._jitters
            or self._reorder
            or self._delay_trace
            or direction.duplicate
            or direction.corrupt
            or self._chance.loses
        )
        by_packets = direction.queue_in_packets
        self._most_packets = direction.queue_packets or math.inf if by_packets else math.inf
        self._most_bytes = math.inf if by_packets else direction.effective_queue_bytes
        was = self._service
        if recorded or direction.rate_bps != old.rate_bps:
            self._service = service_of(direction, self._origin_s)
            self._seconds_per_byte = BITS_PER_BYTE / direction.rate_bps
        # Half a byte of grace: a queue of 10,000 bytes takes ten packets of 1000 whatever the rounding of sums.
        self._queue_s = (direction.effective_queue_bytes + 0.5) * self._seconds_per_byte
        if self._free_s > now_s:
            self._reschedule(was, now_s)
        while self._waiting and not self._patient:
            self._start(max(self._free_s, self._waiting[0][0]))

    def _reschedule(self, was: Service, now_s: float) -> None:
        """Let what was scheduled and is not on the cable yet leave as is now in force."""
        queued = sorted((entry for entry in self._line if entry[1] > now_s), key=_finish)
        self._line = deque(entry for entry in self._line if entry[1] <= now_s)
        self._last_release_s = self._line[-1][0] if self._line else -math.inf
        old_end_s = end_s = now_s
        for _, finish_s, z, packet in queued:
            if self._service is not was:
                end_s = self._service.finish_s(end_s, was.carried_bytes(old_end_s, finish_s))
            else:
                end_s = finish_s
            old_end_s = finish_s
            self._insert(end_s, z, packet)
        if self._service is not was:
            self._free_s = self._service.finish_s(end_s, was.carried_bytes(old_end_s, self._free_s))
        # A faster link finishes earlier than jitter was last drawn for; it wanders on from there.
        self._chance.earlier(self._free_s)


def _finish(entry: tuple[float, float, float, object]) -> float:
    return entry[1]


def _recordings(direction: Direction) -> tuple[object, ...]:
    return direction.rate_trace, direction.opportunities, direction.delay_trace
