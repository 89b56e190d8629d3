r"""Which experts a token chooses: the k largest shares of a softmax over all, with what the models add to it.

    s   = softmax(h W + b)
    s   = none for experts outside the ``kept_groups`` groups whose best share is largest     DeepSeek-V2 (236 B)
    w   = the k largest s,  divided by their sum where the model says so,  times ``scale``
    w   = 0 for the tokens of a pass that come after the first ``capacity`` of their expert    Switch

Ties go to the lowest expert.  A token beyond the capacity is sent to its expert all the same, and adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.models.checkpoints.attention import softmax
from agents.models.mixture import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The gate of one layer."""

    weights: Floats  # (width, experts)
    top_k: int
    normalised: bool = False
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    bias: Floats | None = None
    capacity: int | None = None

    def __call__(self, hidden: Floats) -> tuple[npt.NDArray[np.int16], Floats]:
        """Experts, best first, and their weights, each (n, top_k)."""
        scores = hidden @ self.weights
        if self.bias is not None:
            scores += self.bias
        shares = softmax(scores)  # (n, experts)
        if self.kept_groups < self.groups:
            shares = self._of_best_groups(shares)
        n, every = len(hidden), np.arange(len(hidden))
        chosen, best = np.empty((n, self.top_k), np.int16), np.empty((n, self.top_k), np.float32)
        for rank in range(self.top_k):
            top = shares.argmax(axis=1)
            chosen[:, rank], best[:, rank] = top, shares[every, top]
            shares[every, top] = -np.inf
        if self.normalised:
            best /= best.sum(axis=1, keepdims=True)
        best *= np.float32(self.scale)
        if self.capacity is not None and n > self.capacity:
            best[self._overflow(chosen[:, 0], self.capacity)] = 0
        return chosen, best

    def _of_best_groups(self, shares: Floats) -> Floats:
        grouped = shares.reshape(len(shares), self.groups, -1)
        best = grouped.max(axis=2)
        order = (-best).argsort(axis=1, kind="stable")[:, self.kept_groups :]
        grouped[np.arange(len(shares))[:, None], order] = -np.inf
        return grouped.reshape(shares.shape)

    @staticmethod
    def _overflow(chosen: npt.NDArray[np.int16], capacity: int) -> npt.NDArray[np.intp]:
        """Rows that are not among the first ``capacity`` of their expert."""
        order = chosen.argsort(kind="stable")
        starts = np.searchsorted(chosen[order], chosen[order])  # where the expert's rows begin
        late: npt.NDArray[np.intp] = order[np.arange(len(order)) - starts >= capacity]
        return late
