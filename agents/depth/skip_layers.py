"""The same layers without experts for everybody: static layer skipping.

    order   layers by what leaving out all of their experts loses on calibration text, least first                (1)
    taken   the first of them whose losses sum up to what precisions leave of the budget, or a given share        (2)

Nothing is decided online, except that a layer is not skipped where the ledger has no room for what this pass's own
gate weights would cost.  With a share (``skip-layers:0.25``) the ledger is not asked: the row then shows what the same
average depth costs without looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.depth.allowance import Allowance, planned_loss
from agents.depth.base import COHERENCE, MARGIN, BaseDepth, Cut, JointLoss, Reason, skip_loss
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
        self._allowance = Allowance()

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:  # noqa: ARG002
        """Choose the layers."""
        facts = view.facts
        if facts is None:
            return
        usage = view.calibration.usage.mean(axis=0)
        layers, experts = usage.shape
        each = [sum(usage[n, e] * skip_loss(facts, n, e) for e in range(experts)) for n in range(layers)]
        losses = MARGIN * (1.0 + COHERENCE * (view.profile.top_k - 1)) * np.array(each)  # ``JointLoss``
        order = np.argsort(losses, kind="stable")
        copies = {replica.precision for replica in view.placement.replicas}
        wanted = max(sum(view.quality_loss(layer, name) for layer in range(layers)) for name in copies)
        within = int((losses[order].cumsum() <= quality_budget - wanted).sum())
        taken = within if self.share is None else round(self.share * layers)
        self.skipped = frozenset(int(layer) for layer in order[:taken])

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
        """All experts of a layer, or none."""
        if demand.layer not in self.skipped:
            return Cut()
        joint = JointLoss(view.facts, demand.layer)
        for entry in demand.experts:
            joint.add(entry)
        loss = joint.total - sum(planned_loss(demand, plan, view).values())
        if self.keeps_budget and loss > self._allowance.of(demand, plan, view):
            return Cut(kept={entry.expert: Reason.BUDGET for entry in demand.experts})
        return Cut(skipped={entry.expert: Reason.STATIC for entry in demand.experts})
