"""What a layer's cuts may spend: the budget, without what precisions have spent and will.

    allowance = budget - spent - now - later                                                                     (1)

    now     loss of this layer's choices as planned        later   the same precision in all layers after this one

Without ``later`` a policy would spend first what the framework's precisions need afterwards, and drive passes to
full-precision copies far away.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.frameworks.base import Choice, Demand, ExpertDemand, Plan, View
from agents.models.quantize import FULL


class Allowance:
    """Equation (1) on one server; what a precision costs later is added up once."""

    def __init__(self) -> None:
        self._reserve: dict[str, list[float]] = {}

    def of(self, demand: Demand, plan: Plan, view: View) -> float:
        """Equation (1); below 0 when there is nothing to spend."""
        now = sum(planned_loss(demand, plan, view).values())
        later = max((self._later(view, choice.precision)[demand.layer] for choice in plan.choices), default=0.0)
        return demand.quality_budget - demand.quality_spent - now - later

    def _later(self, view: View, precision: str) -> list[float]:
        """What a precision costs in all layers after each."""
        known = self._reserve.get(precision)
        if known is None:
            layers = view.profile.layers
            losses = [view.quality_loss(layer, precision) for layer in range(layers)] if precision != FULL else []
            known = self._reserve[precision] = [sum(losses[layer + 1 :]) for layer in range(layers)]
        return known


def planned_loss(demand: Demand, plan: Plan, view: View) -> Mapping[int, float]:
    """Expert -> what the ledger would be charged for its choice as planned."""
    return {choice.expert: entry.gate_share * view.loss(demand.layer, choice) for entry, choice in paired(demand, plan)}


def paired(demand: Demand, plan: Plan) -> list[tuple[ExpertDemand, Choice]]:
    """Every choice with what it is for."""
    entries = {entry.expert: entry for entry in demand.experts}
    return [(entries[choice.expert], choice) for choice in plan.choices]
