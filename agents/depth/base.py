"""What a depth policy is: it decides how much of a pass is computed at all, whoever decides where.

A routing framework plans a layer as if everything had to run.  A depth policy looks at that plan and says which experts
are left out or replaced; what is left is planned anew by the same framework.  After a layer it says which tokens have
seen enough layers.  So policies compose with frameworks without knowing them, and their names are joined by a plus:
``hetroute+trimmoe`` (``agents.frameworks.registry``).

The smallest policy is a class with ``name`` and one of the two decisions (``BaseDepth`` cuts nothing)::

    class EveryOther(BaseDepth):
        name = "every-other"

        def trim(self, demand, plan, view):
            if demand.layer % 2 == 0:
                return Cut()
            return Cut(skipped={entry.expert: Reason.STATIC for entry in demand.experts})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Demand, ExpertDemand, Feedback, Plan, View
from agents.models.calibrate import SMALLEST_LOSS
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.mixture import Floats

Mask = npt.NDArray[np.bool_]

#: ρ and m of ``JointLoss``.
COHERENCE = 0.5
MARGIN = 1.8


class Reason(StrEnum):
    """Why something was cut, or was not."""

    TRIP = "trip"  # takes all of a server's work away, and so a trip
    BOTTLENECK = "bottleneck"  # shortens the work of the slowest server
    STATIC = "static"  # decided before the run
    SURE = "sure"  # the gauge passes the gate
    ASIDE = "aside"  # kept: another server decides the layer's time
    WORTH = "worth"  # kept: what it is worth to the answer costs more than it takes
    BUDGET = "budget"  # kept: the ledger does not allow it
    UNASKED = "unasked"  # kept: nobody decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What one layer does without: experts by number, each with the reason."""

    skipped: Mapping[int, Reason] = field(default_factory=dict)
    replaced: Mapping[int, tuple[Choice, Reason]] = field(default_factory=dict)  # with ``Choice.substitute``
    kept: Mapping[int, Reason] = field(default_factory=dict)  # why experts were not cut, where somebody asked

    def __bool__(self) -> bool:
        """Whether anything is cut."""
        return bool(self.skipped or self.replaced)


class DepthPolicy(Protocol):
    """Decides how much of a pass is computed."""

    name: str
    keeps_budget: bool  # promises that skips and substitutes fit the ledger; its passes fail if they do not
    charges_exits: bool  # early answers are charged to the ledger as well, and stay where it has no room for them

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """A run begins on this server; ``exits`` where the model has heads for leaving early."""
        ...

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
        """Which experts of a planned layer are left out or replaced."""
        ...

    def leaves(self, layer: int, stream: Floats, view: View) -> Mask:
        """Which of these tokens, (n, width) after ``layer``, are done; False for all where there is no head."""
        ...

    def observe(self, feedback: Feedback) -> None:
        """Learn what a gathered layer took."""
        ...


class BaseDepth:
    """Everything runs, nothing is learned."""

    name = "none"
    keeps_budget = True
    charges_exits = True

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        if options:
            raise FrameworkError(f"depth policy {self.name} has no option {sorted(options)[0]!r}")

    def begin(self, view: View, exits: ExitHeads | None, *, quality_budget: float) -> None:
        """Nothing to prepare."""

    def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:  # noqa: ARG002
        """Nothing."""
        return Cut()

    def leaves(self, layer: int, stream: Floats, view: View) -> Mask:  # noqa: ARG002
        """Nobody."""
        return np.zeros(len(stream), dtype=bool)

    def observe(self, feedback: Feedback) -> None:
        """Nothing to learn."""


def skip_loss(facts: ExpertFacts | None, layer: int, expert: int) -> float:
    """Relative NLL increase per gate weight when an expert is left out; infinite where it was not measured.

    Never quite 0, so that a budget of 0 buys nothing.
    """
    if facts is None:
        return float("inf")
    return max(float(facts.importance[layer, expert]), SMALLEST_LOSS)


class JointLoss:
    r"""What leaving out or replacing several experts of one layer loses together.

        loss(S) = m Σ_t (1 + ρ (k_t - 1)) Σ_{e in S chosen by t} s_e i_e / n_e                                    (1)

        k_t  experts in S that token t has chosen      n_e  tokens that have chosen e      s_e  gate share

    i_e is the loss per gate weight of one expert left out, or of its substitute.  A small change of the stream costs
    its square; the square of a sum of k changes is the sum of their squares where they have nothing to do with each
    other (ρ = 0), and at most k times that, where they all point the same way (ρ = 1, Cauchy and Schwarz).  Twins lie
    in between (docs/trimmoe.md).  m: i_e is measured one expert at a time and on the average of all domains; cuts in
    many layers, in the domain that they hurt most, cost more.
    """

    def __init__(self, facts: ExpertFacts | None, layer: int) -> None:
        self._facts, self._layer = facts, layer
        self._count: dict[int, int] = {}
        self._sum: dict[int, float] = {}
        self.total = 0.0

    def add(self, entry: ExpertDemand, rate: float | None = None) -> float:
        """One more expert is left out, or replaced at a loss per gate weight of ``rate``; what that adds."""
        rate = skip_loss(self._facts, self._layer, entry.expert) if rate is None else rate
        each = MARGIN * entry.gate_share * rate / entry.tokens
        before, rows = self.total, entry.rows
        while rows:
            token = (rows & -rows).bit_length() - 1
            rows &= rows - 1
            count, sum_ = self._count.get(token, 0), self._sum.get(token, 0.0)
            self._count[token], self._sum[token] = count + 1, sum_ + each
            self.total += each + COHERENCE * (sum_ + count * each)  # (1 + ρ m)(σ + x) - (1 + ρ (m - 1)) σ
        return self.total - before
