"""From gate decisions to a demand, from a plan to work per server: the arithmetic-free middle of a layer.

>>> import numpy as np
>>> chosen, weights = np.array([[0, 2], [2, 1]], np.int16), np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)
>>> routed = Routed.of(Gate(hidden=np.zeros((2, 64), np.float32), experts=chosen, weights=weights), experts=4)
>>> [(entry.expert, bin(entry.rows), entry.gate_share) for entry in routed.demands]
[(0, '0b1', 0.375), (1, '0b10', 0.25), (2, '0b11', 0.375)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Demand, ExpertDemand, Plan
from agents.models.twin import Gate
from agents.protocol import Array, ExpertCall


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
    masks: Array  # (experts, tokens) bool

    @classmethod
    def of(cls, gate: Gate, *, experts: int) -> Routed:
        """Sort the gate's decisions by expert; within an expert, tokens keep their order."""
        shares = np.bincount(gate.experts.ravel(), gate.weights.ravel(), minlength=experts)
        shares = (shares / (shares.sum() or 1.0)).tolist()
        masks = np.zeros((experts, len(gate.hidden)), dtype=bool)
        assignments = gate.assignments()
        for part in assignments:
            masks[part.expert, part.tokens] = True
        packed = np.packbits(masks, axis=1, bitorder="little")
        demands = tuple(
            ExpertDemand(
                expert=part.expert,
                rows=int.from_bytes(packed[part.expert].tobytes(), "little"),
                tokens=len(part.tokens),
                gate_share=shares[part.expert],
            )
            for part in assignments
        )
        return cls(
            demands=demands,
            lines={part.expert: part.tokens for part in assignments},
            weights={part.expert: part.weights for part in assignments},
            masks=masks,
        )

    def batch(self, choices: Sequence[Choice]) -> Batch:
        """The work of one server under these choices; each token's hidden state stands in it once."""
        sent = self.masks[[choice.expert for choice in choices]].any(axis=0)
        line_of = np.cumsum(sent, dtype=np.int32) - 1  # token -> its line in the matrix of tokens sent
        calls = [
            ExpertCall(expert=choice.expert, precision=choice.precision, rows=len(self.lines[choice.expert]))
            for choice in choices
        ]
        index = line_of[np.concatenate([self.lines[choice.expert] for choice in choices])]
        weights = np.concatenate([self.weights[choice.expert] for choice in choices])
        return Batch(calls=calls, rows=np.flatnonzero(sent).astype(np.int32), index=index, weights=weights)


def by_server(choices: Iterable[Choice]) -> dict[str, list[Choice]]:
    """Choices grouped by server, servers and experts in ascending order."""
    groups: dict[str, list[Choice]] = {}
    for choice in sorted(choices, key=lambda choice: (choice.server, choice.expert)):
        groups.setdefault(choice.server, []).append(choice)
    return groups


def check_plan(
    plan: Plan, demand: Demand, replicas: frozenset[tuple[int, int, str, str]], servers: Sequence[str], framework: str
) -> None:
    """FrameworkError when a plan leaves an expert out, repeats one, or names a copy or server that does not exist.

    ``replicas`` holds (layer, expert, server, precision).
    """
    where = f"{framework}, layer {demand.layer}"
    if not isinstance(plan, Plan):
        raise FrameworkError(f"{where}: plan() returned {type(plan).__name__}, not a Plan")
    planned = sorted(choice.expert for choice in plan.choices)
    demanded = [entry.expert for entry in demand.experts]
    if planned != demanded:
        raise FrameworkError(f"{where}: the plan has experts {planned}, the gate chose {demanded}")
    for choice in plan.choices:
        if (demand.layer, choice.expert, choice.server, choice.precision) not in replicas:
            raise FrameworkError(f"{where}: {choice.server} holds no {choice.precision} copy of expert {choice.expert}")
    if plan.next_server not in servers:
        raise FrameworkError(f"{where}: the next server {plan.next_server!r} does not exist")
    if demand.next_server is not None and plan.next_server != demand.next_server:
        raise FrameworkError(f"{where}: the next server is fixed to {demand.next_server}, not {plan.next_server}")
