"""Leaving wherever the gauge passes the gate, wherever servers are.  After CALM, arXiv:2207.07061.

CALM leaves when a calibrated confidence passes a threshold.  Its own measures of confidence (softmax of the output
projection, similarity of consecutive states, a classifier) cost more than ours or say less, so it gets our gauge and
our gate.  What it lacks is what TrimMoE adds: it does not ask what leaving saves, nor does it adapt its threshold.

Options: ``risk`` (default: 2.5 times the quality budget), ``failure``.  Exits at a risk of one's own are not charged to
the ledger: the row then shows what that risk costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.depth.base import BaseDepth, Mask
from agents.depth.guarantee import calibrate
from agents.depth.trimmoe import FAILURE, RISK_PER_BUDGET
from agents.frameworks.base import View
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats


class Calm(BaseDepth):
    """The gate, and nothing else."""

    name = "calm"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.risk = rest.pop("risk", None)
        self.failure = float(rest.pop("failure", FAILURE))
        super().__init__(rest)
        self.charges_exits = self.risk is None
        self.threshold = 2.0
        self._exits: ExitHeads | None = None

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:  # noqa: ARG002
        """Calibrate the gate."""
        self._exits = exits
        if exits is not None:
            risk = RISK_PER_BUDGET * quality_budget if self.risk is None else float(self.risk)
            self.threshold = calibrate(exits, risk=min(risk, 0.999), failure=self.failure).threshold

    def leaves(self, layer: int, stream: Floats, view: View) -> Mask:  # noqa: ARG002
        """Everybody who is sure enough."""
        exits = self._exits
        if exits is None or layer >= len(exits.maps) or not len(stream):
            return np.zeros(len(stream), dtype=bool)
        left: Mask = exits.confident(layer, stream) >= self.threshold
        return left
