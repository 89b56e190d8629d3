r"""Routing whole expert sets over unequal servers.  HetRoute, arXiv 2608.00577 [reconstruction].

    T_tx   = bytes / B_sd + delay_sd            there and back; a token's state goes to a server once
    T_load = [slow] size(e, p) / B_load(d)
    T_cmp  = backlog_d + launch + roofline (``agents.frameworks.cost``)
    cost   = max over servers of the team + λ sum_e g_e loss(e, p) + V        (``hetroute_problem``, (2))

Offline: ``hetroute_placement``.  Online, per layer: copies that are alive, whose device is not over the stability
limit, and that the quality budget allows; the cheapest team of them and the next aggregation server, with V of
``hetroute_outlook`` as look-ahead.  An expert without any such copy is replaced by the substitutes that the budget
allows.  Where that leaves nothing either, the full-precision copies with the load limit relaxed; the quality budget
never is.

    allowance_l = (budget - spent) · loss_l / sum_{k >= l} loss_k        what layer l may spend

Ours: look-ahead to the end of the request (``look_ahead: layer`` is the paper's), entry at the cheapest server
instead of at home, homes that tell each other of requests (``hetroute_underway``), rationing of the budget over layers,
and slow beliefs about distant queues (``hetroute_beliefs``); the backlog of the moment counts only for this server's
own device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, ExpertDemand, Feedback, Plan, View
from agents.frameworks.cost import CostTerms
from agents.frameworks.expected import Floats
from agents.frameworks.hetroute_alone import apart
from agents.frameworks.hetroute_beliefs import Beliefs, Entry
from agents.frameworks.hetroute_blend import recipes
from agents.frameworks.hetroute_copies import Copies
from agents.frameworks.hetroute_exact import exact
from agents.frameworks.hetroute_placement import place
from agents.frameworks.hetroute_problem import Need, Option, Problem, Team, Way
from agents.frameworks.hetroute_rehearsal import rehearsed
from agents.frameworks.hetroute_search import best, certain
from agents.frameworks.hetroute_underway import announced, announcement
from agents.models.calibrate import Calibration
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement

#: Relative NLL increase that a request may cost, where nobody has said.
BUDGET = 0.02
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
REMEMBERED_PREDICTIONS = 1024
#: Next aggregation servers that are tried per layer.
FOLLOWING = 3
#: Copies of substitutes that are considered for one expert, the least lossy first.
SUBSTITUTES = 4
LOOK_AHEADS = ("request", "layer", "none")

#: The placement's sets of servers are 64-bit integers.
MOST_SERVERS = 62


class HetRoute(BaseFramework):
    """Set-level routing with look-ahead, precision and residency.

    Ablations: ``set_level: false`` (each expert for itself), ``residency: false`` (fast memory as the pipelines left
    it), ``precision_aware: false`` (full precision only), ``redundancy`` (no more copies than this, though the setting
    may allow them; 1 is one copy of each expert), ``look_ahead`` (request, layer or none), ``merge: false`` (a message
    per expert), ``rehearse: false`` (selection by the fluid model instead of the simulated router), ``announce: false``
    (homes do not tell each other of requests; each knows its own).  Others:
    ``precisions`` (lower ones that copies may have), ``substitutes: false``, ``exact`` (the optimum by enumeration,
    slow), and ``price_s_per_gb``, ``loss_price_s``, ``detour_s``, ``risk_s``, ``backlog_limit_s`` as the constants
    above.
    """

    name = "hetroute"
    keeps_budget = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        rest = dict(self._options)
        precisions = rest.pop("precisions", ("int8", "int4"))
        self.precisions: tuple[str, ...] = (precisions,) if isinstance(precisions, str) else tuple(precisions)
        if not rest.pop("precision_aware", True):
            self.precisions = ()
        self.set_level = bool(rest.pop("set_level", True))
        self.look_ahead = str(rest.pop("look_ahead", "request"))
        self.residency = bool(rest.pop("residency", True))
        self.merge = bool(rest.pop("merge", True))
        self.rehearse = bool(rest.pop("rehearse", True))
        self.exact = bool(rest.pop("exact", False))
        self.substitutes = bool(rest.pop("substitutes", True))
        self.announces = bool(rest.pop("announce", True))
        self.redundancy = float(rest.pop("redundancy", float("inf")))
        self.price_s_per_byte = float(rest.pop("price_s_per_gb", PRICE_S_PER_GB)) / 1e9
        self.loss_price_s = float(rest.pop("loss_price_s", LOSS_PRICE_S))
        self.detour_s = float(rest.pop("detour_s", DETOUR_S))
        self.risk_s = float(rest.pop("risk_s", RISK_S))
        self.backlog_limit_s = float(rest.pop("backlog_limit_s", BACKLOG_LIMIT_S))
        super().__init__(rest)
        if self.look_ahead not in LOOK_AHEADS:
            raise FrameworkError(f"hetroute's look_ahead is one of {', '.join(LOOK_AHEADS)}, not {self.look_ahead!r}")
        self.terms: CostTerms | None = None  # of the latest plan
        self._budget = BUDGET
        self._predicted: dict[tuple[int, int, int], CostTerms] = {}

    def measured(self, facts: ExpertFacts | None, exits: ExitHeads | None, *, quality_budget: float) -> None:  # noqa: ARG002
        """Placement needs the budget only."""
        self._budget = quality_budget

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
        if self.redundancy < cluster.redundancy:
            cluster = msgspec.structs.replace(cluster, redundancy=self.redundancy)
        return place(
            cluster,
            profile,
            calibration,
            recipes=recipes(self.precisions, profile, calibration, budget=self._budget),
            price_s_per_byte=self.price_s_per_byte,
            penalty_s=self._penalties(profile, calibration),
            loss_price_s=self.loss_price_s,
            residency=self.residency,
            rehearse=rehearsed(lambda: type(self)(self._options), quality_budget=self._budget)
            if self.rehearse
            else None,
            progress=self.progress,
        )

    def begin(self, view: View) -> None:
        """Index the copies and form first beliefs."""
        self._position = {name: position for position, name in enumerate(view.cluster.names)}
        self._names = view.cluster.names
        self._here = self._position[view.server]
        self._state_bytes = view.profile.hidden_bytes
        self._copies = Copies(view, self._position)
        #: By expert, server and precision: what a plan says of a copy.
        self._choices: dict[tuple[int, int, str], Choice] = {}
        self._lossiest = view.worst_losses()
        self._loss_left = [sum(self._lossiest[layer:]) for layer in range(view.profile.layers)]
        self._epoch = -1
        self._entry: Entry | None = None  # of the request that entered last, until it is announced
        self._beliefs = Beliefs(
            view,
            price_s_per_byte=self.price_s_per_byte,
            penalty_s=self._penalties(view.profile, view.calibration),
            detour_s=self.detour_s,
            one_layer=self.look_ahead == "layer",
            risk_s=self.risk_s,
        )
        self._beliefs.refresh(view)

    def refresh(self, view: View) -> None:
        """Take in gossip and links."""
        self._beliefs.refresh(view)

    def enter(self, arrival: Arrival, view: View) -> str:
        """The server from which the whole request is expected to be done first; home without look-ahead."""
        if self.look_ahead != "request":
            return arrival.home
        self._beliefs.refresh(view)
        entry = self._entry = self._beliefs.enter(self._position[arrival.home], arrival.output_tokens, view.now_s())
        return self._names[entry.first]

    def announce(self, arrival: Arrival, view: View) -> bytes:  # noqa: ARG002
        """Tell the other homes that a request is under way, and from which server on."""
        entry, self._entry = self._entry, None
        if entry is None or not self.announces:
            return b""
        return announcement(entry.first, entry.passes, entry.duration_s)

    def heard(self, source: str, text: bytes, view: View) -> None:
        """A request has entered elsewhere; the news took as long as the way."""
        told = announced(text, servers=len(self._names))
        entered_s = view.now_s() - view.delay_s(source, view.server)
        entry = Entry(first=told.first, passes=told.passes, duration_s=told.duration_s)
        self._beliefs.under_way(entry, self._position[source], entered_s)

    def plan(self, demand: Demand, view: View) -> Plan:
        """The cheapest team and next aggregation server; see ``hetroute_search``."""
        self._beliefs.refresh(view)
        if self._epoch != self._beliefs.epoch:
            self._take_over(self._beliefs)
        own_s = view.backlog_s(view.server)
        self._busy[self._here] = own_s > self.backlog_limit_s
        problem, feasible, team = self._solved(demand, view, own_s)
        self.terms = problem.terms(team)
        self._predict(demand, team)
        choices = self._chosen(feasible, team.options)
        return Plan(choices=choices, next_server=self._names[team.following], merged=self.merge, terms=self.terms)

    def problem(self, demand: Demand, view: View) -> Problem:
        """What ``plan`` solves if all copies are feasible, for others to solve it, too."""
        return self._problem(demand, view.backlog_s(view.server), next(self._ladder(demand, view)))

    def observe(self, feedback: Feedback) -> None:
        """Weigh the terms of the cost by what layers lately took against what was predicted."""
        predicted = self._predicted.pop((feedback.request, feedback.step, feedback.layer), None)
        if predicted is not None:
            self._beliefs.learn(feedback.duration_s - feedback.dense_s, predicted)

    def _take_over(self, beliefs: Beliefs) -> None:
        """What follows from beliefs, when they are new."""
        self._epoch = beliefs.epoch
        _, loading, computation = beliefs.weights
        self._copies.price([computation * slowness for slowness in beliefs.slowness], loading=loading)
        self._busy = [wait_s > self.backlog_limit_s for wait_s in beliefs.wait_s]
        self._healthy = all(beliefs.alive) and not any(self._busy)
        #: By layer, home, and whether lower precisions may still be used.
        self._ways: dict[tuple[int, str, bool], Sequence[Way]] = {}

    # --- one layer --------------------------------------------------------------------------------------------------

    def _solved(self, demand: Demand, view: View, own_s: float) -> tuple[Problem, Sequence[Need], Team]:
        """The first problem of the ladder that has a solution, the copies that were feasible at first, and the team."""
        quick = self.set_level and not self.exact and self._stable_everywhere()
        own = self._copies.own(view, demand.layer, demand.experts) if quick else None
        if own:
            problem = self._problem(demand, own_s, own)
            team = certain(problem)
            if team is not None:
                return problem, own, team
        feasible: list[Need] | None = None
        for needs in self._ladder(demand, view):
            feasible = feasible or needs
            if () not in [need.options for need in needs]:
                problem = self._problem(demand, own_s, needs)
                team = self._choose(problem)
                if team is not None:
                    return problem, feasible, team
        raise FrameworkError(
            f"hetroute has no copy of an expert of layer {demand.layer} that is alive and within the quality budget"
        )

    def _stable_everywhere(self) -> bool:
        """Whether all servers live and none is over the limit."""
        return self._healthy and not self._busy[self._here]

    def _allowance(self, demand: Demand) -> float:
        left = max(0.0, demand.quality_budget - demand.quality_spent)
        rest = self._loss_left[demand.layer]
        # Everything fits: no rationing.  Otherwise this layer's share by what it could lose.
        return left if rest <= left else left * self._lossiest[demand.layer] / rest

    def _ladder(self, demand: Demand, view: View) -> Iterator[list[Need]]:
        """The experts with their copies: feasible ones; with substitutes; with the load limit relaxed."""
        layer = demand.layer
        every = self._copies.needs(view, layer, demand.experts)
        if self._stable_everywhere():
            yield every
            limited = every
        else:
            limited = [need._replace(options=self._stable(need.options)) for need in every]
            yield limited
        if self.substitutes and view.facts is not None:
            yield [
                need if need.options else need._replace(options=self._substitutes(view, layer, entry))
                for need, entry in zip(limited, demand.experts, strict=True)
            ]
        relaxed = []
        for need, whole in zip(limited, every, strict=True):
            living = tuple(option for option in whole.options if self._beliefs.alive[option.server])
            full = tuple(option for option in living if option.precision == FULL)
            # The guarantee with the load limit relaxed; whatever lives where not even that is left.
            relaxed.append(need._replace(options=tuple(dict.fromkeys([*need.options, *(full or living)]))))
        yield relaxed

    def _stable(self, options: tuple[Option, ...]) -> tuple[Option, ...]:
        alive, busy = self._beliefs.alive, self._busy
        return tuple([option for option in options if alive[option.server] and not busy[option.server]])

    def _substitutes(self, view: View, layer: int, entry: ExpertDemand) -> tuple[Option, ...]:
        """Copies of other experts on stable servers, the least lossy first."""
        found = []
        for other in range(view.profile.experts):
            if other != entry.expert:
                rate = view.substitution_loss(layer, entry.expert, other)
                found += [
                    option._replace(rate=option.rate + rate, substitute=other)
                    for option in self._stable(self._copies.options(view, layer, other, entry.tokens))
                ]
        found.sort(key=lambda option: (option.rate, option.compute_s))
        return tuple(found[:SUBSTITUTES])

    def _problem(self, demand: Demand, own_s: float, needs: Sequence[Need]) -> Problem:
        beliefs = self._beliefs
        queue_s = beliefs.queue_s.copy()
        queue_s[self._here] = beliefs.weights[2] * own_s
        return Problem(
            here=self._here,
            needs=needs,
            tokens=demand.tokens,
            ways=self._ahead(demand),
            queue_s=queue_s,
            launch_s=beliefs.launch_s,
            load_wait_s=beliefs.load_wait_s,
            loss_price_s=self.loss_price_s,
            allowance=self._allowance(demand),
        )

    def _choose(self, problem: Problem) -> Team | None:
        if not problem.needs:
            way = problem.ways[0]
            return Team(options=(), following=way.following, cost_s=way.ahead_s)
        if self.exact:
            return exact(problem)
        if self.set_level:
            return best(problem)
        team = apart(problem)
        return team if problem.keeps(problem.loss(team.options)) else None

    def _chosen(self, needs: Sequence[Need], options: Sequence[Option]) -> tuple[Choice, ...]:
        """What the plan says; ``needs`` hold the copies that were feasible without relaxing anything."""
        chosen, known = [], self._choices
        for need, option in zip(needs, options, strict=True):
            if option in need[3] and option[5] < 0:
                key = (need[0], option[0], option[1])
                chosen.append(known.get(key) or self._feasible(key))
            else:
                chosen.append(self._otherwise(need, option))
        return tuple(chosen)

    def _feasible(self, key: tuple[int, int, str]) -> Choice:
        """The choice of a copy, made once."""
        expert, server, precision = key
        made = self._choices[key] = Choice(expert=expert, server=self._names[server], precision=precision)
        return made

    def _otherwise(self, need: Need, option: Option) -> Choice:
        """The choice of what was not feasible, or of another expert."""
        return Choice(
            expert=need.expert,
            server=self._names[option.server],
            precision=option.precision,
            fallback=option.substitute < 0,
            substitute=option.substitute if option.substitute >= 0 else None,
        )

    def _ahead(self, demand: Demand) -> Sequence[Way]:
        """The ways to the next aggregation servers, with V, the most promising first."""
        beliefs, layer = self._beliefs, demand.layer
        if demand.next_server is not None:
            return [beliefs.way(self._position[demand.next_server], 0.0)]
        if self.look_ahead == "none":
            return [beliefs.way(self._here, 0.0)]
        lossy = demand.quality_budget - demand.quality_spent >= 0.5 * self._loss_left[layer]
        key = (layer, demand.home, lossy)
        ways = self._ways.get(key)
        if ways is None:
            ahead = beliefs.ahead(layer, self._position[demand.home], lossy=lossy, most=FOLLOWING)
            ways = self._ways[key] = [beliefs.way(following, ahead_s) for following, ahead_s in ahead]
        return ways

    def _predict(self, demand: Demand, team: Team) -> None:
        if team.following == self._here and self.terms is not None:
            if len(self._predicted) >= REMEMBERED_PREDICTIONS:
                self._predicted.clear()  # whatever was never gathered here
            self._predicted[demand.request, demand.step, demand.layer] = self.terms

    def _penalties(self, profile: ModelProfile, calibration: Calibration) -> dict[str, Floats]:
        usable = {FULL, *self.precisions}
        return {
            precision: self.loss_price_s
            * np.array([calibration.quality_loss(layer, precision) for layer in range(profile.layers)])
            for precision in profile.expert_bytes
            if precision in usable
        }
