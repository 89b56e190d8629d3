"""What a server's device and load channel run next under a local scheduler, and what a batch takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from agents.clock import VirtualClock
from agents.depth.passes import NOBODY, Depth
from agents.device import SerialLane
from agents.frameworks.cost import call_s, dense_s, head_s
from agents.local.interleaved import Interleaved
from agents.local.jobs import Dense, Experts, Head, Job, Part, Pricing
from agents.local.lanes import FirstCome
from agents.protocol import ExpertCall, Placement
from agents.schedulers.base import Group, State
from agents.schedulers.bevy import Bevy
from agents.schedulers.oldest import Oldest
from testbed.simulation.loop import VirtualLoop

from .framework_cases import MIXTRAL, Still, calibration, cluster, view

SHAPE = cluster("small3")
SERVER = SHAPE.names[0]
DEVICE = SHAPE.servers[0].device


def pricing() -> Pricing:
    seen = view(SERVER, Still(SHAPE), Placement(replicas=()), calibration())
    depth = Depth(policy=None, exits=None, view=seen, device=DEVICE, quality_budget=0.0)
    return Pricing(server=SERVER, device=DEVICE, view=seen, depth=depth)


def dense(rows: int) -> Dense:
    return Dense(rows=rows, left=NOBODY)


def experts(*calls: tuple[int, int], launches: bool = True, precision: str = "full") -> Experts:
    return Experts(
        calls=[ExpertCall(expert=expert, precision=precision, rows=rows) for expert, rows in calls], launches=launches
    )


class Case:
    """Jobs on one device in virtual time, and in which batches they ran."""

    def __init__(self, *, bevy: Bevy | None = None, first_come: bool = False) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.pricing = pricing()
        self.scheduler = bevy or Bevy({})
        self.lane: FirstCome | Interleaved = (
            FirstCome(self.clock, self.pricing)
            if first_come
            else Interleaved(self.clock, self.pricing, self.scheduler, MIXTRAL)
        )
        self.ran: list[tuple[str, float]] = []  # name, finish

    async def job(
        self,
        name: str,
        *,
        at_s: float = 0.0,
        request: int = 0,
        stage: int = 0,
        part: Part | None = None,
        needs: tuple[int, int, str] | None = None,
        load: Awaitable[float] | None = None,
        work: Callable[[], None] = lambda: None,
    ) -> float:
        await self.clock.sleep_until_s(at_s)
        _, finish_s = await self.lane.serve(
            Job(
                request=request,
                step=0,
                stage=stage,
                part=part or dense(4),
                work=work,
                ready_s=at_s,
                needs=needs,
                load=load,
            )
        )
        assert self.clock.now_s() == finish_s
        self.ran.append((name, finish_s))
        return finish_s

    def play(self, *jobs: Coroutine[Any, Any, Any]) -> list[str]:
        async def all_of_them() -> None:
            await asyncio.gather(*jobs)

        try:
            self.loop.run_until_complete(all_of_them())
        finally:
            self.loop.close()
        return [name for name, _ in self.ran]

    @property
    def finish_s(self) -> dict[str, float]:
        return dict(self.ran)


def test_a_batch_reads_weights_once_and_is_launched_once() -> None:
    prices, c = pricing(), DEVICE.launch_s

    merged_s = prices.time_s([experts((0, 3), (5, 2)), experts((5, 4), (6, 1))])

    assert merged_s == pytest.approx(c + sum(call_s(DEVICE, MIXTRAL, "full", n) for n in (3, 6, 1)))
    assert prices.time_s([dense(30), dense(12)]) == pytest.approx(dense_s(DEVICE, MIXTRAL, 42))
    assert prices.time_s([Head(rows=5, left=NOBODY), Head(rows=1, left=NOBODY)]) == pytest.approx(
        head_s(DEVICE, MIXTRAL, 6)
    )


def test_copies_in_two_precisions_are_two_reads() -> None:
    merged_s = pricing().time_s([experts((0, 3)), experts((0, 4), precision="int8")])

    expected_s = DEVICE.launch_s + call_s(DEVICE, MIXTRAL, "full", 3) + call_s(DEVICE, MIXTRAL, "int8", 4)
    assert merged_s == pytest.approx(expected_s)


def test_a_batch_never_takes_longer_than_its_jobs_one_after_the_other() -> None:
    prices = pricing()
    jobs: list[list[Part]] = [
        [dense(3), dense(400), dense(64)],
        [experts((0, 300), (1, 2)), experts((1, 90)), experts((0, 1), (7, 512))],
        [Head(rows=9, left=NOBODY), Head(rows=200, left=NOBODY)],
    ]
    for parts in jobs:
        assert prices.time_s(parts) <= sum(prices.time_s([part]) for part in parts) * (1 + 1e-12)


def test_a_slowed_device_takes_longer_for_a_batch_too() -> None:
    prices = pricing()
    before_s = prices.time_s([dense(3), dense(4)])
    prices.slowness = 3.0

    assert prices.time_s([dense(3), dense(4)]) == 3.0 * before_s


def test_jobs_of_two_stages_are_no_batch() -> None:
    with pytest.raises(ValueError, match="one stage"):
        pricing().time_s([dense(3), experts((0, 1))])


@pytest.mark.parametrize("first_come", [True, False])
def test_a_request_alone_takes_as_long_with_a_scheduler_as_without(first_come: bool) -> None:
    case = Case(first_come=first_come)

    async def one_after_the_other() -> None:
        at_s = 0.0
        for stage in range(2 * MIXTRAL.layers):
            part = experts((0, 3), (2, 1)) if stage % 2 else dense(4)
            at_s = await case.job(str(stage), at_s=at_s, stage=stage, part=part)

    case.play(one_after_the_other())

    alone_s = MIXTRAL.layers * (case.pricing.time_s([dense(4)]) + case.pricing.time_s([experts((0, 3), (2, 1))]))
    assert case.ran[-1][1] == pytest.approx(alone_s, rel=1e-12)


def test_the_least_advanced_runs_first_with_everybody_beside_it() -> None:
    case = Case()
    names = case.play(
        case.job("first", request=1, stage=0),
        # While it runs, these become ready; requests 2 and 3 came here with 1, when it was the least advanced.
        case.job("ahead", request=2, stage=0, at_s=1e-9),
        _then(case, "ahead, next layer", request=2, stage=2, after="ahead"),
        case.job("beside", request=3, stage=0, at_s=2e-9),
    )

    assert names == ["first", "ahead", "beside", "ahead, next layer"]
    assert case.finish_s["ahead"] == case.finish_s["beside"], "both stood before one stage: one batch"
    one_s, two_s = dense_s(DEVICE, MIXTRAL, 4), dense_s(DEVICE, MIXTRAL, 8)
    assert case.finish_s["beside"] == pytest.approx(one_s + two_s)


async def _then(case: Case, name: str, *, request: int, stage: int, after: str) -> None:
    while after not in case.finish_s:
        await case.clock.sleep_until_s(case.clock.now_s() + 1e-7)
    await case.job(name, request=request, stage=stage, at_s=case.clock.now_s())


def test_a_laggard_overtakes_who_came_earlier_and_is_further() -> None:
    """Both came with the device free; then the laggard's next job is ready after the leader's, but runs first."""
    case = Case()

    async def walk(name: str, request: int, stages: list[int], start_s: float) -> None:
        at_s = start_s
        for stage in stages:
            at_s = await case.job(f"{name}{stage}", request=request, stage=stage, at_s=at_s)

    # The blocker holds the device while both become ready.
    names = case.play(
        walk("leader", 1, [0, 2, 4], 0.0),
        walk("laggard", 2, [0, 2], 1e-9),
    )

    assert names.index("laggard0") < names.index("leader2")
    assert case.finish_s["leader2"] == case.finish_s["laggard2"], "the laggard has caught up, and they merge"


def test_under_oldest_who_came_first_runs_first_though_another_is_behind() -> None:
    case = Case(bevy=Oldest({}))

    async def walk(name: str, request: int, stages: list[int], start_s: float) -> None:
        at_s = start_s
        for stage in stages:
            at_s = await case.job(f"{name}{stage}", request=request, stage=stage, at_s=at_s)

    names = case.play(walk("first", 1, [0, 2, 4], 0.0), walk("second", 2, [0, 2, 4], 1e-9))

    assert names == ["first0", "first2", "first4", "second0", "second2", "second4"]


def test_the_rule_is_asked_of_the_schedulers_and_not_written_twice() -> None:
    seen: list[Group] = []

    class Spy(Bevy):
        def next_group(self, state: State) -> Group:
            found = super().next_group(state)
            seen.append(found)
            return found

    case = Case(bevy=Spy({}))
    case.play(case.job("a", request=1), case.job("b", request=2), case.job("c", request=3, stage=4))

    assert [len(group) for group in seen if group] == [2, 1]


def test_only_what_was_ready_at_the_logical_moment_is_in_a_batch() -> None:
    """The host wakes up late: who came in the meantime waits as it would have on a host in time."""

    class Late(VirtualClock):
        async def sleep_until_s(self, when_s: float) -> None:
            await super().sleep_until_s(when_s if when_s == 0.0 else when_s + 0.01)

    case = Case()
    case.clock = Late(case.loop)
    case.lane = Interleaved(case.clock, case.pricing, case.scheduler, MIXTRAL)
    finishes: dict[str, float] = {}

    async def serve(name: str, request: int, ready_s: float) -> None:
        job = Job(request=request, step=0, stage=0, part=dense(4), work=lambda: None, ready_s=ready_s)
        finishes[name] = (await case.lane.serve(job))[1]

    one_s = dense_s(DEVICE, MIXTRAL, 4)

    async def during_the_first() -> None:
        await asyncio.sleep(one_s / 2)
        await asyncio.gather(serve("in time", 2, one_s / 2), serve("afterwards", 3, 1.5 * one_s))

    case.play(serve("first", 1, 0.0), during_the_first())

    assert finishes["in time"] == pytest.approx(2 * one_s)
    assert finishes["afterwards"] == pytest.approx(3 * one_s)


def test_work_that_fails_fails_its_own_pass_only() -> None:
    case = Case()
    failed: list[str] = []

    def broken() -> None:
        raise RuntimeError("no such tensor")

    async def fails() -> None:
        try:
            await case.job("broken", request=1, work=broken)
        except RuntimeError as error:
            failed.append(str(error))

    assert case.play(fails(), case.job("whole", request=2)) == ["whole"]
    assert failed == ["no such tensor"]


def test_the_backlog_counts_what_waits_as_the_batches_that_it_would_be() -> None:
    case = Case()
    found: list[float] = []

    async def look() -> None:
        await case.clock.sleep_until_s(2e-9)
        await asyncio.sleep(0)
        found.append(case.lane.backlog_s())

    case.play(
        case.job("running", request=1),
        case.job("a", request=2, stage=4, at_s=1e-9),
        case.job("b", request=3, stage=4, at_s=1e-9),
        look(),
    )

    assert found == [pytest.approx(dense_s(DEVICE, MIXTRAL, 4) + dense_s(DEVICE, MIXTRAL, 8), rel=1e-3)]
    assert case.lane.backlog_s() == 0.0


def test_the_channel_reads_what_the_least_advanced_demands_first_and_each_expert_once() -> None:
    case = Case()
    assert isinstance(case.lane, Interleaved)
    loader, order = case.lane.loader, []

    async def read(expert: int, layer: int) -> float:
        finish_s = await loader.read((layer, expert, "full"), ready_s=0.0, modelled_s=1.0)
        order.append((layer, expert))
        return finish_s

    async def story() -> None:
        await case.job("a", request=1, stage=0)  # both requests come here, and are equally advanced
        shared = asyncio.ensure_future(read(3, 9))
        jobs = [
            case.job("far", request=1, stage=19, part=experts((1, 1)), needs=(9, 1, "full"), load=read(1, 9)),
            case.job("far too", request=1, stage=19, part=experts((3, 1)), needs=(9, 3, "full"), load=shared),
            case.job("near", request=1, stage=3, part=experts((2, 1)), needs=(1, 2, "full"), load=read(2, 1)),
            read(7, 0),  # nobody waits for it
        ]
        await asyncio.gather(*jobs)

    case.play(story())

    assert order == [(1, 2), (9, 3), (9, 1), (0, 7)]
    assert loader.jobs == 4
    assert not case.lane.state.needers
    assert not case.lane.state.demanded
    assert not case.lane.state.standing


def test_without_a_scheduler_jobs_are_served_as_they_come() -> None:
    case = Case(first_come=True)
    assert isinstance(case.lane, SerialLane)

    names = case.play(
        case.job("late layer", request=1, stage=40),
        case.job("early layer", request=2, stage=0),
        case.job("late layer again", request=3, stage=40),
    )

    assert names == ["late layer", "early layer", "late layer again"]
    assert case.ran[-1][1] == pytest.approx(3 * dense_s(DEVICE, MIXTRAL, 4))


def test_a_pass_that_is_given_up_leaves_nothing_behind() -> None:
    case = Case()
    assert isinstance(case.lane, Interleaved)

    async def story() -> None:
        running = asyncio.ensure_future(case.job("running", request=1))
        waiting = asyncio.ensure_future(case.job("waiting", request=2, stage=2))
        await asyncio.sleep(1e-9)
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)

    case.play(story())

    assert [name for name, _ in case.ran] == ["running"]
    assert not case.lane.state.standing
    assert np.isclose(case.lane.busy_s, dense_s(DEVICE, MIXTRAL, 4))
