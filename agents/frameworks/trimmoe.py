r"""Routing along short chains of layers, for TrimMoE without another framework.  TrimMoE, 2608.00573 [reconstruction].

    V(l, a) = w_a + T(l, a) + min_{a'} [ move(a, a') + V(l+1, a') ]        a, a' in the owners of layers l, l+1   (1)
    V(L-1, a, h) = w_a + T(L-1, a) + T_head(a) + delay(a, h)                                                    (2)
    enter: argmin_a delay(h, a) + V(0, a, h)          next: argmin_{a'} move(a, a') + V(l+1, a', h)             (3)

    w_a  wait of jobs at server a      T(l, a)  dense part and needed experts of layer l on a      h  home server

An expert runs on the copy that is nearest in time to where it is needed, this server's own above all.  What makes it
TrimMoE is the policy that comes with the name, ``agents.depth.trimmoe``: it looks at where these copies are before it
decides what to do without.  The placement is ``trimmoe_placement``.  The paper leaves the routing itself open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.cluster import Cluster
from agents.depth.base import MARGIN
from agents.depth.trimmoe import FAILURE, RISK_PER_BUDGET
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Plan, View, next_server
from agents.frameworks.cost import head_s
from agents.frameworks.expected import Floats
from agents.frameworks.trimmoe_placement import Known, place
from agents.models.calibrate import Calibration
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica

#: Emulated seconds between two looks at waits and links.
REFRESH_S = 0.25


class TrimMoeRouting(BaseFramework):
    """Equations (1) to (3)."""

    name = "trimmoe"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._facts: ExpertFacts | None = None
        self._exits: ExitHeads | None = None
        self._budget = 0.0

    def measured(self, facts: ExpertFacts | None, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """What the placement may know of experts and exits, and what may be spent on doing without."""
        self._facts, self._exits, self._budget = facts, exits, quality_budget

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """See ``trimmoe_placement``."""
        known = Known(
            calibration=calibration,
            facts=self._facts,
            exits=self._exits,
            budget=self._budget / MARGIN,
            risk=RISK_PER_BUDGET * self._budget,
            failure=FAILURE,
        )
        return place(cluster, profile, known)

    def begin(self, view: View) -> None:
        """Read the chains from the placement, and time layers on their owners."""
        self._names = list(view.cluster.names)
        positions = {name: position for position, name in enumerate(self._names)}
        chains = view.placement.notes["chains"]
        layers, tokens = view.profile.layers, max(1, round(view.cluster.tokens_per_request))
        self._owners = [sorted({positions[chain[layer]] for chain in chains}) for layer in range(layers)]
        each = max(1, round(tokens * view.profile.top_k / view.profile.experts))
        held: dict[tuple[int, str], int] = {}
        for replica in view.placement.replicas:
            held[replica.layer, replica.server] = held.get((replica.layer, replica.server), 0) + 1
        self._layer_s = np.zeros((layers, len(self._names)))
        for layer, owners in enumerate(self._owners):
            for owner in owners:
                name = self._names[owner]
                experts_s = held.get((layer, name), 0) * view.call_s(name, FULL, each) + view.launch_s(name)
                self._layer_s[layer, owner] = view.dense_s(name, tokens) + experts_s
        self._head_s = np.array([head_s(server.device, view.profile, tokens) for server in view.cluster.servers])
        self._state_bytes = tokens * view.profile.hidden_bytes
        self._looked_s = float("-inf")
        self._look(view)

    def enter(self, arrival: Arrival, view: View) -> str:
        """Equation (3)."""
        self._look(view)
        home = self._names.index(arrival.home)
        value_s = self._value_s(home)
        living = [owner for owner in self._owners[0] if view.alive(self._names[owner])] or self._owners[0]
        return self._names[min(living, key=lambda owner: self._delay_s[home, owner] + value_s[0, owner])]

    def plan(self, demand: Demand, view: View) -> Plan:
        """The nearest copies, and (3)."""
        self._look(view)
        choices = tuple(Choice.of(self._nearest(view, demand.layer, entry.expert)) for entry in demand.experts)
        return Plan(choices=choices, next_server=next_server(demand, self._following(demand, view)))

    def _nearest(self, view: View, layer: int, expert: int) -> Replica:
        here, size = view.server, view.profile.hidden_bytes
        return min(
            view.replicas(layer, expert),
            key=lambda copy: (
                2 * view.transfer_s(here, copy.server, size) + view.load_s(copy) + view.call_s(copy.server, FULL, 1),
                copy,
            ),
        )

    def _following(self, demand: Demand, view: View) -> str:
        layer = demand.layer + 1
        if layer == len(self._owners):
            return view.server
        here, value_s = self._names.index(view.server), self._value_s(self._names.index(demand.home))
        owners = [owner for owner in self._owners[layer] if view.alive(self._names[owner])] or self._owners[layer]
        return self._names[min(owners, key=lambda owner: self._move_s[here, owner] + value_s[layer, owner])]

    def _look(self, view: View) -> None:
        """Take in waits and links, now and then."""
        if view.now_s() < self._looked_s + REFRESH_S:
            return
        self._looked_s = view.now_s()
        names, size = self._names, self._state_bytes
        self._wait_s = np.array([view.wait_s(name) for name in names])
        self._delay_s = np.array([[view.delay_s(a, b) for b in names] for a in names])
        self._move_s = np.array([[view.transfer_s(a, b, size) for b in names] for a in names])
        self._values: dict[int, Floats] = {}

    def _value_s(self, home: int) -> Floats:
        """Equations (1) and (2), (layers, servers); infinite where a layer has no owner."""
        known = self._values.get(home)
        if known is not None:
            return known
        layers = len(self._owners)
        value_s = np.full((layers, len(self._names)), np.inf)
        for layer in range(layers - 1, -1, -1):
            owners = self._owners[layer]
            if layer == layers - 1:
                rest_s = self._head_s[owners] + self._delay_s[owners, home]
            else:
                rest_s = (self._move_s[owners] + value_s[layer + 1]).min(axis=1)
            value_s[layer, owners] = self._wait_s[owners] + self._layer_s[layer, owners] + rest_s
        self._values[home] = value_s
        return value_s
