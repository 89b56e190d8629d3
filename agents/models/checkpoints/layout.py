"""What the layouts of decoder-only checkpoints share: names of tensors, embeddings, blocks with grouped attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from agents.models.checkpoints.attention import Attention, GroupedAttention
from agents.models.checkpoints.config import MOST_BLOCKS, Config
from agents.models.checkpoints.decoder import Block, CheckpointSpec, Context, Decoder, Layer, Sparse, layers_of
from agents.models.checkpoints.experts import Experts
from agents.models.checkpoints.feedforward import FeedForward
from agents.models.checkpoints.rope import Rope
from agents.models.checkpoints.tensors import Tensors
from agents.models.mixture import Floats
from agents.models.profile import ModelProfile

EMBEDDING, UNEMBEDDING, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
#: Experts are numbered by int16 in a gate's decision.
MOST_EXPERTS = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that every decoder-only layout has, by the names of its own configuration."""

    blocks: int
    experts: int
    top_k: int
    width: int
    ffn: int  # of one expert
    heads: int
    vocab: int
    norm_eps: float
    context: Context

    @classmethod
    def of(cls, config: Config, *, experts: str, ffn: str, norm_eps: float, window: int | None = None) -> Sizes:
        """``experts`` and ``ffn`` name their fields.  ``window``: positions that attention sees, where limited."""
        positions = Context(
            positions=config.count("max_position_embeddings"), field=f"{config.path}: max_position_embeddings"
        )
        if window is not None and window < positions.positions:
            # Within the window attention sees everything, so that nothing differs.
            positions = Context(positions=window, field=f"{config.path}: sliding_window (which is not supported)")
        count, top_k = config.count(experts), config.count("num_experts_per_tok")
        if count > MOST_EXPERTS:
            raise config.error(experts, f"is {count}; supported are up to {MOST_EXPERTS}")
        if top_k > count:
            raise config.error("num_experts_per_tok", f"is {top_k}; there are {count} experts")
        config.must_be("hidden_act", (None, "silu"))
        return cls(
            blocks=config.count("num_hidden_layers", most=MOST_BLOCKS),
            experts=count,
            top_k=top_k,
            width=config.count("hidden_size"),
            ffn=config.count(ffn),
            heads=config.count("num_attention_heads"),
            vocab=config.count("vocab_size"),
            norm_eps=config.number("rms_norm_eps", norm_eps),
            context=positions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How one layout reads what differs: everything takes the prefix of a block, ``model.layers.3.``."""

    attention: Callable[[str], Attention]
    dense: Callable[[str], FeedForward]
    sparse: Callable[[str], Sparse]
    experts: Callable[[str, int], tuple[str, ...]]  # names, as ``ExpertNames`` has them
    is_sparse: Callable[[int], bool]


def decoder(config: Config, tensors: Tensors, sizes: Sizes, parts: Parts, name: str) -> Decoder:
    """Check every tensor's shape, and read all but the experts."""
    numbers = layers_of(config, sizes.blocks, parts.is_sparse)
    experts = Experts(
        tensors,
        lambda layer, expert: parts.experts(prefix(numbers[layer][-1]), expert),
        layers=len(numbers),
        experts=sizes.experts,
        width=sizes.width,
        ffn=sizes.ffn,
    )
    embedding = tensors.read(EMBEDDING, (sizes.vocab, sizes.width))
    tied = config.flag("tie_word_embeddings", False)
    return Decoder(
        spec=CheckpointSpec(
            name=name,
            layers=len(numbers),
            experts=sizes.experts,
            top_k=sizes.top_k,
            width=sizes.width,
            vocab=sizes.vocab,
        ),
        context=sizes.context,
        norm_eps=sizes.norm_eps,
        layers=[_layer(tensors, sizes, parts, blocks) for blocks in numbers],
        experts=experts,
        embedding=embedding,
        final_gain=tensors.read(FINAL_NORM, (sizes.width,)),
        unembedding=embedding if tied else tensors.read(UNEMBEDDING, (sizes.vocab, sizes.width)),
    )


def idle_tensors(config: Config) -> tuple[str, ...]:
    """What may be stored though nothing reads it: a copy of the embedding."""
    return (UNEMBEDDING,) if config.flag("tie_word_embeddings", False) else ()


def grouped_attention(
    config: Config, tensors: Tensors, sizes: Sizes, *, rope_base: float, bias: bool = False, output_bias: bool = False
) -> Callable[[str], GroupedAttention]:
    """Reads the attention of a block, ``self_attn`` with q, k, v and o."""
    kv_heads = config.count("num_key_value_heads", sizes.heads)
    head_width = head_width_of(config, sizes)
    if sizes.heads % kv_heads:
        raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {sizes.heads} heads")
    rope = Rope.of(config, head_width, base=rope_base)
    widths = {"q": sizes.heads * head_width, "k": kv_heads * head_width, "v": kv_heads * head_width}

    def read(block: str) -> GroupedAttention:
        where = f"{block}self_attn."
        projections = [
            tensors.read(f"{where}{each}_proj.weight", (width, sizes.width)) for each, width in widths.items()
        ]
        biases = (
            [tensors.read(f"{where}{each}_proj.bias", (width,)) for each, width in widths.items()] if bias else None
        )
        return GroupedAttention(
            heads=sizes.heads,
            kv_heads=kv_heads,
            head_width=head_width,
            rope=rope,
            projection=np.ascontiguousarray(np.concatenate(projections).T),
            output=transposed(tensors, f"{where}o_proj.weight", (sizes.width, sizes.heads * head_width)),
            bias=None if biases is None else np.concatenate(biases),
            output_bias=tensors.read(f"{where}o_proj.bias", (sizes.width,)) if output_bias else None,
            norm_eps=sizes.norm_eps,
        )

    return read


def head_width_of(config: Config, sizes: Sizes) -> int:
    """``head_dim``, or what the heads divide the width into."""
    if not config.given("head_dim") and sizes.width % sizes.heads:
        raise config.error("num_attention_heads", f"is {sizes.heads}, which does not divide hidden_size {sizes.width}")
    return config.count("head_dim", sizes.width // sizes.heads)


def swiglu(tensors: Tensors, where: str, width: int, ffn: int) -> FeedForward:
    """A dense network or shared expert: gate, up and down."""
    inner = [tensors.read(f"{where}{each}_proj.weight", (ffn, width)) for each in ("gate", "up")]
    return FeedForward(
        activation="swiglu",
        inner=np.ascontiguousarray(np.concatenate(inner).T),
        outer=transposed(tensors, f"{where}down_proj.weight", (width, ffn)),
    )


def expert_names(where: str, expert: int) -> tuple[str, ...]:
    """As all layouts but Mixtral's and Switch's name them."""
    return tuple(f"{where}mlp.experts.{expert}.{each}_proj.weight" for each in ("gate", "up", "down"))


def transposed(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Floats:
    """A matrix as products take it, (inputs, outputs); ``shape`` is that of the stored one."""
    return np.ascontiguousarray(tensors.read(name, shape).T)


def profile_of(config: Config, sizes: Sizes, made: Decoder, name: str, **details: object) -> ModelProfile:
    """Bytes and FLOPs that follow from the configuration."""
    basic = ModelProfile(
        name=name,
        source=str(config.path),
        layers=made.spec.layers,
        experts=sizes.experts,
        top_k=sizes.top_k,
        hidden=sizes.width,
        ffn=sizes.ffn,
        heads=sizes.heads,
        vocab=sizes.vocab,
        dense_blocks=sizes.blocks - made.spec.layers,
        tied=config.flag("tie_word_embeddings", False),
    )
    return replace(basic, **details)  # type: ignore[arg-type]  # fields of the profile, by name


def prefix(block: int) -> str:
    """What the names of a block's tensors begin with."""
    return f"model.layers.{block}."


def _layer(tensors: Tensors, sizes: Sizes, parts: Parts, numbers: list[int]) -> Layer:
    def block(number: int) -> Block:
        where = prefix(number)
        return Block(
            attention=parts.attention(where),
            attention_gain=tensors.read(f"{where}input_layernorm.weight", (sizes.width,)),
            gain=tensors.read(f"{where}post_attention_layernorm.weight", (sizes.width,)),
            dense=None if number == numbers[-1] else parts.dense(where),
        )

    blocks = tuple(block(number) for number in numbers)
    return Layer(blocks=blocks, sparse=parts.sparse(prefix(numbers[-1])))
