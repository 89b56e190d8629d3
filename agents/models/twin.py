r"""A twin's arithmetic in numpy, cut into the pieces that different servers run.

One layer of a request is ``attend`` and ``gate`` on the aggregation server, ``experts`` wherever the replicas are, and
``finish`` on the next aggregation server.  The pieces are pure: only a :class:`KeyValueCache` changes, and it belongs
to one layer of one request, so it can live on the server that aggregates that layer.

    h   = norm(x) · g                                     hidden state sent to experts        (1)
    s   = h W_gate,  chosen = the k largest,  w = softmax(s[chosen])                           (2)
    y_e = [silu(h A_e) ∘ (h B_e)] C_e                     expert e, for the tokens that chose it (3)
    q_e = rint(2³² · w_e · y_e)                           an int64: ``contribution``           (4)
    x'  = x + 2⁻³² · Σ_e q_e                              ``finish``                           (5)

Why (4) and (5) use integers: floating-point sums depend on their order, and the order would depend on which servers
hold the experts.  Integer addition is associative, so the servers may merge their experts' results in any grouping and
every placement yields the same bits.  The products in (4) are exact in float64 (24 + 24 bits), so rint is the only
rounding: at most 2⁻³³, against 2⁻²⁵ for rounding x' to float32 where it is as large as 1.  A contribution must stay
below 2²⁴ (checked, also against NaN); then 64 of them add up to less than 2⁶² and cannot overflow.

Bits also depend on the shape of a matrix product.  Therefore every call of ``outputs`` multiplies exactly the rows that
one request routed to that expert, in token order, wherever it runs; requests are never merged into one product.

One thread for BLAS is faster at this size: set OPENBLAS_NUM_THREADS=1 before numpy is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agents.models.loader import read_spec, read_weights
from agents.models.quantize import PRECISIONS, rounded
from agents.models.spec import ModelSpec
from testbed.errors import TestbedError

Floats = npt.NDArray[np.float32]
Totals = npt.NDArray[np.int64]

Call = tuple[int, str, int]  # expert, precision, rows

FIXED_POINT = 2.0**32
LARGEST_CONTRIBUTION = 2.0**24


class KeyValueCache:
    """Keys and values of one layer for the positions of one request so far."""

    def __init__(self, spec: ModelSpec, capacity: int = 64) -> None:
        self.length = 0
        self._keys = np.empty((spec.heads, max(capacity, 1), spec.head_width), np.float32)
        self._values = np.empty_like(self._keys)

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add positions, shaped (positions, heads, head width); returns all so far as (heads, length, head width)."""
        end = self.length + len(keys)
        capacity = self._keys.shape[1]
        if end > capacity:
            grown = (self._keys.shape[0], max(end, 2 * capacity), self._keys.shape[2])
            old = self._keys, self._values
            self._keys, self._values = np.empty(grown, np.float32), np.empty(grown, np.float32)
            self._keys[:, : self.length], self._values[:, : self.length] = (x[:, : self.length] for x in old)
        self._keys[:, self.length : end] = keys.transpose(1, 0, 2)
        self._values[:, self.length : end] = values.transpose(1, 0, 2)
        self.length = end
        return self._keys[:, :end], self._values[:, :end]


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
    weights: Floats  # (n, top_k), rows sum to 1
    memo: dict[int, Any] | None = None  # where this very gate will come again: what others derive from it


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
    """Equation (4): an expert's weighted output in fixed point, ready to be added in any order."""
    scaled = np.multiply(y, (weight * np.float64(FIXED_POINT))[:, None], dtype=np.float64)
    # One comparison refuses NaN, infinity and overflow.
    if scaled.size and not np.abs(scaled).max() < LARGEST_CONTRIBUTION * FIXED_POINT:
        raise TestbedError("an expert's output is not finite, or too large for its fixed-point sum")
    return np.rint(scaled, out=scaled).astype(np.int64)


def add_experts(
    calls: Sequence[Call], outputs: Floats, weights: Floats, index: npt.NDArray[Any], total: Totals
) -> None:
    """Equation (4) and its sum: adds what calls contribute to ``total``, (rows, width).

    Line j of ``outputs`` weighs ``weights[j]`` and goes to row ``index[j]``; the lines stand call after call.
    """
    parts = contribution(outputs, weights)
    start = 0
    for _, _, count in calls:
        total[index[start : start + count]] += parts[start : start + count]  # rows differ within a call
        start += count


def finish(x: Floats, total: Totals) -> Floats:
    """Equation (5): the residual stream after the layer."""
    out: Floats = x + (total * (1.0 / FIXED_POINT)).astype(np.float32)
    return out


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's dense weights, arranged for few and large operations."""

    projection: Floats  # (width, 5 width): q, k, then both turned by a quarter, then v; the norm's gain is folded in
    output: Floats  # (width, width)
    expert_norm: Floats  # (width,)
    gate: Floats  # (width, experts)


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
        self._rotary = _rotary_table(spec, spec.context)

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

        With a cache their keys and values are appended to it: prefill with ``start=0``, then decode one by one.
        """
        spec, weights, n = self.spec, self._layers[layer], len(x)
        kept = KeyValueCache(spec, n) if cache is None else cache
        if cache is not None and cache.length != start:
            raise TestbedError(f"layer {layer}: the cache holds {cache.length} positions, so start cannot be {start}")
        if start + n > len(self._rotary[0]):
            self._rotary = _rotary_table(spec, 2 * (start + n))
        cos, sin = (table[start : start + n] for table in self._rotary)  # (n, 2 width)
        width = spec.width
        projected = _normed(x, spec.norm_eps) @ weights.projection  # (n, 5 width)
        turned = projected[:, : 2 * width]
        turned *= cos
        quarter = projected[:, 2 * width : 4 * width]
        quarter *= sin
        turned += quarter
        by_head = projected.reshape(n, 5, spec.heads, spec.head_width)
        keys, values = kept.append(by_head[:, 1], by_head[:, 4])  # (heads, length, head width)
        query = np.ascontiguousarray(by_head[:, 0].transpose(1, 0, 2))  # (heads, n, head width)
        scores: Floats = query @ keys.transpose(0, 2, 1)  # (heads, n, length)
        if n > 1:
            scores += _future(n, scores.shape[2])
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        mixed: Floats = scores @ values  # (heads, n, head width)
        mixed /= scores.sum(axis=2, keepdims=True)
        out: Floats = mixed.transpose(1, 0, 2).reshape(n, width) @ weights.output
        out += x
        return out

    def gate(self, layer: int, x: Floats) -> Gate:
        """Equations (1) and (2).  Ties go to the lowest expert number."""
        weights, top_k = self._layers[layer], self.spec.top_k
        hidden = _normed(x, self.spec.norm_eps)
        hidden *= weights.expert_norm
        scores = hidden @ weights.gate  # (n, experts)
        chosen = np.empty((len(x), top_k), np.int16)
        best = np.empty((len(x), top_k), np.float32)
        every = np.arange(len(x))
        for rank in range(top_k):
            top = scores.argmax(axis=1)
            chosen[:, rank], best[:, rank] = top, scores[every, top]
            scores[every, top] = -np.inf
        best -= best[:, :1].copy()  # the largest comes first
        np.exp(best, out=best)
        best /= best.sum(axis=1, keepdims=True)
        return Gate(hidden=hidden, experts=chosen, weights=best)

    def expert(self, layer: int, expert: int, precision: str, hidden: Floats) -> Floats:
        """Equation (3) on the given rows, (m, width)."""
        return self.outputs(layer, [(expert, precision, len(hidden))], np.ascontiguousarray(hidden))

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Equation (3) of several calls, call after call, (m, width); each multiplies its own rows only."""
        prepared = [self._prepared(layer, expert, precision) for expert, precision, _ in calls]
        width, inner_width = rows.shape[1], 2 * self.spec.expert_width
        projected = np.empty((len(rows), inner_width), np.float32)  # half of the gate, value
        out: Floats = np.empty((len(rows), width), np.float32)
        start = 0
        for (inner, _), (_, _, count) in zip(prepared, calls, strict=True):
            np.matmul(rows[start : start + count], inner, out=projected[start : start + count])
            start += count
        half, value = projected[:, : self.spec.expert_width], projected[:, self.spec.expert_width :]
        # silu(2u) = u (1 + tanh u): no overflow, and the half is folded into the weights, exactly.
        active = np.tanh(half)
        active += np.float32(1)
        active *= half
        active *= value
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
        """Equations (3) and (4) of several calls: adds their contributions to ``total``, (rows, width).

        ``index`` and ``weights`` hold, call after call, which rows of ``hidden`` a call takes and what each weighs.
        """
        add_experts(calls, self.outputs(layer, calls, hidden[index]), weights, index, total)

    def logits(self, x: Floats) -> Floats:
        """Scores of the next token, (n, vocab)."""
        out: Floats = _normed(x, self.spec.norm_eps) @ self._unembedding
        return out

    def _prepared(self, layer: int, expert: int, precision: str) -> tuple[Floats, Floats]:
        key = (layer, expert, precision)
        found = self._experts.get(key)
        if found is None:
            if precision not in PRECISIONS:
                raise TestbedError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
            inner = rounded(self._weights[f"layers.{layer}.experts_in"][expert], precision)
            outer = rounded(self._weights[f"layers.{layer}.experts_out"][expert], precision)
            inner = inner.copy()
            inner[:, : self.spec.expert_width] *= np.float32(0.5)
            found = self._experts[key] = (inner, outer)
        return found

    def _arrange(self, layer: int) -> _Layer:
        spec = self.spec
        weights = {name: self._weights[f"layers.{layer}.{name}"] for name in ("qkv", "attention_out", "gate")}
        gain = self._weights[f"layers.{layer}.attention_norm"]
        query, key, value = np.split(weights["qkv"] * gain[:, None], 3, axis=1)
        query = query * np.float32(spec.head_width**-0.5)
        turned = [_quarter_turn(part, spec) for part in (query, key)]
        return _Layer(
            projection=np.ascontiguousarray(np.concatenate([query, key, *turned, value], axis=1)),
            output=weights["attention_out"],
            expert_norm=self._weights[f"layers.{layer}.expert_norm"],
            gate=weights["gate"],
        )


def _normed(x: Floats, eps: float) -> Floats:
    mean_square = np.vecdot(x, x)
    mean_square *= np.float32(1.0 / x.shape[1])
    mean_square += np.float32(eps)
    np.sqrt(mean_square, out=mean_square)
    out: Floats = x / mean_square[:, None]
    return out


def _quarter_turn(columns: Floats, spec: ModelSpec) -> Floats:
    """(first, second) half of every head -> (-second, first): what the rotary sine multiplies."""
    halves = columns.reshape(len(columns), spec.heads, 2, spec.head_width // 2)
    return np.stack([-halves[:, :, 1], halves[:, :, 0]], axis=2).reshape(columns.shape)


def _rotary_table(spec: ModelSpec, positions: int) -> tuple[Floats, Floats]:
    half = spec.head_width // 2
    frequency = spec.rope_base ** (-np.arange(half) / half)
    angle = np.arange(positions)[:, None] * frequency  # (positions, half)
    repeated = np.tile(angle, (1, 2 * 2 * spec.heads))  # both halves of every head, for queries and keys
    return np.cos(repeated).astype(np.float32), np.sin(repeated).astype(np.float32)


_FUTURE = np.triu(np.full((256, 256), -np.inf, np.float32), 1)


def _future(n: int, length: int) -> Floats:
    """Minus infinity where a new position would see one after it, (n, length)."""
    start = length - n
    if length <= len(_FUTURE):
        return _FUTURE[start:length, :length]
    return np.triu(np.full((n, length), -np.inf, np.float32), start + 1)
