"""Servers and links as ideal queues, driven by the very frameworks that the agents run.

A discrete-event model with FIFO devices, FIFO links and FIFO load channels: gate decisions are drawn from a usage
table, and a request takes what ``agents.frameworks.cost`` says.  No packets, no experts, no clock.  What it leaves out
(TCP, host CPU, jitter) is what the emulation is for; where the two disagree on more than that, one of them is wrong.

Placement rehearses routing in it (``hetroute_rehearsal``), and ``benchmarks/routing_model.py`` prints its tables.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.base import Arrival, Demand, ExpertDemand, Feedback, Framework, View
from agents.frameworks.cost import DeviceTimes, head_s
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import Placement
from agents.store import FAST_SHARE
from testbed.topology import BITS_PER_BYTE

WAIT_SMOOTHING = 0.1


@dataclass
class Lane:
    """One FIFO resource."""

    free_s: float = 0.0
    wait_s: float = 0.0
    busy_s: float = 0.0

    def reserve(self, ready_s: float, duration_s: float) -> float:
        """Finish of a job that is ready now; jobs must come in the order in which they are ready."""
        start_s = max(ready_s, self.free_s)
        self.wait_s += WAIT_SMOOTHING * (start_s - ready_s - self.wait_s)
        self.busy_s += duration_s
        self.free_s = start_s + duration_s
        return self.free_s


@dataclass
class Request:
    """One score request on its way."""

    number: int
    home: str
    arrived_s: float
    chosen: np.ndarray[Any, np.dtype[np.int64]]  # (layers, tokens, top_k): experts
    weight: np.ndarray[Any, np.dtype[np.float64]]  # the same shape: gate weights, summing to 1 over top_k
    spent: float = 0.0
    moves: int = 0
    waiting: dict[int, int] = field(default_factory=dict)  # layer -> parts still due
    started_s: float = 0.0


class Queues:
    """The cluster as queues; ``gossip_s`` is how stale a server's knowledge of the others is."""

    def __init__(
        self,
        framework: Callable[[], Framework],
        cluster: Cluster,
        profile: ModelProfile,
        calibration: Calibration,
        placement: Placement,
        *,
        gossip_s: float,
        quality_budget: float,
    ) -> None:
        self.cluster, self.profile, self.calibration = cluster, profile, calibration
        self.gossip_s, self.quality_budget = gossip_s, quality_budget
        self.now_s = 0.0
        self.devices = {name: Lane() for name in cluster.names}
        self.loaders = {name: Lane() for name in cluster.names}
        self.links = {pair: Lane() for pair in itertools.permutations(cluster.names, 2)}
        self.sent_bytes = 0
        self.latency_s: dict[int, float] = {}
        self.moves: list[int] = []
        self.spent: list[float] = []
        self.calls = dict.fromkeys(("local", "remote", "slow", "low precision", "fallback"), 0)
        self.plan_s: list[float] = []
        self.placement = placement
        #: How often each copy was called for, by layer, expert, server and precision.
        self.selected: dict[tuple[int, int, str, str], int] = {}
        self.fast = {(r.layer, r.expert, r.server, r.precision): r.fast for r in self.placement.replicas}
        self.cached: dict[str, OrderedDict[tuple[int, int, str, str], int]] = {n: OrderedDict() for n in cluster.names}
        self.cache_bytes = {s.name: FAST_SHARE * s.device.fast_bytes for s in cluster.servers}
        for r in self.placement.replicas:
            if r.fast:
                self.cache_bytes[r.server] -= profile.expert_bytes[r.precision]
        self.known: dict[str, tuple[float, float, float]] = dict.fromkeys(cluster.names, (0.0, 0.0, 0.0))
        self.frameworks: dict[str, Framework] = {}
        self.views: dict[str, View] = {}
        for name in cluster.names:
            view = View(
                server=name,
                cluster=cluster,
                profile=profile,
                calibration=calibration,
                placement=self.placement,
                live=Live(self, name),
            )
            self.frameworks[name], self.views[name] = framework(), view
            self.frameworks[name].begin(view)
        self._device = {server.name: server.device for server in cluster.servers}
        self._times = DeviceTimes(self._device, profile)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self, requests: Sequence[Request]) -> None:
        """Play all requests to their end."""
        for request in requests:
            self.at(request.arrived_s, partial(self.arrive, request))
        last_s = requests[-1].arrived_s
        if self.gossip_s:
            for k in range(int(last_s / self.gossip_s) + 1):
                self.at(k * self.gossip_s, self.gossip)
        while self._events:
            self.now_s, _, action = heapq.heappop(self._events)
            action()

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (when_s, next(self._order), action))

    def state(self, server: str) -> tuple[float, float, float]:
        """The truth about a server."""
        device, loader = self.devices[server], self.loaders[server]
        return max(0.0, device.free_s - self.now_s), device.wait_s, max(0.0, loader.free_s - self.now_s)

    def gossip(self) -> None:
        """Everybody learns the truth of this moment."""
        self.known = {name: self.state(name) for name in self.cluster.names}
        for name, framework in self.frameworks.items():
            framework.refresh(self.views[name])

    def send(self, source: str, target: str, size_bytes: int, then: Callable[[], None]) -> None:
        """A message; ``then`` runs when it has arrived."""
        if source == target:
            self.at(self.now_s, then)
            return
        a, b = self.cluster.index(source), self.cluster.index(target)
        sent_s = self.now_s
        if size_bytes:
            self.sent_bytes += size_bytes
            sent_s = self.links[source, target].reserve(
                self.now_s, BITS_PER_BYTE * size_bytes / self.cluster.rate_bps[a][b]
            )
        self.at(sent_s + self.cluster.delay_s[a][b], then)

    def arrive(self, request: Request) -> None:
        """At home: choose a(0)."""
        arrival = Arrival(
            request=request.number, kind="score", home=request.home, tokens=request.chosen.shape[1], output_tokens=0
        )
        framework, view = self.frameworks[request.home], self.views[request.home]
        first = framework.enter(arrival, view)
        self.tell(request.home, framework.announce(arrival, view))
        self.send(request.home, first, 0, lambda: self.begin_layer(request, 0, first))

    def tell(self, source: str, text: bytes) -> None:
        """An announcement on its way to everybody else; it takes no room on links."""
        for name in self.cluster.names if text else ():
            if name != source:
                self.send(source, name, 0, partial(self.frameworks[name].heard, source, text, self.views[name]))

    def begin_layer(self, request: Request, layer: int, here: str) -> None:
        """Dense part of a layer; or, after the last one, the logits."""
        tokens = request.chosen.shape[1]
        if layer == self.profile.layers:
            finish_s = self.devices[here].reserve(self.now_s, head_s(self._device[here], self.profile, tokens))
            self.at(finish_s, lambda: self.send(here, request.home, 0, lambda: self.finish(request)))
            return
        request.started_s = self.now_s
        finish_s = self.devices[here].reserve(self.now_s, self._times.dense_s(here, tokens))
        self.at(finish_s, lambda: self.dispatch(request, layer, here))

    def dispatch(self, request: Request, layer: int, here: str) -> None:
        """Plan, and send everything on its way."""
        demand = demand_of(request, layer, self.quality_budget)
        started = time.perf_counter()
        plan = self.frameworks[here].plan(demand, self.views[here])
        self.plan_s.append(time.perf_counter() - started)
        following, rows = plan.next_server, {entry.expert: entry for entry in demand.experts}
        parts: dict[str, list[tuple[int, int, str]]] = {}
        for choice in plan.choices:
            parts.setdefault(choice.server, []).append((choice.expert, choice.runs, choice.precision))
            entry = rows[choice.expert]
            request.spent += entry.gate_share * self.views[here].loss(layer, choice)
            key = (layer, choice.runs, choice.server, choice.precision)
            self.selected[key] = self.selected.get(key, 0) + 1
            slow = not self.fast[key] and key not in self.cached[choice.server]
            self.calls["local" if choice.server == here else "remote"] += 1
            self.calls["slow"] += slow
            self.calls["low precision"] += choice.precision != "full"
            self.calls["fallback"] += choice.fallback
        moved = following != here
        request.moves += moved
        request.waiting[layer] = len(parts) + (moved and here not in parts) or 1
        planned_s = self.now_s
        hidden_bytes = self.profile.hidden_bytes
        tokens = request.chosen.shape[1]

        def part_done() -> None:
            request.waiting[layer] -= 1
            if not request.waiting[layer]:
                feedback = Feedback(
                    request=request.number,
                    step=0,
                    layer=layer,
                    duration_s=self.now_s - request.started_s,
                    wait_s=self.now_s - planned_s,
                    dense_s=planned_s - request.started_s,
                )
                self.frameworks[following].observe(feedback)
                self.begin_layer(request, layer + 1, following)

        if here not in parts and (moved or not parts):
            self.send(here, following, moved * tokens * hidden_bytes, part_done)
        for server, experts in parts.items():
            union = 0
            for expert, _, _ in experts:
                union |= rows[expert].rows
            sent = union.bit_count() if plan.merged else sum(rows[expert].tokens for expert, _, _ in experts)
            size_bytes = sent * hidden_bytes
            calls = [(runs, precision, rows[expert].tokens) for expert, runs, precision in experts]
            back_bytes = tokens * hidden_bytes if server == here else size_bytes

            def reached(
                server: str = server, calls: list[tuple[int, str, int]] = calls, back_bytes: int = back_bytes
            ) -> None:
                self.execute(layer, server, calls, lambda: self.send(server, following, back_bytes, part_done))

            self.send(here, server, size_bytes, reached)

    def execute(self, layer: int, server: str, calls: list[tuple[int, str, int]], then: Callable[[], None]) -> None:
        """Loads, then the experts one after the other as one job."""
        device, loaded_s = self._device[server], self.now_s
        for expert, precision, _ in calls:
            key, cache = (layer, expert, server, precision), self.cached[server]
            if key in cache:
                cache.move_to_end(key)
            elif not self.fast[key]:
                size_bytes = self.profile.expert_bytes[precision]
                loaded_s = self.loaders[server].reserve(self.now_s, size_bytes / device.load_bytes_per_s)
                cache[key] = size_bytes
                while cache and sum(cache.values()) > self.cache_bytes[server]:
                    cache.popitem(last=False)
        duration_s = self._times.launch_s(server)
        duration_s += sum(self._times.call_s(server, precision, tokens) for _, precision, tokens in calls)
        self.at(loaded_s, lambda: self.at(self.devices[server].reserve(self.now_s, duration_s), then))

    def finish(self, request: Request) -> None:
        """The answer is at home."""
        self.latency_s[request.number] = self.now_s - request.arrived_s
        self.moves.append(request.moves)
        self.spent.append(request.spent)


class Live:
    """``LiveState`` of one server of the model: the truth about itself, the latest gossip about the others."""

    def __init__(self, model: Queues, server: str) -> None:
        self._model, self._server = model, server

    def now_s(self) -> float:
        """The model's time."""
        return self._model.now_s

    def alive(self, server: str) -> bool:  # noqa: ARG002
        """Nobody dies in this model."""
        return True

    def load(self, server: str) -> tuple[float, float, float]:
        """Backlog, mean wait, load backlog."""
        if server == self._server or not self._model.gossip_s:
            return self._model.state(server)
        return self._model.known[server]

    def path(self, source: str, target: str) -> tuple[float, float]:
        """Nominal delay and rate."""
        cluster = self._model.cluster
        a, b = cluster.index(source), cluster.index(target)
        return cluster.delay_s[a][b], cluster.rate_bps[a][b]


def demand_of(request: Request, layer: int, quality_budget: float) -> Demand:
    """What the gate of one layer asks for."""
    chosen, weight = request.chosen[layer], request.weight[layer]
    tokens = chosen.shape[0]
    experts = []
    for expert in np.unique(chosen):
        mask = chosen == expert
        rows = [int(token) for token in np.flatnonzero(mask.any(axis=1))]
        experts.append(
            ExpertDemand(
                expert=int(expert),
                rows=sum(1 << token for token in rows),
                tokens=len(rows),
                gate_share=float(weight[mask].sum()) / tokens,
            )
        )
    return Demand(
        request=request.number,
        kind="score",
        step=0,
        layer=layer,
        home=request.home,
        tokens=tokens,
        experts=tuple(experts),
        quality_spent=request.spent,
        quality_budget=quality_budget,
        next_server=None,
    )


def requests_of(
    cluster: Cluster,
    profile: ModelProfile,
    usage: np.ndarray[Any, np.dtype[np.float64]],
    *,
    duration_s: float,
    seed: int,
) -> list[Request]:
    """Poisson arrivals; each request has one domain of the usage table, and Gumbel top-k gates."""
    draws = np.random.default_rng(seed)
    shares = np.array([server.home_share for server in cluster.servers])
    requests: list[Request] = []
    now_s = 0.0
    while True:
        now_s += float(draws.exponential(1 / cluster.arrival_rate_per_s))
        if now_s >= duration_s:
            return requests
        tokens = max(4, int(draws.poisson(cluster.tokens_per_request)))
        share = usage[draws.integers(len(usage))][:, None, :]  # (layers, 1, experts)
        score = np.log(np.maximum(share, 1e-9)) + draws.gumbel(size=(profile.layers, tokens, profile.experts))
        chosen = np.argsort(-score, axis=2)[:, :, : profile.top_k]
        gate = np.exp(np.take_along_axis(score, chosen, axis=2))
        requests.append(
            Request(
                number=len(requests),
                home=cluster.names[int(draws.choice(len(shares), p=shares))],
                arrived_s=now_s,
                chosen=chosen,
                weight=gate / gate.sum(axis=2, keepdims=True),
            )
        )
