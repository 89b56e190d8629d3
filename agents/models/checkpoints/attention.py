r"""Causal attention with fewer heads of keys and values than of queries: Mixtral, Qwen2-MoE and OLMoE.

q, k, v = h W + b;   q, k normed over all heads (OLMoE);   clipped (OLMoE, where the configuration says so)
p_ij    = softmax_j(turn(q_i) · turn(k_j) / sqrt(w)),  j <= i          head j of queries reads head j // group
out     = concat_heads(Σ_j p_ij v_j) W_out + b_out

h  normed stream, (n, width)    w  width of a head    group  heads of queries per head of keys
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agents.models.attention import normed
from agents.models.checkpoints.cache import Kept
from agents.models.checkpoints.rope import Rope, turned_halves
from agents.models.mixture import Floats


class Attention(Protocol):
    """One attention block, without the norm before it and the stream that its result is added to."""

    def __call__(self, hidden: Floats, kept: Kept, start: int) -> Floats:
        """Of new positions ``start``.. to all positions up to their own, (n, width)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """The weights of one block."""

    heads: int
    kv_heads: int
    head_width: int
    rope: Rope
    projection: Floats  # (width, (heads + 2 kv_heads) w): queries, keys, values
    output: Floats  # (heads w, width)
    bias: Floats | None = None  # of the projection
    output_bias: Floats | None = None
    query_norm: Floats | None = None  # gains, (heads w,)
    key_norm: Floats | None = None  # (kv_heads w,)
    norm_eps: float = 1e-5
    clip: float | None = None  # largest magnitude of queries, keys and values

    def __call__(self, hidden: Floats, kept: Kept, start: int) -> Floats:
        """See ``Attention``."""
        n, w, group = len(hidden), self.head_width, self.heads // self.kv_heads
        projected = hidden @ self.projection
        if self.bias is not None:
            projected += self.bias
        query, key, value = np.split(projected, [self.heads * w, (self.heads + self.kv_heads) * w], axis=1)
        if self.query_norm is not None and self.key_norm is not None:
            query = normed(query, self.norm_eps) * self.query_norm
            key = normed(key, self.norm_eps) * self.key_norm
        if self.clip is not None:
            query, key, value = (np.clip(part, -self.clip, self.clip) for part in (query, key, value))
        turns = self.rope.turns(start, n)
        keys = kept.extend("keys", turned_halves(key.reshape(n, self.kv_heads, w), turns))  # (length, kv_heads, w)
        values = kept.extend("values", value.reshape(n, self.kv_heads, w))
        queries = turned_halves(query.reshape(n, self.heads, w), turns) * np.float32(w**-0.5)
        by_key: Floats = queries.reshape(n, self.kv_heads, group, w).transpose(1, 2, 0, 3)
        by_key = by_key.reshape(self.kv_heads, group * n, w)
        scores: Floats = by_key @ keys.transpose(1, 2, 0)  # (kv_heads, group n, length)
        shares: Floats = causal_softmax(scores.reshape(self.heads, n, -1), start)
        shares = shares.reshape(self.kv_heads, group * n, -1)
        mixed: Floats = shares @ values.transpose(1, 0, 2)  # (kv_heads, group n, w)
        joined: Floats = mixed.reshape(self.heads, n, w).transpose(1, 0, 2).reshape(n, -1)
        out: Floats = joined @ self.output
        return out if self.output_bias is None else out + self.output_bias


def causal_softmax(scores: Floats, start: int) -> Floats:
    """Softmax over the last axis of (heads, n, length) in place, position ``start`` + i seeing all up to itself."""
    n, length = scores.shape[1:]
    if n > 1:
        scores += np.triu(np.full((n, length), -np.inf, np.float32), start + 1)
    return softmax(scores)


def softmax(scores: Floats) -> Floats:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
