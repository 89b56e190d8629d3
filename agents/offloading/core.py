"""The executor's core: turns events into a new state, and asks the scheduler what comes next.  It knows no time.

    arrive, finish_group, finish_load   what has happened
    begin_group, begin_load             what the device and the channel do next, if the scheduler wants anything

It checks every decision, keeps what runs in fast memory, and counts (:mod:`agents.offloading.counts`).

Room for a load is made in this order:  a free slot;  an expert that nobody needs (``Scheduler.victim``), protected ones
last;  for what a request demands: an expert that only requests further behind in the order of :attr:`Standing.rank`
wait for.  The last rule keeps a cache that is smaller than all demands together from deadlock: what the first in rank
needs fits (at most one layer's experts, and ``slots`` is never less), nobody takes it away, and what runs leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.offloading.counts import Counts
from agents.offloading.machine import Machine
from agents.offloading.parts import Parts
from agents.offloading.work import Request, Revealed, Work
from agents.schedulers.base import Group, Key, Matrix, Scheduler, SchedulerError, Standing, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One group on the device."""

    members: tuple[Standing, ...]
    stage: int
    modelled_s: float

    @property
    def group(self) -> Group:
        """The numbers of its requests."""
        return tuple(each.request for each in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One expert on the channel."""

    key: Key
    demanded: bool
    modelled_s: float


@dataclass(slots=True)
class _Pass:
    """Where a request is in its text."""

    request: Request
    before: int = 0  # positions in the cache
    tokens: int = 0  # of this pass
    produced: int = 0
    counts: dict[Key, int] = field(default_factory=dict)  # of this layer


class Core:
    """All requests on one machine, without time."""

    def __init__(
        self, *, machine: Machine, scheduler: Scheduler, work: Work, slots: int, history: Sequence[Matrix] = ()
    ) -> None:
        """``slots``: experts that fast memory holds; ``history``: what earlier requests asked for."""
        layers, experts = machine.profile.layers, machine.profile.experts
        if slots < experts:
            raise ValueError(f"{slots} slots cannot hold the {experts} experts of one layer")
        self.machine = machine
        self.state = State.empty(layers=layers, experts=experts, slots=min(slots, layers * experts))
        self.counts = Counts()
        self._scheduler = scheduler
        self._work = work
        self._passes: dict[int, _Pass] = {}
        self._arrived = 0
        self._groups = 0
        self._floor = 0  # advance of the least advanced so far
        self._absent: dict[int, list[Key]] = {}  # request -> guesses that were not in fast memory when they were made
        self._parts = Parts()
        self._prefetched: set[Key] = set()  # resident, loaded ahead, not yet used
        self._filled = 0
        scheduler.begin(self.state, history)

    # --- what has happened --------------------------------------------------------------------------------------------

    def warm(self, keys: list[Key]) -> None:
        """Fill fast memory with these experts, the first ones as far as there is room, before anything runs."""
        for key in keys[: self.state.slots - self._filled]:
            self.state.resident[key] = True
            self._filled += 1

    @property
    def requests(self) -> int:
        """How many are there."""
        return len(self._passes)

    def arrive(self, request: Request) -> None:
        """A request stands before its first stage."""
        state = self.state
        present = [each.advance for each in (*state.standing.values(), *state.running)]
        self._floor = max(self._floor, min(present, default=self._floor))
        self._passes[request.number] = _Pass(request=request, tokens=request.prompt_tokens)
        state.standing[request.number] = Standing(
            request=request.number,
            arrived=self._arrived,
            stage=0,
            advance=self._floor,
            tokens=request.prompt_tokens,
        )
        self._arrived += 1
        self._work.begin(request)

    def finish_group(self, job: Job, revealed: list[Revealed]) -> list[tuple[int, bool]]:
        """A group is through its stage: (request, whether it has ended) for each that has produced a token.

        ``revealed`` is what ``compute`` gave: nobody may know of it before this moment.
        """
        state, produced = self.state, []
        state.running = ()
        for standing in job.members:
            if job.stage % 2:
                state.held[list(standing.needs)] -= 1
                standing.needs = ()
                whole = self._parts.joined(standing)
                if whole is None:
                    continue
                standing = whole
            standing.advance += 1
            standing.stage = (job.stage + 1) % state.stages
            state.standing[standing.request] = standing
            if not standing.stage:
                produced.append((standing.request, self._token(standing)))
        for standing, each in zip(job.members, revealed, strict=False):
            self._reveal(standing, job.stage // 2, each)
            self._demand(standing)
        return produced

    def finish_load(self, load: Load) -> None:
        """An expert is in fast memory."""
        state, key = self.state, load.key
        state.loading = None
        state.resident[key] = True
        for request in state.needers.get(key, ()):
            state.standing[request].missing -= 1
        if load.demanded:
            return
        if key in state.needers:
            self.counts.prefetches_used += 1
        else:
            self._prefetched.add(key)

    # --- what comes next ----------------------------------------------------------------------------------------------

    def begin_group(self) -> Job | None:
        """Ask for the next group and put it on the device; None where it stays idle."""
        state = self.state
        if state.running or not state.standing:
            return None
        group = self._scheduler.next_group(state)
        if not group:
            return None
        members = self._checked(group)
        stage = members[0].stage
        for each in state.standing.values():
            if not each.missing and each.request not in group:
                each.passed_over += 1
        for each in members:
            each.passed_over = 0
            del state.standing[each.request]
        state.running = members
        self._groups += 1
        modelled_s = self._experts_s(members) if stage % 2 else self._dense_s(members)
        if stage == state.stages - 1:
            modelled_s += self.machine.head_s(len(self._parts.completed(members)), loading=state.loading is not None)
        self.counts.groups += 1
        self.counts.grouped += len(members)
        return Job(members=members, stage=stage, modelled_s=modelled_s)

    def compute(self, job: Job) -> list[Revealed]:
        """The arithmetic of a group, each request by itself; what gates reveal, in the order of the members."""
        layer = job.stage // 2
        if not job.stage % 2:
            return [self._work.dense(each.request, layer) for each in job.members]
        for request in self._parts.completed(job.members):
            self._work.experts(request, layer)
        return []

    def begin_load(self) -> Load | None:
        """Ask for the next load, make room, and put it on the channel; None where the channel waits."""
        state = self.state
        if state.loading is not None:
            return None
        key = self._scheduler.next_load(state)
        if key is None:
            return None
        if not 0 <= key < len(state.resident) or state.resident[key]:
            raise SchedulerError(
                f"{self._scheduler.name} loads expert {key}, which is in fast memory or does not exist"
            )
        demanded = key in state.demanded
        if not self._make_room(key, demanded):
            return None
        state.demanded.pop(key, None)
        state.loading = key
        state.loads += 1
        load = Load(key=key, demanded=demanded, modelled_s=self.machine.load_s(faults=self._scheduler.faults))
        self.counts.began(load.demanded)
        return load

    def unused_prefetches(self) -> int:
        """Experts in fast memory that were loaded ahead and not used so far."""
        return len(self._prefetched)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _checked(self, group: Group) -> tuple[Standing, ...]:
        standing, name = self.state.standing, self._scheduler.name
        if len(set(group)) != len(group) or not all(request in standing for request in group):
            raise SchedulerError(f"{name} runs {group}: not each of them waits, or one stands there twice")
        members = tuple(standing[request] for request in group)
        if any(each.missing for each in members):
            raise SchedulerError(f"{name} runs {group}: not all of their experts are in fast memory")
        if len({each.stage for each in members}) > 1:
            raise SchedulerError(f"{name} runs {group}: they do not stand before the same stage")
        return members

    def _dense_s(self, members: tuple[Standing, ...]) -> float:
        passes = [(self._passes[each.request].tokens, self._passes[each.request].before) for each in members]
        return self.machine.dense_s(passes, loading=self.state.loading is not None)

    def _experts_s(self, members: tuple[Standing, ...]) -> float:
        state, tokens = self.state, dict[Key, int]()
        for each in members:
            counts = self._passes[self._parts.owner(each.request)].counts
            for key in each.needs:
                tokens[key] = tokens.get(key, 0) + counts[key]
            for key in each.needs:
                needers = state.needers[key]
                needers.remove(each.request)
                if not needers:
                    del state.needers[key]
        keys = list(tokens)
        state.last_use[keys] = self._groups
        for each in members:
            state.uses[list(each.needs)] += 1
        if self._prefetched:
            used = self._prefetched.intersection(keys)
            self._prefetched -= used
            self.counts.prefetches_used += len(used)
        self.counts.expert_calls += len(keys)
        return self.machine.experts_s(tokens, loading=state.loading is not None)

    def _reveal(self, standing: Standing, layer: int, revealed: Revealed) -> None:
        first = layer * self.state.experts
        counts = {first + expert: count for expert, count in revealed.counts.items()}
        following = first + self.state.experts
        standing.needs = tuple(counts)
        if standing.guess:
            self.counts.guessed(standing.guess, self._absent.pop(standing.request), counts)
        standing.guess = (
            tuple([following + expert for expert in revealed.guess]) if layer + 1 < self.state.layers else ()
        )
        if standing.guess:
            self._absent[standing.request] = [key for key in standing.guess if not self.state.resident[key]]
        self._passes[standing.request].counts = counts
        self._scheduler.revealed(standing, counts)

    def _demand(self, standing: Standing) -> None:
        state = self.state
        keys = list(standing.needs)
        here = state.resident[keys]
        state.held[keys] += 1
        standing.missing = len(keys) - int(here.sum())
        self.counts.demands += len(keys)
        self.counts.hits += len(keys) - standing.missing
        parts = [standing]
        if self._scheduler.splits and standing.missing and len(keys) > 1:
            parts = self._parts.split(standing, [key for key, present in zip(keys, here, strict=True) if present])
            del state.standing[standing.request]
            state.standing.update({part.request: part for part in parts})
        for part in parts:
            for key in part.needs:
                state.needers.setdefault(key, []).append(part.request)
                if not state.resident[key] and key != state.loading and key not in state.demanded:
                    state.demanded[key] = state.loads

    def _token(self, standing: Standing) -> bool:
        """A pass is over; whether that was the last one."""
        where = self._passes[standing.request]
        where.before += where.tokens
        where.produced += 1
        where.tokens = standing.tokens = 1
        if where.produced < where.request.output_tokens:
            return False
        del self.state.standing[standing.request], self._passes[standing.request]
        self._work.end(standing.request)
        self._scheduler.ended(standing.request)
        return True

    def _make_room(self, key: Key, demanded: bool) -> bool:
        state = self.state
        if self._filled < state.slots:
            self._filled += 1
            return True
        idle = state.resident & (state.held == 0)
        kept = [each for each in self._scheduler.protected(state) if idle[each]]
        if kept:
            free = idle.copy()
            free[kept] = False
            if free.any():
                self._evict(self._scheduler.victim(state, free), free)
                return True
            if not demanded:
                return False
        if idle.any():
            self._evict(self._scheduler.victim(state, idle), idle)
            return True
        return demanded and self._take_from_the_last(key)

    def _evict(self, key: Key, free: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        if not free[key]:
            raise SchedulerError(f"{self._scheduler.name} evicts expert {key}, which is not free to go")
        self.state.resident[key] = False
        if key in self._prefetched:
            self._prefetched.remove(key)
            self.counts.prefetches_wasted += 1

    def _take_from_the_last(self, key: Key) -> bool:
        """Evict an expert that only requests behind all those that demand ``key`` wait for; False if there is none."""
        state = self.state
        claim = min(state.standing[request].rank for request in state.needers[key])
        best, last = None, claim
        for other, needers in state.needers.items():
            if state.resident[other] and state.held[other] == len(needers):  # nobody runs with it
                first = min(state.standing[request].rank for request in needers)
                if first > last:
                    best, last = other, first
        if best is None:
            return False
        state.resident[best] = False
        state.demanded[best] = state.loads
        for request in state.needers[best]:
            state.standing[request].missing += 1
        self.counts.taken_back += 1
        return True
