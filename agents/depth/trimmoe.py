r"""Skips, substitutes and exits under one ledger, where they save most.  TrimMoE, arXiv 2608.00573 [reconstruction].

Experts.  Cuts are tried at the slowest server of the plan (``agents.depth.plancost``); of all prefixes of that order

    maximise   w_d (T - T_k) + price · (bytes - bytes_k) - max(μ, w_q) loss_k                                     (1)
    subject to loss_k <= budget - spent - reserve                                                                 (2)

    T, T_k    time of the layer as planned, and after k cuts    w_d  weight of predicted delay, learned
    loss_k    Σ of gate share · loss per gate weight: left out (``agents.models.facts``, 4), or with a substitute
    μ         what a unit of loss would save in later layers (``agents.depth.lookahead``)
    w_q       what it must save at least       reserve  what the precision of this plan will cost in later layers

An expert is replaced instead of skipped where a similar one is at hand (on this server, or on one that the plan uses
anyway), loses less, and the difference is worth the time that it takes.

Tokens.  After layer l a token leaves if the gauge says c_l >= τ, and if leaving is worth its risk:

    rest_l >= (1 - c_l) w_x                 rest_l  what the pass still takes after l, s                          (3)

The gate τ is calibrated for the run's budget as its risk (``agents.depth.guarantee``); it is only ever raised.

Feedback.  Both rules learn from what was measured:

    w_d  <- w_d + η (measured / predicted - w_d)           time of layers gathered here                            (4)
    τ    <- τ + κ_up if ē > α, else max(certified, τ - κ_down)    ē  recent mean of Σ_{left} (1 - c) / tokens     (5)

The paper names the decisions, the ledger, the look-ahead and the two rules; (1) to (5) are ours.  So is the unit: all
tokens of an expert share its fate, because a device that is bound by its memory reads an expert once, for one token or
for forty.  ē is what the gauge itself expects to be wrong: where it rises above the risk, the text is unlike the
calibration text, and the certificate does not cover it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from agents.depth.base import BaseDepth, Cut, Mask, Reason, skip_loss
from agents.depth.guarantee import ExitGate, calibrate
from agents.depth.lookahead import Lookahead
from agents.depth.plancost import Step, descents, parts_of
from agents.frameworks.base import Choice, Demand, ExpertDemand, Feedback, Plan, View
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats
from agents.models.quantize import FULL

#: Seconds that a relative NLL increase of 1 must save at least: 2 % for 10 ms.
LOSS_PRICE_S = 0.5
#: Seconds that a token must save whose early answer is wrong for sure.
EXIT_PRICE_S = 0.5
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

    Options: ``moves`` (of skip, substitute, exit), ``risk`` and ``failure`` of the exit gate (default: the quality
    budget, and 10 %), and ``loss_price_s``, ``exit_price_s``, ``price_s_per_gb`` as the constants above.
    """

    name = "trimmoe"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.moves = frozenset(rest.pop("moves", MOVES))
        self.risk = rest.pop("risk", None)
        self.failure = float(rest.pop("failure", FAILURE))
        self.loss_price_s = float(rest.pop("loss_price_s", LOSS_PRICE_S))
        self.exit_price_s = float(rest.pop("exit_price_s", EXIT_PRICE_S))
        self.price_s_per_byte = float(rest.pop("price_s_per_gb", PRICE_S_PER_GB)) / 1e9
        super().__init__(rest)
        self.gate: ExitGate | None = None
        self.threshold = 2.0
        self.delay_weight = 1.0
        self.expected_wrong = 0.0
        self._exits: ExitHeads | None = None
        self._ahead: Lookahead | None = None
        self._predicted: dict[tuple[int, int, int], float] = {}
        self._reserve: dict[str, list[float]] = {}

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """Calibrate the exit gate, and build the look-ahead where the experts were measured."""
        self._ahead = Lookahead(view) if view.facts is not None else None
        self._exits = exits if "exit" in self.moves else None
        if self._exits is not None:
            risk = quality_budget if self.risk is None else float(self.risk)
            self.gate = calibrate(self._exits, risk=min(risk, 0.999), failure=self.failure)
            self.threshold = self.gate.threshold

    # --- experts ------------------------------------------------------------------------------------------------------

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
        """The best prefix of cuts, by (1) and (2)."""
        if self._ahead is None or not self.moves & {"skip", "substitute"} or not demand.experts:
            return Cut()
        allowance = self._allowance(demand, plan, view)
        price_s = max(self.loss_price_s, self._ahead.price_s(demand, allowance))
        options = self._options(demand, plan, view, price_s)
        spared = self._spared(demand, plan, view)  # by precision, when an expert does not run as planned
        loss = {
            entry.expert: entry.gate_share * options[entry.expert][0] - spared[entry.expert] for entry in demand.experts
        }
        parts = parts_of(plan, demand.experts, demand.tokens, view, demand.layer, lambda expert: loss[expert])
        planned_s = max(part.time_s[0] for part in parts)
        planned_bytes = sum(part.size_bytes[0] for part in parts)
        steps = list(descents(parts))
        chosen, best, spent, extra_s, cuts = 0, 0.0, 0.0, 0.0, []
        for number, step in enumerate(steps, start=1):
            spent += max(loss[step.expert], 0.0)
            extra_s += options[step.expert][2]
            saved_s = planned_s - step.layer_s
            cuts.append((max(spent, 1e-12), saved_s))
            worth_s = self.delay_weight * (saved_s - extra_s) - price_s * spent
            worth_s += self.price_s_per_byte * (planned_bytes - step.size_bytes)
            if spent <= allowance and worth_s > best:
                chosen, best = number, worth_s
        self._ahead.remember(demand.layer, planned_s, [cut for cut in cuts if cut[0] < float("inf")])
        self._predict(demand, plan, view, steps[chosen - 1].layer_s if chosen else planned_s)
        return self._cut(demand, steps, chosen, options, loss, allowance)

    def _cut(
        self,
        demand: Demand,
        steps: list[Step],
        chosen: int,
        options: Mapping[int, tuple[float, Choice | None, float]],
        loss: Mapping[int, float],
        allowance: float,
    ) -> Cut:
        emptied = {step.server for step in islice(steps, chosen) if step.last}
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
        tried = {step.expert for step in steps}
        kept = {}
        for entry in demand.experts:
            if entry.expert in skipped or entry.expert in replaced:
                continue
            if entry.expert not in tried:
                kept[entry.expert] = Reason.ASIDE
            else:
                fits = spent + max(loss[entry.expert], 0.0) <= allowance
                kept[entry.expert] = Reason.WORTH if fits else Reason.BUDGET
        return Cut(skipped=skipped, replaced=replaced, kept=kept)

    def _allowance(self, demand: Demand, plan: Plan, view: View) -> float:
        """Right-hand side of (2): the layers after this one will want the plan's precisions too, and so will this."""
        now = sum(entry.gate_share * view.loss(demand.layer, choice) for entry, choice in _paired(demand, plan))
        later = max((self._later(view, choice.precision)[demand.layer] for choice in plan.choices), default=0.0)
        return demand.quality_budget - demand.quality_spent - now - later

    def _later(self, view: View, precision: str) -> list[float]:
        """What a precision costs in all layers after each."""
        known = self._reserve.get(precision)
        if known is None:
            layers = view.profile.layers
            losses = [view.quality_loss(layer, precision) for layer in range(layers)] if precision != FULL else []
            known = [sum(losses[layer + 1 :]) for layer in range(layers)]
            self._reserve[precision] = known
        return known

    @staticmethod
    def _spared(demand: Demand, plan: Plan, view: View) -> dict[int, float]:
        """What the ledger would be charged for the choices as planned."""
        return {
            choice.expert: entry.gate_share * view.loss(demand.layer, choice) for entry, choice in _paired(demand, plan)
        }

    def _options(
        self, demand: Demand, plan: Plan, view: View, price_s: float
    ) -> dict[int, tuple[float, Choice | None, float]]:
        """Expert -> loss per gate weight, substitute if that is better than nothing, and what that one takes, s."""
        used = {choice.server for choice in plan.choices} | {view.server}
        planned = {choice.expert: choice for choice in plan.choices}
        found = {}
        for entry in demand.experts:
            alone = skip_loss(view.facts, demand.layer, entry.expert) if "skip" in self.moves else float("inf")
            best: tuple[float, Choice | None, float] = (alone, None, 0.0)
            if "substitute" in self.moves:
                # Not on the server that would be relieved: it would run one expert instead of another.
                elsewhere = used - {planned[entry.expert].server}
                for choice, time_s in self._substitutes(demand.layer, entry, view, elsewhere):
                    loss = view.loss(demand.layer, choice)
                    saved = entry.gate_share * (min(alone, 1e9) - loss) * price_s
                    if loss < WORTHWHILE * best[0] and saved > time_s:
                        best = (loss, choice, time_s)
            found[entry.expert] = best
        return found

    def _substitutes(
        self, layer: int, entry: ExpertDemand, view: View, servers: set[str]
    ) -> list[tuple[Choice, float]]:
        """The most similar experts that have a copy in fast memory of these servers, and the time that each takes."""
        if view.facts is None or not servers:
            return []
        order = np.argsort(view.facts.difference[layer, entry.expert], kind="stable")
        found = []
        for other in islice((int(each) for each in order if each != entry.expert), SUBSTITUTES):
            for copy in view.replicas(layer, other):
                if copy.server in servers and copy.fast:
                    choice = Choice(expert=entry.expert, server=copy.server, precision=copy.precision, substitute=other)
                    found.append((choice, view.call_s(copy.server, copy.precision, entry.tokens)))
        return found

    # --- tokens -------------------------------------------------------------------------------------------------------

    def leaves(self, layer: int, stream: Floats, view: View) -> Mask:  # noqa: ARG002
        """The gate, and (3); also feeds (5)."""
        exits = self._exits
        if exits is None or layer >= len(exits.maps) or not len(stream):
            return np.zeros(len(stream), dtype=bool)
        sure = exits.confident(layer, stream)
        rest_s = self._ahead.rest_s(layer) if self._ahead is not None else float("inf")
        left: Mask = (sure >= self.threshold) & (rest_s >= (1.0 - sure) * self.exit_price_s)
        self._watch(float((1.0 - sure[left]).sum()) / len(stream))
        return left

    def _watch(self, expected_wrong: float) -> None:
        """Equation (5)."""
        self.expected_wrong += RISK_SMOOTHING * (expected_wrong - self.expected_wrong)
        if self.gate is None:
            return
        if self.expected_wrong > self.gate.risk:
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


def _paired(demand: Demand, plan: Plan) -> list[tuple[ExpertDemand, Choice]]:
    entries = {entry.expert: entry for entry in demand.experts}
    return [(entries[choice.expert], choice) for choice in plan.choices]
