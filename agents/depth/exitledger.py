r"""What an early answer is charged to the ledger, and who can still afford one.

    loss(S) = χ Σ_{t in S} (1 - c_t) / n                                                                          (1)

    c_t  what the gauge says (``agents.models.exits``): how likely the answer is the full model's
    n    tokens of the pass          χ  relative NLL increase per answer that is expected to be wrong

Of those who want to leave, the surest leave while (1) fits what the ledger has left.  χ is above what held-out text
of the twins showed in any domain, at risks of 5 to 20 % (docs/trimmoe.md) [ours].

>>> import numpy as np
>>> afforded(np.array([0.9, 0.95, 0.8]), tokens=10, room=0.005)[0].tolist()
[True, True, False]
"""

from __future__ import annotations

import numpy as np

from agents.depth.base import Mask
from agents.frameworks.base import View
from agents.models.mixture import Floats
from agents.models.quantize import FULL

#: χ of (1).
EXIT_LOSS = 0.35


def afforded(sure: Floats, *, tokens: int, room: float) -> tuple[Mask, float]:
    """Which of some tokens can leave, by what the gauge says of them, (n,), and equation (1) for these."""
    price = EXIT_LOSS * (1.0 - sure.astype(np.float64)) / tokens
    order = np.argsort(price, kind="stable")
    fits = order[np.cumsum(price[order]) <= room]
    leaves = np.zeros(len(sure), dtype=bool)
    leaves[fits] = True
    return leaves, float(price[fits].sum())


class ExitLedger:
    """Room for early answers after each layer: the budget, without what copies of the placement may still cost."""

    def __init__(self, view: View, quality_budget: float) -> None:
        used = {replica.precision for replica in view.placement.replicas} - {FULL}
        worst = [
            max((view.quality_loss(layer, name) for name in used), default=0.0) for layer in range(view.profile.layers)
        ]
        self._room = [quality_budget - sum(worst[layer + 1 :]) for layer in range(view.profile.layers)]

    def room(self, layer: int, spent: float) -> float:
        """What is left for those who leave after ``layer``; below 0 for nothing."""
        return self._room[layer] - spent
