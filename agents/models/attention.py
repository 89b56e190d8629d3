"""Causal attention of one request in numpy, and the keys and values that it keeps.

    p_ij = softmax_j(q_i · k_j / sqrt(head width)),  j <= i          (1)
    x'   = x + concat_heads(Σ_j p_ij v_j) W_out                      (2)

with q and k turned by their positions (rotary, J. Su et al., RoFormer, arXiv:2104.09864, section 3.2.2; pairs are
(i, i + half), as in Mixtral).  The turn of q and k by a quarter is linear, so it is part of the one projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.models.mixture import Floats
from agents.models.spec import ModelSpec


class KeyValueCache:
    """Keys and values of one layer for the positions of one request so far, of each of its attention blocks."""

    def __init__(self, spec: ModelSpec, capacity: int = 64) -> None:
        self.length = 0
        self._last = spec.attentions - 1
        self._keys = np.empty((spec.attentions, spec.heads, max(capacity, 1), spec.head_width), np.float32)
        self._values = np.empty_like(self._keys)

    def append(self, block: int, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add positions, shaped (positions, heads, head width); returns all so far as (heads, length, head width).

        ``length`` grows when the last block has its positions.
        """
        end = self.length + len(keys)
        capacity = self._keys.shape[2]
        if end > capacity:
            shape = list(self._keys.shape)
            shape[2] = max(end, 2 * capacity)
            old = self._keys, self._values
            self._keys, self._values = np.empty(shape, np.float32), np.empty(shape, np.float32)
            self._keys[:, :, :capacity], self._values[:, :, :capacity] = old
        self._keys[block, :, self.length : end] = keys.transpose(1, 0, 2)
        self._values[block, :, self.length : end] = values.transpose(1, 0, 2)
        if block == self._last:
            self.length = end
        return self._keys[block, :, :end], self._values[block, :, :end]


@dataclass(frozen=True, slots=True)
class Attention:
    """The weights of one attention block, arranged for few and large operations."""

    projection: Floats  # (width, 5 width): q, k, then both turned by a quarter, then v; the norm's gain is folded in
    output: Floats  # (width, width)

    @classmethod
    def of(cls, spec: ModelSpec, gain: Floats, qkv: Floats, output: Floats) -> Attention:
        """From the stored weights: the norm's gain (width,), q, k and v side by side (width, 3 width), and W_out."""
        query, key, value = np.split(qkv * gain[:, None], 3, axis=1)
        query = query * np.float32(spec.head_width**-0.5)
        turned = [_quarter_turn(part, spec) for part in (query, key)]
        projection = np.ascontiguousarray(np.concatenate([query, key, *turned, value], axis=1))
        return cls(projection=projection, output=output)

    def __call__(
        self, spec: ModelSpec, x: Floats, kept: KeyValueCache, block: int, turns: tuple[Floats, Floats]
    ) -> Floats:
        """Equations (1) and (2) for new positions, added to ``kept``; ``turns`` are their rows of the table."""
        n, width, (cos, sin) = len(x), spec.width, turns
        projected = normed(x, spec.norm_eps) @ self.projection  # (n, 5 width)
        turned = projected[:, : 2 * width]
        turned *= cos
        quarter = projected[:, 2 * width : 4 * width]
        quarter *= sin
        turned += quarter
        by_head = projected.reshape(n, 5, spec.heads, spec.head_width)
        keys, values = kept.append(block, by_head[:, 1], by_head[:, 4])  # (heads, length, head width)
        query = np.ascontiguousarray(by_head[:, 0].transpose(1, 0, 2))  # (heads, n, head width)
        scores: Floats = query @ keys.transpose(0, 2, 1)  # (heads, n, length)
        if n > 1:
            scores += _future(n, scores.shape[2])
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        mixed: Floats = scores @ values  # (heads, n, head width)
        mixed /= scores.sum(axis=2, keepdims=True)
        out: Floats = mixed.transpose(1, 0, 2).reshape(n, width) @ self.output
        out += x
        return out


def normed(x: Floats, eps: float) -> Floats:
    """RMSNorm without a gain, row by row."""
    mean_square = np.vecdot(x, x)
    mean_square *= np.float32(1.0 / x.shape[1])
    mean_square += np.float32(eps)
    np.sqrt(mean_square, out=mean_square)
    out: Floats = x / mean_square[:, None]
    return out


def rotary_table(spec: ModelSpec, positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines, (positions, 2 width): for both halves of every head, for queries and keys."""
    half = spec.head_width // 2
    frequency = spec.rope_base ** (-np.arange(half) / half)
    angle = np.arange(positions)[:, None] * frequency  # (positions, half)
    repeated = np.tile(angle, (1, 2 * 2 * spec.heads))
    return np.cos(repeated).astype(np.float32), np.sin(repeated).astype(np.float32)


def _quarter_turn(columns: Floats, spec: ModelSpec) -> Floats:
    """(first, second) half of every head -> (-second, first): what the rotary sine multiplies."""
    halves = columns.reshape(len(columns), spec.heads, 2, spec.head_width // 2)
    return np.stack([-halves[:, :, 1], halves[:, :, 0]], axis=2).reshape(columns.shape)


_FUTURE = np.triu(np.full((256, 256), -np.inf, np.float32), 1)


def _future(n: int, length: int) -> npt.NDArray[np.float32]:
    """Minus infinity where a new position would see one after it, (n, length)."""
    start = length - n
    if length <= len(_FUTURE):
        return _FUTURE[start:length, :length]
    return np.triu(np.full((n, length), -np.inf, np.float32), start + 1)
