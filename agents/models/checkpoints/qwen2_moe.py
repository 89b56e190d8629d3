"""Checkpoints of Qwen1.5-MoE and Qwen2-MoE (``model_type: qwen2_moe``): a shared expert behind a sigmoid; biases.

Blocks may be dense: those of ``mlp_only_layers``, and all but every ``decoder_sparse_step``-th.
"""

from __future__ import annotations

from agents.models.checkpoints.config import Config
from agents.models.checkpoints.decoder import Decoder, Sparse
from agents.models.checkpoints.feedforward import SharedExpert
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
    window = config.count("sliding_window") if config.flag("use_sliding_window", False) else None
    sizes = Sizes.of(config, experts="num_experts", ffn="moe_intermediate_size", norm_eps=1e-6, window=window)
    shared_ffn, step = config.count("shared_expert_intermediate_size"), config.count("decoder_sparse_step", 1)
    dense = _numbers(config, "mlp_only_layers")
    bias, normalised = config.flag("qkv_bias", True), config.flag("norm_topk_prob", False)

    def sparse(block: str) -> Sparse:
        weights = transposed(tensors, f"{block}mlp.gate.weight", (sizes.experts, sizes.width))
        shared = SharedExpert(
            network=swiglu(tensors, f"{block}mlp.shared_expert.", sizes.width, shared_ffn),
            gate=tensors.read(f"{block}mlp.shared_expert_gate.weight", (1, sizes.width))[0],
        )
        return Sparse(router=Router(weights=weights, top_k=sizes.top_k, normalised=normalised), shared=shared)

    dense_ffn = config.count("intermediate_size")
    parts = Parts(
        attention=grouped_attention(config, tensors, sizes, rope_base=ROPE_BASE, bias=bias),
        dense=lambda block: swiglu(tensors, f"{block}mlp.", sizes.width, dense_ffn),
        sparse=sparse,
        experts=expert_names,
        is_sparse=lambda number: number not in dense and (number + 1) % step == 0,
    )
    made = decoder(config, tensors, sizes, parts, name)
    kv_heads, head_width = config.count("num_key_value_heads", sizes.heads), head_width_of(config, sizes)
    biases = (sizes.heads + 2 * kv_heads) * head_width
    profile = profile_of(
        config,
        sizes,
        made,
        name,
        kv_heads=kv_heads,
        head_width=head_width,
        shared_ffn=shared_ffn,
        dense_ffn=dense_ffn if sizes.blocks > made.spec.layers else 0,
        vectors=(biases if bias else 0) + sizes.width,  # and the gate of the shared expert
        gating="chosen" if normalised else "all",
    )
    return made, profile


def _numbers(config: Config, field: str) -> frozenset[int]:
    values = config.raw(field) or []
    if not isinstance(values, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in values):
        raise config.error(field, f"is {values!r}; it must be a list of block numbers")
    return frozenset(values)
