"""The next token of a continuation: the likeliest, or drawn with a seed.

    p = softmax(logits / temperature), restricted to the likeliest tokens that together reach ``top_p``

A. Holtzman et al., "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751), section 3.1, for ``top_p``.  The
draw is a number in [0, 1), so that the same request gets the same text whichever server answers.

>>> choose(np.array([0.0, 3.0, 1.0], np.float32), Sampling(), 0.9)
1
>>> choose(np.array([0.0, 0.1, 0.2], np.float32), Sampling(temperature=1.0), 0.1)
2
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from agents.models.mixture import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; temperature 0 always takes the likeliest."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """ValueError naming what is out of range."""
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError(f"temperature is {self.temperature}; it must be between 0 and 100")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")

    def draw(self, request: int, step: int) -> float:
        """The number in [0, 1) that decides one token of one request."""
        return random.Random(f"{self.seed}/{request}/{step}").random()  # noqa: S311 - text, not secrets


GREEDY = Sampling()


def choose(logits: Floats, sampling: Sampling, draw: float) -> int:
    """A token from scores (vocab,), for a draw in [0, 1); ties go to the lowest number."""
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    below = logits[order].astype(np.float64) - float(logits[order[0]])
    with np.errstate(over="ignore"):  # nearly cold: all but the likeliest are infinitely far
        p = np.exp(below / sampling.temperature)
    reached = np.cumsum(p / p.sum())
    kept = int(np.searchsorted(reached, sampling.top_p)) + 1
    place = int(np.searchsorted(reached[:kept], draw * reached[min(kept, len(reached)) - 1], side="right"))
    return int(order[min(place, kept - 1, len(order) - 1)])
