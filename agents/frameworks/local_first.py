"""The home server first: what most deployments do without thinking about routing.  Baseline.

Everything is gathered at home.  An expert runs from the home server's own copy, even if it must be loaded first; where
home holds none, the copy with the smallest round trip is called.
"""

from __future__ import annotations

from agents.frameworks.base import BaseFramework, Choice, Demand, Plan, View, next_server
from agents.protocol import Replica


class LocalFirst(BaseFramework):
    """Home's copy, else the nearest."""

    name = "local-first"

    def plan(self, demand: Demand, view: View) -> Plan:
        """Choose by distance alone."""

        def distance(replica: Replica) -> tuple[float, bool, str]:
            there = view.delay_s(view.server, replica.server) + view.delay_s(replica.server, view.server)
            return there, not replica.fast, replica.server

        choices = tuple(
            Choice.of(min(view.replicas(demand.layer, entry.expert), key=distance)) for entry in demand.experts
        )
        return Plan(choices=choices, next_server=next_server(demand, view.server))
