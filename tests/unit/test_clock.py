from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agents.agent import Agent
from agents.clock import BEFORE_START_S, VirtualClock, WallClock
from agents.cluster import Cluster
from agents.frameworks.registry import create
from agents.protocol import Configure, Ready, Report, Start
from testbed.simulation.loop import VirtualLoop
from tests.support.clusters import cluster
from tests.support.simulated import twin, user_framework


class Monotonic:
    """A host clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Nowhere:
    """A transport without peers."""

    dropped = 0

    def connect(self, endpoints: object) -> None:
        pass

    def send(self, target: str, message: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_emulated_time_runs_slower_by_the_dilation() -> None:
    host = Monotonic()
    clock = WallClock(origin_s=1000.0, dilation=4.0, monotonic=host)
    host.now_s += 10.0

    assert clock.now_s() == 2.5


def test_a_held_clock_stands_before_zero_until_the_run_begins() -> None:
    host = Monotonic()
    clock = WallClock(origin_s=900.0, monotonic=host)
    clock.hold()
    host.now_s += 50.0
    assert clock.now_s() == BEFORE_START_S

    clock.rebase(origin_s=host.now_s + 1.0, dilation=2.0)
    assert clock.now_s() == -0.5


def test_virtual_time_is_never_stretched() -> None:
    clock = VirtualClock(VirtualLoop(start_s=BEFORE_START_S))
    assert clock.now_s() == BEFORE_START_S
    with pytest.raises(ValueError, match="never stretched"):
        clock.rebase(origin_s=0.0, dilation=2.0)


def test_a_virtual_sleeper_wakes_exactly_when_it_wanted() -> None:
    loop = VirtualLoop(start_s=0.1)
    clock = VirtualClock(loop)

    async def sleep() -> float:
        await clock.sleep_until_s(0.7)
        return clock.now_s()

    assert loop.run_until_complete(sleep()) == 0.7
    loop.close()


def configured(run: str, framework: str, servers: Cluster) -> Configure:
    model = twin()
    placement = create(framework).place(servers, model.profile, model.calibration)
    addresses = dict.fromkeys(servers.names, "")
    return Configure(
        run_id=run, framework=framework, cluster=servers, placement=placement, addresses=addresses, quality_budget=0.0
    )


def test_a_framework_begins_before_time_zero_in_every_run(tmp_path: Path) -> None:
    """Else what it remembers of its ``begin`` would lie in the future of the second run, and block it there."""
    framework = user_framework(
        tmp_path / "timed.py",
        "def begin(self, view):\n    if not view.now_s() < 0:\n        raise ValueError(f'began at {view.now_s()}')",
    )
    host, reports = Monotonic(), list[Report]()
    model = twin()
    loop = VirtualLoop()

    async def two_runs() -> None:
        agent = Agent(
            server="s1",
            clock=WallClock(origin_s=host.now_s, monotonic=host),
            transport=Nowhere(),
            twin=model.twin,
            profile=model.profile,
            calibration=model.calibration,
            report=reports.append,
            rss_bytes=lambda: 0,
            stop=lambda: None,
        )
        for run in ("first", "second"):
            host.now_s += 30.0
            agent.command(configured(run, framework, cluster(2)))
            agent.command(Start(origin_s=host.now_s, dilation=1.0))
            await asyncio.sleep(0)  # gossip begins
        agent.close()
        await asyncio.sleep(0)

    loop.run_until_complete(two_runs())
    loop.close()

    assert reports == [Ready(server="s1", run_id="first"), Ready(server="s1", run_id="second")]
