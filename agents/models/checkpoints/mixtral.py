"""Checkpoints of Mixtral (``model_type: mixtral``): eight experts or so in every block, shares that sum to 1.

Jiang et al., Mixtral of Experts (arXiv:2401.04088).  An expert is w2 (silu(w1 h) ∘ w3 h).
"""

from __future__ import annotations

from agents.models.checkpoints.config import Config
from agents.models.checkpoints.decoder import Decoder, Sparse
from agents.models.checkpoints.feedforward import FeedForward
from agents.models.checkpoints.gating import Router
from agents.models.checkpoints.layout import (
    Parts,
    Sizes,
    decoder,
    grouped_attention,
    head_width_of,
    profile_of,
    transposed,
)
from agents.models.checkpoints.tensors import Tensors
from agents.models.profile import ModelProfile

ROPE_BASE = 1e6


def load(config: Config, tensors: Tensors, name: str) -> tuple[Decoder, ModelProfile]:
    """All but the experts, and the sizes that follow.  TestbedError naming field or tensor."""
    window = config.count("sliding_window") if config.given("sliding_window") else None
    sizes = Sizes.of(config, experts="num_local_experts", ffn="intermediate_size", norm_eps=1e-5, window=window)

    def sparse(block: str) -> Sparse:
        weights = transposed(tensors, f"{block}block_sparse_moe.gate.weight", (sizes.experts, sizes.width))
        return Sparse(router=Router(weights=weights, top_k=sizes.top_k, normalised=True))

    parts = Parts(
        attention=grouped_attention(config, tensors, sizes, rope_base=ROPE_BASE),
        dense=_no_dense,
        sparse=sparse,
        experts=_experts,
        is_sparse=lambda number: True,
    )
    made = decoder(config, tensors, sizes, parts, name)
    profile = profile_of(
        config,
        sizes,
        made,
        name,
        kv_heads=config.count("num_key_value_heads", sizes.heads),
        head_width=head_width_of(config, sizes),
    )
    return made, profile


def _experts(block: str, expert: int) -> tuple[str, ...]:
    return tuple(f"{block}block_sparse_moe.experts.{expert}.{each}.weight" for each in ("w1", "w3", "w2"))


def _no_dense(block: str) -> FeedForward:
    raise AssertionError(f"{block} has experts")
