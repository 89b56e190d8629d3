"""Checkpoints of DeepSeek-V2 (``model_type: deepseek_v2``): latent attention, shared experts, groups of experts.

DeepSeek-AI, DeepSeek-V2 (arXiv:2405.04434).  The first ``first_k_dense_replace`` blocks are dense.  Shared experts are
stored as one network, as wide as all of them.
"""

from __future__ import annotations

import numpy as np

from agents.models.checkpoints.config import Config
from agents.models.checkpoints.decoder import Decoder, Sparse
from agents.models.checkpoints.feedforward import SharedExpert
from agents.models.checkpoints.gating import Router
from agents.models.checkpoints.latent import LatentAttention, Queries
from agents.models.checkpoints.layout import (
    Parts,
    Sizes,
    decoder,
    expert_names,
    profile_of,
    swiglu,
    transposed,
)
from agents.models.checkpoints.rope import Rope
from agents.models.checkpoints.tensors import Tensors
from agents.models.profile import Latent, ModelProfile

ROPE_BASE = 1e4
#: Of the norms within attention, whatever the configuration says of the others.
INNER_NORM_EPS = 1e-6
GREEDY, GROUPED = "greedy", "group_limited_greedy"


def load(config: Config, tensors: Tensors, name: str) -> tuple[Decoder, ModelProfile]:
    """All but the experts, and the sizes that follow.  TestbedError naming field or tensor."""
    for field in ("attention_bias", "mlp_bias"):
        config.must_be(field, (None, False))
    config.must_be("norm_topk_prob", (None, False), "implementations disagree on what it means beside a scaling factor")
    config.must_be("scoring_func", (None, "softmax"))
    config.must_be("moe_layer_freq", (None, 1))
    sizes = Sizes.of(config, experts="n_routed_experts", ffn="moe_intermediate_size", norm_eps=1e-6)
    shared_ffn = sizes.ffn * config.count("n_shared_experts", 0, least=0)
    first, dense_ffn = config.count("first_k_dense_replace", 0, least=0), config.count("intermediate_size")
    scale = config.number("routed_scaling_factor", 1.0)
    groups, kept_groups = _groups(config, sizes)

    def sparse(block: str) -> Sparse:
        router = Router(
            weights=transposed(tensors, f"{block}mlp.gate.weight", (sizes.experts, sizes.width)),
            top_k=sizes.top_k,
            scale=scale,
            groups=groups,
            kept_groups=kept_groups,
        )
        if not shared_ffn:
            return Sparse(router=router)
        network = swiglu(tensors, f"{block}mlp.shared_experts.", sizes.width, shared_ffn)
        return Sparse(router=router, shared=SharedExpert(network=network))

    attention = _Attention(config, tensors, sizes)
    parts = Parts(
        attention=attention.read,
        dense=lambda block: swiglu(tensors, f"{block}mlp.", sizes.width, dense_ffn),
        sparse=sparse,
        experts=expert_names,
        is_sparse=lambda number: number >= first,
    )
    made = decoder(config, tensors, sizes, parts, name)
    profile = profile_of(
        config,
        sizes,
        made,
        name,
        head_width=attention.plain_width,
        latent=Latent(rank=attention.rank, rope_width=attention.rope_width),
        shared_ffn=shared_ffn,
        dense_ffn=dense_ffn if first else 0,
        vectors=attention.rank,
        gating="all",
    )
    return made, profile


class _Attention:
    """Reads the latent attention of one block after the other."""

    def __init__(self, config: Config, tensors: Tensors, sizes: Sizes) -> None:
        self._tensors = tensors
        self._sizes = sizes
        self.rank = config.count("kv_lora_rank")
        self.plain_width = config.count("qk_nope_head_dim")
        self.rope_width = config.count("qk_rope_head_dim")
        self._value_width = config.count("v_head_dim")
        self._query_rank = config.count("q_lora_rank") if config.given("q_lora_rank") else None
        self._rope = Rope.of(config, self.rope_width, base=ROPE_BASE)

    def read(self, block: str) -> LatentAttention:
        tensors, sizes, where = self._tensors, self._sizes, f"{block}self_attn."
        heads, plain, value, rank = sizes.heads, self.plain_width, self._value_width, self.rank
        up = tensors.read(f"{where}kv_b_proj.weight", (heads * (plain + value), rank)).reshape(heads, -1, rank)
        return LatentAttention(
            heads=heads,
            plain_width=plain,
            rope_width=self.rope_width,
            rank=rank,
            rope=self._rope,
            norm_eps=INNER_NORM_EPS,
            queries=self._queries(where),
            compress=transposed(tensors, f"{where}kv_a_proj_with_mqa.weight", (rank + self.rope_width, sizes.width)),
            gain=tensors.read(f"{where}kv_a_layernorm.weight", (rank,)),
            key_up=np.ascontiguousarray(up[:, :plain]),
            value_up=np.ascontiguousarray(up[:, plain:].transpose(0, 2, 1)),
            output=transposed(tensors, f"{where}o_proj.weight", (sizes.width, heads * value)),
        )

    def _queries(self, where: str) -> Queries:
        width, wanted = self._sizes.width, self._sizes.heads * (self.plain_width + self.rope_width)
        rank, tensors = self._query_rank, self._tensors
        if rank is None:
            return Queries(weights=transposed(tensors, f"{where}q_proj.weight", (wanted, width)))
        return Queries(
            weights=transposed(tensors, f"{where}q_b_proj.weight", (wanted, rank)),
            narrow=transposed(tensors, f"{where}q_a_proj.weight", (rank, width)),
            gain=tensors.read(f"{where}q_a_layernorm.weight", (rank,)),
            norm_eps=INNER_NORM_EPS,
        )


def _groups(config: Config, sizes: Sizes) -> tuple[int, int]:
    """How many groups of experts there are, and of how many a token may choose."""
    method = config.must_be("topk_method", (None, GREEDY, GROUPED))
    if method != GROUPED:
        return 1, 1
    groups, kept = config.count("n_group"), config.count("topk_group")
    if sizes.experts % groups:
        raise config.error("n_group", f"is {groups}, which does not divide {sizes.experts} experts")
    if kept > groups or kept * (sizes.experts // groups) < sizes.top_k:
        raise config.error("topk_group", f"is {kept} of {groups}; a token chooses {sizes.top_k} experts from those")
    return groups, kept
