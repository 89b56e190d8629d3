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
from agents.frameworks.base import Choice, Demand, Feedback, Plan, View
from agents.models.calibrate import SMALLEST_LOSS
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.mixture import Floats

Mask = npt.NDArray[np.bool_]


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
