r"""How much a sender may have under way: what Linux's TCP does with acknowledgements and losses, as arithmetic.

Windows and amounts are packets, positions are bytes of the flow's stream.  Nothing here asks for the time.

    window W, slow start      W <- W + acknowledged, while W < 2 · (most that was under way)                     (1)
    slow start ends (HyStart) a round trip has grown by 1/8, but 4 to 16 ms;  or acknowledgements have come      (2)
                              without a gap for half a round trip
    afterwards (CUBIC)        W <- W + acknowledged · min(1/2, (aim - W) / W),  where the window held back       (3)
                              aim = C (t - K)^3 + W_max,   K = cbrt((W_max - W) / C),   t since the loss
                              but no less than an AIMD flow of the same β, and 1/20 before any loss
    a loss                    W_max <- W,  threshold <- β W                                                      (4)
    recovery (PRR)            per acknowledgement, at first  delivered · threshold / W  may be sent,             (5)
                              below the threshold  max(delivered - sent, acknowledged) + 1
    a time-out                threshold <- β W,  W <- 1,  slow start again                                       (6)

(2) is HyStart as in the kernel, (3) and (4) RFC 9438, (5) RFC 6937 with its slow-start bound: it is why the loss of the
tail of a burst costs many round trips, which start with one packet.

>>> window = Cubic(10, rtt_s=0.1)
>>> window.used(10, 0, 14480)
>>> window.acknowledged(0.1, 10, 14480, 0.1, 14480)
>>> window.packets
20.0
"""

from __future__ import annotations

import math
from enum import Enum

BETA = 717 / 1024
C = 0.4
#: The window of an AIMD flow that is as fast as CUBIC on average: RFC 9438, 4.3, in the kernel's rounding.
FRIENDLY = 8 / 15
FASTEST = 0.5  # packets per acknowledged packet
FIRST = 1 / 20  # the same, before any loss
SLOWEST = 1 / 100  # the same in units of one over the window, where the window is above its aim

HYSTART_MIN_WINDOW = 16
HYSTART_TRAIN_GAP_S = 0.002
HYSTART_ACK_S = 0.001  # added to the round trip before it is halved: what an offloaded bundle may take
HYSTART_SAMPLES = 8
HYSTART_LEAST_S = 0.004
HYSTART_MOST_S = 0.016

RTT_GAIN = 1 / 8


class Phase(Enum):
    """What a sender does."""

    OPEN = "open"  # nothing is known to be missing
    RECOVERY = "recovery"  # repairing what others have told of
    LOSS = "loss"  # repairing after a time-out


class Cubic:
    """The window of one flow."""

    __slots__ = (
        "_delivered",
        "_epoch_s",
        "_found",
        "_full",
        "_high",
        "_k_s",
        "_last_max",
        "_most",
        "_origin",
        "_prior",
        "_reno",
        "_round_end",
        "_round_rtt_s",
        "_round_s",
        "_samples",
        "_train_s",
        "_used_until",
        "least_rtt_s",
        "packets",
        "phase",
        "rtt_s",
        "sent",
        "threshold",
    )

    def __init__(self, window: int, *, rtt_s: float) -> None:
        """``window`` is the initial one, in packets; ``rtt_s`` is what the handshake has shown."""
        self.packets = float(window)
        self.threshold = math.inf  # above it (3) holds
        self.phase = Phase.OPEN
        self.rtt_s = rtt_s  # smoothed
        self.least_rtt_s = rtt_s
        self.sent = 0  # packets, since the recovery began
        self._delivered = 0  # the same
        self._prior = 0.0  # the window before the recovery
        self._high = 0  # recovery ends when everything before this has arrived
        self._used_until = -1  # what is acknowledged up to here was sent while the window was well used
        self._most = 0  # packets under way then
        self._full = False  # the window held the sender back then
        self._epoch_s: float | None = None
        self._last_max = self._origin = self._k_s = self._reno = 0.0
        self._found = False  # the end of slow start, by (2)
        self._round_end, self._round_s, self._train_s = -1, -math.inf, -math.inf
        self._samples, self._round_rtt_s = 0, math.inf

    def used(self, flight: int, una: int, end: int, *, held_back: bool = False) -> None:
        """``flight`` packets are under way, up to ``end``; ``held_back`` if more would be sent.  For (1) and (3)."""
        full = held_back or flight >= int(self.packets)
        if full or una >= self._used_until or (flight > self._most and not self._full):
            self._full, self._most, self._used_until = full, flight, end

    def resumed(self, idle_s: float) -> None:
        """Sending again with nothing under way: idle time does not count for (3)."""
        if self._epoch_s is not None:
            self._epoch_s += idle_s

    def acknowledged(self, at_s: float, packets: int, una: int, rtt_s: float, end: int) -> None:
        """So many packets have arrived, outside of recovery; everything before ``una`` has, ``end`` was sent."""
        self.rtt_s += RTT_GAIN * (rtt_s - self.rtt_s)
        if rtt_s < self.least_rtt_s:
            self.least_rtt_s = rtt_s
        if self.phase is Phase.LOSS and una >= self._high:
            self.phase = Phase.OPEN
        if not self._found and self.packets < self.threshold:
            if una > self._round_end:
                self._round_end, self._round_s, self._train_s = end, at_s, at_s
                self._samples, self._round_rtt_s = 1, rtt_s
            else:
                self._hystart(at_s, rtt_s)
        if una <= self._used_until:
            self._grow(at_s, packets)

    def recovering(self, packets: int, una: int, rtt_s: float, flight: int, *, advanced: bool, lost: bool) -> None:
        """The same in recovery; ``advanced`` if ``una`` has moved, ``lost`` if more is now known to be missing."""
        self.rtt_s += RTT_GAIN * (rtt_s - self.rtt_s)
        if una >= self._high:
            self.phase = Phase.OPEN
            self.packets = self.threshold
        else:
            self.allow(packets, flight, advanced=advanced, lost=lost)

    def allow(self, packets: int, flight: int, *, advanced: bool, lost: bool) -> None:
        """Equation (5)."""
        self._delivered += packets
        room = self.threshold - flight
        if room < 0:
            allowed = math.ceil(self.threshold * self._delivered / self._prior) - self.sent
        else:
            allowed = min(int(room), max(self._delivered - self.sent, packets) + (advanced and not lost))
        self.packets = flight + max(allowed, 0 if self.sent else 1)

    def lose(self, end: int) -> None:
        """Something is missing: (4)."""
        self._reduce()
        self.phase = Phase.RECOVERY
        self._high = end
        self._delivered = self.sent = 0

    def probed(self) -> None:
        """A probe has repaired the only loss."""
        self._reduce()
        self.packets = self.threshold

    def timed_out(self, flight: int, end: int) -> None:
        """Nothing has been heard for too long: (6)."""
        if self.phase is Phase.OPEN:
            self._reduce()
        self.phase = Phase.LOSS
        self._high = end
        self._last_max, self._epoch_s, self._found = 0.0, None, False
        self.packets = flight + 1.0

    def _reduce(self) -> None:
        window = self.packets
        self._prior = window
        self._last_max = window * (1 + BETA) / 2 if window < self._last_max else window  # make room for newcomers
        self.threshold = max(2.0, BETA * window)
        self._epoch_s = None

    def _hystart(self, at_s: float, rtt_s: float) -> None:
        if self.packets < HYSTART_MIN_WINDOW:
            return
        if at_s - self._train_s <= HYSTART_TRAIN_GAP_S:
            self._train_s = at_s
            if at_s - self._round_s > (self.least_rtt_s + HYSTART_ACK_S) / 2:
                self._found = True
        if rtt_s < self._round_rtt_s:
            self._round_rtt_s = rtt_s
        if self._samples < HYSTART_SAMPLES:
            self._samples += 1
        else:
            growth_s = min(max(HYSTART_LEAST_S, self.least_rtt_s / 8), HYSTART_MOST_S)
            self._found = self._found or self._round_rtt_s > self.least_rtt_s + growth_s
        if self._found:
            self.threshold = self.packets

    def _grow(self, at_s: float, packets: int) -> None:
        window = self.packets
        if window < self.threshold:
            if not self._full and window >= 2 * self._most:
                return
            self.packets = min(window + packets, self.threshold)
            packets -= int(self.packets - window)
            if not packets:
                return
            window = self.packets
        if not self._full:
            return
        if self._epoch_s is None:
            self._epoch_s, self._reno = at_s, window
            self._origin = max(self._last_max, window)
            self._k_s = math.cbrt((self._origin - window) / C)
        aim = self._origin + C * (at_s - self._epoch_s + self.least_rtt_s - self._k_s) ** 3
        pace = (aim - window if aim > window else SLOWEST) / window
        if not self._last_max:
            pace = max(pace, FIRST)
        self._reno += packets * FRIENDLY / window
        if self._reno > window:
            pace = max(pace, (self._reno - window) / window)
        self.packets = window + packets * min(pace, FASTEST)
