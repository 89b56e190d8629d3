"""The same layers without experts for everybody: static layer skipping.

    order   layers by what leaving out all of their experts loses on calibration text, least first                (1)
    taken   the first of them whose losses sum up to the budget, or a given share of the layers                   (2)

Nothing is decided online, except that a layer is not skipped where the ledger has no room for what this pass's own
gate weights would cost.  With a share (``skip-layers:0.25``) the ledger is not asked: the row then shows what the same
average depth costs without looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.depth.base import BaseDepth, Cut, Reason, skip_loss
from agents.errors import FrameworkError
from agents.frameworks.base import Demand, Plan, View
from agents.models.exits import ExitHeads


class SkipLayers(BaseDepth):
    """Equations (1) and (2).  Option: ``share`` of the layers, in [0, 1]; default: what the budget allows."""

    name = "skip-layers"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        share = rest.pop("share", None)
        super().__init__(rest)
        self.share = None if share is None else float(share)
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise FrameworkError(f"skip-layers: the share of layers is {self.share:g}; it must be between 0 and 1")
        self.keeps_budget = self.share is None
        self.skipped: frozenset[int] = frozenset()

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:  # noqa: ARG002
        """Choose the layers."""
        facts = view.facts
        if facts is None:
            return
        usage = view.calibration.usage.mean(axis=0)
        layers, experts = usage.shape
        losses = np.array([sum(usage[n, e] * skip_loss(facts, n, e) for e in range(experts)) for n in range(layers)])
        order = np.argsort(losses, kind="stable")
        taken = (
            round(self.share * layers)
            if self.share is not None
            else int((losses[order].cumsum() <= quality_budget).sum())
        )
        self.skipped = frozenset(int(layer) for layer in order[:taken])

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:  # noqa: ARG002
        """All experts of a layer, or none."""
        if demand.layer not in self.skipped:
            return Cut()
        loss = sum(entry.gate_share * skip_loss(view.facts, demand.layer, entry.expert) for entry in demand.experts)
        if self.keeps_budget and demand.quality_spent + loss > demand.quality_budget:
            return Cut(kept={entry.expert: Reason.BUDGET for entry in demand.experts})
        return Cut(skipped={entry.expert: Reason.STATIC for entry in demand.experts})
