"""How fast a line takes bytes: at one rate, at a rate that changes in steps, or at recorded chances.

Each kind answers two questions with times and bytes only, so that the model can schedule a packet the moment it comes:

    finish_s(start, size)      when a packet that starts then is on the cable
    carried_bytes(from, to)    what the line carries in between, if it never idles

Recordings repeat after their last entry.  ``origin_s`` is when they begin.

>>> from testbed.impairments import Opportunities, Steps
>>> stepped = Stepped(Steps(name="t", ends_s=(1.0, 2.0), values=(8000.0, 16000.0)), origin_s=0.0)
>>> stepped.finish_s(0.5, 1000), stepped.carried_bytes(0.0, 2.0)
(1.25, 3000.0)
>>> chances = Chances(Opportunities(name="t", at_s=(0.010, 0.020)), origin_s=0.0)
>>> chances.finish_s(0.0, 1500), chances.finish_s(0.010, 1500), chances.finish_s(0.021, 1504)
(0.01, 0.02, 0.03)
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from typing import Protocol

from testbed.impairments import Opportunities, Steps
from testbed.topology import BITS_PER_BYTE, Direction

#: Times closer together than this are one; clocks that have run for weeks know no smaller difference.
SAME_MOMENT_S = 1e-9


class Service(Protocol):
    """How fast a line takes bytes."""

    def finish_s(self, start_s: float, size_bytes: float) -> float:
        """When so many bytes that start at ``start_s`` are on the cable."""

    def carried_bytes(self, from_s: float, to_s: float) -> float:
        """How many bytes the line takes between two times if it never idles."""


class Constant:
    """One rate."""

    def __init__(self, rate_bps: float) -> None:
        self._seconds_per_byte = BITS_PER_BYTE / rate_bps

    def finish_s(self, start_s: float, size_bytes: float) -> float:
        """See ``Service``."""
        return start_s + size_bytes * self._seconds_per_byte

    def carried_bytes(self, from_s: float, to_s: float) -> float:
        """See ``Service``."""
        return max(0.0, to_s - from_s) / self._seconds_per_byte


class Stepped:
    """A rate that changes in steps; it may be zero for a while."""

    def __init__(self, steps: Steps, origin_s: float) -> None:
        self._origin_s, self._period_s = origin_s, steps.period_s
        self._starts_s = (0.0, *steps.ends_s[:-1])
        self._rates = tuple(value / BITS_PER_BYTE for value in steps.values)  # bytes per second
        spans = (
            (end - start) * rate for start, end, rate in zip(self._starts_s, steps.ends_s, self._rates, strict=True)
        )
        #: carried from the beginning of a round to the end of each step
        self._carried = tuple(itertools.accumulate(spans))
        #: A packet that ends with a step must not be pushed over the silence behind it by the rounding of sums.
        self._grace = min(0.5, self._carried[-1] / 1000)

    def finish_s(self, start_s: float, size_bytes: float) -> float:
        """See ``Service``."""
        per_round = self._carried[-1]
        rounds, place_s = divmod(start_s - self._origin_s, self._period_s)
        more_rounds, rest = divmod(self._until(place_s) + size_bytes, per_round)
        if rest <= self._grace and more_rounds:  # the last byte of a round, not the first of the next
            more_rounds, rest = more_rounds - 1, per_round
        step = min(bisect_left(self._carried, rest - self._grace), len(self._rates) - 1)
        before = self._carried[step - 1] if step else 0.0
        of_step = min(rest, self._carried[step]) - before
        into_s = of_step / self._rates[step] if of_step > 0 else 0.0
        finish_s = self._origin_s + (rounds + more_rounds) * self._period_s + self._starts_s[step] + into_s
        return max(finish_s, start_s)

    def carried_bytes(self, from_s: float, to_s: float) -> float:
        """See ``Service``."""
        return max(0.0, self._total(to_s) - self._total(from_s))

    def _total(self, at_s: float) -> float:
        rounds, place_s = divmod(at_s - self._origin_s, self._period_s)
        return rounds * self._carried[-1] + self._until(place_s)

    def _until(self, place_s: float) -> float:
        """What is carried from the beginning of a round to ``place_s`` in it."""
        step = bisect_right(self._starts_s, place_s) - 1
        before = self._carried[step - 1] if step else 0.0
        return before + (place_s - self._starts_s[step]) * self._rates[step]


class Chances:
    """Recorded chances to send, mahimahi's: several packets may share one, a large packet takes several.

    A chance that comes while nothing waits is gone.  What is left of one serves only packets that are there when it
    comes.
    """

    def __init__(self, opportunities: Opportunities, origin_s: float) -> None:
        self._at_s, self._each_bytes = opportunities.at_s, opportunities.each_bytes
        self._origin_s, self._period_s = origin_s, opportunities.period_s
        self._number = -1  # of the chance that was last used
        self._left_bytes = 0.0  # of that one

    def finish_s(self, start_s: float, size_bytes: float) -> float:
        """See ``Service``.  Packets are asked for in the order in which they are sent."""
        first = self._first_from(start_s)
        if first > self._number:
            self._number, self._left_bytes = first, self._each_bytes
        if size_bytes > self._left_bytes:
            more = math.ceil((size_bytes - self._left_bytes) / self._each_bytes)
            self._number += more
            self._left_bytes += more * self._each_bytes
        self._left_bytes -= size_bytes
        return max(start_s, self._when_s(self._number))

    def carried_bytes(self, from_s: float, to_s: float) -> float:
        """See ``Service``."""
        return float(max(0, self._first_after(to_s) - self._first_after(from_s)) * self._each_bytes)

    def _first_from(self, at_s: float) -> int:
        rounds, place_s = divmod(at_s - self._origin_s, self._period_s)
        number = int(rounds) * len(self._at_s) + bisect_left(self._at_s, place_s)
        # The last chance of a round and the start of the next are one moment, which rounding may put on either side.
        while number > self._number and number > 0 and self._when_s(number - 1) >= at_s - SAME_MOMENT_S:
            number -= 1
        return number

    def _first_after(self, at_s: float) -> int:
        rounds, place_s = divmod(at_s - self._origin_s, self._period_s)
        return int(rounds) * len(self._at_s) + bisect_right(self._at_s, place_s)

    def _when_s(self, number: int) -> float:
        rounds, place = divmod(number, len(self._at_s))
        return self._origin_s + rounds * self._period_s + self._at_s[place]


def service_of(direction: Direction, origin_s: float) -> Service:
    """How fast the line of a direction takes bytes, with its recording begun at ``origin_s``."""
    if direction.opportunities is not None:
        return Chances(direction.opportunities, origin_s)
    if direction.rate_trace is not None:
        return Stepped(direction.rate_trace, origin_s)
    return Constant(direction.rate_bps)


def value_at(steps: Steps, since_s: float) -> float:
    """The value of a repeating recording so long after its beginning."""
    place_s = since_s % steps.period_s
    return steps.values[min(bisect_right(steps.ends_s, place_s), len(steps.values) - 1)]
