"""A whole cluster of real agents in one process and in virtual time, for tests: no root, no packets, no waiting.

Messages take the nominal time of an idle path, encoded and decoded like on the wire.  (Links shared by several
transfers, loss and congestion belong to the simulator backend, not to this.)
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.agent import Agent
from agents.cluster import Cluster
from agents.codec import decode, encode
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.twin import Twin
from agents.protocol import Command, Configure, Done, Message, Placement, Report, Start, Submit


class _InstantSelector(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock forward."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits for something that will never happen")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nobody has anything to do."""

    def __init__(self) -> None:
        self._instant = _InstantSelector()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now_s


class VirtualClock:
    """Emulated seconds are the loop's seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()

    async def sleep_until_s(self, when_s: float) -> None:
        remaining_s = when_s - self._loop.time()
        if remaining_s > 0:
            await asyncio.sleep(remaining_s)

    def rebase(self, *, origin_s: float, dilation: float) -> None:
        pass


class MemoryTransport:
    """Delivers to the other agents of the same process."""

    def __init__(self, server: str, fleet: VirtualFleet) -> None:
        self._server = server
        self._fleet = fleet
        self.dropped = 0

    def connect(self, endpoints: Mapping[str, str]) -> None:
        pass

    def send(self, target: str, message: Message) -> None:
        self._fleet.deliver(self._server, target, message)

    def close(self) -> None:
        pass


@dataclass
class VirtualFleet:
    """The agents, and what they reported."""

    cluster: Cluster
    twin: Twin
    profile: ModelProfile
    calibration: Calibration
    loop: VirtualLoop
    agents: dict[str, Agent] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    carried_bytes: int = 0

    def __post_init__(self) -> None:
        for server in self.cluster.names:
            self.agents[server] = Agent(
                server=server,
                clock=VirtualClock(self.loop),
                transport=MemoryTransport(server, self),
                twin=self.twin,
                profile=self.profile,
                calibration=self.calibration,
                report=self.reports.append,
                rss_bytes=lambda: 0,
                stop=lambda: None,
            )

    def deliver(self, source: str, target: str, message: Message) -> None:
        if source in self.dead or target in self.dead:
            return
        self.carried_bytes += message.size_bytes
        ends = self.cluster.index(source), self.cluster.index(target)
        copy = decode(encode(message))
        self.loop.call_later(
            self.cluster.transfer_s(*ends, message.size_bytes), lambda: self.agents[target].receive(copy)
        )

    def command(self, server: str, command: Command) -> None:
        self.agents[server].command(command)

    def configure(self, framework: str, placement: Placement, *, quality_budget: float = 0.02) -> None:
        command = Configure(
            run_id="test",
            framework=framework,
            cluster=self.cluster,
            placement=placement,
            addresses=dict.fromkeys(self.cluster.names, ""),
            quality_budget=quality_budget,
        )
        for server in self.cluster.names:
            self.command(server, command)
        for server in self.cluster.names:
            self.command(server, Start(origin_s=0.0, dilation=1.0))

    def done(self) -> dict[int, Done]:
        return {report.request: report for report in self.reports if isinstance(report, Done)}

    def play(self, submits: Iterable[tuple[str, Submit]], *, until_s: float = 120.0) -> dict[int, Done]:
        """Submit, let time pass until every request has ended, and return how."""
        submitted: Sequence[tuple[str, Submit]] = list(submits)

        async def wait() -> None:
            for home, submit in submitted:
                self.command(home, submit)
            while len(self.done()) < len(submitted) and self.loop.time() < until_s:
                await asyncio.sleep(0.05)

        self.loop.run_until_complete(wait())
        return self.done()

    def close(self) -> None:
        async def settle() -> None:
            for agent in self.agents.values():
                agent.close()
            await asyncio.sleep(0)

        self.loop.run_until_complete(settle())
        self.loop.close()
