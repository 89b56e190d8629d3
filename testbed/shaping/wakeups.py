"""How late this process wakes up, learnt while it runs, so that it can be made up for.

A sleep ends later than asked, and a packet is noticed later than it came: by 20 µs on a busy processor, by 100 µs and
more on one that had gone idle or belongs to a virtual machine.  Both are wake-ups, so what timers teach holds for
packets too.  Lateness differs most between short and long sleeps; each kind has its own estimate, a running median.

>>> wakeups = WakeUps()
>>> for _ in range(200):
...     wakeups.learn(0.010, 120e-6)
>>> abs(wakeups.expected_s(0.010) - 120e-6) < 10e-6, wakeups.expected_s(0.0)
(True, 0.0)
"""

from __future__ import annotations

#: Sleeps longer than this are long: the processor may have gone idle.
LONG_S = 0.001
FIRST_GUESS_S = 50e-6
#: Wake-ups later than this are accidents that no estimate should make up for.
WORST_S = 250e-6
#: Long sleeps are rarer, so each of them moves its estimate further.
SHORT_STEP_S = 1e-6
LONG_STEP_S = 4e-6


class WakeUps:
    """Running medians of how late short and long sleeps end."""

    __slots__ = ("_long_s", "_short_s")

    def __init__(self) -> None:
        self._short_s = self._long_s = FIRST_GUESS_S

    def expected_s(self, sleep_s: float) -> float:
        """How late a wake-up after such a sleep usually is; nothing if there was none."""
        if sleep_s > LONG_S:
            return self._long_s
        return self._short_s if sleep_s > 0 else 0.0

    def learn(self, sleep_s: float, late_s: float) -> None:
        """A sleep of ``sleep_s`` ended ``late_s`` late."""
        # Steps of one size up and down settle where half of the sleeps end later and half earlier: at the median.
        if sleep_s > LONG_S:
            self._long_s = _step(self._long_s, late_s, LONG_STEP_S)
        else:
            self._short_s = _step(self._short_s, late_s, SHORT_STEP_S)


def _step(estimate_s: float, late_s: float, step_s: float) -> float:
    return min(estimate_s + step_s, WORST_S) if late_s > estimate_s else max(estimate_s - step_s, 0.0)
