"""Runs in virtual time: the same agents, frameworks and player, without processes, packets and waiting.

Everything lives on one ``VirtualLoop``.  An agent reaches the others through ``SimulatedNetwork``, whose links are the
relay's.  Nothing here takes time but the modelled device, the loads and the links, so no run is ever late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from agents.agent import Agent
from agents.clock import BEFORE_START_S, VirtualClock
from agents.codec import wire_bytes
from agents.models.model import Model
from agents.protocol import Collected, Command, Message, Ready, Refused, Report, State
from orchestration.comparison import ORACLE, Candidate, Comparison, Episode
from orchestration.divergences import Hear, ignored
from orchestration.errors import FleetError
from orchestration.manifest import HostFacts
from orchestration.player import Played, Player
from orchestration.stage import Watcher
from orchestration.truth import Truth
from testbed.paths import Paths
from testbed.simulation.loop import VirtualLoop
from testbed.simulation.network import SimulatedNetwork
from testbed.topology import Topology

if TYPE_CHECKING:
    from testbed.judging import LinkMeasurement

T = TypeVar("T")

#: Turns of the loop within which cancelled tasks, and those that wait for them, end: before the clock is turned back.
SETTLE_TURNS = 8


class SimulatedTransport:
    """One server's end of the simulated network."""

    def __init__(self, server: str, fleet: SimulatedFleet) -> None:
        self._server = server
        self._fleet = fleet
        self.dropped = 0

    def connect(self, endpoints: Mapping[str, str]) -> None:
        """Nothing to do: every server is reached by its name."""

    def send(self, target: str, message: Message) -> None:
        """Hand a message over to the links; lost when either end is dead, whose connections are closed."""
        if self._server not in self._fleet.dead and target not in self._fleet.dead:
            if not isinstance(message.body, State):
                self._fleet.payload_messages += 1
                self._fleet.payload_bytes += message.size_bytes
            self._fleet.network.send(self._server, target, wire_bytes(message), message)

    def close(self) -> None:
        """Nothing is held."""


class SimulatedFleet:
    """All agents of one run and the network between them, on one virtual loop."""

    def __init__(
        self,
        *,
        topology: Topology,
        model: Model,
        loop: VirtualLoop,
        seed: int = 0,
        paths: Paths | None = None,
        oracle: bool = False,
    ) -> None:
        """``seed`` decides which packets are lost; ``oracle`` lets frameworks see the true state."""
        self.servers = tuple(node.name for node in topology.servers)
        self.network = SimulatedNetwork(topology, loop, deliver=self._deliver, seed=seed, paths=paths)
        self.listener: Callable[[Report], None] = lambda report: None
        self.dead: set[str] = set()
        self.delivered = 0  # messages, gossip included
        self.payload_messages = self.payload_bytes = 0  # sent, without gossip
        self._answers: dict[str, Report] = {}
        self.agents: dict[str, Agent] = {}
        truth = Truth(clock=VirtualClock(loop), agents=self.agents, network=self.network, dead=self.dead)
        self.agents |= {
            server: Agent(
                server=server,
                clock=VirtualClock(loop),
                transport=SimulatedTransport(server, self),
                twin=model.twin,
                profile=model.profile,
                calibration=model.calibration,
                facts=model.facts,
                exits=model.exits,
                report=self._hear,
                rss_bytes=lambda: 0,
                stop=lambda: None,
                truth=truth if oracle else None,
            )
            for server in self.servers
        }

    def send(self, server: str, command: Command) -> None:
        """Tell one agent; a command to a dead one is lost."""
        if server not in self.dead:
            self.agents[server].command(command)

    async def ask(self, commands: dict[str, Command], *, timeout_s: float, doing: str) -> dict[str, Report]:
        """Tell several agents and return their answers; FleetError when one refuses or is dead."""
        answers = await self._ask(commands)
        for server in commands:
            report = answers.get(server)
            if report is None:
                raise FleetError(f"the agent of {server} ended before it could {doing} within {timeout_s:g} s")
            if isinstance(report, Refused):
                raise FleetError(f"{report.server}: {report.reason}")
        return answers

    async def collect(self, command: Command, *, timeout_s: float) -> dict[str, Report]:  # noqa: ARG002
        """Tell all agents and return the answers of those that live."""
        return await self._ask(dict.fromkeys(self.servers, command))

    def ended(self) -> list[str]:
        """Servers whose agent is dead."""
        return [server for server in self.servers if server in self.dead]

    def kill(self, server: str) -> None:
        """End an agent at once; what it has under way is gone, what others send to it is lost."""
        self.dead.add(server)
        self.agents[server].close()

    def close(self) -> None:
        """End all agents."""
        for agent in self.agents.values():
            agent.close()

    async def _ask(self, commands: Mapping[str, Command]) -> dict[str, Report]:
        self._answers = {}
        for server, command in commands.items():
            self.send(server, command)
        await asyncio.sleep(0)
        return self._answers

    def _hear(self, report: Report) -> None:
        if isinstance(report, Ready | Refused | Collected) and report.server not in self._answers:
            self._answers[report.server] = report
        self.listener(report)

    def _deliver(self, source: str, target: str, message: Any) -> None:  # noqa: ARG002
        if target not in self.dead:
            self.delivered += 1
            self.agents[target].receive(message)


class Simulation:
    """The stage that needs no testbed; it must run on its own ``loop``."""

    backend = "sim"
    disturbed_by_work = False

    def __init__(self, topology: Topology, model: Model, loop: VirtualLoop) -> None:
        self._topology = topology
        self._model = model
        self._loop = loop
        self._paths = Paths(topology)
        self.payload_messages = self.payload_bytes = self.delivered = 0  # of all runs

    async def measure(self, watcher: Watcher) -> Sequence[LinkMeasurement]:  # noqa: ARG002
        """Nothing to measure: the links are their models."""
        return ()

    async def aside(self, work: Callable[[], T]) -> T:
        """At once."""
        return work()

    @asynccontextmanager
    async def agents(self, comparison: Comparison, watcher: Watcher) -> AsyncIterator[None]:  # noqa: ARG002
        """Every run makes its own."""
        yield

    def ended(self) -> list[str]:
        """Nobody ends by itself."""
        return []

    def duration(self, dilation: float, duration_s: float) -> str:  # noqa: ARG002
        """What a person may expect of a run."""
        return f"{duration_s:g} s of virtual time"

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
        """One run."""
        started_at, started_s = datetime.now(tz=UTC), time.monotonic()
        self._loop.rewind(BEFORE_START_S)
        others = asyncio.all_tasks()
        fleet = SimulatedFleet(
            topology=self._topology,
            model=self._model,
            loop=self._loop,
            seed=episode.seed,
            paths=self._paths,
            oracle=comparison.view == ORACLE,
        )
        player = Player(
            scenario=episode.scenario,
            topology=self._topology,
            prompts=episode.prompts,
            agents=fleet,
            links=fleet.network,
            clock=VirtualClock(self._loop),
            dilation=1.0,
            progress=watcher.tick,
            interrupted=watcher.interrupted,
            # Now, while a model that remembers still has the request's arithmetic at hand.
            ended=episode.references.get,
            logits=logits,
        )
        try:
            await player.configure(
                run_id=name,
                framework=candidate.name,
                cluster=comparison.cluster,
                placement=candidate.placement,
                known_logits=episode.references.known_logits(),
                seed=episode.seed,
                model=comparison.model,
            )
            shaping = fleet.network.shaping()
            player.start(origin_s=0.0)
            played = await player.play()
        finally:
            fleet.close()
            self.payload_messages += fleet.payload_messages
            self.payload_bytes += fleet.payload_bytes
            self.delivered += fleet.delivered
            for task in asyncio.all_tasks() - others:  # loads that nobody waits for any more
                task.cancel()
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0)
        facts = HostFacts(
            started_at=started_at,
            wall_s=time.monotonic() - started_s,
            host_busy=0.0,
            relay_p99_s=0.0,
            shaping=shaping,
        )
        return played, facts
