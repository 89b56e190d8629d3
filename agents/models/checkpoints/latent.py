r"""Multi-head latent attention of DeepSeek-V2 (arXiv:2405.04434, section 2.1), on the compressed keys and values.

    q          = h W_q,   or   norm(h W_qa) W_qb                        per head: q_n (plain part), q_r (rotary part)
    c, k_r     = h W_kva,   c = norm(c)                                 k_r is shared by all heads
    scores     = q_n · (c W_uk) + turn(q_r) · turn(k_r)
               = (q_n W_ukᵀ) · c + turn(q_r) · turn(k_r)                                                          (1)
    out        = concat_heads(p (c W_uv)) W_o = concat_heads((p c) W_uv) W_o,    p = softmax(scores · scale)      (2)

What is kept of a position is c and turn(k_r) only; by (1) and (2) the two matrices that would decompress it meet the
query and the result instead, once each.

    scale = m² / sqrt(width of q_n and q_r together),  m = ``Rope.temperature``
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.models.attention import normed
from agents.models.checkpoints.attention import causal_softmax
from agents.models.checkpoints.cache import Kept
from agents.models.checkpoints.rope import Rope, turned_neighbours
from agents.models.mixture import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """From the stream to all queries, in one step or through a narrow middle."""

    weights: Floats  # (width or rank, heads (plain + rotary))
    narrow: Floats | None = None  # (width, rank)
    gain: Floats | None = None  # (rank,)
    norm_eps: float = 1e-6

    def __call__(self, hidden: Floats) -> Floats:
        """(n, heads (plain + rotary))."""
        if self.narrow is not None and self.gain is not None:
            hidden = normed(hidden @ self.narrow, self.norm_eps) * self.gain
        out: Floats = hidden @ self.weights
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """The weights of one block."""

    heads: int
    plain_width: int  # of a query's part without position
    rope_width: int
    rank: int
    rope: Rope
    norm_eps: float
    queries: Queries
    compress: Floats  # (width, rank + rope_width)
    gain: Floats  # (rank,)
    key_up: Floats  # (heads, plain_width, rank): W_ukᵀ
    value_up: Floats  # (heads, rank, value width): W_uv
    output: Floats  # (heads value width, width)

    def __call__(self, hidden: Floats, kept: Kept, start: int) -> Floats:
        """See ``agents.models.checkpoints.attention.Attention``."""
        n, plain = len(hidden), self.plain_width
        turns = self.rope.turns(start, n)
        query = self.queries(hidden).reshape(n, self.heads, plain + self.rope_width)
        scale = np.float32((plain + self.rope_width) ** -0.5 * self.rope.temperature**2)
        query *= scale
        turned = turned_neighbours(query[:, :, plain:], turns).transpose(1, 0, 2)  # (heads, n, rope_width)
        absorbed = np.ascontiguousarray(query[:, :, :plain].transpose(1, 0, 2)) @ self.key_up  # (heads, n, rank)
        compressed = hidden @ self.compress
        latent = normed(compressed[:, : self.rank], self.norm_eps) * self.gain
        key = turned_neighbours(compressed[:, None, self.rank :], turns)[:, 0]
        rows = kept.extend("latents", np.concatenate([latent, key], axis=1))  # (length, rank + rope_width)
        both: Floats = np.concatenate([absorbed, turned], axis=2)
        scores: Floats = both @ rows.T  # (heads, n, length)
        mixed: Floats = causal_softmax(scores, start) @ rows[:, : self.rank]  # (heads, n, rank)
        values: Floats = mixed @ self.value_up  # (heads, n, value width)
        joined: Floats = values.transpose(1, 0, 2).reshape(n, -1)
        out: Floats = joined @ self.output
        return out
