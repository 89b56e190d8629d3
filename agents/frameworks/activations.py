r"""Which experts a request will ask for, from requests like it.  MoE-Infinity, arXiv 2401.14361, section 4
[reconstruction].

    M       activation matrix of a request: tokens that went to expert e in layer i, (layers, experts)            (1)
    s(M,H)  = mean over layers i <= l of  cos(M_i, H_i)                                                           (2)
    P_i     = (1 - (i - l) / (L + 1)) · H_i / sum_e H_i     for i > l, with H = argmax s                          (3)

    l  last layer that is known of M        L  number of layers        H  matrix of an earlier request

(3) weighs near layers more: they are needed first, and known best.  Rows are normalised so that a long request of the
past says no more than a short one [ours].  The paper keeps a fixed number of matrices, chosen by clustering; ours are
the latest ones.
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


def similarity(known: Floats, past: Floats) -> float:
    """Equation (2) over the rows of ``known``, (layers so far, experts); a row without tokens is like nothing.

    >>> similarity(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 0.0], [0.0, 0.0]]))
    0.5
    """
    norms = np.linalg.norm(known, axis=1) * np.linalg.norm(past, axis=1)
    cosines = (known * past).sum(axis=1) / np.where(norms > 0, norms, 1.0)
    return float(cosines.mean())


def depth_weight(layer: int, known: int, layers: int) -> float:
    """1 - (i - l) / (L + 1) of equation (3).

    >>> depth_weight(2, 0, 3)
    0.5
    """
    return 1.0 - (layer - known) / (layers + 1)


class Activations:
    """The matrices of requests under way, and of those that are done."""

    def __init__(self, layers: int, experts: int) -> None:
        self._shape = layers, experts
        self._current: OrderedDict[int, Floats] = OrderedDict()
        self._past: OrderedDict[int, Floats] = OrderedDict()  # by request, oldest first

    def saw(self, request: int, layer: int, tokens: Iterable[tuple[int, int]]) -> None:
        """A request asks for these (expert, tokens) in a layer; passes of one request add up."""
        if request not in self._current:
            self._current[request] = self._past.pop(request, np.zeros(self._shape))
            if len(self._current) > UNDER_WAY:
                self._current.popitem(last=False)
        for expert, count in tokens:
            self._current[request][layer, expert] += count

    def done(self, request: int) -> None:
        """A request's pass is over: it is history, until its next pass."""
        matrix = self._current.pop(request, None)
        if matrix is not None:
            self._past[request] = matrix
            if len(self._past) > REMEMBERED:
                self._past.popitem(last=False)

    def predicted(self, request: int, layer: int) -> Floats:
        """Equation (3) for a request that has come to ``layer``, (layers, experts); zeros where nothing is known."""
        layers, _ = self._shape
        weights = np.zeros(self._shape)
        current = self._current.get(request)
        if current is None or not self._past:
            return weights
        known = current[: layer + 1]
        best = max(self._past.values(), key=lambda past: similarity(known, past[: layer + 1]))
        for later in range(layer + 1, layers):
            total = best[later].sum()
            if total > 0:
                weights[later] = depth_weight(later, layer, layers) * best[later] / total
        return weights

    def wanted(self, request: int, layer: int) -> list[tuple[int, int]]:
        """What to prefetch, most wanted first: (layer, expert) with a prediction above zero."""
        weights = self.predicted(request, layer)
        keys = [(int(i), int(e)) for i, e in np.argwhere(weights > 0)]
        return sorted(keys, key=lambda key: (-weights[key], key))
