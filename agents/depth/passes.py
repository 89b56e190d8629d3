"""The depth decisions of the passes on one server: what the engine asks between planning and computing.

Without a policy nothing is asked, and a pass flows as if this did not exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.depth.apply import EXIT, Planner, Trimmed, trimmed
from agents.depth.base import DepthPolicy, Mask, Reason
from agents.depth.exitledger import ExitLedger, afforded
from agents.depth.leaving import (
    NOBODY,
    Parked,
    States,
    all_gone,
    carried,
    dense_tokens,
    gauge_s,
    gone,
    heads_s,
    joined,
    staying,
)
from agents.errors import FrameworkError
from agents.frameworks.base import Demand, Feedback, Plan, View
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats
from agents.protocol import Array, LayerRecord, Ticket
from testbed.topology import Device

__all__ = ["NOBODY", "Depth", "all_gone", "staying"]


class Depth:
    """One server's depth policy and what it leaves behind between passes."""

    def __init__(
        self,
        *,
        policy: DepthPolicy | None,
        exits: ExitHeads | None,
        view: View,
        device: Device,
        quality_budget: float,
    ) -> None:
        """Begins the policy.  ``exits``: heads of models for which they were fitted."""
        self.policy = policy
        self._exits = exits
        self._view = view
        self._device = device
        self._profile = view.profile
        self._parked = Parked()
        self._ledger = ExitLedger(view, quality_budget) if policy is not None else None
        if policy is not None:
            policy.begin(view, exits, quality_budget=quality_budget)

    def trimmed(self, demand: Demand, plan: Plan, replan: Planner) -> Trimmed:
        """What runs of a planned layer."""
        if self.policy is None:
            return Trimmed(demand=demand, plan=plan, cut_loss=0.0, decisions={})
        return trimmed(self.policy, demand, plan, self._view, replan)

    def check(self, found: Trimmed, *, spent: float, budget: float, layer: int) -> None:
        """FrameworkError if cuts have broken the policy's promise."""
        if self.policy is not None and self.policy.keeps_budget and found.cuts and not spent <= budget:
            raise FrameworkError(
                f"depth policy {self.policy.name} promises to keep the quality budget of {budget:g}, "
                f"but would have spent {spent:g} after layer {layer}"
            )

    def leave(self, ticket: Ticket, record: LayerRecord, tokens: int, stream: Floats, left: Array) -> Array:
        """``left`` after a layer whose results are all in ``stream``; charges the ledger for those who leave now.

        ``tokens`` are the pass's own.
        """
        layer = record.layer
        if self.policy is None:
            return left
        rows = staying(left)
        leaves = np.array(self.policy.leaves(layer, stream if rows is None else stream[rows], self._view))
        wanted = len(stream) if rows is None else len(rows)
        if leaves.shape != (wanted,) or leaves.dtype != np.bool_:
            raise FrameworkError(
                f"depth policy {self.policy.name}, layer {layer}: leaves() must give {wanted} truth values, "
                f"not {leaves.dtype} of shape {leaves.shape}"
            )
        if leaves.any():
            leaves = self._charged(ticket, record, tokens, leaves, stream if rows is None else stream[rows])
        record.exited_tokens = int(leaves.sum())
        return gone(left, rows, leaves, layer)

    def _charged(self, ticket: Ticket, record: LayerRecord, tokens: int, leaves: Mask, stream: Floats) -> Mask:
        """``leaves`` without those for whom the ledger has no room."""
        if self._exits is None or self._ledger is None or self.policy is None or not self.policy.charges_exits:
            return leaves
        wanting = np.flatnonzero(leaves)
        sure = self._exits.confident(record.layer, stream[wanting])
        fits, loss = afforded(sure, tokens=tokens, room=self._ledger.room(record.layer, ticket.quality_spent))
        leaves[wanting[~fits]] = False
        ticket.quality_spent += loss
        record.quality_spent = ticket.quality_spent
        return leaves

    def join(self, ticket: Ticket, layer: int, stream: Floats, left: Array) -> States:
        """A pass takes along what waits here after ``layer``."""
        if self.policy is None or ticket.step == 0:
            return stream, left
        return joined(stream, left, self._parked.take(ticket.request, layer))

    def park(self, ticket: Ticket, layer: int, stream: Floats, left: Array) -> None:
        """A pass ends early; its states wait for the next one, if there can be one."""
        if ticket.kind == "generate":
            self._parked.put(ticket.request, layer, (stream, left), ticket.deadline_s)

    def final(self, stream: Floats, left: Array) -> Floats:
        """What the output projection sees."""
        return carried(stream, left, self._exits)

    def dense_s(self, server: str, batch: Sequence[tuple[int, Array]]) -> float:
        """Time of a layer's dense part for the rows of some passes, and who of each has left, in one batch.

        On the idle device, as on its data sheet.
        """
        tokens = staying_rows = 0
        for rows, left in batch:
            stays = rows if not len(left) else int((left < 0).sum())
            tokens += dense_tokens(self._profile, stays, rows - stays)
            staying_rows += stays
        time_s = self._view.nominal.dense_s(server, tokens)
        if self.policy is not None and self._exits is not None:
            time_s += gauge_s(self._device, self._profile, self._exits, staying_rows)
        return time_s

    def heads_s(self, left: Array) -> float:
        """Time of the exit heads of some rows, beside the output projection."""
        return heads_s(self._device, self._profile, left) if len(left) else 0.0

    def decide(self, record: LayerRecord, found: Trimmed, rows: int, left: Array) -> None:
        """Write down what was decided about a layer's calls, and why."""
        if self.policy is None:
            return
        record.decisions = dict(found.decisions)
        if len(left):
            missing = int((left >= 0).sum())
            if missing:
                record.decisions[f"{EXIT}/{Reason.SURE}"] = missing * self._profile.top_k
        record.frozen_tokens = 0 if not len(left) else int((left >= 0).sum())
        record.tokens = rows - record.frozen_tokens

    def observe(self, feedback: Feedback) -> None:
        """Let the policy learn."""
        if self.policy is not None:
            self.policy.observe(feedback)

    def forget(self, now_s: float) -> None:
        """Drop what belongs to requests that have ended elsewhere."""
        self._parked.forget(now_s)
