"""What a layer's cuts may spend: the budget, without what precisions have spent and will.

    allowance = budget - spent - now - later                                                                     (1)

    now     loss of this layer's choices as planned
    later   if these are of a lower precision: every layer after this one in the worst precision that it has copies in

Without ``later`` a policy would spend first what the framework's precisions need afterwards, and drive passes to
full-precision copies far away.  Layers differ: a placement may blend precisions.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.frameworks.base import Choice, Demand, ExpertDemand, Plan, View
from agents.models.quantize import FULL
from agents.protocol import Placement


class Allowance:
    """Equation (1) on one server; what a precision costs later is added up once."""

    def __init__(self) -> None:
        self._placement: Placement | None = None
        self._reserve: list[float] = []

    def of(self, demand: Demand, plan: Plan, view: View) -> float:
        """Equation (1); below 0 when there is nothing to spend."""
        now = sum(planned_loss(demand, plan, view).values())
        lower = any(choice.precision != FULL for choice in plan.choices)
        later = self._later(view)[demand.layer] if lower else 0.0
        return demand.quality_budget - demand.quality_spent - now - later

    def _later(self, view: View) -> list[float]:
        """By layer: what all layers after it cost in the worst precision that each has copies in."""
        if self._placement is not view.placement:
            self._placement = view.placement
            worst = view.worst_losses()
            self._reserve = [sum(worst[layer + 1 :]) for layer in range(view.profile.layers)]
        return self._reserve


def planned_loss(demand: Demand, plan: Plan, view: View) -> Mapping[int, float]:
    """Expert -> what the ledger would be charged for its choice as planned."""
    return {choice.expert: entry.gate_share * view.loss(demand.layer, choice) for entry, choice in paired(demand, plan)}


def paired(demand: Demand, plan: Plan) -> list[tuple[ExpertDemand, Choice]]:
    """Every choice with what it is for."""
    entries = {entry.expert: entry for entry in demand.experts}
    return [(entries[choice.expert], choice) for choice in plan.choices]
