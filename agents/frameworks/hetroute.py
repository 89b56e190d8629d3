r"""Routing whole expert sets over unequal servers.  HetRoute, arXiv 2608.00577 [reconstruction].

    T_tx   = bytes / B_sd + delay_sd            there and back; a token's state goes to a server once
    T_load = [slow] size(e, p) / B_load(d)
    T_cmp  = backlog_d + roofline (``agents.frameworks.cost``)
    cost   = max over servers of the team + λ sum_e g_e loss(e, p) + V        (``hetroute_search``, (2))

Offline: ``hetroute_placement``..  Online, per layer: copies that are alive, whose device is not over the stability
limit, and that the quality budget allows; the cheapest team of them and the next aggregation server, with V of
``hetroute_outlook`` as look-ahead. Where nothing is left, the full-precision copies with the load limit relaxed;
the quality budget never is.

    allowance_l = (budget - spent) · loss_l / sum_{k >= l} loss_k        what layer l may spend

Ours: look-ahead to the end of the request (``look_ahead="layer"`` is the paper's), entry at the cheapest server
instead of at home, rationing of the budget over layers, and slow beliefs about distant queues
(``hetroute_beliefs``); the backlog of the moment counts only for this server's own device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Feedback, Plan, View
from agents.frameworks.expected import Floats
from agents.frameworks.hetroute_beliefs import Beliefs
from agents.frameworks.hetroute_placement import place
from agents.frameworks.hetroute_search import CostTerms, Need, Option, Search, Team
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica

#: Beyond this backlog a server takes no more experts, if there is another way.
BACKLOG_LIMIT_S = 1.0
#: What leaving the pipeline that a request is in must gain: waits elsewhere are guesses, and everybody who sees the
#: same backlog would leave at once.
DETOUR_S = 0.050
#: Added to the wait of every other server: its queue is known from gossip only, and a result that is late delays the
#: whole team.
RISK_S = 0.003
#: Seconds of latency that a relative NLL increase of 1 is worth: 2 % cost as much as 40 ms.
LOSS_PRICE_S = 2.0
#: Seconds that a gigabyte on links is worth: a layer of 37 tokens sent away and back costs 0.6 ms.
PRICE_S_PER_GB = 1.0
#: Bounds and inertia of the weight that measured layers put on predicted remote time.
LEAST_WEIGHT, MOST_WEIGHT = 0.5, 2.0
FEEDBACK_SMOOTHING = 0.05
REMEMBERED_PREDICTIONS = 1024
#: Next aggregation servers that are tried per layer.
FOLLOWING = 3
LOOK_AHEADS = ("request", "layer", "none")

#: The placement's sets of servers are 64-bit integers.
MOST_SERVERS = 62


class HetRoute(BaseFramework):
    """Set-level routing with look-ahead, precision and residency.

    Options: ``precisions`` (lower ones that copies may have), ``set_level`` (false: each expert for itself),
    ``look_ahead`` (request, layer or none), ``residency`` (false: as the pipelines left it), and ``price_s_per_gb``,
    ``loss_price_s``, ``detour_s``, ``risk_s``, ``backlog_limit_s`` as the constants above.
    """

    name = "hetroute"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        precisions = rest.pop("precisions", ("int8", "int4"))
        self.precisions: tuple[str, ...] = (precisions,) if isinstance(precisions, str) else tuple(precisions)
        self.set_level = bool(rest.pop("set_level", True))
        self.look_ahead = str(rest.pop("look_ahead", "request"))
        self.residency = bool(rest.pop("residency", True))
        self.price_s_per_byte = float(rest.pop("price_s_per_gb", PRICE_S_PER_GB)) / 1e9
        self.loss_price_s = float(rest.pop("loss_price_s", LOSS_PRICE_S))
        self.detour_s = float(rest.pop("detour_s", DETOUR_S))
        self.risk_s = float(rest.pop("risk_s", RISK_S))
        self.backlog_limit_s = float(rest.pop("backlog_limit_s", BACKLOG_LIMIT_S))
        super().__init__(rest)
        if self.look_ahead not in LOOK_AHEADS:
            raise FrameworkError(f"hetroute's look_ahead is one of {', '.join(LOOK_AHEADS)}, not {self.look_ahead!r}")
        self.terms: CostTerms | None = None  # of the latest plan
        self._predicted: dict[tuple[int, int, int], float] = {}

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """See ``hetroute_placement``.  FrameworkError for more servers than its tables are made for."""
        if len(cluster.servers) > MOST_SERVERS:
            raise FrameworkError(
                f"hetroute keeps tables over all pairs of servers, and a set of servers in one integer: it takes up to "
                f"{MOST_SERVERS} servers, not {len(cluster.servers)}"
            )
        for precision in self.precisions:
            if precision not in profile.expert_bytes:
                raise FrameworkError(
                    f"hetroute cannot use precision {precision!r}; {profile.name} has {', '.join(profile.expert_bytes)}"
                )
        return place(
            cluster,
            profile,
            calibration,
            precisions=[precision for precision in self.precisions if precision != FULL],
            price_s_per_byte=self.price_s_per_byte,
            penalty_s=self._penalties(profile, calibration),
            residency=self.residency,
        )

    def begin(self, view: View) -> None:
        """Index the copies and form first beliefs."""
        self._position = {name: position for position, name in enumerate(view.cluster.names)}
        self._names = view.cluster.names
        self._here = self._position[view.server]
        self._state_bytes = view.profile.hidden_bytes
        self._copies: dict[tuple[int, int], list[tuple[Replica, int, float, float]]] = {}
        for replica in sorted(view.placement.replicas):
            loss = view.quality_loss(replica.layer, replica.precision)
            self._copies.setdefault((replica.layer, replica.expert), []).append(
                (replica, self._position[replica.server], view.load_s(replica), loss)
            )
        used = {replica.precision for replica in view.placement.replicas}
        layers = range(view.profile.layers)
        self._lossiest = [max((view.quality_loss(layer, name) for name in used), default=0.0) for layer in layers]
        self._loss_left = [sum(self._lossiest[layer:]) for layer in layers]
        self._compute_s: dict[tuple[int, str], list[float]] = {}
        self._beliefs = Beliefs(
            view,
            price_s_per_byte=self.price_s_per_byte,
            penalty_s=self._penalties(view.profile, view.calibration),
            detour_s=self.detour_s,
            one_layer=self.look_ahead == "layer",
        )
        self._beliefs.refresh(view)

    def enter(self, arrival: Arrival, view: View) -> str:
        """The server from which the whole request is expected to be done first; home without look-ahead."""
        if self.look_ahead != "request":
            return arrival.home
        self._beliefs.refresh(view)
        return self._names[self._beliefs.first_server(self._position[arrival.home], view.now_s())]

    def plan(self, demand: Demand, view: View) -> Plan:
        """The cheapest team and next aggregation server; see ``hetroute_search``."""
        self._beliefs.refresh(view)
        allowance = self._allowance(demand)
        limited, relaxed = self._needs(demand, view)
        team = None
        for needs in (limited, relaxed):
            search = self._search(demand, view, allowance, needs)
            team = self._choose(search) if all(need.options for need in needs) else None
            if team is not None:
                break
        if team is None:
            raise FrameworkError(
                f"hetroute has no copy of an expert of layer {demand.layer} that is alive and within the quality budget"
            )
        self.terms = search.terms(team)
        self._predict(demand, team)
        choices = tuple(
            Choice(
                expert=need.expert,
                server=self._names[option.server],
                precision=option.precision,
                fallback=option not in need.options,
            )
            for need, option in zip(limited, team.options, strict=True)
        )
        return Plan(choices=choices, next_server=self._names[team.following])

    def observe(self, feedback: Feedback) -> None:
        """Weigh predictions of remote time by what layers lately took against what was predicted."""
        predicted_s = self._predicted.pop((feedback.request, feedback.step, feedback.layer), 0.0)
        if predicted_s > 0:
            ratio = min(MOST_WEIGHT, max(LEAST_WEIGHT, feedback.wait_s / predicted_s))
            self._beliefs.weight += FEEDBACK_SMOOTHING * (ratio - self._beliefs.weight)

    # --- one layer --------------------------------------------------------------------------------------------------

    def _allowance(self, demand: Demand) -> float:
        left = max(0.0, demand.quality_budget - demand.quality_spent)
        rest = self._loss_left[demand.layer]
        # Everything fits: no rationing.  Otherwise this layer's share by what it could lose.
        return left if rest <= left else left * self._lossiest[demand.layer] / rest

    def _needs(self, demand: Demand, view: View) -> tuple[list[Need], list[Need]]:
        """Every expert with the copies that may be used, and with those that may be used where that leaves nothing."""
        limited, relaxed = [], []
        wait_s, alive = self._beliefs.wait_s, self._beliefs.alive
        here_s = view.backlog_s(view.server)
        for entry in demand.experts:
            within, every, full = [], [], []
            for replica, position, load_s, loss in self._copies.get((demand.layer, entry.expert), ()):
                if alive[position]:
                    compute_s = self._expert_s(view, position, replica.precision, entry.tokens)
                    option = Option(position, replica.precision, compute_s, load_s, entry.gate_share * loss)
                    every.append(option)
                    if replica.precision == FULL:
                        full.append(option)
                    if (here_s if position == self._here else wait_s[position]) <= self.backlog_limit_s:
                        within.append(option)
            limited.append(Need(entry.expert, entry.rows, tuple(within)))
            # The guarantee with the load limit relaxed; whatever lives where not even that is left.
            relaxed.append(Need(entry.expert, entry.rows, tuple(dict.fromkeys([*within, *(full or every)]))))
        return limited, relaxed

    def _search(self, demand: Demand, view: View, allowance: float, needs: list[Need]) -> Search:
        beliefs = self._beliefs
        wait_s = [wait_s + self.risk_s for wait_s in beliefs.wait_s]
        wait_s[self._here] = view.backlog_s(view.server)
        return Search(
            here=self._here,
            needs=needs,
            tokens=demand.tokens,
            state_bytes=self._state_bytes,
            wait_s=wait_s,
            load_wait_s=beliefs.load_wait_s,
            delay_s=beliefs.delay_s,
            s_per_byte=beliefs.s_per_byte,
            ahead=self._ahead(demand),
            price_s_per_byte=self.price_s_per_byte,
            loss_price_s=self.loss_price_s,
            allowance=allowance,
        )

    def _choose(self, search: Search) -> Team | None:
        if not search.needs:
            following, ahead_s = search.ahead[0]
            return Team(options=(), following=following, cost_s=ahead_s)
        if self.set_level:
            return search.best()
        team = search.each_alone()
        return team if sum(option.loss for option in team.options) <= search.allowance else None

    def _expert_s(self, view: View, position: int, precision: str, tokens: int) -> float:
        known = self._compute_s.setdefault((position, precision), [])
        while len(known) <= tokens:
            known.append(view.expert_s(self._names[position], precision, len(known)))
        return known[tokens]

    def _ahead(self, demand: Demand) -> list[tuple[int, float]]:
        """Next aggregation servers with V, the most promising first."""
        if demand.next_server is not None:
            return [(self._position[demand.next_server], 0.0)]
        if self.look_ahead == "none":
            return [(self._here, 0.0)]
        lossy = demand.quality_budget - demand.quality_spent >= 0.5 * self._loss_left[demand.layer]
        home = self._position[demand.home]
        return self._beliefs.ahead(demand.layer, self._here, home, lossy=lossy, most=FOLLOWING)

    def _predict(self, demand: Demand, team: Team) -> None:
        if team.following == self._here and self.terms is not None:
            if len(self._predicted) >= REMEMBERED_PREDICTIONS:
                self._predicted.clear()  # whatever was never gathered here
            self._predicted[demand.request, demand.step, demand.layer] = self.terms.layer_s

    def _penalties(self, profile: ModelProfile, calibration: Calibration) -> dict[str, Floats]:
        usable = {FULL, *self.precisions}
        return {
            precision: self.loss_price_s
            * np.array([calibration.quality_loss(layer, precision) for layer in range(profile.layers)])
            for precision in profile.expert_bytes
            if precision in usable
        }
