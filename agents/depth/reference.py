"""Passes with early exits in one process: what a distributed run with the same policy must equal bit for bit.

It calls the same pieces with the same shapes as the servers do.  Who leaves is asked of a function, so that a test may
record decisions in a run and play them here, or decide by a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agents.depth.base import Mask
from agents.depth.leaving import NOBODY, States, all_gone, carried, gone, joined, staying
from agents.models.arithmetic import Arithmetic, Cache
from agents.models.exits import ExitHeads
from agents.models.mixture import Floats, finish
from agents.models.quantize import FULL
from agents.models.reference import Generated, Precision, mixture
from agents.protocol import Array

#: (layer, stream of the tokens that have not left) -> which of them leave.
Leaves = Callable[[int, Floats], Mask]


def score(
    twin: Arithmetic, exits: ExitHeads, leaves: Leaves, tokens: Sequence[int], precision: Precision = FULL
) -> tuple[Floats, Array]:
    """Logits at every position, and the layer after which each token left, -1 for those that saw all."""
    stream, left, _ = through(twin, leaves, twin.embed(tokens), precision=precision)
    return twin.logits(carried(stream, left, exits)), left


def generate(
    twin: Arithmetic,
    exits: ExitHeads,
    leaves: Leaves,
    prompt: Sequence[int],
    new_tokens: int,
    precision: Precision = FULL,
) -> Generated:
    """Continue a prompt greedily; keys and values of layers that were not reached are filled when they are needed."""
    caches = [twin.new_cache(len(prompt) + new_tokens) for _ in range(twin.spec.layers)]
    waiting: dict[int, States] = {}
    chosen: list[int] = []
    rows: list[Floats] = []
    tokens, start = list(prompt), 0
    for _ in range(new_tokens):
        stream, left, layer = through(
            twin, leaves, twin.embed(tokens), precision=precision, caches=caches, start=start, waiting=waiting
        )
        if layer < twin.spec.layers - 1:
            waiting[layer] = stream, left
        rows.append(twin.logits(carried(stream[-1:], left[-1:], exits))[0])
        start += len(tokens)
        tokens = [int(rows[-1].argmax())]
        chosen += tokens
    return Generated(tokens=tuple(chosen), logits=np.stack(rows))


def through(
    twin: Arithmetic,
    leaves: Leaves,
    stream: Floats,
    *,
    precision: Precision = FULL,
    caches: Sequence[Cache] | None = None,
    start: int = 0,
    waiting: dict[int, States] | None = None,
) -> tuple[Floats, Array, int]:
    """The stream when all have left or the layers are through, who left where, and the last layer that ran.

    ``waiting`` holds the states of earlier passes by the layer after which they wait; this pass takes them along.
    """
    left, end, layer = NOBODY, start + len(stream), 0
    for layer in range(twin.spec.layers):
        attended = twin.attend(layer, stream, caches[layer] if caches else None, end - len(stream))
        rows = staying(left)
        seen = attended if rows is None else attended[rows]
        gate = twin.gate(layer, seen)
        after = seen if rows is None else stream.copy()
        if rows is None:
            after = gate.residual(seen)
        else:
            after[rows] = gate.residual(seen)
        before = len(after)
        stream, left = joined(after, left, waiting.pop(layer, None) if waiting else None)
        places = np.arange(before) if rows is None else rows
        total = np.zeros(stream.shape, dtype=np.int64)
        kind = precision if isinstance(precision, str) else precision[layer]
        total[places + len(stream) - before] = mixture(twin, layer, gate, kind)
        stream = finish(stream, total)
        rows = staying(left)
        left = gone(left, rows, leaves(layer, stream if rows is None else stream[rows]), layer)
        if all_gone(left):
            break
    return stream, left, layer
