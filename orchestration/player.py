"""Plays one run: both timelines against the agents and the links, and hears what they say.

Awaits the clock and the fleet only.  Requests are handed to their home agent a little ahead of time, and the agent
admits them at their moment, so that the orchestrator's own delays do not reach the measurements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agents.clock import Clock
from agents.cluster import Cluster
from agents.frameworks.base import Framework
from agents.frameworks.registry import create
from agents.models.model import Model
from agents.protocol import (
    DATA_PORT,
    Collect,
    Collected,
    Command,
    Complaint,
    Configure,
    Done,
    Logits,
    Placement,
    Refused,
    Report,
    Sample,
    SlowDown,
    Start,
    Submit,
)
from orchestration.divergences import Hear, ignored
from orchestration.references import sampling_of
from orchestration.reviews import Aside, Placed, Reviewed, Reviews, at_once
from scenarios.timeline import LinkChange, Request, Scenario, ServerFailure, ServerSlowdown
from testbed.shaping.base import DirectionReport
from testbed.topology import Direction, Topology

#: Wall seconds between the configuration of the agents and emulated zero: connections are made meanwhile.
LEAD_S = 1.0
#: Wall seconds by which a request is handed over before its arrival.
HANDOVER_S = 0.5
#: Emulated seconds between two samples of the links.
LINK_SAMPLE_S = 0.5
#: Wall seconds within which agents hand over what they recorded.
COLLECT_TIMEOUT_S = 30.0
#: Emulated seconds that agents may take to end a request after its deadline.
GRACE_S = 2.0


class Links(Protocol):
    """The links of a testbed while a scenario plays; values are emulated, whatever the dilation."""

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Give one direction new values; returns what was applied."""
        ...

    def counters(self) -> Sequence[DirectionReport]:
        """Totals of every direction."""
        ...


class Agents(Protocol):
    """The agents while a scenario plays."""

    servers: tuple[str, ...]
    listener: Callable[[Report], None]

    def send(self, server: str, command: Command) -> None:
        """Tell one agent."""
        ...

    async def ask(self, commands: dict[str, Command], *, timeout_s: float, doing: str) -> dict[str, Report]:
        """Tell several agents and wait for their answers."""
        ...

    async def collect(self, command: Command, *, timeout_s: float) -> dict[str, Report]:
        """Tell all agents and return the answers that come."""
        ...

    def ended(self) -> list[str]:
        """Servers whose agent has ended, by itself or by ``kill``."""
        ...

    def kill(self, server: str) -> None:
        """End an agent at once, as a server fails that loses its power."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something of the scenario that was done, or a placement that changed."""

    change: LinkChange | ServerFailure | ServerSlowdown | Placed
    actual_s: float


@dataclass(slots=True)
class Played:
    """What a run left behind, before it is written down."""

    done: dict[int, Done] = field(default_factory=dict)
    submitted: set[int] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    collected: dict[str, Collected] = field(default_factory=dict)
    ended_agents: list[str] = field(default_factory=list)  # although the scenario did not want it
    complaints: list[str] = field(default_factory=list)  # of agents, beside failed requests
    reviews: list[Reviewed] = field(default_factory=list)  # of the placement
    kl: dict[tuple[int, bytes], float] = field(default_factory=dict)  # nats, by request and digest of its logits
    complete: bool = False

    @property
    def failed_servers(self) -> set[str]:
        """Servers that the scenario has let fail so far."""
        return {event.change.server for event in self.events if isinstance(event.change, ServerFailure)}

    @property
    def dead(self) -> set[str]:
        """Servers whose agent is gone, as the scenario wanted or not."""
        return self.failed_servers | set(self.ended_agents)


class Player:
    """Plays one scenario under one placement."""

    def __init__(
        self,
        *,
        scenario: Scenario,
        topology: Topology,
        prompts: Mapping[int, Sequence[int]],  # request number -> token ids
        agents: Agents,
        links: Links,
        clock: Clock,
        dilation: float,
        progress: Callable[[float, int], None],  # emulated now, requests ended
        interrupted: asyncio.Event,
        ended: Callable[[int], object] = lambda request: None,
        logits: Hear = ignored,
        aside: Aside = at_once,
    ) -> None:
        """``ended`` is told of every request that ends; ``logits`` takes what agents send of passes' ends.

        ``aside`` does work that takes a while without keeping the timelines waiting.
        """
        self._scenario = scenario
        self._topology = topology
        self._prompts = prompts
        self._agents = agents
        self._links = links
        self._clock = clock
        self._dilation = dilation
        self._progress = progress
        self._interrupted = interrupted
        self._ended_request = ended
        self._logits = logits
        self._aside = aside
        self._reviews: Reviews | None = None
        self.played = Played()
        self._counted: dict[tuple[str, str], DirectionReport] = {}

    async def configure(
        self,
        *,
        run_id: str,
        framework: str,
        cluster: Cluster,
        placement: Placement,
        known_logits: frozenset[bytes] = frozenset(),
        seed: int = 0,
        model: Model | None = None,
    ) -> None:
        """Prepare every agent for the run; FleetError when one refuses.

        ``known_logits`` holds digests of logits that agents need not send; ``seed`` is for frameworks that draw lots,
        ``model`` for those that review their placement during the run.
        """
        command = Configure(
            run_id=run_id,
            framework=framework,
            cluster=cluster,
            placement=placement,
            addresses={server: f"tcp://{server}:{DATA_PORT}" for server in self._agents.servers},
            quality_budget=self._scenario.quality_budget,
            known_logits=known_logits,
            seed=seed,
        )
        if model is not None:
            self._reviews = Reviews(
                framework=self._reviewing(framework, model),
                cluster=cluster,
                profile=model.profile,
                calibration=model.calibration,
                placement=placement,
                agents=self._agents,
                clock=self._clock,
                placed=lambda change: self.played.events.append(Event(change=change, actual_s=change.at_s)),
                complain=self.played.complaints.append,
                aside=self._aside,
            )
            self.played.reviews = self._reviews.done
        self._agents.listener = self._hear
        await self._agents.ask(
            dict.fromkeys(self._agents.servers, command), timeout_s=60.0, doing="take the run's configuration"
        )

    def _reviewing(self, name: str, model: Model) -> Framework:
        """A framework that knows what the one knew that has made the placement."""
        framework = create(name)
        if framework.review_s is not None:
            framework.measured(model.facts, model.exits, quality_budget=self._scenario.quality_budget)
        return framework

    def start(self, *, origin_s: float) -> None:
        """Let emulated time begin at the monotonic instant ``origin_s``, a moment ahead."""
        for server in self._agents.servers:
            self._agents.send(server, Start(origin_s=origin_s, dilation=self._dilation))

    async def play(self) -> Played:
        """Run both timelines to their end, or to the interruption, and collect."""
        self._counted = {(entry.link, entry.source): entry for entry in self._links.counters()}
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._submit_all(),
                self._change_links(),
                self._fail_servers(),
                self._slow_servers(),
                self._sample_links(),
                self._review(),
            )
        ]
        try:
            await self._until_over(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self._sample_links_once()  # what has passed since the last sample
        reports = await self._agents.collect(Collect(), timeout_s=COLLECT_TIMEOUT_S)
        self.played.collected = {server: report for server, report in reports.items() if isinstance(report, Collected)}
        self.played.ended_agents = self._ended()
        self.played.complete = not self._interrupted.is_set()
        return self.played

    async def _until_over(self, timelines: Sequence[asyncio.Future[None]]) -> None:
        scenario, played = self._scenario, self.played
        last_s = max((request.at_s for request in scenario.requests), default=0.0)
        give_up_s = last_s + scenario.deadline_s + GRACE_S
        while not self._interrupted.is_set() and not any(task.done() and task.exception() for task in timelines):
            now_s = self._clock.now_s()
            self._progress(now_s, len(played.done))
            for server in self._ended():
                complaint = f"{server}: the agent ended during the run"
                if complaint not in played.complaints:
                    played.complaints.append(complaint)
            if now_s > give_up_s or (now_s > scenario.duration_s and self._all_done()):
                return
            waits = [asyncio.ensure_future(self._interrupted.wait()), asyncio.ensure_future(self._clock_tick())]
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in pending:
                wait.cancel()

    def _all_done(self) -> bool:
        """Whether every request has ended whose home is still there to say so."""
        silent = set(self._agents.ended())
        done = self.played.done
        return all(request.number in done or request.home in silent for request in self._scenario.requests)

    def _ended(self) -> list[str]:
        """Servers whose agent has ended although the scenario did not want it."""
        wanted = self.played.failed_servers
        return [server for server in self._agents.ended() if server not in wanted]

    async def _clock_tick(self) -> None:
        await self._clock.sleep_until_s(self._clock.now_s() + LINK_SAMPLE_S / 2)

    async def _submit_all(self) -> None:
        ahead_s = HANDOVER_S / self._dilation
        for request in self._scenario.requests:
            await self._clock.sleep_until_s(request.at_s - ahead_s)
            self._agents.send(request.home, self._submit(request))
            self.played.submitted.add(request.number)

    def _submit(self, request: Request) -> Submit:
        return Submit(
            request=request.number,
            kind=request.kind,
            tokens=list(self._prompts[request.number]),
            output_tokens=request.output_tokens,
            at_s=request.at_s,
            deadline_s=request.at_s + self._scenario.deadline_s,
            sampling=sampling_of(self._scenario),
        )

    async def _change_links(self) -> None:
        for change in self._scenario.changes:
            await self._clock.sleep_until_s(change.at_s)
            link = self._topology.link(change.link)
            for source, direction in ((link.a, link.forward), (link.b, link.backward)):
                self._links.shape(link.name, source, changed(direction, change))
            self.played.events.append(Event(change=change, actual_s=self._clock.now_s()))

    async def _fail_servers(self) -> None:
        for failure in self._scenario.failures:
            await self._clock.sleep_until_s(failure.at_s)
            self._agents.kill(failure.server)
            self.played.events.append(Event(change=failure, actual_s=self._clock.now_s()))

    async def _slow_servers(self) -> None:
        for slowdown in self._scenario.slowdowns:
            await self._clock.sleep_until_s(slowdown.at_s)
            self._agents.send(slowdown.server, SlowDown(factor=slowdown.factor))
            self.played.events.append(Event(change=slowdown, actual_s=self._clock.now_s()))

    async def _review(self) -> None:
        if self._reviews is not None:
            await self._reviews.play()

    async def _sample_links(self) -> None:
        next_s = 0.0
        while True:
            await self._clock.sleep_until_s(next_s)
            next_s = max(next_s + LINK_SAMPLE_S, self._clock.now_s())
            self._sample_links_once()

    def _sample_links_once(self) -> None:
        now_s = self._clock.now_s()
        for entry in self._links.counters():
            before = self._counted[entry.link, entry.source]
            self._counted[entry.link, entry.source] = entry
            self.played.links.append(
                {
                    "t_s": now_s,
                    "link": entry.link,
                    "source": entry.source,
                    "target": entry.target,
                    "rate_bps": entry.applied.rate_bps,
                    "delay_s": entry.applied.delay_s,
                    "bytes": entry.bytes - before.bytes,
                    "packets": entry.packets - before.packets,
                    "dropped": sum(entry.dropped.values()) - sum(before.dropped.values()),
                    "queued_bytes": entry.queued_bytes,
                }
            )

    def _hear(self, report: Report) -> None:
        if self._reviews is not None:
            self._reviews.hear(report)
        match report:
            case Done():
                self.played.done[report.request] = report
                self._ended_request(report.request)
            case Logits():
                self._logits(report)
            case Sample():
                self.played.samples.append(report)
            case Refused() | Complaint():
                self.played.complaints.append(f"{report.server}: {report.reason}")
            case _:
                pass


def changed(direction: Direction, change: LinkChange) -> Direction:
    """The topology's values with those of the change in their place; all of the topology's when it restores.

    The queue keeps its size: a congested link does not get other buffers.  A rate or delay that is set takes the place
    of a recording.
    """
    if change.restore:
        return direction
    wanted = direction
    if not direction.queue_in_packets:
        wanted = replace(direction, queue_bytes=direction.effective_queue_bytes)
    if change.rate_bps is not None:
        wanted = replace(wanted, rate_bps=change.rate_bps, rate_trace=None, opportunities=None)
    if change.delay_s is not None:
        wanted = replace(wanted, delay_s=change.delay_s, delay_trace=None)
    if change.loss is not None:
        wanted = replace(wanted, loss=change.loss)
    return wanted
