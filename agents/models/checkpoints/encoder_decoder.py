r"""An encoder-decoder (Switch) in the pieces of :class:`agents.models.arithmetic.Arithmetic`, which know one stream.

The encoder reads the prompt; the decoder reads the same tokens again, and continues them: what ``transformers``
computes for ``input_ids = prompt``, ``decoder_input_ids = prompt + continuation``.

    layers    the sparse blocks of the encoder, then those of the decoder
    stream    (n, 2 d): the encoder's state of a token, and the decoder's, side by side; each layer works on its half
    attend    dense blocks before a sparse one go with it; the encoder's last ones, and its final norm, with the first
              layer of the decoder, which leaves the encoder's output in the left half, for the layers after it
    caches    decoder layers keep their own keys and values, and, once, those of the encoder's output
    decoding  has nothing to do in the encoder, but no layer of the seam can be left out: the left half is zero then,
              the gate sends zeros to expert 0, and its answer is exactly zero

Results of experts fill one half; the other is zero, and ``finish`` adds nothing there.  The whole prompt must come in
one pass, since the encoder looks both ways; the engine never cuts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.models.attention import normed
from agents.models.checkpoints.cache import LayerCache
from agents.models.checkpoints.decoder import CheckpointSpec, begun, looked_up
from agents.models.checkpoints.experts import Experts
from agents.models.checkpoints.feedforward import FeedForward
from agents.models.checkpoints.gating import Router
from agents.models.checkpoints.relative import DistanceBias, MemoryAttention, StackAttention
from agents.models.mixture import Call, Floats, Gate, Totals, add_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A decoder block's look at the encoder."""

    gain: Floats  # (d,)
    attention: MemoryAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBlock:
    """Attention, in the decoder attention to the encoder, then a dense network or experts; each behind a norm."""

    attention_gain: Floats  # (d,)
    attention: StackAttention
    memory: Memory | None  # in the decoder
    gain: Floats  # (d,)
    rest: FeedForward | Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Encoder or decoder: the blocks of each of its layers, and those after the last sparse one."""

    layers: Sequence[tuple[StackBlock, ...]]
    trailing: tuple[StackBlock, ...]  # dense; none in the decoder
    bias: DistanceBias
    final_gain: Floats  # (d,)


class EncoderDecoder:
    """A loaded checkpoint.  Only its experts are read later, when they are first used."""

    measures_quality = True  # of tokens that the encoder has seen: comparable between runs, not between models
    positions = None  # distances are all it knows, so a request may be as long as it likes

    def __init__(
        self,
        *,
        spec: CheckpointSpec,
        norm_eps: float,
        encoder: Stack,
        decoder: Stack,
        experts: Experts,
        embeddings: tuple[Floats, Floats],
        unembedding: Floats,
        output_scale: float,
    ) -> None:
        """``embeddings`` of encoder and decoder, often the same; ``unembedding`` is stored alike, (vocab, d)."""
        self.spec = spec
        self._norm_eps = norm_eps
        self._encoder = encoder
        self._decoder = decoder
        self._first = len(encoder.layers)  # layer of the decoder
        self._layers = (*encoder.layers, *decoder.layers)
        self._experts = experts
        self._embeddings = embeddings
        self._unembedding = unembedding
        self._output_scale = np.float32(output_scale)

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """The stream before the first layer, (n, 2 d)."""
        return np.concatenate([looked_up(table, tokens) for table in self._embeddings], axis=1)

    def new_cache(self, capacity: int = 64) -> LayerCache:
        """An empty cache for one layer of one request."""
        del capacity  # it grows with what is kept
        return LayerCache()

    def attend(self, layer: int, x: Floats, cache: LayerCache | None = None, start: int = 0) -> Floats:
        """All blocks of the layer up to its last attention, for the n new positions from ``start`` on."""
        kept = begun(layer, cache, start)
        left, right = np.split(x, 2, axis=1)
        decoding = start > 0
        if layer < self._first:
            left = np.zeros_like(left) if decoding else self._through(self._encoder, self._layers[layer], left, kept)
        else:
            if layer == self._first and not decoding:
                left = self._through(self._encoder, self._encoder.trailing, left, LayerCache())
                left = normed(left, self._norm_eps) * self._encoder.final_gain
            memory = None if decoding else np.ascontiguousarray(left)
            right = self._through(self._decoder, self._layers[layer], right, kept, memory=memory, start=start)
        kept.length += len(x)
        return np.concatenate([left, right], axis=1)

    def gate(self, layer: int, x: Floats) -> Gate:
        """Which expert every token chooses."""
        block = self._layers[layer][-1]
        hidden = normed(x[:, self._half(layer)], self._norm_eps) * block.gain
        if not isinstance(block.rest, Router):
            raise TypeError(f"layer {layer} ends without experts")
        chosen, weights = block.rest(hidden)
        return Gate(hidden=self._widened(layer, hidden), experts=chosen, weights=weights)

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Outputs of several experts, call after call, (m, 2 d); each multiplies its own rows only."""
        half = np.ascontiguousarray(rows[:, self._half(layer)])
        return self._widened(layer, self._experts.outputs(layer, calls, half))

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """Adds the weighted outputs of several experts, in fixed point, to ``total``, (rows, 2 d)."""
        add_experts(calls, self.outputs(layer, calls, hidden[index]), weights, index, total)

    def logits(self, x: Floats) -> Floats:
        """Scores of the next token, (n, vocab), from the decoder's half."""
        hidden: Floats = normed(x[:, self._half(self._first)], self._norm_eps) * self._decoder.final_gain
        hidden *= self._output_scale
        out: Floats = hidden @ self._unembedding.T
        return out

    def _through(
        self,
        stack: Stack,
        blocks: Sequence[StackBlock],
        x: Floats,
        kept: LayerCache,
        *,
        memory: Floats | None = None,
        start: int = 0,
    ) -> Floats:
        """Blocks of a stack up to the last one's experts, where it has some."""
        bias = stack.bias.at(start, len(x))
        for number, block in enumerate(blocks):
            part = kept.block(number)
            x = x + block.attention(normed(x, self._norm_eps) * block.attention_gain, part, bias)
            if block.memory is not None:
                x = x + block.memory.attention(normed(x, self._norm_eps) * block.memory.gain, part, memory)
            if isinstance(block.rest, FeedForward):
                x = x + block.rest(normed(x, self._norm_eps) * block.gain)
        return x

    def _half(self, layer: int) -> slice:
        width = self.spec.width // 2
        return slice(0, width) if layer < self._first else slice(width, None)

    def _widened(self, layer: int, rows: Floats) -> Floats:
        """Rows of d numbers in their half of 2 d, the other being zero."""
        out: Floats = np.zeros((len(rows), self.spec.width), np.float32)
        out[:, self._half(layer)] = rows
        return out
