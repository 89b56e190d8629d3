r"""Which experts a request will ask for, from requests like it.  MoE-Infinity, arXiv 2401.14361, section 4
[reconstruction].

    M       activation matrix of a request: tokens that went to expert e in layer i, (layers, experts)            (1)
    s(M,H)  = mean over layers i <= l of  cos(M_i, H_i)                                                           (2)
    P_i     = (1 - (i - l) / (L + 1)) · H_i / sum_e H_i     for i > l, with H = argmax s                          (3)
    W_i     = max( P_i,  (1 - i / (L + 1)) · max(M_i / sum_e M_i, A_i) )                                          (4)

    l  last layer that is known of M        L  number of layers        H  matrix of an earlier request
    A  mean of the matrices of earlier requests, rows as shares; usage in the calibration text counts as one of them

(3) says what to load ahead, and weighs near layers more: they are needed first, and known best.  (4) says what is worth
keeping: for the requests under way what (3) expects of them, and for passes to come what has been asked for lately,
early layers protected, because nothing can be loaded ahead for them.  With several requests under way the largest W
counts.  A is ours: the paper's requests generate for long and keep experts for themselves, ours may be over after one
pass.  Rows are normalised so that a long request of the past says no more than a short one [ours].  The paper keeps a
fixed number of matrices, chosen by clustering; ours are the latest ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from agents.frameworks.expected import Floats

#: Matrices that are remembered.
REMEMBERED = 120
#: Requests under way of which something is known; those that failed are forgotten when others come.
UNDER_WAY = 256


def shares(matrix: Floats) -> Floats:
    """Rows that add up to 1, or are zero.

    >>> shares(np.array([[3.0, 1.0], [0.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    total = matrix.sum(axis=-1, keepdims=True)
    found: Floats = matrix / np.where(total > 0, total, 1.0)
    return found


def similarity(known: Floats, past: Floats) -> Floats:
    """Equation (2) over the rows of ``known``, (layers so far, experts), for every matrix of ``past``, (matrices,
    layers so far, experts); a row without tokens is like nothing.

    >>> similarity(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[[2.0, 0.0], [0.0, 0.0]]])).tolist()
    [0.5]
    """
    norms = np.linalg.norm(known, axis=-1) * np.linalg.norm(past, axis=-1)  # (matrices, layers so far)
    cosines = np.einsum("le,rle->rl", known, past) / np.where(norms > 0, norms, 1.0)
    found: Floats = cosines.mean(axis=1)
    return found


def depth_weight(layer: int, known: int, layers: int) -> float:
    """1 - (i - l) / (L + 1) of equations (3) and, with l = 0, (4).

    >>> depth_weight(2, 0, 3)
    0.5
    """
    return 1.0 - (layer - known) / (layers + 1)


class Activations:
    """The matrices of requests under way, and of those that are done."""

    def __init__(self, layers: int, experts: int, usage: Floats | None = None) -> None:
        """``usage`` (layers, experts) is what is known before the first request."""
        self._shape = layers, experts
        self._usage = np.zeros(self._shape) if usage is None else shares(usage)
        self._current: OrderedDict[int, Floats] = OrderedDict()
        self._predicted: dict[int, Floats] = {}  # of requests under way: equation (3), when last asked for
        self._past: OrderedDict[int, Floats] = OrderedDict()  # by request, oldest first
        self._depth = np.array([[depth_weight(layer, 0, layers)] for layer in range(layers)])
        self._stacked: Floats | None = None  # all of ``_past``, rows as shares
        self._worth: Floats | None = None  # (4), until something is seen

    def saw(self, request: int, layer: int, tokens: Iterable[tuple[int, int]]) -> None:
        """A request asks for these (expert, tokens) in a layer; passes of one request add up."""
        if request not in self._current:
            if request in self._past:
                self._current[request] = self._past.pop(request)
                self._stacked = None
            else:
                self._current[request] = np.zeros(self._shape)
            if len(self._current) > UNDER_WAY:
                forgotten, _ = self._current.popitem(last=False)
                self._predicted.pop(forgotten, None)
        for expert, count in tokens:
            self._current[request][layer, expert] += count
        self._worth = None

    def done(self, request: int) -> None:
        """A request's pass is over: it is history, until its next pass."""
        matrix = self._current.pop(request, None)
        self._predicted.pop(request, None)
        if matrix is not None:
            self._past[request] = matrix
            if len(self._past) > REMEMBERED:
                self._past.popitem(last=False)
            self._stacked = self._worth = None

    def predicted(self, request: int, layer: int) -> Floats:
        """Equation (3) for a request that has come to ``layer``, (layers, experts); zeros where nothing is known."""
        weights = np.zeros(self._shape)
        current = self._current.get(request)
        if current is None or not self._past:
            return weights
        past = self._history()
        best = int(similarity(current[: layer + 1], past[:, : layer + 1]).argmax())
        weights[layer + 1 :] = self._depth[1 : self._shape[0] - layer] * past[best, layer + 1 :]
        self._predicted[request] = weights
        self._worth = None
        return weights

    def wanted(self, request: int, layer: int, most: int | None = None) -> list[tuple[int, int]]:
        """What to load ahead, most wanted first: (layer, expert) with a prediction above zero."""
        weights = self.predicted(request, layer)
        order = np.argsort(-weights, axis=None, kind="stable")[: np.count_nonzero(weights)][:most]
        return [divmod(place, self._shape[1]) for place in order.tolist()]

    def worth(self) -> Floats:
        """Equation (4), (layers, experts); nobody changes it."""
        if self._worth is None:
            past = self._history()
            kept = (self._usage + past.sum(axis=0)) / (1 + len(past))
            for matrix in self._current.values():
                kept = np.maximum(kept, shares(matrix))
            worth = self._depth * kept
            for expected in self._predicted.values():
                worth = np.maximum(worth, expected)
            self._worth = worth
        return self._worth

    def _history(self) -> Floats:
        """All matrices of the past, (matrices, layers, experts), rows as shares."""
        if self._stacked is None:
            matrices = list(self._past.values())
            self._stacked = shares(np.array(matrices)) if matrices else np.zeros((0, *self._shape))
        return self._stacked
