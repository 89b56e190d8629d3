r"""What TCP makes of the messages from one node to another: bursts, a window, retransmissions, order.

Messages are cut into bundles of packets (``testbed.tcp``), the pieces that cross a link as one, in the simulator as in
the emulation.  They leave as long as fewer than a window of packets are under way.

    an acknowledgement arrives   arrival of the bundle + propagation back                                        (1)
    window, before any loss      + packets acknowledged, where the window was what held the flow back            (2)
    window, t after a loss       C (t - K)^3 + W,  K = cbrt(W (1 - beta) / C),  beta = 0.7, C = 0.4               (3)
    a lost bundle is sent again  when something sent later is acknowledged, else after                           (4)
                                 2 RTT (tail probe), else after 2^n (RTT + 0.2 s)                                (5)

(3) is cubic (RFC 9438), (4) and (5) are RACK-TLP (RFC 8985) and the kernel's smallest time-out.  The receiver hands
messages on in order.  Simplified: acknowledgements take no room on links and are never lost; RTT is propagation alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from testbed.tcp import HEADER_BYTES, SEGMENT_BYTES

CUBIC_BETA = 0.7
CUBIC_C = 0.4
#: The least that a time-out adds to the round trip (Linux: TCP_RTO_MIN), and the most that it grows to.
RTO_MIN_S = 0.2
RTO_MAX_S = 120.0


class Lane(Protocol):
    """One direction of a link, as a flow sees it."""

    bundle: int  # packets that may cross as one
    delay_s: float
    exact: bool  # neither loss nor jitter: whatever fits the queue arrives when reckoned

    def offer(self, bundle: Bundle, now_s: float) -> bool:
        """Send; whether it will arrive."""
        ...

    def fits(self, size_bytes: int, now_s: float) -> bool:
        """Whether the queue would take so much now."""
        ...


class Timers(Protocol):
    """Where a flow asks for the time and for being called again."""

    def time(self) -> float:
        """Seconds."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> object:
        """Call back at that time."""
        ...


class Bundle:
    """Packets of one flow that travel as one."""

    __slots__ = ("attempts", "flow", "hop", "message", "noticed", "number", "order", "packets", "sent_s", "size_bytes")

    def __init__(self, flow: Flow, number: int, packets: int, size_bytes: int, message: object) -> None:
        self.flow = flow
        self.number = number  # position in the flow's stream
        self.packets = packets
        self.size_bytes = size_bytes  # on the wire, with headers
        self.message = message  # that ends with this bundle, or None
        self.hop = 0
        self.attempts = 0
        self.noticed = False  # the sender knows that the last sending was lost
        self.order = 0  # how many sendings of the flow came before the last one of this
        self.sent_s = 0.0


class Flow:
    """All messages from one node to another."""

    __slots__ = (
        "_acks",
        "_back",
        "_blocked",
        "_deliver",
        "_expected",
        "_flight",
        "_held",
        "_lanes",
        "_loss_s",
        "_lost",
        "_number",
        "_order",
        "_peak",
        "_pending",
        "_recovered_s",
        "_threshold",
        "_timers",
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
        self._timers = timers
        self._deliver = deliver
        self.window = float(window)
        self._threshold = math.inf  # the window above which (3) holds
        self._peak = 0.0  # W of (3)
        self._loss_s = 0.0  # when (3) began
        self._recovered_s = -math.inf  # losses before this belong to the same episode
        self._flight = 0  # packets sent and not acknowledged
        self._acks: deque[tuple[float, int]] = deque()  # (arrival, packets) of acknowledgements under way
        self._pending: deque[Bundle] = deque()  # not sent yet
        self._blocked = False  # the window holds something back
        self._number = self._expected = self._order = 0
        self._held: dict[int, Bundle] = {}  # arrived before something that comes first
        self._lost: dict[int, Bundle] = {}
        self.retransmitted = 0

    def send(self, size_bytes: int, message: object) -> None:
        """Queue a message of so many bytes; it is delivered when its last byte has arrived in order."""
        now_s = self._timers.time()
        packets = -(-size_bytes // SEGMENT_BYTES) or 1
        wire_bytes = size_bytes + packets * HEADER_BYTES
        first = self._lanes[0]
        size = first.bundle
        if len(self._lanes) > 1:
            size = min(lane.bundle for lane in self._lanes)
        elif (
            not self._pending
            and first.exact
            and self._open(now_s) >= packets
            and (packets <= size or first.fits(wire_bytes, now_s))
        ):
            size = packets  # one burst over one link: the bundles follow each other without a gap
        while packets > size:
            self._append(size, size * (SEGMENT_BYTES + HEADER_BYTES), None)
            packets -= size
            wire_bytes -= size * (SEGMENT_BYTES + HEADER_BYTES)
        self._append(packets, wire_bytes, message)
        self._pump(now_s)

    def arrived(self, bundle: Bundle, now_s: float) -> None:
        """A bundle has left a lane."""
        bundle.hop += 1
        if bundle.hop < len(self._lanes):
            if not self._lanes[bundle.hop].offer(bundle, now_s):
                self._missed(bundle)
            return
        self._acks.append((now_s + self._way_back_s(), bundle.packets))
        if self._lost:
            self._find_lost(bundle.order, now_s)
        if self._blocked:
            self._timers.call_at(self._acks[-1][0], self._resume)
        if bundle.number != self._expected:
            if bundle.number > self._expected:  # else: sent twice
                self._held[bundle.number] = bundle
            return
        self._expected += 1
        if bundle.message is not None:
            self._deliver(bundle.message)
        while self._held and (following := self._held.pop(self._expected, None)) is not None:
            self._expected += 1
            if following.message is not None:
                self._deliver(following.message)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _append(self, packets: int, size_bytes: int, message: object) -> None:
        self._pending.append(Bundle(self, self._number, packets, size_bytes, message))
        self._number += 1

    def _open(self, now_s: float) -> float:
        """Packets that the window allows now; everything, however large, when nothing is under way."""
        acks = self._acks
        while acks and acks[0][0] <= now_s:
            packets = acks.popleft()[1]
            self._flight -= packets
            if self._blocked or self._threshold < math.inf:
                self._grow(packets, now_s)
        return self.window - self._flight

    def _pump(self, now_s: float) -> None:
        pending = self._pending
        while pending:
            room = self._open(now_s)
            if pending[0].packets > room and self._flight:
                self._blocked = True
                return
            self._transmit(pending.popleft(), now_s)
        self._blocked = False

    def _resume(self) -> None:
        self._pump(self._timers.time())

    def _transmit(self, bundle: Bundle, now_s: float) -> None:
        bundle.hop = 0
        bundle.attempts += 1
        bundle.noticed = False
        bundle.order = self._order
        bundle.sent_s = now_s
        self._order += 1
        self._flight += bundle.packets
        if not self._lanes[0].offer(bundle, now_s):
            self._missed(bundle)

    # --- losses -------------------------------------------------------------------------------------------------------

    def _missed(self, bundle: Bundle) -> None:
        """A bundle will not arrive; the sender does not know yet."""
        self._lost[bundle.number] = bundle
        rtt_s = self._rtt_s()
        alone = self._flight == bundle.packets == 1
        wait_s = 2 * rtt_s if bundle.attempts == 1 and not alone else self._timeout_s(rtt_s, bundle.attempts)
        self._timers.call_at(bundle.sent_s + wait_s, self._send_again, bundle, bundle.attempts)

    def _find_lost(self, order: int, now_s: float) -> None:
        """What was sent before something that has arrived is missing: (4)."""
        at_s = now_s + self._way_back_s()
        for bundle in list(self._lost.values()):
            if bundle.order < order and not bundle.noticed:
                bundle.noticed = True
                self._timers.call_at(at_s, self._send_again, bundle, bundle.attempts)

    def _send_again(self, bundle: Bundle, attempts: int) -> None:
        if self._lost.get(bundle.number) is not bundle or bundle.attempts != attempts:
            return  # this has happened already
        now_s = self._timers.time()
        del self._lost[bundle.number]
        self._flight -= bundle.packets
        self._shrink(now_s, timed_out=attempts > 1)
        self.retransmitted += bundle.packets
        self._transmit(bundle, now_s)

    def _shrink(self, now_s: float, *, timed_out: bool) -> None:
        if now_s < self._recovered_s:
            return
        self._recovered_s = now_s + self._rtt_s()
        self._peak, self._loss_s = self.window, now_s
        self._threshold = max(2.0, CUBIC_BETA * self.window)
        self.window = 1.0 if timed_out else self._threshold

    def _grow(self, packets: int, now_s: float) -> None:
        """Equations (2) and (3)."""
        if self.window < self._threshold:
            self.window += packets
            return
        k_s = math.cbrt(self._peak * (1 - CUBIC_BETA) / CUBIC_C)
        aim = CUBIC_C * (now_s - self._loss_s - k_s) ** 3 + self._peak
        self.window += packets * min(max(0.01, aim - self.window) / self.window, 0.5)

    # --- times --------------------------------------------------------------------------------------------------------

    def _way_back_s(self) -> float:
        back = self._back
        return back[0].delay_s if len(back) == 1 else sum(lane.delay_s for lane in back)

    def _rtt_s(self) -> float:
        return sum(lane.delay_s for lane in self._lanes) + self._way_back_s()

    @staticmethod
    def _timeout_s(rtt_s: float, attempts: int) -> float:
        doubled: float = (rtt_s + RTO_MIN_S) * 2 ** min(attempts - 1, 10)
        return min(doubled, RTO_MAX_S)
