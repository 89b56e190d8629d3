"""One server's load channel under a scheduler: it reads what waiting jobs demand, the scheduler's first choice first.

Jobs that wait stand in the state that the device shares with it (``agents.local.interleaved``).  What nobody waits for,
which a framework may load ahead, is read while nothing is demanded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agents.clock import Clock
from agents.device import SerialLane
from agents.local.jobs import Key
from agents.schedulers.base import Scheduler, State


class Demanded(SerialLane):
    """The load channel: of what waiting jobs demand, the scheduler says what is read next."""

    def __init__(self, clock: Clock, state: State, scheduler: Scheduler, number: Callable[[Key], int]) -> None:
        super().__init__(clock)
        self._state = state
        self._scheduler = scheduler
        self._number = number
        self._asked: dict[int, tuple[float, float, asyncio.Future[float]]] = {}  # ready_s, modelled_s
        self.reading: asyncio.Task[None] | None = None
        self._ringing = False

    async def read(self, key: Key, *, ready_s: float, modelled_s: float) -> float:
        """See ``agents.store.Loader``."""
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        number = self._number(key)
        self._asked[number] = ready_s, modelled_s, done
        self._ring()
        try:
            return await done
        finally:
            self._asked.pop(number, None)
            self._state.demanded.pop(number, None)

    def backlog_s(self) -> float:
        """See ``SerialLane``."""
        return self.booked_s() + sum(modelled_s for _, modelled_s, _ in self._asked.values())

    def _ring(self) -> None:
        if not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._ringing = False
        state = self._state
        if state.loading is not None or not self._asked:
            return
        now_s = max(self._free_s, min(ready_s for ready_s, _, _ in self._asked.values()))
        known = [number for number, (ready_s, _, _) in self._asked.items() if ready_s <= now_s]
        state.demanded = {n: state.demanded.get(n, state.loads) for n in known if n in state.needers}
        number = self._scheduler.next_load(state) if state.demanded else known[0]
        if number is None:
            return
        ready_s, modelled_s, done = self._asked.pop(number)
        state.demanded.pop(number, None)
        state.loading = number
        state.loads += 1
        self.waited(now_s - ready_s)
        self.reading = asyncio.ensure_future(self._read(self.book(now_s, modelled_s), done))

    async def _read(self, finish_s: float, done: asyncio.Future[float]) -> None:
        await self.hold(lambda: None, finish_s)
        if not done.done():
            done.set_result(finish_s)
        self._state.loading = None
        self._ring()
