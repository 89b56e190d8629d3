"""What a large model costs the wire and the devices: bytes and FLOPs, from its published shape.

A twin computes the numbers; the profile of the model that it stands for says how large its messages are and how long
its kernels take.  A multiply-add counts as two FLOPs; weights of the dense part and hidden states are float16.

    expert FLOPs per token  = 2 · 3 · hidden · ffn                          three matrices (SwiGLU)       (1)
    expert bytes            = 3 · hidden · ffn · bits / 8                   bits per weight, with scales  (2)
    dense parameters        = 2 hidden² + 2 hidden · kv + hidden · experts + 2 hidden                     (3)
                              (q and out; k and v with kv = kv heads · head width; gate; two norms)

>>> mixtral = ModelProfile.load("mixtral-8x7b")
>>> round(mixtral.expert_bytes["full"] / 1e6, 1), mixtral.hidden_bytes, round(mixtral.expert_flops_per_token / 1e6)
(352.3, 8192, 352)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from testbed.errors import TestbedError

BITS_PER_BYTE = 8
HALF_BYTES = 2
#: Bits per weight on the device: float16; int8 with a scale per channel (negligible); int4 with a float16 scale per 64
#: weights, a usual format for models of this size (94 MB per Mixtral expert).  The twin's rows are 64 and 96 long, so
#: it groups 32 weights (:mod:`agents.models.quantize`).
WEIGHT_BITS = {"full": 16.0, "int8": 8.0, "int4": 4.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Shape of a large mixture-of-experts decoder, and the sizes that follow from it."""

    name: str
    layers: int
    experts: int
    top_k: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    source: str

    @classmethod
    def load(cls, name: str) -> Self:
        """The profile of that name, or one message that lists the known ones."""
        shape = _SHAPES.get(name)
        if shape is None:
            raise TestbedError(f"no profile of a model {name!r}; known are {', '.join(sorted(_SHAPES))}")
        return cls(name=name, **shape)  # type: ignore[arg-type]

    @classmethod
    def known(cls) -> list[Self]:
        """All profiles, by name."""
        return [cls.load(name) for name in sorted(_SHAPES)]

    @property
    def hidden_bytes(self) -> int:
        """One token's hidden state or expert result on the wire."""
        return HALF_BYTES * self.hidden

    @property
    def expert_flops_per_token(self) -> float:
        """Equation (1)."""
        return 2.0 * 3 * self.hidden * self.ffn

    @property
    def expert_bytes(self) -> Mapping[str, int]:
        """Equation (2) for every precision."""
        weights = 3 * self.hidden * self.ffn
        return MappingProxyType({name: int(weights * bits / BITS_PER_BYTE) for name, bits in WEIGHT_BITS.items()})

    @property
    def dense_parameters(self) -> int:
        """Equation (3): attention, gate and norms of one layer."""
        kv_width = self.kv_heads * (self.hidden // self.heads)
        return 2 * self.hidden**2 + 2 * self.hidden * kv_width + self.hidden * self.experts + 2 * self.hidden

    @property
    def dense_bytes(self) -> int:
        """Weights of one layer's dense part."""
        return HALF_BYTES * self.dense_parameters

    @property
    def dense_flops_per_token(self) -> float:
        """Products with one layer's dense weights; attention over the context is ``attention_flops``."""
        return 2.0 * (self.dense_parameters - 2 * self.hidden)

    def attention_flops(self, tokens: int, context: int) -> float:
        """Scores and weighted values of ``tokens`` new positions over ``context`` positions (no causal discount)."""
        return 2.0 * 2 * self.hidden * tokens * context

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * HALF_BYTES * self.kv_heads * (self.hidden // self.heads)

    @property
    def head_flops_per_token(self) -> float:
        """The output projection."""
        return 2.0 * self.hidden * self.vocab

    @property
    def head_bytes(self) -> int:
        """Weights of the output projection; the embedding is as large, but one token reads only ``hidden_bytes``."""
        return HALF_BYTES * self.hidden * self.vocab


_SHAPES: dict[str, dict[str, int | str]] = {
    "mixtral-8x7b": {
        "layers": 32,
        "experts": 8,
        "top_k": 2,
        "hidden": 4096,
        "ffn": 14336,
        "heads": 32,
        "kv_heads": 8,
        "vocab": 32000,
        "source": "Jiang et al., Mixtral of Experts (arXiv:2401.04088), table 1; config.json of Mixtral-8x7B-v0.1",
    },
}
