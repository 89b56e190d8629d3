r"""Routing drawn by a seed, skewed and persistent, where nothing was recorded of a model.

    share_l   ~ Dirichlet(skew)                           popularity of the experts of layer l                    (1)
    chosen    = the k largest of  log share_le + Gumbel + stay · [e chosen by the token before, with probability p]  (2)
    guess     = for every chosen expert of the next layer: itself with probability accuracy, else any other       (3)

The Gumbel noise makes (2) a draw without replacement by popularity.  (3) stands for asking the next layer's gate too
early; its accuracy is a parameter, not a finding.  A text depends on the seed and its number only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.offloading.recording import drawn_guesses
from agents.offloading.tables import Text

#: More than any logarithm of a share: who stays, stays.
STAY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Parameters of equations (1) to (3)."""

    layers: int
    experts: int
    top_k: int
    skew: float = 1.0  # concentration of (1): small is uneven
    persistence: float = 0.3  # p of (2)
    accuracy: float = 0.85  # of (3)
    seed: int = 0

    def texts(self, count: int, positions: int) -> list[Text]:
        """So many texts of so many positions."""
        shares = np.random.default_rng([self.seed, 0]).dirichlet(np.full(self.experts, self.skew), self.layers)
        return [self._text(np.random.default_rng([self.seed, 1 + n]), shares, positions) for n in range(count)]

    def _text(self, draw: np.random.Generator, shares: npt.NDArray[np.float64], positions: int) -> Text:
        layers, experts, top_k = self.layers, self.experts, self.top_k
        chosen = np.empty((layers, positions, top_k), np.int16)
        scores = np.log(shares + 1e-12)[:, None, :] + draw.gumbel(size=(layers, positions, experts))
        stays = draw.random((layers, positions, top_k)) < self.persistence
        every = np.arange(layers)[:, None]
        for position in range(positions):
            if position:
                scores[every, position, chosen[:, position - 1]] += STAY * stays[:, position]
            chosen[:, position] = (-scores[:, position]).argsort(axis=1, kind="stable")[:, :top_k]
        guesses = drawn_guesses(chosen, experts=experts, accuracy=self.accuracy, draw=draw)
        return Text(experts=chosen, guesses=guesses)
