"""Runs on an emulated network: real agents, real packets, wall time stretched by the dilation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from agents.clock import WallClock
from orchestration.comparison import Candidate, Comparison, Episode
from orchestration.divergences import Hear, ignored
from orchestration.fleet import Fleet
from orchestration.host import CpuTime
from orchestration.manifest import HostFacts
from orchestration.player import LEAD_S, Played, Player
from orchestration.reviews import in_a_thread
from orchestration.stage import Watcher
from testbed.errors import TestbedError
from testbed.judging import LinkMeasurement
from testbed.network import Network
from testbed.verify import calibrate

T = TypeVar("T")


class Emulation:
    """The stage that is a testbed which is up."""

    disturbed_by_work = True

    def __init__(self, network: Network) -> None:
        self._network = network
        self.backend: str = network.setup.backend
        self._fleet: Fleet | None = None

    async def measure(self, watcher: Watcher) -> Sequence[LinkMeasurement]:
        """Every link against its file."""
        ended = self._network.end_processes()
        if ended:  # agents of a run whose orchestrator was killed live on for some seconds and would be in the way
            watcher.say(f"ended {ended} processes that an earlier run left behind")
        changed = (await self.aside(self._network.status)).changed
        if changed:
            watcher.say(f"putting {len(changed)} changed directions back as the file says; runs start from the file")
        await self.aside(lambda: restore(self._network))  # a killed run may have left its congestion or its dilation
        watcher.say("measuring every link against its file")
        measured = await self.aside(lambda: calibrate(self._network))
        watcher.say(f"{sum(entry.ok for entry in measured)} of {len(measured)} directions within tolerance")
        return measured

    async def aside(self, work: Callable[[], T]) -> T:
        """In a thread; netlink's library needs one without a running event loop."""
        return await asyncio.to_thread(work)

    @asynccontextmanager
    async def agents(self, comparison: Comparison, watcher: Watcher) -> AsyncIterator[None]:
        """One process per server, and links that run as slowly as the comparison wants."""
        for candidate in comparison.candidates:  # said before the first of them is played
            visible_framework(candidate.name, self._network)
        watcher.say(f"starting {len(comparison.cluster.servers)} agents")
        fleet = Fleet(
            sandboxes=self._network,
            servers=comparison.cluster.names,
            model=comparison.model.directory,
            run_directory=self._network.directory,
        )
        async with fleet:
            self._fleet = fleet
            await self.aside(lambda: self._network.scale(comparison.dilation))
            try:
                yield
            finally:
                self._fleet = None
                await self.aside(lambda: restore(self._network))

    def ended(self) -> list[str]:
        """Servers whose agent process has ended although no scenario killed it."""
        fleet = self._running()
        return [server for server in fleet.ended() if server not in fleet.killed]

    def duration(self, dilation: float, duration_s: float) -> str:
        """How long a run takes."""
        return f"about {dilation * duration_s:.0f} s"

    async def play(
        self,
        comparison: Comparison,
        candidate: Candidate,
        episode: Episode,
        name: str,
        watcher: Watcher,
        *,
        logits: Hear = ignored,
    ) -> tuple[Played, HostFacts]:
        """One run; takes its emulated time multiplied by the dilation."""
        fleet, network = self._running(), self._network
        framework = visible_framework(candidate.name, network)
        await fleet.restart()
        as_in_the_file(network)
        started_at = datetime.now(tz=UTC)
        clock = WallClock(origin_s=time.monotonic(), dilation=comparison.dilation)
        player = Player(
            scenario=episode.scenario,
            topology=comparison.topology,
            prompts=episode.prompts,
            agents=fleet,
            links=network,
            clock=clock,
            dilation=comparison.dilation,
            progress=watcher.tick,
            interrupted=watcher.interrupted,
            logits=logits,
            aside=in_a_thread,
        )
        await player.configure(
            run_id=name,
            framework=framework,
            cluster=comparison.cluster,
            placement=candidate.placement,
            known_logits=episode.references.known_logits(),
            seed=episode.seed,
            model=comparison.model,
        )
        shaping = network.shaping()
        network.rewind(episode.seed)
        network.reset_lateness()
        cpu = CpuTime.read()
        origin_s = time.monotonic() + LEAD_S
        clock.rebase(origin_s=origin_s, dilation=comparison.dilation)
        player.start(origin_s=origin_s)
        played = await player.play()
        facts = HostFacts(
            started_at=started_at,
            wall_s=time.monotonic() - origin_s,
            host_busy=CpuTime.read().busy_share_since(cpu),
            relay_p99_s=network.lateness().p99_s / comparison.dilation,
            shaping=shaping,
        )
        return played, facts

    def _running(self) -> Fleet:
        if self._fleet is None:
            raise RuntimeError("no agents are running")
        return self._fleet


def visible_framework(name: str, network: Network) -> str:
    """The framework as agents find it: a file by its whole path, which they must be able to read."""
    if not name.endswith(".py"):
        return name
    file = Path(name).resolve()
    if network.setup.backend == "docker" and not any(file.is_relative_to(path) for path in network.setup.visible):
        raise TestbedError(
            f"containers of testbed {network.name!r} cannot read {file}: "
            f"bring it up with `--backend docker --visible {file.parent}`"
        )
    return str(file)


def restore(network: Network) -> None:
    """Put the topology's own values back in force, undilated."""
    network.scale(1.0)
    as_in_the_file(network)


def as_in_the_file(network: Network) -> None:
    """Undo all link changes."""
    for link in network.topology.links:
        network.shape(link.name, link.a, link.forward)
        network.shape(link.name, link.b, link.backward)
