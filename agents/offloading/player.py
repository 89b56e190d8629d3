"""Plays a scheduler's decisions against a device and a load channel, in virtual or in real time.

Three coroutines, who await the clock, the storage and each other only: arrivals, device, channel.  After every event
the device and the channel ask the core what is next.  Logical time (``agents.device``) keeps late wake-ups of a host
from adding up: what follows an event begins at the moment of that event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agents.clock import Clock
from agents.device import SerialLane
from agents.offloading.core import Core, Load
from agents.offloading.counts import Counts
from agents.offloading.work import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """Who comes when: at stated moments, or whenever another one leaves."""

    requests: Sequence[Request]  # in order of arrival
    at_s: Sequence[float] | None = None  # one moment for each, ascending; None: a closed loop
    concurrency: int = 1  # requests that are there at once; others wait outside, first come first served
    stop_tokens: int | None = None  # end when so many tokens were generated; None: when all requests have left
    warm_tokens: int = 0  # tokens after which measuring begins

    def __post_init__(self) -> None:
        """ValueError where this is no plan of arrivals."""
        if self.concurrency < 1:
            raise ValueError("at least one request must be served at once")
        if self.at_s is not None and (len(self.at_s) != len(self.requests) or list(self.at_s) != sorted(self.at_s)):
            raise ValueError("every request arrives at one moment, in ascending order")


@dataclass(slots=True, kw_only=True)
class Served:
    """One request's moments, emulated seconds."""

    request: int
    arrived_s: float
    output_tokens: int
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What was measured between warm-up and stop."""

    window_s: float
    device_busy_s: float
    channel_busy_s: float
    counts: Counts
    requests: tuple[Served, ...]  # of the whole run
    late_s: float = 0.0  # by which the host let the run's end slip

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per emulated second."""
        return self.counts.tokens / self.window_s if self.window_s > 0 else 0.0


class Channel(Protocol):
    """What reads experts: modelled, or a real file."""

    @property
    def busy_s(self) -> float:
        """Time spent reading, in all."""
        ...

    async def read(self, load: Load, ready_s: float) -> float:
        """Read one expert, beginning not before ``ready_s``; returns when (emulated) it was there."""
        ...


class ModelledChannel:
    """A load takes the time that the machine's storage bandwidth says."""

    def __init__(self, clock: Clock) -> None:
        self._lane = SerialLane(clock)

    @property
    def busy_s(self) -> float:
        """Modelled time in all."""
        return self._lane.busy_s

    async def read(self, load: Load, ready_s: float) -> float:
        """See ``Channel``."""
        _, finish_s = await self._lane.run(_nothing, ready_s=ready_s, modelled_s=load.modelled_s)
        return finish_s


@dataclass(slots=True)
class _Window:
    """Where measuring began."""

    at_s: float = 0.0
    device_s: float = 0.0
    channel_s: float = 0.0
    counts: Counts = field(default_factory=Counts)


class Player:
    """One run."""

    def __init__(self, *, core: Core, clock: Clock, channel: Channel, arriving: Arriving) -> None:
        self._core = core
        self._clock = clock
        self._channel = channel
        self._arriving = arriving
        self._device = SerialLane(clock)
        self._now_s = 0.0  # logical time: of the last event
        self._waiting: list[asyncio.Future[None]] = []
        self._outside: list[Request] = []
        self._served: dict[int, Served] = {}
        self._left = 0
        self._over = asyncio.Event()
        self._window: _Window | None = None
        self._end_s = 0.0

    async def run(self) -> Played:
        """Play until the arrivals' end; whatever goes wrong in a part ends the run."""
        self._now_s = max(0.0, self._clock.now_s())
        if not self._arriving.warm_tokens:
            self._open_window()
        if not self._arriving.requests:
            self._stop()
        parts = [asyncio.ensure_future(part) for part in (self._arrivals(), self._groups(), self._loads())]
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([over, *parts], return_when=asyncio.FIRST_EXCEPTION)
            for part in parts:
                if part.done() and (error := part.exception()) is not None:
                    raise error
        finally:
            for task in (over, *parts):
                task.cancel()
            await asyncio.gather(over, *parts, return_exceptions=True)
        return self._played()

    # --- the three coroutines -----------------------------------------------------------------------------------------

    async def _arrivals(self) -> None:
        arriving = self._arriving
        if arriving.at_s is None:
            self._outside = list(arriving.requests)
            self._admit()
        else:
            for request, at_s in zip(arriving.requests, arriving.at_s, strict=True):
                await self._clock.sleep_until_s(at_s)
                self._now_s = max(self._now_s, at_s)
                self._served[request.number] = _served(request, at_s)
                self._outside.append(request)
                self._admit()
                self._ring()
        self._ring()
        await self._over.wait()

    async def _groups(self) -> None:
        core = self._core
        while not self._over.is_set():
            job = core.begin_group()
            if job is None:
                await self._bell()
                continue
            revealed, finish_s = await self._device.run(
                partial(core.compute, job), ready_s=self._now_s, modelled_s=job.modelled_s
            )
            self._now_s = max(self._now_s, finish_s)
            produced = core.finish_group(job, revealed)
            for request, ended in produced:
                self._token(request, ended, finish_s)
            if produced:
                self._check()
            self._ring()

    async def _loads(self) -> None:
        core = self._core
        while not self._over.is_set():
            load = core.begin_load()
            if load is None:
                await self._bell()
                continue
            finish_s = await self._channel.read(load, self._now_s)
            self._now_s = max(self._now_s, finish_s)
            core.finish_load(load)
            self._ring()

    # --- what they share ----------------------------------------------------------------------------------------------

    def _bell(self) -> Awaitable[None]:
        """Something that happens next."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def _ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _admit(self) -> None:
        while self._outside and self._core.requests < self._arriving.concurrency:
            request = self._outside.pop(0)
            self._served.setdefault(request.number, _served(request, self._now_s))
            self._core.arrive(request)

    def _token(self, request: int, ended: bool, at_s: float) -> None:
        core, served = self._core, self._served[request]
        core.counts.tokens += 1
        if served.first_token_s is None:
            served.first_token_s = at_s
        if ended:
            served.finished_s = at_s
            self._left += 1
            self._admit()

    def _check(self) -> None:
        """Whether measuring begins or ends; after all tokens of a group, for they come at one moment."""
        tokens, arriving = self._core.counts.tokens, self._arriving
        if self._window is None and tokens >= arriving.warm_tokens:
            self._open_window()
        if self._left == len(arriving.requests) or tokens >= (arriving.stop_tokens or float("inf")):
            self._stop()

    def _open_window(self) -> None:
        # The channel's account holds all of a load that has begun; both ends of the window err alike.
        self._window = _Window(
            at_s=self._now_s,
            device_s=self._device.busy_s,
            channel_s=self._channel.busy_s,
            counts=self._core.counts.copy(),
        )

    def _stop(self) -> None:
        if not self._over.is_set():
            self._end_s = self._now_s
            self._over.set()
            self._ring()

    def _played(self) -> Played:
        window = self._window or _Window()
        return Played(
            window_s=self._end_s - window.at_s,
            device_busy_s=self._device.busy_s - window.device_s,
            channel_busy_s=self._channel.busy_s - window.channel_s,
            counts=self._core.counts.since(window.counts),
            requests=tuple(self._served.values()),
            late_s=max(0.0, self._clock.now_s() - self._end_s),
        )


def _served(request: Request, at_s: float) -> Served:
    return Served(request=request.number, arrived_s=at_s, output_tokens=request.output_tokens)


def _nothing() -> None:
    return None
