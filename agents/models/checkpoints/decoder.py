r"""A decoder-only checkpoint, cut into the pieces of :class:`agents.models.arithmetic.Arithmetic`.

    for every block:   x += attention(norm(x))                                                    ``attend``
    dense block:       x += ffn(norm(x))                                                          ``attend``
    sparse block:      h = norm(x);  x += shared(h)  (where there is one);  experts of h          ``gate``, ``outputs``

A layer of the seam ends with a sparse block.  The dense blocks before it belong to its ``attend``, which keeps the keys
and values of all their attention in the one cache of the layer.  Dense blocks after the last sparse one would have to
run in ``logits``, which has neither a cache nor, in generation, the earlier positions: such a model is refused by
``layers_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.models.attention import normed
from agents.models.checkpoints.attention import Attention
from agents.models.checkpoints.cache import LayerCache
from agents.models.checkpoints.config import Config
from agents.models.checkpoints.experts import Experts
from agents.models.checkpoints.feedforward import FeedForward, SharedExpert
from agents.models.checkpoints.gating import Router
from agents.models.mixture import Call, Floats, Gate, Totals, add_experts
from testbed.errors import TestbedError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """The shape of a checkpoint, as others ask for it."""

    name: str
    layers: int  # with experts
    experts: int
    top_k: int
    width: int  # of the residual stream
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How many positions a checkpoint is good for, and which field says so."""

    positions: int
    field: str

    def check(self, end: int) -> None:
        """TestbedError when a request has more."""
        if end > self.positions:
            raise TestbedError(f"a request of {end} positions is too long: {self.field} is {self.positions}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """What a sparse block has besides its experts."""

    router: Router
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Attention, then a feed-forward network or experts; each behind a norm whose gain stands beside it."""

    attention: Attention
    attention_gain: Floats  # (width,)
    gain: Floats  # (width,)
    dense: FeedForward | None = None  # the last block of a layer has experts instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A sparse block and the dense ones before it."""

    blocks: tuple[Block, ...]  # the sparse one last
    sparse: Sparse


def layers_of(config: Config, blocks: int, is_sparse: Callable[[int], bool]) -> list[list[int]]:
    """Numbers of the blocks of every layer.  TestbedError when the last block has no experts."""
    layers: list[list[int]] = []
    pending: list[int] = []
    for number in range(blocks):
        pending.append(number)
        if is_sparse(number):
            layers.append(pending)
            pending = []
    if pending:
        raise config.error(
            "num_hidden_layers",
            f"is {blocks}, and the last block ({pending[-1]}) has no experts; only models that end with a block of "
            "experts can be cut into the pieces that servers run",
        )
    return layers


class Decoder:
    """A loaded checkpoint.  Only its experts are read later, when they are first used."""

    measures_quality = True  # its logits are a language model's

    def __init__(
        self,
        *,
        spec: CheckpointSpec,
        context: Context,
        norm_eps: float,
        layers: Sequence[Layer],
        experts: Experts,
        embedding: Floats,
        final_gain: Floats,
        unembedding: Floats,
    ) -> None:
        """``unembedding`` is stored as the embedding is, (vocab, width)."""
        self.spec = spec
        self._context = context
        self._norm_eps = norm_eps
        self._layers = layers
        self._experts = experts
        self._embedding = embedding
        self._final_gain = final_gain
        self._unembedding = unembedding

    @property
    def positions(self) -> int:
        """The longest request."""
        return self._context.positions

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """The residual stream before the first layer, (n, width)."""
        return looked_up(self._embedding, tokens)

    def new_cache(self, capacity: int = 64) -> LayerCache:
        """An empty cache for one layer of one request."""
        del capacity  # it grows with what is kept
        return LayerCache()

    def attend(self, layer: int, x: Floats, cache: LayerCache | None = None, start: int = 0) -> Floats:
        """All blocks of the layer up to its last attention, for the n new positions from ``start`` on."""
        kept = begun(layer, cache, start)
        self._context.check(start + len(x))
        for number, block in enumerate(self._layers[layer].blocks):
            hidden = normed(x, self._norm_eps) * block.attention_gain
            x = x + block.attention(hidden, kept.block(number), start)
            if block.dense is not None:
                x = x + block.dense(normed(x, self._norm_eps) * block.gain)
        kept.length += len(x)
        return x

    def gate(self, layer: int, x: Floats) -> Gate:
        """Which experts every token chooses; what shared experts add."""
        sparse = self._layers[layer].sparse
        hidden = normed(x, self._norm_eps) * self._layers[layer].blocks[-1].gain
        chosen, weights = sparse.router(hidden)
        shared = None if sparse.shared is None else sparse.shared(hidden)
        return Gate(hidden=hidden, experts=chosen, weights=weights, shared=shared)

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Outputs of several experts, call after call, (m, width); each multiplies its own rows only."""
        return self._experts.outputs(layer, calls, rows)

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """Adds the weighted outputs of several experts, in fixed point, to ``total``, (rows, width)."""
        add_experts(calls, self.outputs(layer, calls, hidden[index]), weights, index, total)

    def logits(self, x: Floats) -> Floats:
        """Scores of the next token, (n, vocab)."""
        hidden: Floats = normed(x, self._norm_eps) * self._final_gain
        out: Floats = hidden @ self._unembedding.T
        return out


def looked_up(embedding: Floats, tokens: npt.ArrayLike) -> Floats:
    """Rows of the embedding; TestbedError for a token number out of range."""
    numbers = np.asarray(tokens, dtype=np.intp)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(embedding)):
        raise TestbedError(f"token numbers must be in 0..{len(embedding) - 1}")
    return embedding[numbers]


def begun(layer: int, cache: LayerCache | None, start: int) -> LayerCache:
    """The cache of a pass: the given one, which must hold all positions before ``start``, or one for this pass only."""
    kept = LayerCache() if cache is None else cache
    if kept.length != start:
        raise TestbedError(f"layer {layer}: the cache holds {kept.length} positions, so start cannot be {start}")
    return kept
