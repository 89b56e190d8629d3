from __future__ import annotations

import asyncio

import pytest

from agents.clock import VirtualClock
from agents.device import SerialLane
from testbed.simulation.loop import VirtualLoop


class HandClock:
    """Time that a test moves by hand; sleeping moves it too."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    async def sleep_until_s(self, when_s: float) -> None:
        self.time_s = max(self.time_s, when_s)


def run(lane: SerialLane, clock: HandClock, *, ready_s: float, modelled_s: float, real_s: float = 0.0) -> float:
    def work() -> None:
        clock.time_s += real_s

    _, finish_s = asyncio.run(lane.run(work, ready_s=ready_s, modelled_s=modelled_s))
    return finish_s


def test_jobs_follow_each_other_without_gaps() -> None:
    clock = HandClock()
    lane = SerialLane(clock)

    assert run(lane, clock, ready_s=0.0, modelled_s=0.010) == pytest.approx(0.010)
    assert run(lane, clock, ready_s=0.002, modelled_s=0.010) == pytest.approx(0.020)
    assert run(lane, clock, ready_s=1.0, modelled_s=0.010) == pytest.approx(1.010)


def test_a_late_wake_up_does_not_push_the_next_job_back() -> None:
    clock = HandClock()
    lane = SerialLane(clock)
    finish_s = run(lane, clock, ready_s=0.0, modelled_s=0.010)
    clock.time_s += 0.003  # the host was busy elsewhere

    assert run(lane, clock, ready_s=finish_s, modelled_s=0.010) == pytest.approx(0.020)


def test_real_computation_inside_the_modelled_time_is_invisible() -> None:
    clock = HandClock()
    lane = SerialLane(clock)

    assert run(lane, clock, ready_s=0.0, modelled_s=0.010, real_s=0.009) == pytest.approx(0.010)
    assert lane.overruns == 0


def test_real_computation_beyond_the_modelled_time_is_counted_and_made_up_for_by_the_next_job() -> None:
    clock = HandClock()
    lane = SerialLane(clock)

    finish_s = run(lane, clock, ready_s=0.0, modelled_s=0.010, real_s=0.015)
    assert lane.overruns == 1
    assert finish_s == pytest.approx(0.010)
    assert run(lane, clock, ready_s=finish_s, modelled_s=0.010, real_s=0.001) == pytest.approx(0.020)
    assert lane.overruns == 1
    assert clock.time_s == pytest.approx(0.020)


def test_the_backlog_is_the_work_in_front_of_a_new_job() -> None:
    clock = HandClock()
    lane = SerialLane(clock)
    lane.reserve(0.0, 0.030)
    lane.reserve(0.0, 0.030)
    clock.time_s = 0.020

    assert lane.backlog_s() == pytest.approx(0.040)


def test_the_busy_share_counts_only_what_is_done() -> None:
    clock = HandClock()
    lane = SerialLane(clock)
    lane.reserve(0.0, 0.030)
    clock.time_s = 0.010
    assert lane.busy_share() == pytest.approx(1.0)
    clock.time_s = 0.050
    assert lane.busy_share() == pytest.approx(0.5)


def test_concurrent_jobs_are_served_in_the_order_of_their_arrival() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    lane = SerialLane(clock)
    ended: list[tuple[str, float]] = []

    async def job(name: str) -> None:
        await lane.run(lambda: None, ready_s=clock.now_s(), modelled_s=0.010)
        ended.append((name, round(clock.now_s(), 6)))

    async def both() -> None:
        await asyncio.gather(job("first"), job("second"))

    loop.run_until_complete(both())
    loop.close()
    assert ended == [("first", 0.010), ("second", 0.020)]
