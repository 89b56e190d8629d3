r"""Tokens that have left: their states stay in the stream, give keys and values to later layers, and end in a head.

A token that leaves after layer l keeps x_l.  In the layers after it that state is neither gated nor changed; attention
takes its keys and values from it, as from any other row (as in CALM, arXiv:2207.07061, section 3.4).  At the end
``ExitHeads.carried`` stands in for the layers that it has missed.

When every token of a pass has left, the pass ends there, and later layers have no keys and values of its tokens yet.
A later pass of the same request needs them.  So the states wait where they left (``Parked``), and the next pass that
comes by takes them along: each server on its way appends their keys and values before those of its own token.  What is
never asked for is neither computed nor sent; the rest costs a state per token and move, a projection per token and
layer.

    rows of a pass       waiting states, oldest first, then its own tokens; positions have no gap                  (1)
    left[i]              layer after which row i left; ``STAYS`` while it has not.  Empty: nobody has left         (2)
    dense tokens         staying + κ · left,  κ = K and V projections / dense part, in FLOPs                        (3)

>>> import numpy as np
>>> joined(np.ones((1, 2)), NOBODY, (np.zeros((2, 2)), np.array([4, 3], np.int32)))[1].tolist()
[4, 3, -1]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from agents.depth.base import Mask
from agents.frameworks.cost import kernel_s
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats
from agents.models.profile import HALF_BYTES, ModelProfile
from agents.protocol import Array
from testbed.topology import Device

STAYS = -1
#: (2) for a pass that is whole.
NOBODY: Array = np.zeros(0, dtype=np.int32)

States = tuple[Floats, Array]  # stream and ``left`` of some rows


def staying(left: Array) -> Array | None:
    """Rows that have not left, ascending; None for all of them."""
    return np.flatnonzero(left == STAYS) if len(left) else None


def gone(left: Array, rows: Array | None, leaves: Mask, layer: int) -> Array:
    """``left`` after those of ``rows`` (None: all) have left for which ``leaves`` is True."""
    if not leaves.any():
        return left
    every = np.full(len(leaves), STAYS, dtype=np.int32) if rows is None else left.copy()
    every[leaves if rows is None else rows[leaves]] = layer
    return every


def all_gone(left: Array) -> bool:
    """Whether nobody is left to compute for."""
    return len(left) > 0 and bool((left != STAYS).all())


def joined(stream: Floats, left: Array, waiting: States | None) -> States:
    """Equation (1)."""
    if waiting is None:
        return stream, left
    own = left if len(left) else np.full(len(stream), STAYS, dtype=np.int32)
    return np.concatenate([waiting[0], stream]), np.concatenate([waiting[1], own])


def carried(stream: Floats, left: Array, exits: ExitHeads | None) -> Floats:
    """What the output projection sees: rows that left go through the head of their layer, layer by layer."""
    if not len(left) or exits is None:
        return stream
    out = stream.copy()
    for layer in sorted({int(each) for each in left} - {STAYS}):
        rows = np.flatnonzero(left == layer)
        out[rows] = exits.carried(layer, stream[rows])
    return out


def dense_tokens(profile: ModelProfile, tokens: int, left: int) -> int:
    """Equation (3), rounded up.  Blocks without experts must run whole: their keys come after their feed-forward."""
    if not left:
        return tokens
    if profile.dense_blocks:
        return tokens + left
    projections = 2.0 * profile.hidden * profile.kv_bytes_per_token / HALF_BYTES
    return tokens + math.ceil(left * projections / profile.dense_flops_per_token)


def gauge_s(device: Device, profile: ModelProfile, exits: ExitHeads, rows: int) -> float:
    """Time of the gauge on some rows, as a part of the kernel after it."""
    weights = profile.hidden * exits.gauge_in.shape[2]
    return kernel_s(device, flops=2.0 * rows * weights, weight_bytes=HALF_BYTES * weights)


def heads_s(device: Device, profile: ModelProfile, left: Array) -> float:
    """Time of the heads' maps for rows that have left, as a part of the output head's kernel."""
    weights = profile.hidden * profile.hidden
    counts = [int((left == layer).sum()) for layer in sorted({int(each) for each in left} - {STAYS})]
    return sum(kernel_s(device, flops=2.0 * n * weights, weight_bytes=HALF_BYTES * weights) for n in counts)


@dataclass(slots=True)
class Parked:
    """States of passes that ended early on this server, until the next pass of their request comes by."""

    _states: dict[int, tuple[float, dict[int, States]]] = field(default_factory=dict)  # request -> deadline, layer -> .

    def put(self, request: int, layer: int, states: States, deadline_s: float) -> None:
        """All rows of a pass have left by ``layer``."""
        _, by_layer = self._states.setdefault(request, (deadline_s, {}))
        by_layer[layer] = states

    def take(self, request: int, layer: int) -> States | None:
        """What waits after a layer, once."""
        entry = self._states.get(request)
        return entry[1].pop(layer, None) if entry is not None else None

    def forget(self, now_s: float) -> None:
        """Drop the states of requests whose deadline has passed."""
        for request, (deadline_s, _) in list(self._states.items()):
            if now_s > deadline_s:
                del self._states[request]
