"""From a framework's plan and a policy's cut to the plan that runs, and to the record of what was decided and why.

    demand --framework--> plan --policy--> cut --framework--> plan of what is left, plus the substitutes

The second plan may use other servers than the first.  It is taken only if it is not slower than the first one without
what was cut: a substitute was chosen for the servers of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agents.depth.base import Cut, DepthPolicy, JointLoss, Reason
from agents.depth.plancost import parts_of
from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Demand, Plan, View

Planner = Callable[[Demand], Plan]

#: What can become of a token's call of an expert; the first word of ``Trimmed.decisions``.
EXACT_LOCAL, EXACT_REMOTE, SUBSTITUTE, SKIP, EXIT = "exact-local", "exact-remote", "substitute", "skip", "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What runs of one layer, and why."""

    demand: Demand  # without what is skipped
    plan: Plan  # of that demand
    cut_loss: float  # relative NLL increase of all cuts together, beyond what the plan's choices are charged for
    decisions: Mapping[str, int]  # "decision/reason" -> calls, one per token and expert

    @property
    def cuts(self) -> bool:
        """Whether the policy changed anything."""
        return any(key.startswith((SKIP, SUBSTITUTE)) for key in self.decisions)


def trimmed(policy: DepthPolicy, demand: Demand, plan: Plan, view: View, replan: Planner) -> Trimmed:
    """Ask the policy, and plan anew what it leaves; FrameworkError when it cuts what nobody asked for."""
    cut = policy.trim(demand, plan, view)
    asked = {entry.expert: entry for entry in demand.experts}
    unknown = sorted((set(cut.skipped) | set(cut.replaced)) - set(asked))
    if unknown or set(cut.skipped) & set(cut.replaced):
        raise FrameworkError(
            f"depth policy {policy.name}, layer {demand.layer}: it cuts experts {unknown or sorted(cut.skipped)}, "
            f"the gate chose {sorted(asked)}, and each may be cut once"
        )
    joint, charged = JointLoss(view.facts, demand.layer), 0.0
    for expert in sorted(cut.skipped):
        joint.add(asked[expert])
    for expert, (choice, _) in sorted(cut.replaced.items()):
        rate = view.loss(demand.layer, choice)
        joint.add(asked[expert], rate)
        charged += asked[expert].gate_share * rate
    left = replace(demand, experts=tuple(entry for entry in demand.experts if entry.expert not in cut.skipped))
    chosen = _without(plan, cut)
    if cut:
        chosen = _better(chosen, _anew(left, cut, joint.total, replan), left, view)
    return Trimmed(
        demand=left,
        plan=chosen,
        cut_loss=joint.total - charged,
        decisions=_decisions(demand, chosen, cut, view.server),
    )


def _without(plan: Plan, cut: Cut) -> Plan:
    """The plan as it was, without what is cut."""
    if not cut:
        return plan
    choices = [
        cut.replaced[choice.expert][0] if choice.expert in cut.replaced else choice
        for choice in plan.choices
        if choice.expert not in cut.skipped
    ]
    return replace(plan, choices=tuple(choices))


def _anew(left: Demand, cut: Cut, loss: float, replan: Planner) -> Plan:
    """What the framework makes of the experts that are neither skipped nor replaced."""
    replaced = {expert: choice for expert, (choice, _) in cut.replaced.items()}
    exact = tuple(entry for entry in left.experts if entry.expert not in replaced)
    plan = replan(replace(left, experts=exact, quality_spent=left.quality_spent + loss, again=True))
    return replace(plan, choices=(*plan.choices, *replaced.values()))


def _better(first: Plan, second: Plan, demand: Demand, view: View) -> Plan:
    """The second plan, unless it moves elsewhere than the first without being as fast."""
    if (first.choices, first.next_server) == (second.choices, second.next_server):
        return second
    return second if _layer_s(second, demand, view) <= _layer_s(first, demand, view) else first


def _layer_s(plan: Plan, demand: Demand, view: View) -> float:
    parts = parts_of(plan, demand.experts, demand.tokens, view, demand.layer, lambda expert: expert)
    return max(part.time_s[0] for part in parts)


def _decisions(demand: Demand, plan: Plan, cut: Cut, here: str) -> dict[str, int]:
    choices = {choice.expert: choice for choice in plan.choices}
    counts: dict[str, int] = {}
    for entry in demand.experts:
        key = _decision(entry.expert, choices, cut, here)
        counts[key] = counts.get(key, 0) + entry.tokens
    return counts


def _decision(expert: int, choices: Mapping[int, Choice], cut: Cut, here: str) -> str:
    if expert in cut.skipped:
        return f"{SKIP}/{cut.skipped[expert]}"
    if expert in cut.replaced:
        return f"{SUBSTITUTE}/{cut.replaced[expert][1]}"
    where = EXACT_LOCAL if choices[expert].server == here else EXACT_REMOTE
    return f"{where}/{cut.kept.get(expert, Reason.UNASKED)}"
