r"""Each expert's copies in turn.  Sanity baseline [ours].

    copy = copies_e[(p + k_e) mod |copies_e|]                                                                     (1)

    k_e  how often this server has called expert e        p  position of this server in the cluster

Each planning server counts for itself, as routers without a common counter do; p keeps them from all beginning with
the same copy.  Placement is that of ``greedy``, and everything is gathered at home: only the choice differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from agents.frameworks.base import BaseFramework, Choice, Demand, Plan, View, next_server


class RoundRobin(BaseFramework):
    """Equation (1)."""

    name = "round-robin"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._position = 0
        self._calls: Counter[tuple[int, int]] = Counter()  # (layer, expert) -> k

    def begin(self, view: View) -> None:
        """Count from the start."""
        self._position = view.cluster.index(view.server)
        self._calls.clear()

    def plan(self, demand: Demand, view: View) -> Plan:
        """The next living copy of each expert."""
        choices = []
        for entry in demand.experts:
            copies = view.replicas(demand.layer, entry.expert)
            turn = self._position + self._calls[demand.layer, entry.expert]
            if not demand.again:
                self._calls[demand.layer, entry.expert] += 1
            choices.append(Choice.of(copies[turn % len(copies)]))
        return Plan(choices=tuple(choices), next_server=next_server(demand, view.server))
