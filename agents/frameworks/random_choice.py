r"""A copy at random for every expert.  Sanity baseline [ours].

    P(copy c of expert e) = 1 / |copies of e that are alive|                                                      (1)

Placement is that of ``greedy``, and everything is gathered at home: only the choice differs.  Option ``seed`` changes
the draws (``draws``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.frameworks.base import BaseFramework, Choice, Demand, Plan, View, next_server
from agents.frameworks.draws import draw


class RandomChoice(BaseFramework):
    """Equation (1)."""

    name = "random"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.seed = int(rest.pop("seed", 0))
        super().__init__(rest)

    def plan(self, demand: Demand, view: View) -> Plan:
        """One draw per expert, in order."""
        chance = draw(
            self.name, seed=self.seed, run=view.seed, request=demand.request, step=demand.step, layer=demand.layer
        )
        choices = tuple(Choice.of(chance.choice(view.replicas(demand.layer, e.expert))) for e in demand.experts)
        return Plan(choices=choices, next_server=next_server(demand, view.server))
