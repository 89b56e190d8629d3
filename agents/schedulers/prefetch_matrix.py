r"""Loading ahead by requests of the past: MoE-Infinity's activation matrices, arXiv 2401.14361 [reconstruction].

    H       matrix of a request that has left: tokens that went to expert e in layer i, (layers, experts)         (1)
    s(H)    = Σ over layers i <= l of this pass of  cos(M_i, H_i)                                                 (2)
    P_i     = (1 - (i - l) / (L + 1)) · H_i / sum_e H_i   for i > l, with H = argmax s                            (3)
    wanted  = Σ over requests of P, largest first                                                                 (4)

    M  matrix of the pass under way    l  its last known layer    L  layers

The same prediction as ``agents.frameworks.activations`` makes for a framework's requests; here the sums of (2) grow
layer by layer, and many requests are added up (4), because one channel serves all.  The latest matrices are kept
[ours].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.schedulers.base import Key, Matrix, Scheduler, Standing, State, number_option
from agents.schedulers.lockstep import Lockstep
from agents.schedulers.prefetch import CAP, WithPrefetch

#: Matrices that are remembered.
REMEMBERED = 120


class Activations:
    """Equations (1) to (4)."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """Nothing is known of requests under way."""
        self._layers, self._experts = state.layers, state.experts
        whole = [matrix for matrix in history if matrix.any(axis=1).all()]
        self._past: deque[Matrix] = deque(whole, maxlen=self._remembered)
        self._stacked: tuple[Matrix, Matrix] | None = None  # rows as unit vectors, rows as shares
        self._current: dict[int, Matrix] = {}  # request -> its matrix so far
        self._alike: dict[int, Matrix] = {}  # request -> s of equation (2)
        self._predicted: dict[int, Matrix] = {}  # request -> P of equation (3), flat
        self._stack()

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """One more row of a request's matrix."""
        request, layer = standing.request, next(iter(counts)) // self._experts
        row = np.zeros(self._experts)
        row[[key % self._experts for key in counts]] = list(counts.values())
        if request not in self._current:
            self._current[request] = np.zeros((self._layers, self._experts))
        self._current[request][layer] += row
        if self._stacked is None:
            return
        units, shares = self._stacked
        alike = self._alike.get(request)
        if layer == 0 or alike is None or len(alike) != len(units):
            alike = self._alike[request] = np.zeros(len(units))
        alike += units[:, layer] @ (row / np.linalg.norm(row))
        weights = 1 - (np.arange(self._layers) - layer) / (self._layers + 1)
        weights[: layer + 1] = 0
        self._predicted[request] = (shares[int(alike.argmax())] * weights[:, None]).ravel()

    def ended(self, request: int) -> None:
        """A request becomes history."""
        matrix = self._current.pop(request, None)
        self._alike.pop(request, None)
        self._predicted.pop(request, None)
        if matrix is not None and matrix.any(axis=1).all():
            self._past.append(matrix)
            self._stack()

    def wanted(self, state: State) -> list[Key]:  # noqa: ARG002
        """Equation (4); keys with nothing to say for them are left out."""
        if not self._predicted:
            return []
        total = np.sum(list(self._predicted.values()), axis=0)
        order = (-total).argsort(kind="stable")
        best: list[Key] = order[: int((total > 0).sum())].tolist()
        return best

    def _stack(self) -> None:
        if self._past:
            past = np.stack(self._past)
            norms = np.linalg.norm(past, axis=2, keepdims=True)
            self._stacked = past / norms, past / past.sum(axis=2, keepdims=True)


def prefetch_matrix(options: Mapping[str, Any]) -> Scheduler:
    """``prefetch-matrix``: lockstep with activation matrices.  Options ``cap``, ``remembered``, and lockstep's."""
    left = dict(options)
    cap = number_option(left, "cap", CAP)
    predictor = Activations(number_option(left, "remembered", REMEMBERED))
    return WithPrefetch(Lockstep(left), predictor, name="prefetch-matrix", cap=cap)
