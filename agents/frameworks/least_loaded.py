r"""The less busy of two copies drawn at random.  Mitzenmacher, The Power of Two Choices, IEEE TPDS 12(10), 2001.

    c_1, c_2 ~ copies of e that are alive, without replacement;      copy = argmin_{c_1, c_2} w(c)                (1)
    w(c) = device backlog of c's server;  at least its load backlog if c must be loaded                        (2)

Two draws instead of all copies, because a backlog is known from gossip only: who always takes the least busy copy
sends everybody to the same server until the next news.  Ties go to c_1, which is random.  At the default redundancy
experts have about two copies, so (1) mostly compares all there are.

Placement is that of ``greedy``, and everything is gathered at home: only the choice differs.  Distance counts for
nothing.  Option ``seed`` changes the draws (``draws``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.frameworks.base import BaseFramework, Choice, Demand, Plan, View, next_server
from agents.frameworks.draws import draw
from agents.protocol import Replica

CHOICES = 2


class LeastLoaded(BaseFramework):
    """Equations (1) and (2)."""

    name = "least-loaded"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.seed = int(rest.pop("seed", 0))
        super().__init__(rest)

    def plan(self, demand: Demand, view: View) -> Plan:
        """Two draws and one comparison per expert, in order."""
        chance = draw(
            self.name, seed=self.seed, run=view.seed, request=demand.request, step=demand.step, layer=demand.layer
        )

        def waiting_s(copy: Replica) -> float:
            busy_s = view.backlog_s(copy.server)
            return max(busy_s, view.load_backlog_s(copy.server)) if view.load_s(copy) else busy_s

        choices = []
        for entry in demand.experts:
            copies = view.replicas(demand.layer, entry.expert)
            drawn = chance.sample(copies, min(CHOICES, len(copies)))
            choices.append(Choice.of(min(drawn, key=waiting_s)))
        return Plan(choices=tuple(choices), next_server=next_server(demand, view.server))
