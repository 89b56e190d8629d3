r"""Attention of T5 and Switch: scores get a learnt bias by distance; and attention to a memory.

    p_ij = softmax_j(q_i · k_j + B[bucket(j - i)])        within a stack; B is shared by all blocks of the stack
    p_ij = softmax_j(q_i · k_j)                           of the decoder to the encoder's output

Raffel et al., Exploring the Limits of Transfer Learning (T5, arXiv:1910.10683), section 2.1.  Buckets: the first half
of them stand for one distance each, the others for ranges that widen with its logarithm, up to ``farthest``; where
attention sees both ways, half of all buckets stand for each direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.models.checkpoints.attention import softmax
from agents.models.checkpoints.cache import Kept
from agents.models.mixture import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceBias:
    """B above, of one stack."""

    table: Floats  # (buckets, heads)
    farthest: int
    causal: bool

    def at(self, start: int, n: int) -> Floats:
        """For n positions from ``start`` on, and all keys so far, (heads, n, start + n); minus infinity is unseen."""
        distance = np.arange(start + n)[None, :] - np.arange(start, start + n)[:, None]
        numbers = buckets(distance, count=len(self.table), farthest=self.farthest, both_ways=not self.causal)
        bias = np.ascontiguousarray(self.table[numbers].transpose(2, 0, 1))
        if self.causal:
            bias[:, distance > 0] = -np.inf
        return bias


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAttention:
    """Attention within a stack."""

    heads: int
    projection: Floats  # (width, 3 inner): queries, keys, values
    output: Floats  # (inner, width)

    def __call__(self, hidden: Floats, kept: Kept, bias: Floats) -> Floats:
        """Of new positions to all so far, (n, width)."""
        query, key, value = np.split(hidden @ self.projection, 3, axis=1)
        keys, values = kept.extend("keys", key), kept.extend("values", value)
        scores = _by_head(query, self.heads) @ _by_head(keys, self.heads).transpose(0, 2, 1)
        scores += bias
        out: Floats = _joined(softmax(scores) @ _by_head(values, self.heads)) @ self.output
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAttention:
    """Attention of the decoder to what the encoder made of the prompt."""

    heads: int
    query: Floats  # (width, inner)
    memory: Floats  # (width, 2 inner): keys, values
    output: Floats  # (inner, width)

    def __call__(self, hidden: Floats, kept: Kept, memory: Floats | None) -> Floats:
        """(n, width).  Without ``memory`` the one of the first pass, whose keys and values were kept, is meant."""
        projected = kept.once("memory", None if memory is None else memory @ self.memory)
        keys, values = np.split(projected, 2, axis=1)
        scores = _by_head(hidden @ self.query, self.heads) @ _by_head(keys, self.heads).transpose(0, 2, 1)
        out: Floats = _joined(softmax(scores) @ _by_head(values, self.heads)) @ self.output
        return out


def buckets(distance: npt.NDArray[np.intp], *, count: int, farthest: int, both_ways: bool) -> npt.NDArray[np.intp]:
    """The bucket of every distance, key minus query.

    >>> buckets(np.array([0, -1, -15, -16, -40, -1000, 3]), count=32, farthest=128, both_ways=False).tolist()
    [0, 1, 15, 16, 23, 31, 0]
    """
    first = np.zeros_like(distance)
    if both_ways:
        count //= 2
        first = (distance > 0) * count
        away = np.abs(distance)
    else:
        away = np.maximum(-distance, 0)
    single = count // 2
    # float32 throughout, as the reference rounds
    share = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(single)) / np.float32(
        math.log(farthest / single)
    )
    wide = single + (share * np.float32(count - single)).astype(np.intp)
    found: npt.NDArray[np.intp] = first + np.where(away < single, away, np.minimum(wide, count - 1))
    return found


def _by_head(rows: Floats, heads: int) -> Floats:
    """(n, inner) -> (heads, n, inner / heads)."""
    return np.ascontiguousarray(rows.reshape(len(rows), heads, -1).transpose(1, 0, 2))


def _joined(by_head: Floats) -> Floats:
    """The other way."""
    return by_head.transpose(1, 0, 2).reshape(by_head.shape[1], -1)
