"""Collecting what one layer still waits for: the residual stream and the sums of the expert servers, in any order.

Results may arrive before the message that says they are due.  Sums are integers (``agents.models.twin``), so the order
of arrival does not touch a single bit of the outcome.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from agents.protocol import Array, LayerRecord, Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What the aggregation server of a layer hands to the next one."""

    ticket: Ticket
    record: LayerRecord
    tokens: Array  # (tokens,) int32
    stream: Array  # (rows, width) float32, after attention
    left: Array  # (rows,) int32, or empty (``agents.depth.leaving``)
    total: Array  # (rows, width) int64: the sender's own experts, or zeros
    parts: frozenset[str]  # servers whose sums are due
    ready_s: float
    late_s: float  # by which it left the sender late


@dataclass(slots=True)
class Gather:
    """One layer of one pass at the server that goes on with it."""

    created_s: float
    residual: Residual | None = None
    sums: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # server -> rows, sum
    loaded: int = 0

    def add(self, server: str, rows: Array, total: Array, loaded: int) -> None:
        """A server's sum has arrived; a second one of the same server changes nothing."""
        if server not in self.sums:
            self.sums[server] = (rows, total)
            self.loaded += loaded

    def complete(self) -> bool:
        """Whether everything due is here."""
        return self.residual is not None and self.residual.parts <= self.sums.keys()

    def waits_for(self, servers: Collection[str]) -> str | None:
        """A server of ``servers`` whose sum is due and missing."""
        if self.residual is None:
            return None
        missing = sorted(self.residual.parts - self.sums.keys())
        return next((server for server in missing if server in servers), None)

    def merged(self) -> Array:
        """The layer's sum over all experts: (tokens, width) int64."""
        if self.residual is None:
            raise RuntimeError("merged before the residual stream arrived")
        total = self.residual.total.copy()
        for server in self.residual.parts:
            rows, part = self.sums[server]
            total[rows] += part
        return total
