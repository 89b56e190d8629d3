r"""Skips, substitutes and exits under one ledger, where they save most.  TrimMoE, arXiv 2608.00573 [reconstruction].

Experts.  Cuts are tried at the slowest server of the plan (``agents.depth.plancost``); of all prefixes of that order

    maximise   w_d (T - T_k) + price · (bytes - bytes_k) - max(μ, w_q T_pass) loss_k                              (1)
    subject to loss_k <= allowance                    (``agents.depth.allowance``)                                (2)

    T, T_k    time of the layer as planned, and after k cuts    w_d  weight of predicted delay, learned
    loss_k    what the ledger is charged: for experts left out together (``JointLoss``), and for substitutes
    μ         what a unit of loss would save in later layers (``agents.depth.lookahead``)
    w_q       what it must save at least

An expert that is elsewhere is replaced instead of skipped where a similar one is in fast memory here, loses less, and
the difference is worth the time that it takes.  (One on another server that the plan uses anyway would do, too, were it
not for the cuts: they empty servers.)

Tokens.  After layer l those m of n tokens leave together for which the gauge says c >= τ, if that is worth its risk:

    rest_l (1 - q(n-m) / q(n)) >= w_x T_pass Σ_{left} (1 - c) / n,      q(n) = 1 - (1 - k / E)^n                  (3)

    rest_l  what the pass still takes after l, s     q  share of a layer's E experts that n tokens call, k each

A device that is bound by its memory is hardly relieved when five of forty tokens leave, and all the way when the last
does: (3) knows that.  The gate τ is calibrated (``agents.depth.guarantee``) and only ever raised.

Feedback.  Both rules learn from what was measured:

    w_d  <- w_d + η (measured / predicted - w_d)           time of layers gathered here                            (4)
    τ    <- τ + κ_up if Σ_l ē_l > α, else max(certified, τ - κ_down)                                              (5)

    ē_l  recent mean of Σ_{left after l} (1 - c) / tokens; their sum is of the layers that are gathered here

The paper names the decisions, the ledger, the look-ahead and the two rules; (1) to (5) are ours.  So is the unit: all
tokens of an expert share its fate, because a device that is bound by its memory reads an expert once, for one token or
for forty.  Σ ē is what the gauge itself expects to be wrong: where it rises above the risk, the text is unlike the
calibration text, and the certificate does not cover it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from agents.depth.allowance import Allowance, planned_loss
from agents.depth.base import BaseDepth, Cut, JointLoss, Mask, Reason, skip_loss
from agents.depth.exitledger import EXIT_LOSS
from agents.depth.guarantee import ExitGate, calibrate
from agents.depth.lookahead import Lookahead
from agents.depth.plancost import Step, descents, parts_of
from agents.frameworks.base import Choice, Demand, ExpertDemand, Feedback, Plan, View
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats

#: What a relative NLL increase must save at least, as a multiple of its share of the pass's time: 1 % for 2 %.
LOSS_PRICE = 2.0
#: The same for early answers that are wrong, as a share of all tokens.
EXIT_PRICE = EXIT_LOSS * LOSS_PRICE
#: The share of tokens that may leave with another token than the full model's, in units of the budget.
RISK_PER_BUDGET = 2.5
#: Seconds that a gigabyte on links is worth, as in HetRoute.
PRICE_S_PER_GB = 1.0
#: Probability that the exits' guarantee does not hold (``agents.depth.guarantee``).
FAILURE = 0.1
#: Substitutes looked at per expert, those that lose least first.
SUBSTITUTES = 4
#: A substitute must lose less than this share of what leaving the expert out loses.
WORTHWHILE = 0.9
#: Bounds and inertia of (4).
LEAST_WEIGHT, MOST_WEIGHT, WEIGHT_SMOOTHING = 0.25, 4.0, 0.05
#: (5): inertia of the mean, and the two steps of the threshold.
RISK_SMOOTHING, STEP_UP, STEP_DOWN = 0.02, 0.005, 0.001
REMEMBERED_PREDICTIONS = 1024
MOVES = ("skip", "substitute", "exit")


class TrimMoe(BaseDepth):
    """Equations (1) to (5).

    Options: ``moves`` (of skip, substitute, exit), ``risk`` and ``failure`` of the exit gate (default: 2.5 times the
    quality budget, and 10 %; exits at a risk of one's own are not charged to the ledger), and ``loss_price``,
    ``exit_price``, ``price_s_per_gb`` as the constants above.
    """

    name = "trimmoe"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.moves = frozenset(rest.pop("moves", MOVES))
        self.risk = rest.pop("risk", None)
        self.failure = float(rest.pop("failure", FAILURE))
        self.loss_price = float(rest.pop("loss_price", LOSS_PRICE))
        self.exit_price = float(rest.pop("exit_price", EXIT_PRICE))
        self.price_s_per_byte = float(rest.pop("price_s_per_gb", PRICE_S_PER_GB)) / 1e9
        super().__init__(rest)
        self.charges_exits = self.risk is None
        self.gate: ExitGate | None = None
        self.threshold = 2.0
        self.delay_weight = 1.0
        self.expected_wrong: dict[int, float] = {}  # layer -> ē
        self._exits: ExitHeads | None = None
        self._ahead: Lookahead | None = None
        self._predicted: dict[tuple[int, int, int], float] = {}
        self._allowance = Allowance()

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """Calibrate the exit gate, and build the look-ahead where the experts were measured."""
        self._ahead = Lookahead(view) if view.facts is not None else None
        self._exits = exits if "exit" in self.moves else None
        if self._exits is not None:
            risk = RISK_PER_BUDGET * quality_budget if self.risk is None else float(self.risk)
            self.gate = calibrate(self._exits, risk=min(risk, 0.999), failure=self.failure)
            self.threshold = self.gate.threshold

    # --- experts ------------------------------------------------------------------------------------------------------

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
        """The best prefix of cuts, by (1) and (2)."""
        if self._ahead is None or not self.moves & {"skip", "substitute"} or not demand.experts:
            return Cut()
        allowance = self._allowance.of(demand, plan, view)
        price_s = max(self.loss_price * self._ahead.pass_s, self._ahead.price_s(demand, allowance))
        options = self._options(demand, plan, view, price_s)
        entries = {entry.expert: entry for entry in demand.experts}
        spared = planned_loss(demand, plan, view)  # by experts that do not run as planned
        alone = {each: entry.gate_share * options[each][0] - spared[each] for each, entry in entries.items()}
        parts = parts_of(plan, demand.experts, demand.tokens, view, demand.layer, lambda expert: alone[expert])
        planned_s = max(part.time_s[0] for part in parts)
        planned_bytes = sum(part.size_bytes[0] for part in parts)
        steps = list(descents(parts))
        chosen, best, spent, extra_s, cuts = 0, 0.0, 0.0, 0.0, []
        joint, loss = JointLoss(view.facts, demand.layer), dict(alone)
        for number, step in enumerate(steps, start=1):
            rate, _, time_s = options[step.expert]
            if rate < float("inf"):
                loss[step.expert] = joint.add(entries[step.expert], rate) - spared[step.expert]
            spent += max(loss[step.expert], 0.0)
            extra_s += time_s
            saved_s = planned_s - step.layer_s
            cuts.append((max(spent, 1e-12), saved_s))
            worth_s = self.delay_weight * (saved_s - extra_s) - price_s * spent
            worth_s += self.price_s_per_byte * (planned_bytes - step.size_bytes)
            if spent <= allowance and worth_s > best:
                chosen, best = number, worth_s
        self._ahead.remember(demand.layer, planned_s, [cut for cut in cuts if cut[0] < float("inf")])
        self._predict(demand, plan, view, steps[chosen - 1].layer_s if chosen else planned_s)
        emptied = {step.server for step in islice(steps, chosen) if step.last} - {view.server}
        return self._cut(demand, steps, chosen, emptied, options, loss, allowance)

    def _cut(
        self,
        demand: Demand,
        steps: list[Step],
        chosen: int,
        emptied: set[str],
        options: Mapping[int, tuple[float, Choice | None, float]],
        loss: Mapping[int, float],
        allowance: float,
    ) -> Cut:
        skipped, replaced = {}, {}
        spent = 0.0
        for step in islice(steps, chosen):
            reason = Reason.TRIP if step.server in emptied else Reason.BOTTLENECK
            spent += max(loss[step.expert], 0.0)
            choice = options[step.expert][1]
            if choice is None:
                skipped[step.expert] = reason
            else:
                replaced[step.expert] = (choice, reason)
        # The server that stays the slowest; whatever others do is done in its shadow.
        deciding = steps[chosen].server if chosen < len(steps) else None
        there = {step.expert for step in steps if step.server == deciding}
        kept = {}
        for entry in demand.experts:
            if entry.expert in skipped or entry.expert in replaced:
                continue
            if entry.expert not in there:
                kept[entry.expert] = Reason.ASIDE
            else:
                fits = spent + max(loss[entry.expert], 0.0) <= allowance
                kept[entry.expert] = Reason.WORTH if fits else Reason.BUDGET
        return Cut(skipped=skipped, replaced=replaced, kept=kept)

    def _options(
        self, demand: Demand, plan: Plan, view: View, price_s: float
    ) -> dict[int, tuple[float, Choice | None, float]]:
        """Expert -> loss per gate weight, substitute if that is better than nothing, and what that one takes, s."""
        planned = {choice.expert: choice for choice in plan.choices}
        found = {}
        for entry in demand.experts:
            alone = skip_loss(view.facts, demand.layer, entry.expert) if "skip" in self.moves else float("inf")
            best: tuple[float, Choice | None, float] = (alone, None, 0.0)
            # Here, where no trip is needed; instead of an expert that is here already it would relieve nobody.
            if "substitute" in self.moves and planned[entry.expert].server != view.server:
                for choice, time_s in self._substitutes(demand.layer, entry, view):
                    loss = view.loss(demand.layer, choice)
                    saved = entry.gate_share * (min(alone, 1e9) - loss) * price_s
                    if loss < WORTHWHILE * best[0] and saved > time_s:
                        best = (loss, choice, time_s)
            found[entry.expert] = best
        return found

    def _substitutes(self, layer: int, entry: ExpertDemand, view: View) -> list[tuple[Choice, float]]:
        """The most similar experts that have a copy in fast memory here, and the time that each takes."""
        if view.facts is None:
            return []
        order = np.argsort(view.facts.difference[layer, entry.expert], kind="stable")
        found = []
        for other in islice((int(each) for each in order if each != entry.expert), SUBSTITUTES):
            for copy in view.replicas(layer, other):
                if copy.server == view.server and copy.fast:
                    choice = Choice(expert=entry.expert, server=copy.server, precision=copy.precision, substitute=other)
                    found.append((choice, view.call_s(copy.server, copy.precision, entry.tokens)))
        return found

    # --- tokens -------------------------------------------------------------------------------------------------------

    def leaves(self, layer: int, stream: Floats, view: View) -> Mask:
        """The gate, and (3); also feeds (5)."""
        exits = self._exits
        if exits is None or layer >= len(exits.maps) or not len(stream):
            return np.zeros(len(stream), dtype=bool)
        sure = exits.confident(layer, stream)
        left: Mask = sure >= self.threshold
        wrong = float((1.0 - sure[left]).sum()) / len(stream)
        if not left.any() or not self._worth(layer, len(stream), int(left.sum()), wrong, view):
            left, wrong = np.zeros(len(stream), dtype=bool), 0.0
        self._watch(layer, wrong)
        return left

    def _worth(self, layer: int, tokens: int, left: int, wrong: float, view: View) -> bool:
        """Equation (3)."""
        if self._ahead is None:
            return True  # nothing is known of what is ahead
        unasked = 1.0 - view.profile.top_k / view.profile.experts
        spared = 1.0 - (1.0 - unasked ** (tokens - left)) / (1.0 - unasked**tokens)
        return self._ahead.rest_s(layer) * spared >= self.exit_price * self._ahead.pass_s * wrong

    def _watch(self, layer: int, expected_wrong: float) -> None:
        """Equation (5)."""
        mean = self.expected_wrong.get(layer, 0.0)
        self.expected_wrong[layer] = mean + RISK_SMOOTHING * (expected_wrong - mean)
        if self.gate is None:
            return
        if sum(self.expected_wrong.values()) > self.gate.risk:
            self.threshold = min(2.0, self.threshold + STEP_UP)
        else:
            self.threshold = max(self.gate.threshold, self.threshold - STEP_DOWN)

    # --- feedback -----------------------------------------------------------------------------------------------------

    def observe(self, feedback: Feedback) -> None:
        """Equation (4)."""
        predicted_s = self._predicted.pop((feedback.request, feedback.step, feedback.layer), 0.0)
        if predicted_s > 0:
            ratio = (feedback.duration_s - feedback.dense_s) / predicted_s
            ratio = min(MOST_WEIGHT, max(LEAST_WEIGHT, ratio))
            self.delay_weight += WEIGHT_SMOOTHING * (ratio - self.delay_weight)

    def _predict(self, demand: Demand, plan: Plan, view: View, layer_s: float) -> None:
        if plan.next_server != view.server:
            return  # gathered, and so measured, elsewhere
        if len(self._predicted) >= REMEMBERED_PREDICTIONS:
            self._predicted.clear()  # whatever was never gathered here
        self._predicted[demand.request, demand.step, demand.layer] = layer_s
