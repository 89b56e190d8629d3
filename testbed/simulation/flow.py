r"""What TCP makes of the messages from one node to another: one stream of bytes, bursts, losses, order.

The stream is cut into bundles of packets (``testbed.tcp``), the pieces that cross a link as one, in the simulator as in
the emulation.  They leave as long as the window (``testbed.simulation.cubic``) has room.  The receiver hands messages
on in order.  When something is lost, the sender, as the kernel,

    sees it missing   when 3 packets sent later are acknowledged, or RTT/4 after one is                          (1)
    probes            2 RTT + 8 ms after it last sent or heard, with new data or the last packet again           (2)
    times out         RTT + 0.2 s after that, then twice as long, and so on                                      (3)

(2) happens once, and as late as (3) where a single packet is under way.  (1) and (2) are RACK-TLP (RFC 8985), (3) is
RFC 6298 with Linux's smallest time-out.

Simplified: acknowledgements wait behind what is queued on their way back, but take no room there and are never lost,
and no receiver delays them; the memory of both ends is never full; nothing is sent twice without need.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from testbed.simulation.bundle import Bundle, Lane, Timers
from testbed.simulation.cubic import Cubic, Phase
from testbed.tcp import HEADER_BYTES, RTO_MIN_S, SEGMENT_BYTES

#: So many packets that arrive out of order are no accident (TCP's duplicate acknowledgements).
DUPLICATES = 3
#: What a probe waits for beyond two round trips: two ticks of the usual kernel (HZ=250).
PROBE_MIN_S = 0.008
#: The most that a time-out grows to (Linux: TCP_RTO_MAX).
RTO_MAX_S = 120.0
#: A part of a bundle is worth sending if it fills this share of the window (Linux: tcp_tso_win_divisor) ...
WORTH_SENDING = 1 / 3
#: ... or if the flow has not sent for so long, or the next acknowledgement is more than half a round trip away.
DEFER_S = 0.001

OPEN, RECOVERY = Phase.OPEN, Phase.RECOVERY


class Flow:
    """All messages from one node to another."""

    __slots__ = (
        "_acks",
        "_again",
        "_alarmed",
        "_back",
        "_backoff",
        "_deliver",
        "_expected",
        "_first",
        "_flight",
        "_head_s",
        "_heard_s",
        "_held",
        "_held_packets",
        "_hops",
        "_lanes",
        "_lost",
        "_merged",
        "_merged_due_s",
        "_messages",
        "_next",
        "_order",
        "_probe_end",
        "_sent_s",
        "_stalled",
        "_timers",
        "_una",
        "_wake_s",
        "_written",
        "retransmitted",
        "window",
    )

    def __init__(
        self,
        lanes: Sequence[Lane],
        back: Sequence[Lane],
        *,
        window: int,
        timers: Timers,
        deliver: Callable[[Any], None],
    ) -> None:
        """``lanes`` lead to the target, ``back`` lead from it; ``window`` is the initial one, in packets."""
        self._lanes, self._back = tuple(lanes), tuple(back)
        self._first, self._hops = self._lanes[0], len(self._lanes)
        self._timers = timers
        self._deliver = deliver
        self.window = Cubic(window, rtt_s=sum(lane.delay_s for lane in (*lanes, *back)))
        self.retransmitted = 0  # packets
        # The stream, in bytes: written by the sender, sent first, acknowledged, arrived; each in order and without gap.
        self._written = self._next = self._una = self._expected = 0
        self._messages: deque[tuple[int, Any]] = deque()  # (end, message), not delivered
        self._held: dict[int, Bundle] = {}  # arrived before something that comes first, by position
        self._held_packets = 0
        self._flight = 0  # packets sent, neither acknowledged nor known to be lost
        self._order = 0  # packets sent
        self._sent_s = self._heard_s = 0.0  # when the sender last sent, and heard of progress
        self._head_s = 0.0  # when it sent what is acknowledged next, or what was acknowledged last
        #: (arrival, packets, everything before this has arrived, when they were sent, their order, packets held)
        self._acks: deque[tuple[float, int, int, float, int, int]] = deque()
        self._stalled = False  # something waits for acknowledgements
        self._wake_s = math.inf  # when the next of them comes, if the sender is to be woken for it
        self._merged: Bundle | None = None  # a burst under way as one bundle, and when it arrives
        self._merged_due_s = 0.0
        self._lost: dict[int, Bundle] = {}  # what the sender does not know to be lost, by position
        self._again: list[Bundle] = []  # what it knows to be lost, in order
        self._alarmed = False  # for (2) or (3)
        self._backoff = 0  # time-outs since the last progress
        self._probe_end = 0  # what the probe that is under way ends with, or 0

    def send(self, size_bytes: int, message: object) -> None:
        """Queue a message of so many bytes; it is delivered when its last byte has arrived in order."""
        self._written += size_bytes or 1
        self._messages.append((self._written, message))
        if not self._stalled:
            self._pump(self._timers.time())

    def arrived(self, bundle: Bundle, now_s: float) -> None:
        """A bundle has left a lane."""
        hop = bundle.hop = bundle.hop + 1
        if hop < self._hops:
            lane = self._lanes[hop]
            while bundle.packets > lane.bundle:
                part = bundle.split(lane.bundle)
                if not lane.send(part, now_s):
                    self.missed(part, now_s)
            if not lane.send(bundle, now_s):
                self.missed(bundle, now_s)
            return
        if bundle.start == self._expected:
            self._expected += bundle.payload_bytes
            while self._held and (following := self._held.pop(self._expected, None)):
                self._expected += following.payload_bytes
                self._held_packets -= following.packets
        else:
            self._held[bundle.start] = bundle
            self._held_packets += bundle.packets
        if bundle is self._merged:
            self._tell_apart(now_s)
        if not bundle.acknowledged:
            back_s = now_s
            for lane in self._back:
                back_s = lane.crossed_s(back_s)
            acks = self._acks
            ack = (back_s, bundle.packets, self._expected, bundle.sent_s, bundle.order, self._held_packets)
            place = len(acks)
            while place and acks[place - 1][4] > bundle.order:  # of a burst behind this one, told apart early
                place -= 1
            acks.insert(place, ack)
        if self._stalled or self._lost:
            self._wake()
        messages = self._messages
        while messages and messages[0][0] <= self._expected:
            self._deliver(messages.popleft()[1])

    # --- sending ------------------------------------------------------------------------------------------------------

    def _pump(self, now_s: float) -> None:
        """Send what the window allows: first what is missing, then what is new."""
        if self._merged:
            self._tell_apart(self._merged_due_s)
        if self._acks and self._acks[0][0] <= now_s:
            self._hear(now_s)
        while self._again:
            bundle = self._again[0]
            packets = self._allowed(bundle.packets, now_s)
            if not packets:
                return self._stall()
            if packets < bundle.packets:
                bundle = bundle.split(packets)
            else:
                del self._again[0]
            self.retransmitted += packets
            self._transmit(bundle, now_s)
        while left_bytes := self._written - self._next:
            packets = wanted = -(-left_bytes // SEGMENT_BYTES)
            room, most = self.window.packets - self._flight, self._first.bundle
            if packets > most and not (packets <= room and self._may_merge(left_bytes + packets * HEADER_BYTES, now_s)):
                packets = most
            if packets > room:
                packets = self._allowed(packets, now_s)
                if not packets:
                    return self._stall()
            size_bytes = left_bytes if packets == wanted else packets * SEGMENT_BYTES
            bundle = Bundle(self, self._next, size_bytes, packets)
            self._next += size_bytes
            self._transmit(bundle, now_s)
            if packets > most:
                self._merged, self._merged_due_s = bundle, self._first.crossed_s(now_s)
        self._stalled = False
        return None

    def _may_merge(self, size_bytes: int, now_s: float) -> bool:
        """Whether all that is to be sent may cross as one bundle: over one link, its parts follow without a gap."""
        first, messages = self._first, self._messages
        return (
            self._hops == 1
            and first.exact
            and first.fits(now_s, size_bytes)
            and (len(messages) < 2 or messages[-2][0] <= self._next)  # an earlier message must not wait for its end
            and not (self._lost or self._held_packets)
        )

    def _allowed(self, packets: int, now_s: float) -> int:
        """How many of the packets of a bundle may leave now."""
        window = self.window
        room = int(window.packets) - self._flight
        if packets <= room:
            return packets
        if room > 0 and (
            window.phase is not OPEN
            or room >= WORTH_SENDING * window.packets
            or now_s - self._sent_s > DEFER_S
            or now_s - self._head_s < window.rtt_s / 2
        ):
            return room
        return 0 if self._flight else 1

    def _transmit(self, bundle: Bundle, now_s: float) -> None:
        window, flight, packets = self.window, self._flight, bundle.packets
        if not flight:
            window.resumed(now_s - self._sent_s)
            self._head_s = now_s
        bundle.hop = 0
        bundle.sent_s = self._sent_s = now_s
        bundle.order = self._order = self._order + packets
        window.sent += packets
        self._flight = flight = flight + packets
        if 2 * flight > window.packets:
            window.used(flight, self._una, self._next)
        if not self._first.send(bundle, now_s):
            self.missed(bundle, now_s)

    def _stall(self) -> None:
        self.window.used(self._flight, self._una, self._next, held_back=True)
        self._stalled = True
        self._wake()

    # --- hearing ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Be called for the next acknowledgement."""
        if self._acks and self._acks[0][0] < self._wake_s:
            self._wake_s = self._acks[0][0]
            self._timers.tell_at(self._wake_s, self._woken)

    def _woken(self, now_s: float) -> None:
        if now_s < self._wake_s:
            return  # for one that was the next until another came before it
        self._wake_s = math.inf
        self._pump(now_s)
        if self._stalled or self._lost:
            self._wake()

    def _hear(self, now_s: float) -> None:
        """Take in the acknowledgements that have come by now."""
        acks, window = self._acks, self.window
        while acks and acks[0][0] <= now_s:
            at_s, packets, una, sent_s, order, held = acks.popleft()
            rtt_s = at_s - sent_s
            self._head_s = sent_s
            self._flight -= packets
            advanced = una > self._una
            if advanced:
                self._una, self._heard_s, self._backoff = una, at_s, 0
                if self._probe_end and una >= self._probe_end:
                    self._probe_end = 0
                    if window.phase is OPEN:
                        window.probed()
            lost = bool(self._lost) and self._see_missing(order, held, at_s, rtt_s)
            if window.phase is not RECOVERY:
                window.acknowledged(at_s, packets, una, rtt_s, self._next)
            else:
                window.recovering(packets, una, rtt_s, self._flight, advanced=advanced, lost=lost)
                if window.phase is OPEN and self._again:
                    window.lose(self._next)

    def _tell_apart(self, due_s: float) -> None:
        """Acknowledge the burst that arrives as one bundle at ``due_s`` as those that it stands for."""
        bundle, first = self._merged, self._first
        assert bundle is not None  # noqa: S101
        self._merged, bundle.acknowledged = None, True
        end, left, una = bundle.start + bundle.payload_bytes, bundle.packets, bundle.start
        while left:
            packets = min(left, first.bundle)
            left -= packets
            una = una + packets * SEGMENT_BYTES if left else end
            back_s = due_s - (end - una + left * HEADER_BYTES) * first.byte_s
            for lane in self._back:
                back_s = lane.crossed_s(back_s)
            self._acks.append((back_s, packets, una, bundle.sent_s, bundle.order, 0))

    # --- losses -------------------------------------------------------------------------------------------------------

    def missed(self, bundle: Bundle, now_s: float) -> None:
        """A bundle will not arrive; the sender does not know yet."""
        self._lost[bundle.start] = bundle
        if not self._alarmed:
            self._arm(max(now_s, self._sent_s + self._patience_s()))

    def _see_missing(self, order: int, held: int, at_s: float, rtt_s: float) -> bool:
        """What was sent as ``order`` has arrived: whether something sent earlier is therefore missing, by (1)."""
        window, seen = self.window, False
        wait_s = 0.0 if held >= DUPLICATES or window.phase is not OPEN else window.least_rtt_s / 4
        for bundle in [bundle for bundle in self._lost.values() if bundle.order < order]:
            overdue_s = bundle.sent_s + rtt_s + wait_s
            if wait_s and overdue_s > at_s:
                self._timers.tell_at(overdue_s, partial(self._overdue, bundle, bundle.order))
            else:
                self._mark(bundle)
                seen = True
        return seen

    def _overdue(self, bundle: Bundle, order: int, now_s: float) -> None:
        """Too few packets came after it, but the wait of (1) is over."""
        self._hear(now_s)
        if self._lost.get(bundle.start) is bundle and bundle.order == order:
            self._mark(bundle)
            self.window.allow(1, self._flight, advanced=False, lost=True)
            self._pump(now_s)

    def _mark(self, bundle: Bundle) -> None:
        """The sender knows that a bundle is lost."""
        self._set_aside(bundle)
        if self.window.phase is OPEN:
            self.window.lose(self._next)

    def _set_aside(self, bundle: Bundle) -> None:
        """To be sent again."""
        del self._lost[bundle.start]
        self._flight -= bundle.packets
        self._again.append(bundle)
        self._again.sort(key=attrgetter("start"))
        self._stalled = True

    def _arm(self, when_s: float) -> None:
        self._alarmed = True
        self._timers.tell_at(when_s, self._alarm)

    def _patience_s(self) -> float:
        """How long the sender waits for news: (2) and (3)."""
        window = self.window
        timeout_s = min((window.rtt_s + RTO_MIN_S) * 2.0 ** min(self._backoff, 10), RTO_MAX_S)
        if window.phase is OPEN and not self._probe_end and self._flight > 1:
            return min(2 * window.rtt_s + PROBE_MIN_S, timeout_s)
        return timeout_s

    def _alarm(self, now_s: float) -> None:
        """Has the sender waited long enough?  Asked only while something is lost of which it does not know."""
        self._alarmed = False
        self._hear(now_s)
        if self._lost:
            due_s = max(self._sent_s, self._heard_s) + self._patience_s()
            if now_s < due_s:
                self._arm(due_s)
            elif self._flight > sum(bundle.packets for bundle in self._lost.values()):
                self._arm(now_s + self._patience_s())  # what is under way will tell
            elif self.window.phase is OPEN and not self._probe_end:
                self._probe(now_s)
            else:
                self._time_out()
        if self._stalled:
            self._pump(now_s)
        if self._lost and not self._alarmed:
            self._arm(now_s + self._patience_s())

    def _probe(self, now_s: float) -> None:
        """Send one packet, so that its acknowledgement tells what is missing."""
        if self._next < self._written:
            bundle = Bundle(self, self._next, min(SEGMENT_BYTES, self._written - self._next), 1)
            self._next += bundle.payload_bytes
        else:
            bundle = self._lost.pop(max(self._lost))
            if bundle.packets > 1:
                head = bundle.split(bundle.packets - 1)
                self._lost[head.start] = head
            self._flight -= 1
            self.retransmitted += 1
        self._probe_end = bundle.start + bundle.payload_bytes
        self._transmit(bundle, now_s)

    def _time_out(self) -> None:
        for bundle in list(self._lost.values()):
            self._set_aside(bundle)
        self._backoff += 1
        self._probe_end = 0
        self.window.timed_out(self._flight, self._next)
