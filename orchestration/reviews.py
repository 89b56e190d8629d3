"""Placements that change during a run: asks a framework every so often, and sees the move through.

    every review_s:   Count to all agents -> the framework's ``review`` -> nothing, or another placement
    another one:      checked as the first one was; Rearrange to all agents -> Arrived from all -> Switch to all

Where a server dies or an agent refuses during a move, or the move is not over after ``MOVE_TIMEOUT_S``, the placement
stays as it is; after a death nothing is reviewed any more.  What was decided, and how long it took, stands in the
manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from agents.clock import Clock
from agents.cluster import Cluster
from agents.frameworks.base import Framework, Review
from agents.frameworks.placements import check_placement
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import Arrived, Command, Count, Counted, Placement, Rearrange, Refused, Report, Switch
from testbed.errors import TestbedError

#: Emulated seconds that agents get to say what they have counted.
COUNT_TIMEOUT_S = 2.0
#: Emulated seconds after which a move is given up.  Slow links make honest moves long; this ends those that hang.
MOVE_TIMEOUT_S = 1800.0
#: Emulated seconds between two looks at who has answered.
POLL_S = 0.25

Aside = Callable[[Callable[[], Placement | None]], Awaitable[Placement | None]]


class Agents(Protocol):
    """The agents, as far as reviews are concerned."""

    servers: tuple[str, ...]

    def send(self, server: str, command: Command) -> None:
        """Tell one agent."""
        ...

    def ended(self) -> list[str]:
        """Servers whose agent has ended."""
        ...


class Reviewed(msgspec.Struct, kw_only=True):
    """One review, as it stands in the manifest."""

    at_s: float
    changes: bool  # whether the framework wanted another placement
    copies: int = 0  # that crossed the links
    moved_bytes: int = 0
    in_force_s: float | None = None  # when the new placement was; null if it never came to that
    reason: str = ""  # why not


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Another placement is in force: an event of the run."""

    at_s: float
    copies: int
    size_bytes: int

    def __str__(self) -> str:
        """``placement changed, 12 copies (4.2 GB) moved``: as figures and logs name it."""
        return f"placement changed, {self.copies} copies ({self.size_bytes / 1e9:.1f} GB) moved"


async def at_once(work: Callable[[], Placement | None]) -> Placement | None:
    """Decide in the loop itself, as virtual time wants it."""
    return work()


async def in_a_thread(work: Callable[[], Placement | None]) -> Placement | None:
    """Decide without keeping the timelines of a real run waiting."""
    return await asyncio.to_thread(work)


class Reviews:
    """The reviews of one run."""

    def __init__(
        self,
        *,
        framework: Framework,
        cluster: Cluster,
        profile: ModelProfile,
        calibration: Calibration,
        placement: Placement,
        agents: Agents,
        clock: Clock,
        placed: Callable[[Placed], None],
        complain: Callable[[str], None],
        aside: Aside = at_once,
    ) -> None:
        """``placed`` and ``complain`` take what becomes of it; ``aside`` runs the framework's decision."""
        self._framework = framework
        self._cluster = cluster
        self._profile = profile
        self._calibration = calibration
        self._placement = placement
        self._agents = agents
        self._clock = clock
        self._placed = placed
        self._complain = complain
        self._aside = aside
        self._asked = 0  # how often agents were asked to count
        self._counted: dict[str, list[list[int]]] = {}
        self._arrived: dict[str, Arrived] = {}
        self._refused = ""
        self._move = 0
        self.done: list[Reviewed] = []

    def hear(self, report: Report) -> None:
        """What an agent says."""
        match report:
            case Counted(review=review) if review == self._asked:
                self._counted[report.server] = report.asked
            case Arrived(move=move) if move == self._move:
                self._arrived[report.server] = report
            case Refused() if not self._refused:
                self._refused = f"{report.server}: {report.reason}"

    async def play(self) -> None:
        """Review until cancelled; does nothing for a framework that wants no reviews."""
        every_s = self._framework.review_s
        if every_s is None:
            return
        if not isinstance(every_s, int | float) or not every_s > 0:  # a framework of the user's may say anything
            self._complain(f"framework {self._framework.name}: review_s is {every_s!r}; it must be a number above 0")
            return
        counted_s = 0.0
        while True:
            await self._clock.sleep_until_s(counted_s + every_s)
            if self._living() != list(self._agents.servers):
                return  # who asks for what, and who holds what, is no longer what placements are made for
            elapsed_s, counted_s = self._clock.now_s() - counted_s, self._clock.now_s()
            try:
                await self._review(elapsed_s=elapsed_s)
            except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
                reason = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
                self._complain(f"framework {self._framework.name}: no further review of the placement: {reason}")
                return

    async def _review(self, *, elapsed_s: float) -> None:
        self._asked += 1
        self._counted = {}
        living = self._living()
        for server in living:
            self._agents.send(server, Count(review=self._asked))
        until_s = self._clock.now_s() + COUNT_TIMEOUT_S
        await self._wait(lambda: self._counted.keys() >= set(living) or self._clock.now_s() >= until_s)
        review = Review(
            placement=self._placement,
            counted=dict(self._counted),  # answers that come while the framework decides are too late
            elapsed_s=elapsed_s,
            cluster=self._cluster,
            profile=self._profile,
            calibration=self._calibration,
        )
        wanted = await self._aside(lambda: self._framework.review(review))
        record = Reviewed(at_s=self._clock.now_s(), changes=wanted is not None)
        self.done.append(record)
        if wanted is not None:
            check_placement(wanted, self._cluster, self._profile, framework=self._framework.name)
            await self._see_through(wanted, record)

    async def _see_through(self, wanted: Placement, record: Reviewed) -> None:
        self._move += 1
        self._arrived, self._refused = {}, ""
        living = self._living()
        for server in living:
            self._agents.send(server, Rearrange(move=self._move, placement=wanted))
        until_s = self._clock.now_s() + MOVE_TIMEOUT_S
        record.reason = "the run ended before all copies had arrived"  # unless it goes on from here
        await self._wait(
            lambda: (
                self._arrived.keys() >= set(living)
                or bool(self._refused)
                or self._living() != living
                or self._clock.now_s() >= until_s
            )
        )
        record.copies = sum(report.copies for report in self._arrived.values())
        record.moved_bytes = sum(report.received_bytes for report in self._arrived.values())
        record.reason = self._why_not(living)
        if record.reason:
            for server in self._living():  # what has arrived is in nobody's way, and the rest need not come
                self._agents.send(server, Rearrange(move=self._move, placement=self._placement))
            return
        for server in living:
            self._agents.send(server, Switch(move=self._move))
        self._placement = wanted
        record.in_force_s = self._clock.now_s()
        self._placed(Placed(at_s=record.in_force_s, copies=record.copies, size_bytes=record.moved_bytes))

    def _why_not(self, living: list[str]) -> str:
        """Why the move of these servers cannot come to its end; nothing if all of them have what they need."""
        if self._refused:
            return self._refused
        if self._living() != living:
            return "a server died meanwhile"
        missing = [server for server in living if server not in self._arrived]
        return f"not over after {MOVE_TIMEOUT_S:g} s: {', '.join(missing)} still waited for copies" if missing else ""

    async def _wait(self, over: Callable[[], bool]) -> None:
        while not over():
            await self._clock.sleep_until_s(self._clock.now_s() + POLL_S)

    def _living(self) -> list[str]:
        ended = set(self._agents.ended())
        return [server for server in self._agents.servers if server not in ended]
