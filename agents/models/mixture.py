r"""What a gate decides, and the sum of what the chosen experts answer, free of rounding in any order.

    q_e = rint(2³² · w_e · y_e)                           an int64: ``contribution``           (1)
    x'  = x + 2⁻³² · Σ_e q_e                              ``finish``                           (2)

Why integers: floating-point sums depend on their order, and the order would depend on which servers hold the experts.
Integer addition is associative, so the servers may merge their experts' results in any grouping and every placement
yields the same bits.  The products in (1) are exact in float64 (24 + 24 bits), so rint is the only rounding: at most
2⁻³³, against 2⁻²⁵ for rounding x' to float32 where it is as large as 1.  A contribution must stay below 2²⁴ (checked,
also against NaN); then 64 of them add up to less than 2⁶² and cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.errors import TestbedError

Floats = npt.NDArray[np.float32]
Totals = npt.NDArray[np.int64]

Call = tuple[int, str, int]  # expert, precision, rows

FIXED_POINT = 2.0**32
LARGEST_CONTRIBUTION = 2.0**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The tokens of one request that chose one expert, in token order."""

    expert: int
    tokens: npt.NDArray[np.intp]  # (m,) rows of ``Gate.hidden``
    weights: Floats  # (m,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the gate of one layer decided for the tokens of one request."""

    hidden: Floats  # (n, width) the normed state that experts see
    experts: npt.NDArray[np.int16]  # (n, top_k), best first
    weights: Floats  # (n, top_k); rows sum to 1 where the softmax goes over the chosen scores only
    shared: Floats | None = None  # (n, width) what the expert that all tokens share adds, where there is one
    memo: dict[int, Any] | None = None  # where this very gate will come again: what others derive from it

    def residual(self, x: Floats) -> Floats:
        """The stream that the chosen experts' results are added to; ``x`` is what the gate has seen."""
        return x if self.shared is None else x + self.shared


def assign(experts: npt.NDArray[np.int16], weights: Floats) -> list[Assignment]:
    """Tokens sorted by expert, once; experts without tokens are left out."""
    flat = experts.ravel()
    order = flat.argsort(kind="stable")
    tokens = order // experts.shape[1]
    sorted_weights = weights.ravel()[order]
    found = []
    start = 0
    for expert, end in enumerate(np.bincount(flat).cumsum().tolist()):
        if end > start:
            found.append(Assignment(expert=expert, tokens=tokens[start:end], weights=sorted_weights[start:end]))
        start = end
    return found


def contribution(y: Floats, weight: Floats) -> Totals:
    """Equation (1): an expert's weighted output in fixed point, ready to be added in any order."""
    scaled = np.multiply(y, (weight * np.float64(FIXED_POINT))[:, None], dtype=np.float64)
    # One comparison refuses NaN, infinity and overflow.
    if scaled.size and not np.abs(scaled).max() < LARGEST_CONTRIBUTION * FIXED_POINT:
        raise TestbedError("an expert's output is not finite, or too large for its fixed-point sum")
    return np.rint(scaled, out=scaled).astype(np.int64)


def add_experts(
    calls: Sequence[Call], outputs: Floats, weights: Floats, index: npt.NDArray[Any], total: Totals
) -> None:
    """Equation (1) and its sum: adds what calls contribute to ``total``, (rows, width).

    Line j of ``outputs`` weighs ``weights[j]`` and goes to row ``index[j]``; the lines stand call after call.
    """
    parts = contribution(outputs, weights)
    start = 0
    for _, _, count in calls:
        total[index[start : start + count]] += parts[start : start + count]  # rows differ within a call
        start += count


def finish(x: Floats, total: Totals) -> Floats:
    """Equation (2): the residual stream after the layer; ``x`` is ``Gate.residual``."""
    out: Floats = x + (total * (1.0 / FIXED_POINT)).astype(np.float32)
    return out
