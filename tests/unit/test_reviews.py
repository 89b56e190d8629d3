"""Reviews of the placement against agents that answer late, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agents.clock import VirtualClock
from agents.frameworks.base import BaseFramework, Review
from agents.protocol import Arrived, Command, Count, Counted, Placement, Rearrange, Replica, Switch
from orchestration.reviews import COUNT_TIMEOUT_S, MOVE_TIMEOUT_S, Aside, Placed, Reviews, at_once
from testbed.simulation.loop import VirtualLoop
from tests.support.clusters import cluster

from .framework_cases import MIXTRAL, calibration

MODEL = replace(MIXTRAL, layers=1, experts=1)
EVERY_S = 10.0


def placed_at(server: str) -> Placement:
    return Placement(replicas=(Replica(layer=0, expert=0, server=server, precision="full", fast=True),))


class Deciding(BaseFramework):
    """Keeps what it is told, and wants what a test says."""

    name = "deciding"
    review_s: float | None = EVERY_S

    def __init__(self, wanted: Placement | None) -> None:
        super().__init__({})
        self.wanted = wanted
        self.told: list[Review] = []

    def review(self, review: Review) -> Placement | None:
        self.told.append(review)
        return self.wanted


@dataclass
class Silent:
    """Agents that keep what they are told; a test answers for them."""

    servers: tuple[str, ...] = ("s1", "s2")
    sent: list[tuple[str, Command]] = field(default_factory=list)

    def send(self, server: str, command: Command) -> None:
        self.sent.append((server, command))

    def ended(self) -> list[str]:
        return []

    def told(self, kind: type[Command]) -> list[tuple[str, Command]]:
        return [(server, command) for server, command in self.sent if isinstance(command, kind)]


class Case:
    """Reviews of a cluster of two, played until a moment."""

    def __init__(self, wanted: Placement | None = None, aside: Aside = at_once) -> None:
        self.agents = Silent()
        self.framework = Deciding(wanted)
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.events: list[Placed] = []
        self.complaints: list[str] = []
        self.reviews = Reviews(
            framework=self.framework,
            cluster=cluster(2),
            profile=MODEL,
            calibration=calibration(MODEL),
            placement=placed_at("s1"),
            agents=self.agents,
            clock=self.clock,
            placed=self.events.append,
            complain=self.complaints.append,
            aside=aside,
        )

    def play(self, *, until_s: float, answers: dict[float, Callable[[], None]] | None = None) -> None:
        """Answer at these moments."""

        async def body() -> None:
            playing = asyncio.ensure_future(self.reviews.play())
            for at_s, answer in sorted((answers or {}).items()):
                await self.clock.sleep_until_s(at_s)
                answer()
            await self.clock.sleep_until_s(until_s)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

        try:
            self.loop.run_until_complete(body())
        finally:
            self.loop.close()
        assert self.complaints == []

    def counts(self, server: str, *, review: int, tokens: int) -> None:
        self.reviews.hear(Counted(server=server, review=review, asked=[[tokens]]))

    def arrives(self, server: str) -> None:
        self.reviews.hear(Arrived(server=server, move=1, copies=1, received_bytes=7))


def test_an_answer_of_an_earlier_review_does_not_count_in_a_later_one() -> None:
    case = Case()
    second_s = EVERY_S + EVERY_S
    case.play(
        until_s=second_s + COUNT_TIMEOUT_S + 1.0,
        answers={
            EVERY_S + 0.1: lambda: case.counts("s1", review=1, tokens=3),
            second_s + 0.1: lambda: case.counts("s2", review=1, tokens=4),
            second_s + 0.2: lambda: case.counts("s1", review=2, tokens=5),
        },
    )

    assert [command for _, command in case.agents.told(Count)] == [Count(review=n) for n in (1, 1, 2, 2)]
    assert [review.counted for review in case.framework.told] == [{"s1": [[3]]}, {"s1": [[5]]}]


def test_what_a_framework_decides_by_does_not_change_while_it_decides() -> None:
    async def slowly(work: Callable[[], Placement | None]) -> Placement | None:
        await case.clock.sleep_until_s(case.clock.now_s() + 5.0)
        return work()

    case = Case(aside=slowly)
    case.play(until_s=EVERY_S + 9.0, answers={EVERY_S + 4.0: lambda: case.counts("s1", review=1, tokens=3)})

    assert [review.counted for review in case.framework.told] == [{}]


def test_a_move_that_hangs_is_given_up_and_the_placement_stays() -> None:
    case = Case(placed_at("s2"))
    begun_s = EVERY_S + COUNT_TIMEOUT_S
    case.play(until_s=begun_s + MOVE_TIMEOUT_S + 1.0, answers={begun_s + 1.0: lambda: case.arrives("s1")})

    (record,) = case.reviews.done
    assert (record.in_force_s, record.copies) == (None, 1)
    assert record.reason == "not over after 1800 s: s2 still waited for copies"
    assert case.agents.told(Switch) == []
    back = Rearrange(move=1, placement=placed_at("s1"))
    assert case.agents.told(Rearrange)[-2:] == [("s1", back), ("s2", back)]


def test_a_slow_move_that_arrives_within_the_limit_comes_into_force() -> None:
    case = Case(placed_at("s2"))
    last_s = EVERY_S + COUNT_TIMEOUT_S + MOVE_TIMEOUT_S - 1.0
    case.play(until_s=last_s + 1.0, answers={20.0: lambda: case.arrives("s1"), last_s: lambda: case.arrives("s2")})

    assert case.reviews.done[0].reason == ""
    assert len(case.events) == 1


def test_a_move_that_the_end_of_the_run_cuts_off_says_so() -> None:
    case = Case(wanted=placed_at("s2"))
    case.play(until_s=EVERY_S + COUNT_TIMEOUT_S + 5.0)

    (record,) = case.reviews.done
    assert (record.changes, record.in_force_s) == (True, None)
    assert record.reason == "the run ended before all copies had arrived"
