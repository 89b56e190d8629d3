r"""Controlled delay: drop early, one by one and ever more often, while packets wait too long.  RFC 8289.

A packet that leaves the queue is judged by how long it waited.  Once every packet of a whole interval has waited for
at least the target, one is dropped, and while that goes on the next ones at

    t_{n+1} = t_n + interval / sqrt(n)                                                                              (1)

A wait below the target, or a queue with less than a packet left in it, ends it.

>>> queue = ControlledDelay(CoDel(target_s=0.005, interval_s=0.100))
>>> [queue.drops(waited_s=0.010, now_s=0.01 * n, left_bytes=9000) for n in range(12)].index(True)
10
"""

from __future__ import annotations

import math

from testbed.impairments import CoDel
from testbed.topology import MTU_BYTES

#: A dropping spell that follows another within so many intervals goes on about as fast as that one had become.
RECENT_INTERVALS = 16


class ControlledDelay:
    """The state of one queue."""

    __slots__ = ("_above_since_s", "_count", "_dropping", "_interval_s", "_last_count", "_next_s", "_target_s")

    def __init__(self, settings: CoDel) -> None:
        self._target_s, self._interval_s = settings.target_s, settings.interval_s
        self._above_since_s = math.inf  # from when on a drop is due: an interval after waits exceeded the target
        self._dropping = False
        self._next_s = 0.0
        self._count = self._last_count = 0

    def drops(self, *, waited_s: float, now_s: float, left_bytes: int) -> bool:
        """Whether the packet that leaves the queue at ``now_s`` is dropped; ``left_bytes`` stay behind it."""
        overdue = self._overdue(waited_s, now_s, left_bytes)
        if self._dropping:
            if not overdue:
                self._dropping = False
            elif now_s >= self._next_s:
                self._count += 1
                self._next_s += self._interval_s / math.sqrt(self._count)  # (1)
                return True
            return False
        if not overdue:
            return False
        self._dropping = True
        grown = self._count - self._last_count
        recent = now_s - self._next_s < RECENT_INTERVALS * self._interval_s
        self._count = self._last_count = grown if grown > 1 and recent else 1
        self._next_s = now_s + self._interval_s / math.sqrt(self._count)  # (1)
        return True

    def _overdue(self, waited_s: float, now_s: float, left_bytes: int) -> bool:
        if waited_s < self._target_s or left_bytes <= MTU_BYTES:
            self._above_since_s = math.inf
            return False
        if self._above_since_s == math.inf:
            self._above_since_s = now_s + self._interval_s
        return now_s >= self._above_since_s
