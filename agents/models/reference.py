"""The whole forward pass in one process: what a distributed run must equal bit for bit, and quality is held against.

It calls the same pieces as the servers do (:mod:`agents.models.twin`) with the same shapes: a ``score`` is one pass
over the prompt; a ``generate`` is a prefill and then one token at a time, with a cache per layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.models.arithmetic import Arithmetic, Cache
from agents.models.mixture import Floats, Gate, Totals, assign, finish
from agents.models.quantize import FULL
from agents.models.sampling import GREEDY, Sampling, choose

#: One precision for all layers, or one per layer.
Precision = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A continuation."""

    tokens: tuple[int, ...]  # the new ones
    logits: Floats  # (new tokens, vocab): the row that chose each token


def score(
    twin: Arithmetic, tokens: Sequence[int], precision: Precision = FULL, gates: list[Gate] | None = None
) -> Floats:
    """Logits at every position of a prompt, (n, vocab).  ``gates``, if given, receives every layer's gate decision."""
    return twin.logits(through(twin, twin.embed(tokens), precision=precision, gates=gates))


def generate(
    twin: Arithmetic,
    prompt: Sequence[int],
    new_tokens: int,
    precision: Precision = FULL,
    *,
    sampling: Sampling = GREEDY,
    request: int = 0,
) -> Generated:
    """Continue a prompt token by token: the most likely one (ties: the lowest number), or as ``sampling`` draws.

    The draws are those of request number ``request``.
    """
    caches = [twin.new_cache(len(prompt) + new_tokens) for _ in range(twin.spec.layers)]
    chosen: list[int] = []
    rows: list[Floats] = []
    tokens, start = list(prompt), 0
    for step in range(new_tokens):
        x = through(twin, twin.embed(tokens), precision=precision, caches=caches, start=start)
        rows.append(twin.logits(x[-1:])[0])
        start += len(tokens)
        tokens = [choose(rows[-1], sampling, sampling.draw(request, step))]
        chosen += tokens
    logits = np.stack(rows) if rows else np.empty((0, twin.spec.vocab), np.float32)
    return Generated(tokens=tuple(chosen), logits=logits)


def through(
    twin: Arithmetic,
    x: Floats,
    *,
    first: int = 0,
    precision: Precision = FULL,
    caches: Sequence[Cache] | None = None,
    start: int = 0,
    gates: list[Gate] | None = None,
) -> Floats:
    """The residual stream after layers ``first`` to the last."""
    for layer in range(first, twin.spec.layers):
        x = twin.attend(layer, x, caches[layer] if caches else None, start)
        gate = twin.gate(layer, x)
        if gates is not None:
            gates.append(gate)
        total = mixture(twin, layer, gate, precision if isinstance(precision, str) else precision[layer])
        x = finish(gate.residual(x), total)
    return x


def mixture(twin: Arithmetic, layer: int, gate: Gate, precision: str) -> Totals:
    """The sum over all experts of one layer in fixed point, (n, width)."""
    total: Totals = np.zeros(gate.hidden.shape, np.int64)
    parts = assign(gate.experts, gate.weights)
    if parts:
        calls = [(part.expert, precision, len(part.tokens)) for part in parts]
        index = np.concatenate([part.tokens for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        twin.experts(layer, calls, gate.hidden, index, weights, total)
    return total


def next_token_nll(logits: Floats, tokens: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Negative log likelihood in nats of each token after the first, (n - 1,)."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    wanted = np.asarray(tokens, dtype=np.intp)[1:]
    nll: npt.NDArray[np.float64] = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(wanted)), wanted]
    return nll


def digest(logits: Floats) -> bytes:
    """Sixteen bytes that name these exact bits and this shape."""
    data = np.ascontiguousarray(logits, dtype=np.float32)
    return hashlib.blake2b(data.tobytes(), digest_size=16, person=repr(data.shape).encode()[:16]).digest()
