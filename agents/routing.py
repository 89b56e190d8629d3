"""From gate decisions to a demand, from a plan to work per server: the arithmetic-free middle of a layer.

>>> import numpy as np
>>> chosen, weights = np.array([[0, 2], [2, 1]], np.int16), np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)
>>> routed = Routed.of(Gate(hidden=np.zeros((2, 64), np.float32), experts=chosen, weights=weights), experts=4)
>>> [(entry.expert, bin(entry.rows), entry.gate_share) for entry in routed.demands]
[(0, '0b1', 0.375), (1, '0b10', 0.25), (2, '0b11', 0.375)]

Twins decide anew each time.  A replay gives the same gate again for the same tokens; such a gate has a ``memo``, and
what is derived from it is derived once.  Nobody changes a ``Routed`` or a ``Batch``, so both may be shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Demand, ExpertDemand, Plan
from agents.models.mixture import Gate
from agents.protocol import MAX_NOTES_BYTES, Array, ExpertCall

#: Batches kept for one repeated gate.  A framework splits a layer in few ways; the bound only guards memory.
BATCHES_KEPT = 16

#: Copies that one plan may name to be loaded ahead: twice the experts of the widest layer among the models here.
MAX_AHEAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Expert calls of one server: which lines of a hidden-state matrix each call takes, and with which gate weights."""

    calls: list[ExpertCall]
    rows: Array  # (tokens sent,) int32: positions in the pass, ascending
    index: Array  # (sum of call rows,) int32: lines of the matrix of those tokens
    weights: Array  # (sum of call rows,) float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The gate's decisions of one layer, sorted by expert."""

    demands: tuple[ExpertDemand, ...]
    lines: dict[int, Array]  # expert -> tokens that chose it, ascending
    weights: dict[int, Array]  # expert -> their gate weights
    order: Array  # tokens as ``lines`` has them, expert after expert
    ordered_weights: Array  # the same for ``weights``
    tokens: int
    batches: dict[tuple[tuple[int, int, str], ...], Batch] | None = None  # of a gate that comes again

    @classmethod
    def of(cls, gate: Gate, *, experts: int) -> Routed:
        """Sort the gate's decisions by expert; within an expert, tokens keep their order."""
        if gate.memo is None:
            return cls._sorted(gate, experts, None)
        found: Routed | None = gate.memo.get(experts)
        if found is None:
            found = gate.memo[experts] = cls._sorted(gate, experts, {})
        return found

    def batch(self, choices: Sequence[Choice]) -> Batch:
        """The work of one server under these choices; each token's hidden state stands in it once."""
        if self.batches is None:
            return self._batch(choices)
        key = tuple([(choice.expert, choice.runs, choice.precision) for choice in choices])
        found = self.batches.get(key)
        if found is None:
            if len(self.batches) >= BATCHES_KEPT:
                self.batches.clear()
            found = self.batches[key] = self._batch(choices)
        return found

    @classmethod
    def _sorted(cls, gate: Gate, experts: int, batches: dict[tuple[tuple[int, int, str], ...], Batch] | None) -> Routed:
        tokens, top_k = gate.experts.shape
        chosen, chosen_weights = gate.experts.ravel(), gate.weights.ravel()
        order = chosen.argsort(kind="stable")
        lines, weights = (order // top_k).astype(np.int32), chosen_weights[order]
        shares = np.bincount(chosen, chosen_weights, minlength=experts)
        shares = (shares / (shares.sum() or 1.0)).tolist()
        places = lines.tolist()
        demands, lines_of, weights_of, start = [], {}, {}, 0
        # Plain loops: this runs for every layer of every pass, and a call of numpy costs more than some additions.
        for expert, end in enumerate(np.bincount(chosen, minlength=experts).cumsum().tolist()):
            if end > start:
                rows = 0
                for place in places[start:end]:
                    rows |= 1 << place
                demands.append(ExpertDemand(expert=expert, rows=rows, tokens=end - start, gate_share=shares[expert]))
                lines_of[expert], weights_of[expert] = lines[start:end], weights[start:end]
                start = end
        return cls(
            demands=tuple(demands),
            lines=lines_of,
            weights=weights_of,
            order=lines,
            ordered_weights=weights,
            tokens=tokens,
            batches=batches,
        )

    def _batch(self, choices: Sequence[Choice]) -> Batch:
        calls = [
            ExpertCall(expert=choice.runs, precision=choice.precision, rows=len(self.lines[choice.expert]))
            for choice in choices
        ]
        if len(choices) == 1:  # the usual case where experts are spread widely: nothing to merge
            expert = choices[0].expert
            every = np.arange(calls[0].rows, dtype=np.int32)
            return Batch(calls=calls, rows=self.lines[expert], index=every, weights=self.weights[expert])
        if len(choices) == len(self.demands) and all(map(_is_of, choices, self.demands)):
            # The usual case of whole layers: every token is sent, and everything is in order already.
            every = np.arange(self.tokens, dtype=np.int32)
            return Batch(calls=calls, rows=every, index=self.order, weights=self.ordered_weights)
        lines = np.concatenate([self.lines[choice.expert] for choice in choices])
        sent = np.zeros(self.tokens, dtype=bool)
        sent[lines] = True
        line_of = np.cumsum(sent, dtype=np.int32) - 1  # token -> its line in the matrix of tokens sent
        weights = np.concatenate([self.weights[choice.expert] for choice in choices])
        return Batch(calls=calls, rows=np.flatnonzero(sent).astype(np.int32), index=line_of[lines], weights=weights)


def _is_of(choice: Choice, demand: ExpertDemand) -> bool:
    return choice.expert == demand.expert


def by_server(choices: Iterable[Choice]) -> dict[str, list[Choice]]:
    """Choices grouped by server, servers and experts in ascending order."""
    groups: dict[str, list[Choice]] = {}
    for choice in sorted(choices, key=lambda choice: (choice.server, choice.expert)):
        groups.setdefault(choice.server, []).append(choice)
    return groups


def check_notes(notes: bytes | None, framework: str, *, what: str = "notes") -> None:
    """FrameworkError for notes (or ``what`` they are) that are no plain bytes, or more of them than may be sent."""
    if notes is not None and not (type(notes) is bytes and len(notes) <= MAX_NOTES_BYTES):
        size = f"{len(notes)} bytes" if type(notes) is bytes else type(notes).__name__
        raise FrameworkError(f"{framework}: {what} are at most {MAX_NOTES_BYTES} bytes, not {size}")


def check_plan(
    plan: Plan, demand: Demand, replicas: frozenset[tuple[int, int, str, str]], servers: Sequence[str], framework: str
) -> None:
    """FrameworkError when a plan leaves an expert out, repeats one, or names a copy or server that does not exist.

    Notes and loads ahead are bounded too.  ``replicas`` holds (layer, expert, server, precision).
    """
    where = f"{framework}, layer {demand.layer}"
    if not isinstance(plan, Plan):
        raise FrameworkError(f"{where}: plan() returned {type(plan).__name__}, not a Plan")
    planned = sorted(choice.expert for choice in plan.choices)
    demanded = [entry.expert for entry in demand.experts]
    if planned != demanded:
        raise FrameworkError(f"{where}: the plan has experts {planned}, the gate chose {demanded}")
    for choice in plan.choices:
        if (demand.layer, choice.runs, choice.server, choice.precision) not in replicas:
            raise FrameworkError(f"{where}: {choice.server} holds no {choice.precision} copy of expert {choice.runs}")
    check_notes(plan.notes, where)
    if len(plan.prefetch) > MAX_AHEAD:
        raise FrameworkError(f"{where}: a plan loads at most {MAX_AHEAD} copies ahead, not {len(plan.prefetch)}")
    if plan.next_server not in servers:
        raise FrameworkError(f"{where}: the next server {plan.next_server!r} does not exist")
    if demand.next_server is not None and plan.next_server != demand.next_server:
        raise FrameworkError(f"{where}: the next server is fixed to {demand.next_server}, not {plan.next_server}")
