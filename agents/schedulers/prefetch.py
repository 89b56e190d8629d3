r"""Loading ahead by a prediction, on top of any scheduler: ``prefetch`` and ``bevy+prefetch`` are compositions.

    votes(key) = Σ over requests  1 / (1 + place of key among the request's first m guesses)                      (1)
    load       = what the scheduler below demands;  else the first of the ``cap`` keys of most votes that is neither
                 here nor being read                                                                              (2)

The gate of the next layer is asked with the current hidden state, before this layer has changed it: the usual
predictor.  A load that has begun is not interrupted: a demand waits for it.  Those ``cap`` keys are not evicted for
another guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agents.schedulers.base import Group, Key, Matrix, Scheduler, Standing, State, number_option
from agents.schedulers.bevy import Bevy
from agents.schedulers.lockstep import Lockstep

#: Experts that are fetched or kept by a prediction at a time: a layer of most models.
CAP = 64


class Predictor(Protocol):
    """Says what will be needed."""

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """A run begins."""
        ...

    def wanted(self, state: State) -> list[Key]:
        """Keys worth loading ahead, most wanted first; also ones that are here."""
        ...

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """A gate has spoken."""
        ...

    def ended(self, request: int) -> None:
        """A request has left."""
        ...


class NextGate:
    """Equation (1)."""

    def __init__(self, most: int | None) -> None:
        """``most`` is m; None: all that the gate named."""
        self._most = most

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """Nothing to prepare."""

    def wanted(self, state: State) -> list[Key]:
        """By votes."""
        votes: dict[Key, float] = {}
        for each in (*state.standing.values(), *state.running):
            for place, key in enumerate(each.guess[: self._most]):
                votes[key] = votes.get(key, 0.0) + 1.0 / (1 + place)
        return sorted(votes, key=lambda key: (-votes[key], key))

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """Nothing: guesses stand in the state."""

    def ended(self, request: int) -> None:
        """Nothing."""


class WithPrefetch:
    """A scheduler that also loads ahead.  Equation (2)."""

    def __init__(self, below: Scheduler, predictor: Predictor, *, name: str, cap: int) -> None:
        self.name = name
        self.splits = below.splits
        self.faults = False  # who loads ahead reads whole experts
        self._below = below
        self._predictor = predictor
        self._cap = cap

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """Tell both."""
        self._below.begin(state, history)
        self._predictor.begin(state, history)

    def next_group(self, state: State) -> Group:
        """The scheduler's below."""
        return self._below.next_group(state)

    def next_load(self, state: State) -> Key | None:
        """Demands first."""
        key = self._below.next_load(state)
        if key is not None or state.demanded:
            return key
        wanted = self._predictor.wanted(state)[: self._cap]
        return next((key for key in wanted if not state.resident[key] and key != state.loading), None)

    def victim(self, state: State, free: npt.NDArray[np.bool_]) -> Key:
        """The scheduler's below."""
        return self._below.victim(state, free)

    def protected(self, state: State) -> Collection[Key]:
        """What is wanted."""
        return self._predictor.wanted(state)[: self._cap]

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """Tell both."""
        self._below.revealed(standing, counts)
        self._predictor.revealed(standing, counts)

    def ended(self, request: int) -> None:
        """Tell both."""
        self._below.ended(request)
        self._predictor.ended(request)


def prefetch(options: Mapping[str, Any]) -> Scheduler:
    """``prefetch``: lockstep, with the next layer's gate.  Options ``m``, ``cap``, and those of lockstep."""
    return with_next_gate(Lockstep, options, "prefetch")


def bevy_with_prefetch(options: Mapping[str, Any]) -> Scheduler:
    """``bevy+prefetch``: the same predictor on top of Bevy.  Options ``m``, ``cap``, and those of Bevy."""
    return with_next_gate(Bevy, options, "bevy+prefetch")


def with_next_gate(below: Callable[[Mapping[str, Any]], Scheduler], options: Mapping[str, Any], name: str) -> Scheduler:
    """A scheduler that asks the next layer's gate."""
    left = dict(options)
    most = number_option(left, "m", 1) if "m" in left else None
    cap = number_option(left, "cap", CAP)
    return WithPrefetch(below(left), NextGate(most), name=name, cap=cap)
