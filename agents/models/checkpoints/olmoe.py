"""Checkpoints of OLMoE (``model_type: olmoe``): many small experts, and norms of all queries and of all keys.

Muennighoff et al., OLMoE (arXiv:2409.02060).  The published weights do not divide shares by their sum.
"""

from __future__ import annotations

from dataclasses import replace

from agents.models.checkpoints.attention import GroupedAttention
from agents.models.checkpoints.config import Config
from agents.models.checkpoints.decoder import Decoder, Sparse
from agents.models.checkpoints.gating import Router
from agents.models.checkpoints.layout import (
    Parts,
    Sizes,
    decoder,
    expert_names,
    grouped_attention,
    head_width_of,
    profile_of,
    swiglu,
    transposed,
)
from agents.models.checkpoints.tensors import Tensors
from agents.models.profile import ModelProfile

ROPE_BASE = 1e4


def load(config: Config, tensors: Tensors, name: str) -> tuple[Decoder, ModelProfile]:
    """All but the experts, and the sizes that follow.  TestbedError naming field or tensor."""
    sizes = Sizes.of(config, experts="num_experts", ffn="intermediate_size", norm_eps=1e-5)
    bias = config.flag("attention_bias", False)
    kv_heads, head_width = config.count("num_key_value_heads", sizes.heads), head_width_of(config, sizes)
    clip = config.number("clip_qkv") if config.given("clip_qkv") else None
    normalised = config.flag("norm_topk_prob", False)
    plain = grouped_attention(config, tensors, sizes, rope_base=ROPE_BASE, bias=bias, output_bias=bias)

    def attention(block: str) -> GroupedAttention:
        return replace(
            plain(block),
            query_norm=tensors.read(f"{block}self_attn.q_norm.weight", (sizes.heads * head_width,)),
            key_norm=tensors.read(f"{block}self_attn.k_norm.weight", (kv_heads * head_width,)),
            clip=clip,
        )

    def sparse(block: str) -> Sparse:
        weights = transposed(tensors, f"{block}mlp.gate.weight", (sizes.experts, sizes.width))
        return Sparse(router=Router(weights=weights, top_k=sizes.top_k, normalised=normalised))

    parts = Parts(
        attention=attention,
        dense=lambda block: swiglu(tensors, f"{block}mlp.", sizes.width, sizes.ffn),
        sparse=sparse,
        experts=expert_names,
        is_sparse=lambda number: True,
    )
    made = decoder(config, tensors, sizes, parts, name)
    biases = (sizes.heads + 2 * kv_heads) * head_width + sizes.width
    profile = profile_of(
        config,
        sizes,
        made,
        name,
        kv_heads=kv_heads,
        head_width=head_width,
        vectors=(sizes.heads + kv_heads) * head_width + (biases if bias else 0),
        gating="chosen" if normalised else "all",
    )
    return made, profile
