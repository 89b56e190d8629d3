r"""The best server for each expert alone.  HetRoute's criticised baseline (b) [reconstruction].

    cost(e, d) = scatter(a, d) + wait_d + load_d + T_cmp(d, e) + gather(d, a)                                     (1)

Each expert takes argmin_d of (1) as if it were the only one: several experts may pick the same server and then wait
for each other, and a token's team is as slow as its slowest member.  Everything is gathered at home.
"""

from __future__ import annotations

from agents.frameworks.base import BaseFramework, Choice, Demand, ExpertDemand, Plan, View, next_server
from agents.protocol import Replica


class Greedy(BaseFramework):
    """Unified cost, minimised expert by expert."""

    name = "greedy"

    def plan(self, demand: Demand, view: View) -> Plan:
        """Equation (1) for every copy of every expert."""

        def cost(entry: ExpertDemand, replica: Replica) -> tuple[float, str]:
            here, there = view.server, replica.server
            state_bytes = entry.tokens * view.profile.hidden_bytes
            load_s = view.load_s(replica)
            if load_s:
                load_s += view.load_backlog_s(there)
            total_s = (
                view.transfer_s(here, there, state_bytes)
                + max(view.backlog_s(there), load_s)
                + view.expert_s(there, replica.precision, entry.tokens)  # alone: with a launch of its own
                + view.transfer_s(there, here, state_bytes)
            )
            return total_s, there

        choices = []
        for entry in demand.experts:
            costs = {replica: cost(entry, replica) for replica in view.replicas(demand.layer, entry.expert)}
            choices.append(Choice.of(min(costs, key=costs.__getitem__)))
        return Plan(choices=tuple(choices), next_server=next_server(demand, view.server))
