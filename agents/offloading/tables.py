"""Routing without arithmetic: for every text a table of which experts its tokens chose in every layer.

A table was recorded from a twin (:mod:`agents.offloading.recording`), read from a trace of a large model, or drawn
(:mod:`agents.offloading.drawn`).  Requests walk through the texts in order, so that every scheduler serves the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.offloading.work import Request, Revealed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Text:
    """What the tokens of one text chose."""

    experts: npt.NDArray[np.int16]  # (layers, positions, top_k), best first
    guesses: npt.NDArray[np.int16] | None = None  # (layers, positions, m): layer l + 1's gate, asked at layer l
    _known: dict[tuple[int, int, int], Revealed] = field(default_factory=dict, repr=False)

    @property
    def positions(self) -> int:
        """Tokens that have decisions."""
        return int(self.experts.shape[1])

    def revealed(self, layer: int, start: int, tokens: int) -> Revealed:
        """What the gate says of ``tokens`` positions from ``start`` on; derived once."""
        place = layer, start, tokens
        found = self._known.get(place)
        if found is None:
            counts = counted(self.experts[layer, start : start + tokens])
            guess: tuple[int, ...] = ()
            if self.guesses is not None and layer + 1 < len(self.experts):
                votes = voted(self.guesses[layer, start : start + tokens])
                guess = tuple(votes)
            found = self._known[place] = Revealed(counts=counts, guess=guess)
        return found


class Tabled:
    """``Work`` that looks everything up."""

    def __init__(self, texts: Sequence[Text]) -> None:
        if not texts:
            raise ValueError("there is no text")
        self._texts = texts
        self._under_way: dict[int, tuple[Text, int, int]] = {}  # request -> text, start, tokens of the pass

    @property
    def layers(self) -> int:
        """Layers of the model that was recorded."""
        return len(self._texts[0].experts)

    def begin(self, request: Request) -> None:
        """See ``Work``; ValueError where the text is shorter than the request."""
        text = self._texts[request.number % len(self._texts)]
        if request.prompt_tokens + request.output_tokens - 1 > text.positions:
            raise ValueError(f"request {request.number} is longer than its text of {text.positions} positions")
        self._under_way[request.number] = text, 0, request.prompt_tokens

    def dense(self, request: int, layer: int) -> Revealed:
        """See ``Work``."""
        text, start, tokens = self._under_way[request]
        return text.revealed(layer, start, tokens)

    def experts(self, request: int, layer: int) -> None:
        """See ``Work``."""
        text, start, tokens = self._under_way[request]
        if layer == len(text.experts) - 1:
            self._under_way[request] = text, start + tokens, 1

    def end(self, request: int) -> None:
        """See ``Work``."""
        del self._under_way[request]


def popularity(texts: Sequence[Text], experts: int) -> npt.NDArray[np.float64]:
    """How often each expert of each layer is chosen, (layers, experts); what a cache is warmed with."""
    usage = np.sum([activations(text, experts) for text in texts], axis=0)
    shares: npt.NDArray[np.float64] = usage / usage.sum(axis=1, keepdims=True)
    return shares


def activations(text: Text, experts: int) -> npt.NDArray[np.float64]:
    """Tokens of a text by (layer, expert): what earlier requests leave to those who learn from them."""
    return np.stack([np.bincount(chosen.ravel(), minlength=experts) for chosen in text.experts]).astype(np.float64)


def counted(experts: npt.NDArray[Any]) -> dict[int, int]:
    """Expert -> tokens, in ascending order.

    >>> counted(np.array([[3, 1], [1, 0]]))
    {0: 1, 1: 2, 3: 1}
    """
    numbers, counts = np.unique(experts, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def voted(guesses: npt.NDArray[Any]) -> list[int]:
    """Experts by the weight of votes: a token's first guess counts most.

    >>> voted(np.array([[5, 1], [1, 2]]))
    [1, 5, 2]
    """
    votes: dict[int, float] = {}
    for row in guesses.tolist():
        for place, expert in enumerate(row):
            votes[expert] = votes.get(expert, 0.0) + 1.0 / (1 + place)
    return sorted(votes, key=lambda expert: (-votes[expert], expert))
