"""One server's agent: takes commands, keeps the run's parts together, gossips, samples.

The agent is the same on real packets and in virtual time; ``agents.main`` and the simulator only give it a clock, a
transport and somewhere to report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from agents.channel import Channel
from agents.clock import Clock
from agents.depth.passes import Depth
from agents.engine import Engine
from agents.errors import FrameworkError
from agents.frameworks.base import Framework, Health, LiveState, View
from agents.frameworks.registry import create, create_depth, parts
from agents.gossip import peers_of
from agents.home import Home
from agents.local.jobs import Pricing
from agents.local.registry import lanes_of
from agents.logits import teller
from agents.migration import Mover
from agents.models.arithmetic import Arithmetic
from agents.models.calibrate import Calibration
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.protocol import (
    GOSSIP_INTERVAL_S,
    Announce,
    Answer,
    Array,
    Body,
    Collect,
    Collected,
    Command,
    Complaint,
    Configure,
    Count,
    Counted,
    Failed,
    Fidelity,
    Message,
    Piece,
    Ping,
    Placement,
    Pull,
    Ready,
    Rearrange,
    Refused,
    Replica,
    Report,
    Sample,
    SlowDown,
    Start,
    State,
    Stop,
    Submit,
    Switch,
)
from agents.store import ExpertStore
from agents.telemetry import Telemetry
from agents.transport import Transport
from testbed.errors import TestbedError
from testbed.topology import Device

SAMPLE_EVERY = 2  # gossip rounds


class RunClock(Clock, Protocol):
    """A clock that can begin a new run."""

    def hold(self) -> None:
        """Stand still before emulated zero until ``rebase``."""
        ...

    def rebase(self, *, origin_s: float, dilation: float) -> None:
        """Emulated zero is ``origin_s``; ``dilation`` wall seconds pass per emulated second."""
        ...


class ConnectableTransport(Transport, Protocol):
    """A transport that learns where its peers are."""

    def connect(self, endpoints: Mapping[str, str]) -> None:
        """Reach these peers from now on."""
        ...


class Sight(LiveState, Health, Protocol):
    """Where frameworks look: at what telemetry knows, or at the truth."""


class _Live:
    """The live state as the frameworks see it from one server."""

    def __init__(self, server: str, clock: Clock, run: _Run) -> None:
        self._server = server
        self._clock = clock
        self._run = run

    def now_s(self) -> float:
        return self._clock.now_s()

    def alive(self, server: str) -> bool:
        return self._run.telemetry.alive(server)

    def load(self, server: str) -> tuple[float, float, float]:
        if server != self._server:
            return self._run.telemetry.peer_state(server)
        if self._run.engine is None:
            return 0.0, 0.0, 0.0
        lane = self._run.engine.lane
        return lane.backlog_s(), lane.wait_s, self._run.store.loader.backlog_s()

    def path(self, source: str, target: str) -> tuple[float, float]:
        return self._run.telemetry.path(source, target, now_s=self._clock.now_s())

    def slowness(self, server: str) -> float:
        if server != self._server:
            return self._run.telemetry.slowness(server)
        return 1.0 if self._run.engine is None else self._run.engine.slowness

    def cached(self, server: str) -> frozenset[tuple[int, int, str]]:
        if server != self._server:
            return self._run.telemetry.cached(server)
        return frozenset() if self._run.engine is None else frozenset(self._run.store.cached())


class _Run:
    """Everything that lives as long as one run."""

    def __init__(self, agent: Agent, command: Configure) -> None:
        self.command = command
        self.server = agent.server
        clock, server = agent.clock, agent.server
        device = command.cluster.servers[command.cluster.index(server)].device
        self.dropped_before = agent.transport.dropped
        self.telemetry = Telemetry(command.cluster, server, now_s=clock.now_s())
        self.channel = Channel(server=server, run_id=command.run_id, clock=clock, transport=agent.transport)
        self.live = live = _Live(server, clock, self)
        seen = live if agent.truth is None else agent.truth
        self.engine: Engine | None = None
        framework = create(command.framework)
        view = View(
            server=server,
            cluster=command.cluster,
            profile=agent.profile,
            calibration=agent.calibration,
            placement=command.placement,
            live=seen,
            health=seen,
            facts=agent.facts,
            seed=command.seed,
        )
        depth = self._depth(agent, view, device)
        pricing = Pricing(server=server, device=device, view=view, depth=depth)
        lanes = lanes_of(parts(command.framework).local, clock=clock, pricing=pricing, profile=agent.profile)
        self.store = ExpertStore(
            replicas=[copy for copy in command.placement.replicas if copy.server == server],
            device=device,
            expert_bytes=agent.profile.expert_bytes,
            clock=clock,
            loader=lanes.loader,
        )
        self.engine = engine = Engine(
            server=server,
            clock=clock,
            channel=self.channel,
            twin=agent.twin,
            store=self.store,
            lane=lanes.device,
            pricing=pricing,
            framework=framework,
            view=view,
            quality_budget=command.quality_budget,
            depth=depth,
            deliver=agent.deliver,
            tell_logits=teller(agent.report, known=command.known_logits),
        )
        self.home = Home(
            server=server,
            clock=clock,
            channel=self.channel,
            framework=framework,
            view=view,
            begin=lambda ticket, tokens, ready_s: engine.enter(ticket, tokens, ready_s=ready_s),
            report=agent.report,
        )
        self.framework = framework
        self.mover = Mover(
            server=server,
            clock=clock,
            channel=self.channel,
            cluster=command.cluster,
            expert_bytes=agent.profile.expert_bytes,
            store=self.store,
            alive=live.alive,
            arrived=lambda copy: self._warm_up(agent.twin, [copy]),
            report=agent.report,
        )
        self.placement = command.placement
        self._begin(framework, view)
        self._warm_up(agent.twin, command.placement.replicas)
        self.tasks: set[asyncio.Task[None]] = set()
        self.deaf = False  # whether the framework has failed on an announcement

    def _depth(self, agent: Agent, view: View, device: Device) -> Depth:
        try:
            return Depth(
                policy=create_depth(self.command.framework),
                exits=agent.exits,
                view=view,
                device=device,
                quality_budget=self.command.quality_budget,
            )
        except TestbedError:
            raise
        except (Exception, SystemExit) as error:  # a policy may raise anything
            reason = f"{self.command.framework} cannot begin: {type(error).__name__}: {error}"
            raise FrameworkError(reason) from error

    def _begin(self, framework: Framework, view: View) -> None:
        try:
            framework.begin(view)
            worth = framework.worth()
            if worth is not None:
                self.store.keep_by(worth)
        except TestbedError:
            raise
        except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
            reason = f"{self.command.framework} cannot begin: {type(error).__name__}: {error}"
            raise FrameworkError(reason) from error

    def _warm_up(self, twin: Arithmetic, copies: Iterable[Replica]) -> None:
        """Prepare the weights of those copies that are held here, so that the first request does not pay for it."""
        nothing = np.zeros((1, twin.spec.width), dtype=np.float32)
        for copy in copies:
            if copy.server == self.server:
                twin.outputs(copy.layer, [(copy.expert, copy.precision, 1)], nothing)

    def rearrange(self, command: Rearrange, *, now_s: float) -> None:
        """Get what another placement puts here; the one that is in force means that a move was given up."""
        if command.placement == self.placement:
            self._keep(self.placement, now_s)
        self.mover.rearrange(command, self.placement)

    def _keep(self, placement: Placement, now_s: float) -> None:
        self.store.rearrange([copy for copy in placement.replicas if copy.server == self.server], now_s=now_s)

    def switch(self, move: int, *, now_s: float) -> None:
        """Put the placement of a move in force; FrameworkError if it is not all here."""
        placement = self.mover.switched(move)
        if placement is None:
            raise FrameworkError(f"placement {move} is to be in force, but its copies have not arrived")
        self._keep(placement, now_s)
        self.placement = placement
        self.passes.rearrange(placement)

    @property
    def passes(self) -> Engine:
        """The engine, which exists once the run is made."""
        if self.engine is None:
            raise RuntimeError("the run is not made yet")
        return self.engine

    def close(self) -> None:
        self.passes.close()
        self.store.close()
        for task in self.tasks:
            task.cancel()


class Agent:
    """The agent of one server."""

    def __init__(
        self,
        *,
        server: str,
        clock: RunClock,
        transport: ConnectableTransport,
        twin: Arithmetic,
        profile: ModelProfile,
        calibration: Calibration,
        facts: ExpertFacts | None = None,
        exits: ExitHeads | None = None,
        report: Callable[[Report], None],
        rss_bytes: Callable[[], int],
        stop: Callable[[], None],
        truth: Sight | None = None,
    ) -> None:
        """``truth``: what frameworks see in the place of telemetry, where somebody knows it."""
        self.server = server
        self.clock = clock
        self.transport = transport
        self.twin = twin
        self.profile = profile
        self.calibration = calibration
        self.facts = facts
        self.exits = exits
        self.report = report
        self.truth = truth
        self._rss_bytes = rss_bytes
        self._stop = stop
        self._run: _Run | None = None

    @property
    def sight(self) -> Sight | None:
        """What this server knows, of itself exactly; None without a run."""
        return None if self._run is None else self._run.live

    # --- management plane -------------------------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        """Do what the orchestrator says."""
        match command:
            case Configure():
                self._configure(command)
            case Start():
                self._start(command)
            case Submit():
                if self._run is None:
                    self.report(Refused(server=self.server, reason="a request came before the run was configured"))
                    return
                self._spawn(self._run, self._run.home.submit(command), "admitting a request")
            case SlowDown(factor=factor):
                if self._run is not None:
                    self._run.passes.slow_down(factor)
            case Count() | Rearrange() | Switch():
                self._move(command)
            case Collect():
                self._collect()
            case Stop():
                self.close()
                self._stop()
            case Ping():
                pass

    def close(self) -> None:
        """End the run under way, if there is one."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _configure(self, command: Configure) -> None:
        self.close()
        # What a framework remembers from its ``begin`` must lie before the run, not in the time of the one before.
        self.clock.hold()
        try:
            run = _Run(self, command)
        except TestbedError as error:
            self.report(Refused(server=self.server, reason=str(error)))
            return
        self.transport.connect({name: endpoint for name, endpoint in command.addresses.items() if name != self.server})
        self._run = run
        self.report(Ready(server=self.server, run_id=command.run_id))

    def _start(self, command: Start) -> None:
        run = self._run
        if run is None:
            self.report(Refused(server=self.server, reason="there is no run to start"))
            return
        self.clock.rebase(origin_s=command.origin_s, dilation=command.dilation)
        run.telemetry = Telemetry(run.command.cluster, self.server, now_s=self.clock.now_s())
        self._spawn(run, self._gossip(run), "gossiping")

    def _move(self, command: Count | Rearrange | Switch) -> None:
        """A step of a review of the placement."""
        run = self._run
        if run is None:
            self.report(Refused(server=self.server, reason="there is no run whose placement could change"))
            return
        try:
            match command:
                case Count(review=review):
                    self.report(Counted(server=self.server, review=review, asked=run.framework.counted()))
                case Rearrange():
                    run.rearrange(command, now_s=self.clock.now_s())
                case Switch(move=move):
                    run.switch(move, now_s=self.clock.now_s())
        except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
            self.report(Refused(server=self.server, reason=f"{type(error).__name__}: {error}"))

    def _collect(self) -> None:
        run = self._run
        if run is None:
            self.report(Refused(server=self.server, reason="there is no run to collect"))
            return
        lane, loader = run.passes.lane, run.store.loader
        late_s = np.array([*lane.wake_ups_late_s, *loader.wake_ups_late_s] or [0.0])
        fidelity = Fidelity(
            jobs=lane.jobs,
            overruns=lane.overruns,
            busy_s=lane.busy_s,
            lag_p50_s=float(np.quantile(late_s, 0.5)),
            lag_p99_s=float(np.quantile(late_s, 0.99)),
            lag_max_s=float(late_s.max()),
            dropped_messages=self.transport.dropped - run.dropped_before,
        )
        self.report(Collected(server=self.server, layers=run.passes.records, fidelity=fidelity, loads=run.store.loads))
        self.close()

    # --- data plane ---------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """A message of another agent arrived."""
        run = self._run
        if run is None or message.run != run.command.run_id:
            return  # a straggler of a run that has ended
        run.telemetry.received(message, now_s=self.clock.now_s())
        if isinstance(message.body, Pull | Piece):
            self._move_piece(run, message.source, message.body)
        elif isinstance(message.body, Announce):
            self._hear(run, message.source, message.body)
        elif not isinstance(message.body, State):
            run.passes.receive(message)

    def _move_piece(self, run: _Run, source: str, body: Pull | Piece) -> None:
        try:
            run.mover.receive(source, body)
        except TestbedError as error:  # no room for what has arrived
            self.report(Refused(server=self.server, reason=str(error)))

    def _hear(self, run: _Run, source: str, announce: Announce) -> None:
        try:
            run.home.heard(source, announce)
        except TestbedError as error:  # it will fail on every other one, too: said once
            if not run.deaf:
                self.report(Complaint(server=self.server, reason=str(error)))
            run.deaf = True

    def deliver(self, body: Body, arrays: tuple[Array, ...]) -> None:
        """A pass of a request whose home is here has ended."""
        if self._run is None:
            return
        if isinstance(body, Answer):
            self._run.home.answered(body, *arrays)
        elif isinstance(body, Failed):
            self._run.home.failed(body)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def _gossip(self, run: _Run) -> None:
        """Tell the others how it is here, notice who is silent, sample, and sweep what has expired."""
        names = run.command.cluster.names
        place = run.command.cluster.index(self.server)
        round_number = 0
        # Servers take turns within the interval, so that gossip does not arrive in bursts.
        turn = place / len(names)
        next_s = self.clock.now_s() + turn * GOSSIP_INTERVAL_S
        while True:
            await self.clock.sleep_until_s(next_s)
            now_s = self.clock.now_s()
            next_s += GOSSIP_INTERVAL_S
            lane, loader = run.passes.lane, run.store.loader
            state = State(
                backlog_s=lane.backlog_s(),
                wait_s=lane.wait_s,
                load_backlog_s=loader.backlog_s(),
                links=run.telemetry.own_rows(now_s=now_s),
                slowness=run.passes.slowness,
                cached=run.store.cached(),
            )
            news = run.telemetry.news((state.backlog_s, state.wait_s, state.load_backlog_s), now_s=now_s)
            for peer in peers_of(place, servers=len(names), round_number=round_number):
                run.channel.send(names[peer], state, (news,))
            run.telemetry.tick(now_s=now_s)
            if run.telemetry.lost:
                run.passes.peers_lost(run.telemetry.lost)
            run.home.expire()
            run.passes.upkeep()
            run.mover.tick()
            round_number += 1
            if round_number % SAMPLE_EVERY == 0:
                run.telemetry.forget(now_s=now_s)
                self.report(
                    Sample(
                        server=self.server,
                        t_s=now_s,
                        device_busy=lane.busy_share(),
                        loader_busy=loader.busy_share(),
                        backlog_s=state.backlog_s,
                        rss_bytes=self._rss_bytes(),
                        lost_peers=sorted(run.telemetry.lost),
                    )
                )

    def _spawn(self, run: _Run, work: Coroutine[Any, Any, None], doing: str) -> None:
        async def told() -> None:
            try:
                await work
            except Exception as error:  # nothing may die silently: a server that stops gossiping looks dead
                reason = f"failed while {doing}: {type(error).__name__}: {error}"
                self.report(Refused(server=self.server, reason=reason))
                raise

        task = asyncio.ensure_future(told())
        run.tasks.add(task)
        task.add_done_callback(run.tasks.discard)
