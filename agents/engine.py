"""How a pass flows through the layers on one server (design: ``agents.protocol``).

These coroutines await two seams only, clock and transport, so the same code runs on real packets and in virtual time.
The engine knows passes, not requests: what a home server does with a pass's answer is ``agents.home``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from agents.channel import Channel
from agents.clock import Clock
from agents.depth.apply import Trimmed
from agents.depth.passes import NOBODY, Depth, all_gone, staying
from agents.errors import FrameworkError
from agents.experts import ExpertRunner, Origin
from agents.frameworks.base import Choice, Demand, Feedback, Framework, Plan, View
from agents.gather import Gather, Residual
from agents.local.jobs import Dense, Head, Job, Pricing
from agents.local.lanes import Lane
from agents.logits import Tell
from agents.models.arithmetic import Arithmetic, Cache
from agents.models.mixture import finish
from agents.models.reference import digest, next_token_nll
from agents.models.sampling import choose
from agents.protocol import (
    TOKEN_ID_BYTES,
    Advance,
    Answer,
    Array,
    Body,
    Enter,
    Execute,
    Failed,
    LayerRecord,
    Message,
    Placement,
    Result,
    Ticket,
)
from agents.routing import Batch, Routed, by_server, check_plan
from agents.store import ExpertStore
from testbed.errors import TestbedError

#: Stands between a server's name and the number of one of several parts that it does of one layer.
PART = "/"
#: Rounding that a sum of losses may have.
LEDGER_ROUNDING = 1e-12
#: An early Result whose pass never shows up is forgotten after this long (emulated seconds).
FORGET_AFTER_S = 60.0


class Engine:
    """The passes that are under way on one server."""

    def __init__(
        self,
        *,
        server: str,
        clock: Clock,
        channel: Channel,
        twin: Arithmetic,
        store: ExpertStore,
        lane: Lane,
        pricing: Pricing,
        framework: Framework,
        view: View,
        quality_budget: float,
        depth: Depth,
        deliver: Callable[[Body, tuple[Array, ...]], None],
        tell_logits: Tell,
    ) -> None:
        """``deliver`` takes answers and failures of passes whose home is this server.

        ``tell_logits`` takes what a score pass ended in, of a model whose logits mean something.
        """
        self._server = server
        self._clock = clock
        self._channel = channel
        self._twin = twin
        self._framework = framework
        self._view = view
        self._quality_budget = quality_budget
        self._depth = depth
        self._deliver = deliver
        self._tell_logits = tell_logits
        self._profile = view.profile
        self._layers = self._profile.layers
        self._servers = view.cluster.names
        self._replicas = _copies(view.placement)
        self._gathers: dict[tuple[int, int, int], Gather] = {}
        self._caches: dict[int, tuple[float, dict[int, Cache]]] = {}  # request -> deadline, layer -> cache
        self._tasks: set[asyncio.Task[None]] = set()
        self.lane = lane
        self._pricing = pricing
        self._store = store
        self._experts = ExpertRunner(lane=lane, store=store, twin=twin)
        self.records: list[LayerRecord] = []

    # --- messages in ------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Act on a message of the data plane (gossip is not the engine's)."""
        body, now_s = message.body, self._clock.now_s()
        match body:
            case Enter(ticket=ticket):
                (tokens,) = message.arrays
                self.enter(ticket, tokens, ready_s=now_s)
            case Advance(ticket=ticket, record=record, parts=parts):
                tokens, stream, own, left = message.arrays
                total = own if len(own) else np.zeros(stream.shape, dtype=np.int64)
                self._arrived(
                    Residual(
                        ticket=ticket,
                        record=record,
                        tokens=tokens,
                        stream=stream,
                        left=left,
                        total=total,
                        parts=frozenset(parts),
                        ready_s=now_s,
                        late_s=body.late_s,
                    )
                )
            case Execute():
                self._spawn(self._execute(body, message.arrays, now_s), body.home, body.request, body.step)
            case Result(request=request, step=step, layer=layer):
                rows, total = message.arrays
                gather = self._gather((request, step, layer))
                gather.add(_label(message.source, body.part), rows, total, body.loaded)
                self._go_on_if_complete((request, step, layer), now_s, late_s=body.late_s)
            case Answer() | Failed():
                self._deliver(body, message.arrays)
            case _:
                raise FrameworkError(f"{type(body).__name__} is not a message of the engine")

    def enter(self, ticket: Ticket, tokens: Array, *, ready_s: float) -> None:
        """Begin a pass here: this server is a(0)."""
        stream = self._twin.embed(tokens)
        if ticket.step == 0:
            ticket.path.append(self._server)
        work = self._from_layer(ticket, 0, tokens, stream, NOBODY, ready_s)
        self._spawn(work, ticket.home, ticket.request, ticket.step)

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def peers_lost(self, servers: frozenset[str]) -> None:
        """Passes that wait for a lost server cannot go on."""
        for key, gather in list(self._gathers.items()):
            if gather.residual is None:
                continue
            missing = gather.waits_for([part for part in gather.residual.parts if _server_of(part) in servers])
            if missing is not None:
                del self._gathers[key]
                ticket = gather.residual.ticket
                reason = f"server {_server_of(missing)} was lost in layer {key[2]}"
                self._fail(ticket.home, ticket.request, ticket.step, reason)

    def slow_down(self, factor: float) -> None:
        """From now on jobs take ``factor`` times as long as the data sheet says; those in the queue keep theirs."""
        self._pricing.slowness = factor

    @property
    def slowness(self) -> float:
        """How many times longer than on its data sheet the device takes."""
        return self._pricing.slowness

    def rearrange(self, placement: Placement) -> None:
        """Plan by this placement from now on; the store has its copies."""
        self._view.rearrange(placement)
        self._replicas = _copies(placement)

    def upkeep(self) -> None:
        """Once per round of gossip: let the framework take in what has changed, and drop what has expired."""
        self._framework.refresh(self._view)
        self.forget_expired()

    def forget_expired(self) -> None:
        """Drop what belongs to passes that ended elsewhere."""
        now_s = self._clock.now_s()
        for key, gather in list(self._gathers.items()):
            deadline_s = gather.residual.ticket.deadline_s if gather.residual else gather.created_s + FORGET_AFTER_S
            if now_s > deadline_s:
                del self._gathers[key]
        for request, (deadline_s, _) in list(self._caches.items()):
            if now_s > deadline_s:
                del self._caches[request]
        self._depth.forget(now_s)
        self._store.forget_expired(now_s)
        self.lane.forget(now_s)

    def close(self) -> None:
        """Cancel everything under way."""
        for task in self._tasks:
            task.cancel()
        self.lane.close()

    # --- the flow through the layers ----------------------------------------------------------------------------------

    async def _from_layer(
        self, ticket: Ticket, layer: int, tokens: Array, stream: Array, left: Array, ready_s: float
    ) -> None:
        """Run layers here, from ``layer`` on, until the pass moves away, waits for results, or is answered."""
        while layer < self._layers:
            record = LayerRecord(
                request=ticket.request, step=ticket.step, layer=layer, server=self._server, start_s=ready_s
            )
            stream, left = self._depth.join(ticket, layer - 1, stream, left)
            stream, routed, hidden, ready_s = await self._dense(ticket, layer, len(tokens), stream, left, ready_s)
            stream, left = self._depth.join(ticket, layer, stream, left)
            places = staying(left)  # of the rows that were gated, in the stream
            record.dense_s = ready_s - record.start_s
            found = self._plan(ticket, layer, routed)
            plan = found.plan
            groups = by_server(plan.choices)
            self._account(ticket, record, found, routed)
            self._depth.decide(record, found, len(stream), left)
            total = np.zeros(stream.shape, dtype=np.int64)
            self._prefetch(ticket, plan)
            own = groups.pop(self._server, None)
            if not plan.merged:
                groups = _each_alone(groups)
            for part, choices in groups.items():
                batch = routed.batch(choices)
                self._send_execute(ticket, layer, part, batch, places, hidden, plan.next_server, ready_s)
            if plan.terms is not None:
                terms = plan.terms
                record.terms = (
                    terms.transmission_s,
                    terms.loading_s,
                    terms.compute_s,
                    terms.quality_s,
                    terms.traffic_s,
                    terms.ahead_s,
                )
            if own is not None:
                batch = routed.batch(own)
                own_part, loaded, finish_s = await self._experts.run(
                    Origin(request=ticket.request, step=ticket.step, layer=layer), batch, hidden[batch.rows], ready_s
                )
                total[batch.rows if places is None else places[batch.rows]] = own_part
                record.slow_experts += loaded
                record.experts_s = finish_s - ready_s
                ready_s = finish_s
            if not groups:
                stream = finish(stream, total)
                left = self._depth.leave(ticket, record, len(tokens), stream, left)
                if all_gone(left):
                    self._close_record(record, ticket, waited_s=0.0, now_s=ready_s)
                    self._depth.park(ticket, layer, stream, left)
                    break
            if plan.next_server != self._server:
                own_sum = total if own is not None and groups else np.zeros((0, stream.shape[1]), dtype=np.int64)
                self._send_advance(ticket, record, tokens, stream, left, own_sum, plan.next_server, groups, ready_s)
                return
            if groups:
                self._arrived(
                    Residual(
                        ticket=ticket,
                        record=record,
                        tokens=tokens,
                        stream=stream,
                        left=left,
                        total=total,
                        parts=frozenset(groups),
                        ready_s=ready_s,
                        late_s=0.0,
                    )
                )
                return
            self._close_record(record, ticket, waited_s=0.0, now_s=ready_s)
            layer += 1
        await self._answer(ticket, tokens, stream, left, ready_s)

    async def _dense(
        self, ticket: Ticket, layer: int, tokens: int, stream: Array, left: Array, ready_s: float
    ) -> tuple[Array, Routed, Array, float]:
        """Attention and gate on the device; rows that have left give keys and values only."""
        cache = self._cache(ticket, layer)
        places = staying(left)
        start = ticket.start + tokens - len(stream)  # states that waited for this pass come before its tokens

        def work() -> tuple[Array, Routed, Array]:
            attended = self._twin.attend(layer, stream, cache, start)
            seen = attended if places is None else attended[places]
            gate = self._twin.gate(layer, seen)
            routed = Routed.of(gate, experts=self._profile.experts)
            if places is None:
                return gate.residual(attended), routed, gate.hidden
            after = stream.copy()
            after[places] = gate.residual(seen)
            return after, routed, gate.hidden

        (attended, routed, hidden), finish_s = await self.lane.serve(
            Job(
                request=ticket.request,
                step=ticket.step,
                stage=2 * layer,
                part=Dense(rows=len(stream), left=left),
                work=work,
                ready_s=ready_s,
            )
        )
        return attended, routed, hidden, finish_s

    def _plan(self, ticket: Ticket, layer: int, routed: Routed) -> Trimmed:
        demand = Demand(
            request=ticket.request,
            kind=ticket.kind,
            step=ticket.step,
            layer=layer,
            home=ticket.home,
            tokens=routed.tokens,
            experts=routed.demands,
            quality_spent=ticket.quality_spent,
            quality_budget=self._quality_budget,
            # A pass that has left early has fixed a part of the path only.
            next_server=ticket.path[layer + 1] if len(ticket.path) > layer + 1 else None,
            notes=ticket.notes,
        )

        def checked(demand: Demand) -> Plan:
            plan = self._framework.plan(demand, self._view)
            check_plan(plan, demand, self._replicas, self._servers, self._framework.name)
            return plan

        found = self._depth.trimmed(demand, checked(demand), checked)
        if found.cuts:
            check_plan(found.plan, found.demand, self._replicas, self._servers, self._framework.name)
        if demand.next_server is None:
            ticket.path.append(found.plan.next_server)
        if found.plan.notes is not None:
            ticket.notes = found.plan.notes
        return found

    def _prefetch(self, ticket: Ticket, plan: Plan) -> None:
        """Let the store load ahead what the plan names; FrameworkError if that is another server's."""
        for copy in plan.prefetch:
            if copy.server != self._server:
                raise FrameworkError(
                    f"{self._framework.name}: {self._server} can load nothing ahead that lies at {copy.server}"
                )
        self._store.prefetch(ticket.request, [(copy.layer, copy.expert, copy.precision) for copy in plan.prefetch])

    def _account(self, ticket: Ticket, record: LayerRecord, found: Trimmed, routed: Routed) -> None:
        """Write down what the plan and its cuts spend; FrameworkError if that breaks somebody's promise."""
        plan = found.plan
        shares = {entry.expert: entry.gate_share for entry in routed.demands}
        ticket.quality_spent += found.cut_loss
        for choice in plan.choices:
            ticket.quality_spent += shares[choice.expert] * self._view.loss(record.layer, choice)
        if self._framework.keeps_budget and not ticket.quality_spent <= self._quality_budget + LEDGER_ROUNDING:
            raise FrameworkError(
                f"{self._framework.name} promises to keep the quality budget of {self._quality_budget:g}, "
                f"but would have spent {ticket.quality_spent:g} after layer {record.layer}"
            )
        self._depth.check(
            found, spent=ticket.quality_spent, budget=self._quality_budget + LEDGER_ROUNDING, layer=record.layer
        )
        record.quality_spent = ticket.quality_spent
        record.skipped_experts = len(routed.demands) - len(plan.choices)
        record.experts = len(plan.choices)
        record.remote_experts = sum(choice.server != self._server for choice in plan.choices)
        record.fallback_experts = sum(choice.fallback for choice in plan.choices)
        record.substitute_experts = sum(choice.runs != choice.expert for choice in plan.choices)
        record.servers = len({choice.server for choice in plan.choices})

    async def _execute(self, body: Execute, arrays: tuple[Array, ...], ready_s: float) -> None:
        """Run experts for another server's pass."""
        hidden, rows, index, weights = arrays
        batch = Batch(calls=body.calls, rows=rows, index=index, weights=weights)
        total, loaded, finish_s = await self._experts.run(
            Origin(request=body.request, step=body.step, layer=body.layer), batch, hidden, ready_s
        )
        result = Result(
            request=body.request,
            step=body.step,
            layer=body.layer,
            loaded=loaded,
            late_s=body.late_s + self._late_s(finish_s),
            part=body.part,
        )
        size_bytes = len(rows) * self._profile.hidden_bytes
        self._send(body.reply_to, result, (rows, total), size_bytes)

    async def _answer(self, ticket: Ticket, tokens: Array, stream: Array, left: Array, ready_s: float) -> None:
        """The output head, and the way home."""

        scored = ticket.kind == "score"
        wanted, ends = (stream, left) if scored else (stream[-1:], left[-1:])  # generating takes the last position only

        measured = scored and self._twin.measures_quality

        def work() -> tuple[Array, Array, Array, bytes]:
            logits = self._twin.logits(self._depth.final(wanted, ends))
            nll = next_token_nll(logits, tokens) if measured else np.zeros(0)
            found = logits.argmax(axis=1)
            if not scored:
                found[-1] = choose(logits[-1], ticket.sampling, ticket.sampling.draw(ticket.request, ticket.step))
            return logits, nll.astype(np.float32), found.astype(np.int32), digest(logits)

        (logits, nll, top1, logits_digest), finish_s = await self.lane.serve(
            Job(
                request=ticket.request,
                step=ticket.step,
                stage=2 * self._layers,
                part=Head(rows=len(wanted), left=ends),
                work=work,
                ready_s=ready_s,
            )
        )
        size_bytes = TOKEN_ID_BYTES * len(wanted)
        if self._server != ticket.home:
            ticket.sent_bytes += size_bytes
        ticket.late_s += self._late_s(finish_s)
        body = Answer(ticket=ticket, digest=logits_digest)
        self._send(ticket.home, body, (nll, top1), size_bytes)
        if measured:  # after the answer, which must not wait for it
            self._tell_logits(ticket.request, logits_digest, logits)

    # --- gathering ----------------------------------------------------------------------------------------------------

    def _gather(self, key: tuple[int, int, int]) -> Gather:
        return self._gathers.setdefault(key, Gather(created_s=self._clock.now_s()))

    def _arrived(self, residual: Residual) -> None:
        key = (*residual.ticket.key, residual.record.layer)
        self._gather(key).residual = residual
        self._go_on_if_complete(key, residual.ready_s, late_s=residual.late_s)

    def _go_on_if_complete(self, key: tuple[int, int, int], now_s: float, *, late_s: float) -> None:
        """What arrives last is on the critical path, with its lateness."""
        gather = self._gathers.get(key)
        if gather is None or gather.residual is None or not gather.complete():
            return
        del self._gathers[key]
        ticket = gather.residual.ticket
        ticket.late_s += late_s
        self._spawn(self._after(gather, gather.residual, now_s), ticket.home, ticket.request, ticket.step)

    async def _after(self, gather: Gather, residual: Residual, now_s: float) -> None:
        """Add up what was gathered, and go on with the next layer."""
        ticket, record = residual.ticket, residual.record
        stream = finish(residual.stream, gather.merged()) if residual.parts else residual.stream
        ready_s = max(now_s, residual.ready_s)
        record.slow_experts += gather.loaded
        record.remote_slow_experts = gather.loaded
        left = residual.left
        if residual.parts:  # otherwise the sender has asked who leaves
            left = self._depth.leave(ticket, record, len(residual.tokens), stream, left)
        self._close_record(record, ticket, waited_s=ready_s - residual.ready_s, now_s=ready_s)
        if all_gone(left):
            self._depth.park(ticket, record.layer, stream, left)
            await self._answer(ticket, residual.tokens, stream, left, ready_s)
            return
        await self._from_layer(ticket, record.layer + 1, residual.tokens, stream, left, ready_s)

    def _close_record(self, record: LayerRecord, ticket: Ticket, *, waited_s: float, now_s: float) -> None:
        record.wait_s = waited_s
        record.duration_s = now_s - record.start_s
        self.records.append(record)
        feedback = Feedback(
            request=ticket.request,
            step=ticket.step,
            layer=record.layer,
            duration_s=record.duration_s,
            wait_s=waited_s,
            dense_s=record.dense_s,
        )
        self._framework.observe(feedback)
        self._depth.observe(feedback)

    # --- messages out -------------------------------------------------------------------------------------------------

    def _send_execute(
        self,
        ticket: Ticket,
        layer: int,
        part: str,
        batch: Batch,
        places: Array | None,
        hidden: Array,
        reply_to: str,
        due_s: float,
    ) -> None:
        server, _, number = part.partition(PART)
        size_bytes = len(batch.rows) * self._profile.hidden_bytes
        ticket.sent_bytes += size_bytes if server == reply_to else 2 * size_bytes  # there, and the sum back
        body = Execute(
            request=ticket.request,
            step=ticket.step,
            layer=layer,
            home=ticket.home,
            reply_to=reply_to,
            calls=batch.calls,
            late_s=self._late_s(due_s),
            part=number,
        )
        rows = batch.rows if places is None else places[batch.rows].astype(np.int32)
        arrays = (hidden[batch.rows], rows, batch.index, batch.weights)
        self._send(server, body, arrays, size_bytes)

    def _send_advance(
        self,
        ticket: Ticket,
        record: LayerRecord,
        tokens: Array,
        stream: Array,
        left: Array,
        own_sum: Array,
        target: str,
        parts: dict[str, list[Choice]],
        due_s: float,
    ) -> None:
        # A real server adds its own experts' sum to the residual stream and sends one vector per token.  Ours keeps the
        # two apart while others are missing, or rounding would depend on who computed what; the size is the real one's.
        size_bytes = len(stream) * self._profile.hidden_bytes
        ticket.sent_bytes += size_bytes
        ticket.moves += 1
        late_s = self._late_s(due_s)
        body = Advance(ticket=ticket, layer=record.layer, parts=sorted(parts), record=record, late_s=late_s)
        self._send(target, body, (tokens, stream, own_sum, left), size_bytes)

    def _send(self, target: str, body: Body, arrays: tuple[Array, ...], size_bytes: int) -> None:
        if target == self._server:
            self.receive(self._channel.message(body, arrays, size_bytes))
        else:
            self._channel.send(target, body, arrays, size_bytes)

    def _late_s(self, due_s: float) -> float:
        """By how much something that was due at ``due_s`` leaves late."""
        return max(0.0, self._clock.now_s() - due_s)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _cache(self, ticket: Ticket, layer: int) -> Cache | None:
        """The KV cache of a layer, which stays at the server that aggregated it in the first pass."""
        if ticket.kind == "score":
            return None
        _, caches = self._caches.setdefault(ticket.request, (ticket.deadline_s, {}))
        if layer not in caches:
            caches[layer] = self._twin.new_cache()
        return caches[layer]

    def _spawn(self, work: Coroutine[Any, Any, None], home: str, request: int, step: int) -> None:
        """Run a coroutine of one pass; its failure is that pass's, and no other's."""

        async def guarded() -> None:
            try:
                await work
            except TestbedError as error:
                self._fail(home, request, step, str(error))
            except (Exception, SystemExit) as error:  # a framework of the user's may raise anything
                self._fail(home, request, step, f"{self._framework.name}: {type(error).__name__}: {error}")

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, home: str, request: int, step: int, reason: str) -> None:
        self._send(home, Failed(request=request, step=step, reason=reason), (), 0)


def _copies(placement: Placement) -> frozenset[tuple[int, int, str, str]]:
    """What plans may name: layer, expert, server, precision."""
    return frozenset((copy.layer, copy.expert, copy.server, copy.precision) for copy in placement.replicas)


def _label(server: str, part: str) -> str:
    """How a gather names one part of a layer: by its server, and by a number where that does several."""
    return f"{server}{PART}{part}" if part else server


def _server_of(label: str) -> str:
    return label.partition(PART)[0]


def _each_alone(groups: dict[str, list[Choice]]) -> dict[str, list[Choice]]:
    """A part for every expert, for plans whose messages are not merged."""
    return {
        _label(server, str(number)): [choice]
        for server, choices in groups.items()
        for number, choice in enumerate(choices, start=1)
    }
