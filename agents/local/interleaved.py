r"""One server's device and load channel under a scheduler of ``agents.schedulers``, for the passes of all requests.

Jobs that are ready stand in one :class:`~agents.schedulers.base.State`, and whenever the device is free the scheduler
says which of them run as one batch.  Jobs that wait for a load stand there too, so that the channel reads what they
demand in the scheduler's order.  A pass that waits for another server stands nowhere and holds nobody up.

    p        = step · (2 L + 1) + stage                           where a job stands in its request               (1)
    advance  = p - p_0 + floor_0                                                                                  (2)

    p_0      p of the first job of this request here          floor_0  advance of the least advanced here, then

By (2) a request that comes here is as advanced as the least advanced, as a newcomer of ``agents.schedulers.bevy``,
however many layers it has behind it elsewhere: servers need not agree on anything.

Decisions are taken at logical times (``agents.device``): who was not ready when the device became free is not seen,
however late this host wakes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agents.clock import Clock
from agents.device import SerialLane
from agents.local.demanded import Demanded
from agents.local.jobs import Job, Key, Pricing
from agents.models.profile import ModelProfile
from agents.schedulers.base import Scheduler, SchedulerError, Standing, State

T = TypeVar("T")

#: A request that has not come by for so long (emulated seconds) is a newcomer again.
FORGET_AFTER_S = 60.0


@dataclass(slots=True)
class _Seen:
    """A request that has been here."""

    arrived: int
    offset: int  # floor_0 - p_0
    last_s: float


@dataclass(slots=True)
class _Entry:
    """A job that was handed over."""

    job: Job[Any]
    standing: Standing
    done: asyncio.Future[tuple[Any, float]]
    ready_s: float


class Interleaved(SerialLane):
    """The device."""

    together = True

    def __init__(self, clock: Clock, pricing: Pricing, scheduler: Scheduler, profile: ModelProfile) -> None:
        super().__init__(clock)
        self._pricing = pricing
        self._scheduler = scheduler
        self._profile = profile
        self.state = State.empty(layers=profile.layers, experts=profile.experts, slots=0)
        self.loader = Demanded(clock, self.state, scheduler, self.number)
        self._precisions = {name: place for place, name in enumerate(sorted(profile.expert_bytes))}
        self._entries: dict[int, _Entry] = {}
        self._coming: list[_Entry] = []  # ready, but the scheduler does not know yet
        self._seen: dict[int, _Seen] = {}
        self._jobs_given = self._arrivals = 0
        self._floor = 0
        self._ringing = False
        self._group: asyncio.Task[None] | None = None
        self._queued: dict[int, dict[int, _Entry]] = {}  # stage -> who is ready there, by number
        self._queued_s: dict[int, float] = {}  # stage -> time of that batch; derived when asked
        scheduler.begin(self.state, ())

    def number(self, key: Key) -> int:
        """The scheduler's number of an expert in a precision."""
        layer, expert, precision = key
        place = self._precisions[precision] * self._profile.layers + layer
        return place * self._profile.experts + expert

    async def serve(self, job: Job[T]) -> tuple[T, float]:
        """See ``agents.local.lanes.Lane``."""
        standing = self._stand(job)
        entry = _Entry(job, standing, asyncio.get_running_loop().create_future(), job.ready_s)
        self._entries[standing.request] = entry
        try:
            if job.load is not None and job.needs is not None:
                await self._loaded(entry, self.number(job.needs), job.load)
            self._coming.append(entry)
            self._queue(entry)
            self._ring()
            return await entry.done
        finally:
            self._drop(entry)

    def backlog_s(self) -> float:
        """See ``SerialLane``: what is ready, batched as it stands now."""
        for stage in self._queued.keys() - self._queued_s.keys():
            self._queued_s[stage] = self._pricing.time_s([entry.job.part for entry in self._queued[stage].values()])
        return self.booked_s() + sum(self._queued_s.values())

    def forget(self, now_s: float) -> None:
        """See ``agents.local.lanes.Lane``."""
        for request, seen in list(self._seen.items()):
            if now_s > seen.last_s + FORGET_AFTER_S:
                del self._seen[request]

    def close(self) -> None:
        """See ``agents.local.lanes.Lane``."""
        for task in (self._group, self.loader.reading):
            if task is not None:
                task.cancel()

    # --- standing -----------------------------------------------------------------------------------------------------

    def _stand(self, job: Job[Any]) -> Standing:
        """Equations (1) and (2)."""
        position = job.step * (self.state.stages + 1) + job.stage
        seen = self._seen.get(job.request)
        if seen is None:
            present = [each.advance for each in (*self.state.standing.values(), *self.state.running)]
            self._floor = max(self._floor, min(present, default=self._floor))
            seen = self._seen[job.request] = _Seen(self._arrivals, self._floor - position, job.ready_s)
            self._arrivals += 1
        seen.last_s = job.ready_s
        self._jobs_given += 1
        return Standing(request=self._jobs_given, arrived=seen.arrived, stage=job.stage, advance=position + seen.offset)

    async def _loaded(self, entry: _Entry, key: int, load: Awaitable[float]) -> None:
        """Wait for an expert, as one who demands it."""
        standing, needers = entry.standing, self.state.needers
        standing.needs, standing.missing = (key,), 1
        needers.setdefault(key, []).append(standing.request)
        self.state.standing[standing.request] = standing
        try:
            entry.ready_s = max(entry.ready_s, await load)
        finally:
            needers[key].remove(standing.request)
            if not needers[key]:
                del needers[key]

    def _queue(self, entry: _Entry) -> None:
        stage = entry.standing.stage
        self._queued.setdefault(stage, {})[entry.standing.request] = entry
        self._queued_s.pop(stage, None)

    def _unqueue(self, entry: _Entry) -> None:
        stage = entry.standing.stage
        if self._queued.get(stage, {}).pop(entry.standing.request, None) is not None:
            self._queued_s.pop(stage, None)
            if not self._queued[stage]:
                del self._queued[stage]

    def _drop(self, entry: _Entry) -> None:
        """A job is done, or its pass was given up."""
        number = entry.standing.request
        del self._entries[number]
        self._unqueue(entry)
        self.state.standing.pop(number, None)
        if entry in self._coming:
            self._coming.remove(entry)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Decide after everything that happens at this instant."""
        if not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_soon(self._soon)

    def _soon(self) -> None:
        """Whoever was woken has run; what it began runs first."""
        asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._ringing = False
        state = self.state
        if state.running:
            return
        try:
            began_s = self._let_in()
            group = self._scheduler.next_group(state)
            if not group:
                return
            self._begin(group, began_s)
        except Exception as error:  # a scheduler of the user's may raise anything; whoever waits must hear of it
            for entry in self._entries.values():
                if not entry.done.done():
                    entry.done.set_exception(error)

    def _let_in(self) -> float:
        """Show the scheduler who is ready at the logical moment of its decision; returns that moment."""
        waiting_s = [self._entries[each.request].ready_s for each in self.state.ready()]
        now_s = max(self._free_s, min([*waiting_s, *(entry.ready_s for entry in self._coming)], default=self._free_s))
        later = []
        for entry in self._coming:
            if entry.ready_s > now_s:
                later.append(entry)
                continue
            entry.standing.missing = 0
            self.state.standing[entry.standing.request] = entry.standing
        self._coming = later
        return now_s

    def _begin(self, group: Sequence[int], began_s: float) -> None:
        state = self.state
        members = [state.standing[number] for number in group]
        if any(each.missing for each in members) or len({each.stage for each in members}) > 1:
            raise SchedulerError(f"{self._scheduler.name} runs {group}: not all of them are ready before one stage")
        entries = [self._entries[each.request] for each in members]
        modelled_s = self._pricing.time_s([entry.job.part for entry in entries])
        for each in members:
            del state.standing[each.request]
        for each in state.ready():
            each.passed_over += 1
        state.running = tuple(members)
        for entry in entries:
            self._unqueue(entry)
            self.waited(began_s - entry.ready_s)
        self._group = asyncio.ensure_future(self._run_group(entries, self.book(began_s, modelled_s)))

    async def _run_group(self, entries: Sequence[_Entry], finish_s: float) -> None:
        def work() -> list[Callable[[], None]]:
            return [_outcome(entry, finish_s) for entry in entries]

        for tell in await self.hold(work, finish_s):
            tell()
        self.state.running = ()
        self._ring()


def _outcome(entry: _Entry, finish_s: float) -> Callable[[], None]:
    """Do a job's arithmetic now; what it gave, or what went wrong, is told later, and to its own pass only."""
    if entry.done.done():  # its pass was given up
        return lambda: None
    try:
        result = entry.job.work()
    except Exception as error:  # confined to its pass
        failure = error

        def fail() -> None:
            if not entry.done.done():
                entry.done.set_exception(failure)

        return fail

    def tell() -> None:
        if not entry.done.done():
            entry.done.set_result((result, finish_s))

    return tell
