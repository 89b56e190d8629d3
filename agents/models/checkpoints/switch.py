"""Checkpoints of Switch (``model_type: switch_transformers``): an encoder and a decoder, one expert per token.

Fedus et al., Switch Transformers (arXiv:2101.03961).  Every other block or so is sparse, in both stacks.  Of a pass
over n tokens an expert takes the first ``expert_capacity``; others skip it.

The layers of the model that servers see are the encoder's sparse blocks, then the decoder's
(``encoder_decoder.py``).  The profile leaves out the decoder's attention to the encoder, as the stored one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agents.models.checkpoints.config import MOST_BLOCKS, Config
from agents.models.checkpoints.decoder import CheckpointSpec
from agents.models.checkpoints.encoder_decoder import EncoderDecoder, Memory, Stack, StackBlock
from agents.models.checkpoints.experts import Experts
from agents.models.checkpoints.feedforward import FeedForward
from agents.models.checkpoints.gating import Router
from agents.models.checkpoints.layout import MOST_EXPERTS, transposed
from agents.models.checkpoints.relative import DistanceBias, MemoryAttention, StackAttention
from agents.models.checkpoints.tensors import Tensors
from agents.models.mixture import Floats
from agents.models.profile import ModelProfile

KIND = "switch_transformers"
EMBEDDING, UNEMBEDDING = "shared.weight", "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def load(config: Config, tensors: Tensors, name: str) -> tuple[EncoderDecoder, ModelProfile]:
    """All but the experts, and the sizes that follow.  TestbedError naming field or tensor."""
    for field, supported in _SUPPORTED.items():
        config.must_be(field, supported)
    experts_count = config.count("num_experts")
    if experts_count > MOST_EXPERTS:
        raise config.error("num_experts", f"is {experts_count}; supported are up to {MOST_EXPERTS}")
    reader = _Reader(config, tensors)
    stacks = {stack: _layers(config, stack) for stack in ("encoder", "decoder")}
    decoder_layers, left_over = stacks["decoder"]
    if left_over or not decoder_layers:
        raise config.error(
            "num_sparse_decoder_layers",
            "leaves the decoder's last block without experts; only models that end with a block of experts can be cut "
            "into the pieces that servers run",
        )
    sparse = [(stack, numbers[-1]) for stack, (layers, _) in stacks.items() for numbers in layers]
    experts = Experts(
        tensors,
        lambda layer, expert: reader.experts(*sparse[layer], expert),
        layers=len(sparse),
        experts=experts_count,
        width=reader.width,
        ffn=reader.ffn,
        activation="relu",
    )
    vocab, tied = config.count("vocab_size"), config.flag("tie_word_embeddings", True)
    encoder_table, decoder_table = _embeddings(tensors, (vocab, reader.width), tied=tied)
    made = EncoderDecoder(
        spec=CheckpointSpec(
            name=name, layers=len(sparse), experts=experts_count, top_k=1, width=2 * reader.width, vocab=vocab
        ),
        norm_eps=config.number("layer_norm_epsilon", 1e-6),
        encoder=reader.stack("encoder", *stacks["encoder"]),
        decoder=reader.stack("decoder", *stacks["decoder"]),
        experts=experts,
        embeddings=(encoder_table, decoder_table),
        unembedding=decoder_table if tied else tensors.read(UNEMBEDDING, (vocab, reader.width)),
        output_scale=reader.width**-0.5 if tied else 1.0,
    )
    blocks = config.count("num_layers") + config.count("num_decoder_layers", config.count("num_layers"))
    dense_blocks = blocks - len(sparse)
    profile = ModelProfile(
        name=name,
        source=str(config.path),
        layers=len(sparse),
        experts=experts_count,
        top_k=1,
        hidden=reader.width,
        ffn=reader.ffn,
        matrices=2,
        heads=reader.heads,
        head_width=reader.head_width,
        vocab=vocab,
        dense_blocks=dense_blocks,
        dense_ffn=reader.ffn if dense_blocks else 0,
        tied=tied,
        gating="all",
    )
    return made, profile


def idle_tensors(config: Config) -> tuple[str, ...]:
    """What may be stored though nothing reads it: copies of the embedding, or the one that was copied."""
    return (*COPIES, UNEMBEDDING) if config.flag("tie_word_embeddings", True) else (EMBEDDING,)


def _embeddings(tensors: Tensors, shape: tuple[int, int], *, tied: bool) -> tuple[Floats, Floats]:
    """Of encoder and decoder: the shared one; where nothing is tied, their own if they are stored."""
    if tied or not all(name in tensors for name in COPIES):
        shared = tensors.read(EMBEDDING, shape)
        return shared, shared
    encoder, decoder = (tensors.read(name, shape) for name in COPIES)
    return encoder, decoder


_SUPPORTED = {
    "dense_act_fn": (None, "relu"),
    "feed_forward_proj": (None, "relu"),
    "is_gated_act": (None, False),
    "router_dtype": (None, "float32"),
    "router_ignore_padding_tokens": (None, False),
}


def _layers(config: Config, stack: str) -> tuple[list[list[int]], list[int]]:
    """Numbers of the blocks of every layer of a stack, and of the dense ones after the last sparse one."""
    encoder = config.count("num_layers", most=MOST_BLOCKS)
    blocks = encoder if stack == "encoder" else config.count("num_decoder_layers", encoder, most=MOST_BLOCKS)
    sparse = config.count(f"num_sparse_{stack}_layers", 3, least=0)
    step = config.count(f"{stack}_sparse_step", blocks // sparse if sparse else blocks, least=0)
    layers: list[list[int]] = []
    pending: list[int] = []
    for number in range(blocks):
        pending.append(number)
        if step == 1 or (step > 1 and number % step == 1):
            layers.append(pending)
            pending = []
    return layers, pending


@dataclass(frozen=True, slots=True)
class _Place:
    """Names of a block's tensors."""

    stack: str
    number: int

    @property
    def attention(self) -> str:
        return f"{self.stack}.block.{self.number}.layer.0."

    @property
    def memory(self) -> str:
        return f"{self.stack}.block.{self.number}.layer.1."

    @property
    def rest(self) -> str:
        return f"{self.stack}.block.{self.number}.layer.{1 if self.stack == 'encoder' else 2}."


class _Reader:
    """Reads the blocks of both stacks."""

    def __init__(self, config: Config, tensors: Tensors) -> None:
        self._config = config
        self._tensors = tensors
        self.width, self.ffn = config.count("d_model"), config.count("d_ff")
        self.heads, self.head_width = config.count("num_heads"), config.count("d_kv")
        self._inner = self.heads * self.head_width
        self._capacity = config.count("expert_capacity", 64)
        self._router_bias = config.flag("router_bias", False)

    def experts(self, stack: str, block: int, expert: int) -> tuple[str, ...]:
        """Names of one expert's tensors."""
        where = f"{_Place(stack, block).rest}mlp.experts.expert_{expert}."
        return f"{where}wi.weight", f"{where}wo.weight"

    def stack(self, name: str, layers: list[list[int]], trailing: list[int]) -> Stack:
        """Encoder or decoder, all but the experts."""
        buckets = self._config.count("relative_attention_num_buckets", 32, least=4)
        farthest = self._config.count("relative_attention_max_distance", 128)
        if farthest <= buckets // 2:
            raise self._config.error(
                "relative_attention_max_distance", f"is {farthest}, too small for {buckets} buckets"
            )
        table = self._tensors.read(
            f"{_Place(name, 0).attention}SelfAttention.relative_attention_bias.weight", (buckets, self.heads)
        )
        return Stack(
            layers=[tuple(self._blocks(name, numbers, sparse=True)) for numbers in layers],
            trailing=tuple(self._blocks(name, trailing, sparse=False)),
            bias=DistanceBias(table=table, farthest=farthest, causal=name == "decoder"),
            final_gain=self._tensors.read(f"{name}.final_layer_norm.weight", (self.width,)),
        )

    def _blocks(self, stack: str, numbers: list[int], *, sparse: bool) -> Iterator[StackBlock]:
        for number in numbers:
            place = _Place(stack, number)
            query, key, value = (self._into(f"{place.attention}SelfAttention.{each}.weight") for each in "qkv")
            yield StackBlock(
                attention_gain=self._gain(place.attention),
                attention=StackAttention(
                    heads=self.heads,
                    projection=np.concatenate([query, key, value], axis=1),
                    output=self._out_of(f"{place.attention}SelfAttention.o.weight"),
                ),
                memory=self._memory(place) if stack == "decoder" else None,
                gain=self._gain(place.rest),
                rest=self._router(place) if sparse and number == numbers[-1] else self._dense(place),
            )

    def _memory(self, place: _Place) -> Memory:
        query, key, value = (self._into(f"{place.memory}EncDecAttention.{each}.weight") for each in "qkv")
        attention = MemoryAttention(
            heads=self.heads,
            query=query,
            memory=np.concatenate([key, value], axis=1),
            output=self._out_of(f"{place.memory}EncDecAttention.o.weight"),
        )
        return Memory(gain=self._gain(place.memory), attention=attention)

    def _router(self, place: _Place) -> Router:
        where, count = f"{place.rest}mlp.router.classifier.", self._config.count("num_experts")
        return Router(
            weights=transposed(self._tensors, f"{where}weight", (count, self.width)),
            bias=self._tensors.read(f"{where}bias", (count,)) if self._router_bias else None,
            top_k=1,
            capacity=self._capacity,
        )

    def _dense(self, place: _Place) -> FeedForward:
        return FeedForward(
            activation="relu",
            inner=transposed(self._tensors, f"{place.rest}mlp.wi.weight", (self.ffn, self.width)),
            outer=transposed(self._tensors, f"{place.rest}mlp.wo.weight", (self.width, self.ffn)),
        )

    def _gain(self, where: str) -> Floats:
        return self._tensors.read(f"{where}layer_norm.weight", (self.width,))

    def _into(self, name: str) -> Floats:
        return transposed(self._tensors, name, (self._inner, self.width))

    def _out_of(self, name: str) -> Floats:
        return transposed(self._tensors, name, (self.width, self._inner))
