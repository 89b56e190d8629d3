"""Time as agents see it: emulated seconds, through one seam.

Nothing else in the agents asks a clock or sleeps.  ``WallClock`` maps emulated seconds onto the host's monotonic
clock, stretched by the dilation; the simulator puts a virtual clock behind the same two methods.

>>> clock = WallClock(origin_s=100.0, dilation=4.0, monotonic=lambda: 108.0)
>>> clock.now_s()
2.0
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

#: What emulated time it is while a run is being prepared.
BEFORE_START_S = -1.0


class Clock(Protocol):
    """What the agents know of time."""

    def now_s(self) -> float:
        """Emulated seconds since the start of the run; negative before it."""
        ...

    async def sleep_until_s(self, when_s: float) -> None:
        """Return at ``when_s`` or just after it; at once if that moment has passed."""
        ...


class WallClock:
    """Emulated time on the host's monotonic clock.

    Every agent of one machine shares that clock, so a time stamp made on one server can be compared on another: the
    emulation's stand-in for servers with synchronised clocks.
    """

    def __init__(
        self, *, origin_s: float, dilation: float = 1.0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self.rebase(origin_s=origin_s, dilation=dilation)

    def hold(self) -> None:
        """Stand still at ``BEFORE_START_S`` until the next ``rebase``: a run is prepared, the one before has ended."""
        self._held = True

    def rebase(self, *, origin_s: float, dilation: float) -> None:
        """Start a new run: emulated zero is the monotonic instant ``origin_s``; ValueError for a dilation <= 0."""
        if not dilation > 0:
            raise ValueError(f"dilation must be positive, not {dilation}")
        self._origin_s = origin_s
        self._held = False
        self.dilation = dilation

    def now_s(self) -> float:
        """Emulated seconds since the origin."""
        if self._held:
            return BEFORE_START_S
        return (self._monotonic() - self._origin_s) / self.dilation

    async def sleep_until_s(self, when_s: float) -> None:
        """Sleep on the running event loop until the emulated instant ``when_s``."""
        remaining_s = (when_s - self.now_s()) * self.dilation
        if remaining_s > 0:
            await asyncio.sleep(remaining_s)


class VirtualClock:
    """Emulated time that is the time of an event loop which does not wait: the simulator's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def hold(self) -> None:
        """Nothing to do: no virtual time passes while a run is being prepared."""

    def rebase(self, *, origin_s: float, dilation: float) -> None:
        """A run begins: ValueError unless emulated and the loop's seconds are the same."""
        if origin_s != 0 or dilation != 1:
            raise ValueError(f"virtual time begins at 0 and is never stretched, not at {origin_s} by {dilation}")

    def now_s(self) -> float:
        """Emulated seconds since the start of the run."""
        return self._loop.time()

    async def sleep_until_s(self, when_s: float) -> None:
        """Return exactly at ``when_s``; at once if that moment has passed."""
        if when_s <= self._loop.time():
            return
        woken = self._loop.create_future()
        timer = self._loop.call_at(when_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
