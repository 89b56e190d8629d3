r"""A twin's arithmetic in numpy, cut into the pieces that different servers run.

One layer of a request is ``attend`` and ``gate`` on the aggregation server, ``experts`` wherever the replicas are, and
``finish`` on the next aggregation server.  The pieces are pure: only a :class:`KeyValueCache` changes, and it belongs
to one layer of one request, so it can live on the server that aggregates that layer.

    x   = attention of the layer (and the dense block before it, where the model has one)      ``attend``
    h   = norm(x) · g                                     hidden state sent to experts        (1)
    s   = h W_gate,  chosen = the k largest,  w = softmax over the chosen or over all          (2)
    x  += sigmoid(h · w_s) · expert_s(h)                  the shared expert, where there is one (3)
    y_e = [silu(h A_e) ∘ (h B_e)] C_e  or  relu(h A_e) C_e    expert e, for the tokens that chose it (4)
    x'  = x + Σ_e w_e y_e                                 in fixed point (:mod:`agents.models.mixture`)

Bits depend on the shape of a matrix product.  Therefore every call of ``outputs`` multiplies exactly the rows that one
request routed to that expert, in token order, wherever it runs; requests are never merged into one product.

One thread for BLAS is faster at this size: set OPENBLAS_NUM_THREADS=1 before numpy is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agents.models.attention import Attention, KeyValueCache, normed, rotary_table
from agents.models.loader import read_spec, read_weights
from agents.models.mixture import Call, Floats, Gate, Totals, add_experts
from agents.models.quantize import PRECISIONS, rounded
from agents.models.spec import ModelSpec
from testbed.errors import TestbedError


@dataclass(frozen=True, slots=True)
class _Dense:
    """The block before a layer: attention, then a feed-forward of two matrices."""

    attention: Attention
    inner: Floats  # (width, dense width); the norm's gain is folded in
    outer: Floats  # (dense width, width)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The expert that all tokens share."""

    inner: Floats  # (width, 2 shared width): half of the gate, value
    outer: Floats  # (shared width, width)
    gate: Floats  # (width,)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer's aggregation server multiplies with."""

    attention: Attention
    expert_norm: Floats  # (width,)
    gate: Floats  # (width, experts)
    dense: _Dense | None
    shared: _Shared | None


class Twin:
    """A loaded model.  Expert weights in a precision are prepared when that precision is first used."""

    measures_quality = True  # its logits are a language model's

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Floats]) -> None:
        self.spec = spec
        self._weights = weights
        self._layers = [self._arrange(layer) for layer in range(spec.layers)]
        self._embedding = weights["embedding"]
        self._unembedding = np.ascontiguousarray((self._embedding * weights["final_norm"]).T)
        self._experts: dict[tuple[int, int, str], tuple[Floats, Floats]] = {}
        self._turns = rotary_table(spec, spec.context)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read ``model.json`` and ``weights.safetensors``; refuses what is missing, cut short or does not fit."""
        spec = read_spec(directory)
        return cls(spec, read_weights(directory, spec))

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """The residual stream before the first layer, (n, width)."""
        numbers = np.asarray(tokens, dtype=np.intp)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.spec.vocab):
            raise TestbedError(f"token numbers must be in 0..{self.spec.vocab - 1}")
        return self._embedding[numbers]

    def new_cache(self, capacity: int = 64) -> KeyValueCache:
        """An empty cache for one layer of one request."""
        return KeyValueCache(self.spec, capacity)

    def attend(self, layer: int, x: Floats, cache: KeyValueCache | None = None, start: int = 0) -> Floats:
        """x plus the attention of the n new positions ``start``.. to all positions up to their own.

        With a cache their keys and values are appended to it: prefill with ``start=0``, then decode one by one.  A
        dense block before the layer comes first, with keys and values of its own.
        """
        spec, weights, n = self.spec, self._layers[layer], len(x)
        kept = KeyValueCache(spec, n) if cache is None else cache
        if cache is not None and cache.length != start:
            raise TestbedError(f"layer {layer}: the cache holds {cache.length} positions, so start cannot be {start}")
        if start + n > len(self._turns[0]):
            self._turns = rotary_table(spec, 2 * (start + n))
        cos, sin = self._turns
        turns = cos[start : start + n], sin[start : start + n]  # (n, 2 width)
        if (dense := weights.dense) is not None:
            x = dense.attention(spec, x, kept, 0, turns)
            active = normed(x, spec.norm_eps) @ dense.inner
            x = x + np.maximum(active, np.float32(0), out=active) @ dense.outer
        return weights.attention(spec, x, kept, spec.attentions - 1, turns)

    def gate(self, layer: int, x: Floats) -> Gate:
        """Equations (1) to (3).  Ties go to the lowest expert number."""
        weights, top_k = self._layers[layer], self.spec.top_k
        hidden = normed(x, self.spec.norm_eps)
        hidden *= weights.expert_norm
        scores = hidden @ weights.gate  # (n, experts)
        chosen = np.empty((len(x), top_k), np.int16)
        best = np.empty((len(x), top_k), np.float32)
        every = np.arange(len(x))
        over_all = self.spec.gating == "all"
        if over_all:
            scores -= scores.max(axis=1, keepdims=True)
            whole = np.exp(scores).sum(axis=1, keepdims=True)
        for rank in range(top_k):
            top = scores.argmax(axis=1)
            chosen[:, rank], best[:, rank] = top, scores[every, top]
            scores[every, top] = -np.inf
        if not over_all:
            best -= best[:, :1].copy()  # the largest comes first
        np.exp(best, out=best)
        best /= whole if over_all else best.sum(axis=1, keepdims=True)
        shared = None if weights.shared is None else self._share(weights.shared, hidden)
        return Gate(hidden=hidden, experts=chosen, weights=best, shared=shared)

    def expert(self, layer: int, expert: int, precision: str, hidden: Floats) -> Floats:
        """Equation (4) on the given rows, (m, width)."""
        return self.outputs(layer, [(expert, precision, len(hidden))], np.ascontiguousarray(hidden))

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Equation (4) of several calls, call after call, (m, width); each multiplies its own rows only."""
        prepared = [self._prepared(layer, expert, precision) for expert, precision, _ in calls]
        projected = np.empty((len(rows), self.spec.inner_width), np.float32)
        out: Floats = np.empty((len(rows), rows.shape[1]), np.float32)
        start = 0
        for (inner, _), (_, _, count) in zip(prepared, calls, strict=True):
            np.matmul(rows[start : start + count], inner, out=projected[start : start + count])
            start += count
        active = self._activate(projected)
        start = 0
        for (_, outer), (_, _, count) in zip(prepared, calls, strict=True):
            np.matmul(active[start : start + count], outer, out=out[start : start + count])
            start += count
        return out

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """Several calls at once: adds their weighted outputs, in fixed point, to ``total``, (rows, width).

        ``index`` and ``weights`` hold, call after call, which rows of ``hidden`` a call takes and what each weighs.
        """
        add_experts(calls, self.outputs(layer, calls, hidden[index]), weights, index, total)

    def logits(self, x: Floats) -> Floats:
        """Scores of the next token, (n, vocab)."""
        out: Floats = normed(x, self.spec.norm_eps) @ self._unembedding
        return out

    def _activate(self, projected: Floats) -> Floats:
        """What stands between an expert's two products; works in place."""
        if self.spec.activation == "relu":
            return np.maximum(projected, np.float32(0), out=projected)
        return _swiglu(projected)

    def _share(self, shared: _Shared, hidden: Floats) -> Floats:
        out: Floats = _swiglu(hidden @ shared.inner) @ shared.outer
        # sigmoid(u) = (1 + tanh(u / 2)) / 2: no overflow
        open_by = np.tanh((hidden @ shared.gate) * np.float32(0.5))
        open_by += np.float32(1)
        open_by *= np.float32(0.5)
        out *= open_by[:, None]
        return out

    def _prepared(self, layer: int, expert: int, precision: str) -> tuple[Floats, Floats]:
        key = (layer, expert, precision)
        found = self._experts.get(key)
        if found is None:
            if precision not in PRECISIONS:
                raise TestbedError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
            inner = rounded(self._weights[f"layers.{layer}.experts_in"][expert], precision)
            outer = rounded(self._weights[f"layers.{layer}.experts_out"][expert], precision)
            if self.spec.activation == "swiglu":
                inner = _gate_halved(inner)
            found = self._experts[key] = (inner, outer)
        return found

    def _arrange(self, layer: int) -> _Layer:
        spec = self.spec

        def stored(name: str) -> Floats:
            return self._weights[f"layers.{layer}.{name}"]

        dense, shared = None, None
        if spec.dense_width:
            attention = Attention.of(
                spec, stored("dense_attention_norm"), stored("dense_qkv"), stored("dense_attention_out")
            )
            inner = np.ascontiguousarray(stored("dense_in") * stored("dense_norm")[:, None])
            dense = _Dense(attention, inner, stored("dense_out"))
        if spec.shared_width:
            shared = _Shared(_gate_halved(stored("shared_in")), stored("shared_out"), stored("shared_gate")[:, 0])
        return _Layer(
            attention=Attention.of(spec, stored("attention_norm"), stored("qkv"), stored("attention_out")),
            expert_norm=stored("expert_norm"),
            gate=stored("gate"),
            dense=dense,
            shared=shared,
        )


def _gate_halved(inner: Floats) -> Floats:
    """Gate and value side by side, the gate halved (exactly): what ``_swiglu`` takes."""
    halved = inner.copy()
    halved[:, : inner.shape[1] // 2] *= np.float32(0.5)
    return halved


def _swiglu(projected: Floats) -> Floats:
    """silu(2u) v of (u, v) side by side; silu(2u) = u (1 + tanh u) cannot overflow."""
    half, value = np.split(projected, 2, axis=1)
    active = np.tanh(half)
    active += np.float32(1)
    active *= half
    active *= value
    return active
