"""Feed-forward networks: dense ones, shared experts, and what stands between the two products of any of them.

swiglu   y = [silu(h A) ∘ (h B)] C        inner = A, B side by side
relu     y = relu(h A) C
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.models.mixture import Floats
from agents.models.spec import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two products with an activation between them."""

    activation: Activation
    inner: Floats  # (width, ffn or 2 ffn)
    outer: Floats  # (ffn, width)

    def __call__(self, hidden: Floats) -> Floats:
        """(m, width)."""
        out: Floats = activated(hidden @ self.inner, self.activation) @ self.outer
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExpert:
    """What every token adds, in Qwen2-MoE weighed by a sigmoid of its own."""

    network: FeedForward
    gate: Floats | None = None  # (width,)

    def __call__(self, hidden: Floats) -> Floats:
        """(n, width)."""
        out = self.network(hidden)
        if self.gate is not None:
            # sigmoid(u) = (1 + tanh(u / 2)) / 2: no overflow
            out *= ((np.tanh((hidden @ self.gate) * np.float32(0.5)) + np.float32(1)) * np.float32(0.5))[:, None]
        return out


def activated(projected: Floats, activation: Activation) -> Floats:
    """What stands between the products, (m, ffn); may change its argument.

    silu(u) = u (1 + tanh(u / 2)) / 2 cannot overflow.
    """
    if activation == "relu":
        return np.maximum(projected, np.float32(0), out=projected)
    half, value = np.split(projected, 2, axis=1)
    half *= np.float32(0.5)
    active = np.tanh(half)
    active += np.float32(1)
    active *= half
    active *= value
    return active
