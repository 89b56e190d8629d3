"""What a large model costs the wire and the devices: bytes and FLOPs, from its published shape in ``profiles.toml``.

A twin computes the numbers; the profile of the model that it stands for says how large its messages are and how long
its kernels take.  A multiply-add counts as two FLOPs; weights of the dense part and hidden states are float16.

    expert weights   E = m · hidden · ffn            m matrices: 3 (SwiGLU) or 2                          (1)
    expert FLOPs     2 E per token                   expert bytes  E · bits / 8, scales included          (2)
    attention        A = hidden · w · (heads + 2 kv) + w · heads · hidden                                 (3)
      latent         A = hidden · heads (w + r) + hidden (c + r) + c · heads · 2w + w · heads · hidden    (4)
    plain block      B = A + m · hidden · dense ffn + norms                                               (5)
    dense part       D = A + hidden · experts + m · hidden · shared ffn + norms + B · blocks / layers     (6)

    w  width of a head    kv  heads of keys and values    r  rotary width    c  rank of the compressed keys and values
    norms  two of the hidden state, and vectors that the model has besides

The dense part of a layer is all that its aggregation server runs: attention, gate, shared experts.  Blocks without
experts belong to it too: one before every layer in Switch, a single one in DeepSeek, whose share is spread evenly, so
that sums over the layers are right.  The cache of latent attention (4) holds c + r numbers per token; attention reads
it as it is, with the decompressing matrices applied to the query and to the result, once each.

>>> mixtral = ModelProfile.load("mixtral-8x7b")
>>> round(mixtral.expert_bytes["full"] / 1e6, 1), mixtral.hidden_bytes, round(mixtral.expert_flops_per_token / 1e6)
(352.3, 8192, 352)
>>> deepseek = ModelProfile.load("deepseek-v2-lite")
>>> deepseek.parameters, deepseek.layers * deepseek.kv_bytes_per_token // 27
(15706484224, 1152)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from testbed.errors import TestbedError, did_you_mean

BITS_PER_BYTE = 8
HALF_BYTES = 2
#: Bits per weight on the device: float16; int8 with a scale per channel (negligible); int4 with a float16 scale per 64
#: weights, a usual format for models of this size (94 MB per Mixtral expert).  The twin's rows are 64 and 96 long, so
#: it groups 32 weights (:mod:`agents.models.quantize`).
WEIGHT_BITS = {"full": 16.0, "int8": 8.0, "int4": 4.25}
PROFILES_FILE = Path(__file__).with_name("profiles.toml")
MAX_FILE_BYTES = 2**20

_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
_Some = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: what the cache holds of a token instead of keys and values."""

    rank: _Count  # of the compressed keys and values of all heads
    rope_width: _Count  # rotary part of a key, shared by the heads; queries have one per head


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Shape of a large mixture-of-experts decoder, and the sizes that follow from it."""

    name: _Text
    layers: _Count  # with experts
    experts: _Count
    top_k: _Count
    hidden: _Count
    ffn: _Count  # width of one expert
    heads: _Count
    vocab: _Count
    source: _Text
    matrices: Annotated[int, msgspec.Meta(ge=2, le=3)] = 3  # of one expert
    kv_heads: _Count | None = None  # as many as heads
    head_width: _Count | None = None  # hidden / heads
    latent: Latent | None = None
    shared_ffn: _Some = 0  # width of a layer's shared experts together
    dense_blocks: _Some = 0  # without experts, in the whole model
    dense_ffn: _Some = 0
    vectors: _Some = 0  # parameters of a block in no matrix, without the two norms of the hidden state
    tied: bool = False  # the output projection is the embedding
    gating: Literal["chosen", "all"] = "chosen"  # over which scores the softmax goes that weighs the chosen experts

    @staticmethod
    def load(name: str) -> ModelProfile:
        """The profile of that name, or one message that lists the known ones."""
        known = _stored()
        if name not in known:
            raise TestbedError(f"no profile of a model {name!r}; known are {', '.join(sorted(known))}")
        return known[name]

    @staticmethod
    def known() -> list[ModelProfile]:
        """All profiles, by name."""
        return [profile for _, profile in sorted(_stored().items())]

    @property
    def hidden_bytes(self) -> int:
        """One token's hidden state or expert result on the wire."""
        return HALF_BYTES * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Equation (1)."""
        return self.matrices * self.hidden * self.ffn

    @property
    def expert_flops_per_token(self) -> float:
        """Equation (2)."""
        return 2.0 * self.expert_parameters

    @property
    def expert_bytes(self) -> Mapping[str, int]:
        """Equation (2) for every precision."""
        weights = self.expert_parameters
        return MappingProxyType({name: int(weights * bits / BITS_PER_BYTE) for name, bits in WEIGHT_BITS.items()})

    @property
    def attention_parameters(self) -> int:
        """Equations (3) and (4): matrices of one block."""
        width = self._head_width * self.heads
        if self.latent is None:
            return self.hidden * (width + 2 * self._kv_width) + width * self.hidden
        rank, rope = self.latent.rank, self.latent.rope_width
        queries = self.hidden * (width + rope * self.heads)
        return queries + self.hidden * (rank + rope) + rank * 2 * width + width * self.hidden

    @property
    def dense_parameters(self) -> int:
        """Equation (6), rounded up to a whole number."""
        spread = self._matrices_without_experts() + self._vectors_without_experts()
        return self._matrices_of_layer() + self._vectors_of_block() + _shared(spread, self.layers)

    @property
    def dense_bytes(self) -> int:
        """Weights of one layer's dense part."""
        return HALF_BYTES * self.dense_parameters

    @property
    def dense_flops_per_token(self) -> float:
        """Products with one layer's dense weights; attention over the context is ``attention_flops``."""
        return 2.0 * (self._matrices_of_layer() + self._matrices_without_experts() / self.layers)

    def attention_flops(self, tokens: int, context: int) -> float:
        """Scores and weighted values of ``tokens`` new positions over ``context`` positions (no causal discount).

        Of one layer with its share of the blocks without experts.
        """
        if self.latent is None:
            read = 2 * self.heads * self._head_width  # a key and a value per head
        else:
            read = self.heads * (2 * self.latent.rank + self.latent.rope_width)
        return 2.0 * read * tokens * context * (1 + self.dense_blocks / self.layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """What the cache keeps of one token for one layer with its share of the blocks without experts, rounded up."""
        kept = 2 * self._kv_width if self.latent is None else self.latent.rank + self.latent.rope_width
        return _shared(HALF_BYTES * kept * (self.layers + self.dense_blocks), self.layers)

    @property
    def head_flops_per_token(self) -> float:
        """The output projection."""
        return 2.0 * self.hidden * self.vocab

    @property
    def head_bytes(self) -> int:
        """Weights of the output projection; the embedding is as large, but one token reads only ``hidden_bytes``."""
        return HALF_BYTES * self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All of the model, its embedding, output projection and last norm included."""
        layer = self._matrices_of_layer() + self._vectors_of_block() + self.experts * self.expert_parameters
        without = self._matrices_without_experts() + self._vectors_without_experts()
        tables = (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden
        return self.layers * layer + without + tables

    @property
    def _head_width(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def _kv_width(self) -> int:
        return (self.kv_heads or self.heads) * self._head_width

    def _matrices_of_layer(self) -> int:
        return self.attention_parameters + self.hidden * (self.experts + self.matrices * self.shared_ffn)

    def _matrices_without_experts(self) -> int:
        return self.dense_blocks * (self.attention_parameters + self.matrices * self.hidden * self.dense_ffn)

    def _vectors_of_block(self) -> int:
        return 2 * self.hidden + self.vectors

    def _vectors_without_experts(self) -> int:
        return self.dense_blocks * self._vectors_of_block()


def read_profiles(path: Path) -> dict[str, ModelProfile]:
    """The profiles of a TOML file by name; TestbedError naming file, model and key where one is wrong.

    A profile whose sizes do not add up to the ``parameters`` that it states is refused.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise TestbedError(f"{path}: longer than {MAX_FILE_BYTES} bytes, which no file of profiles is")
    try:
        entries = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TestbedError(f"{path}: not TOML: {error}") from None
    if not entries:
        raise TestbedError(f"{path}: must hold profiles by the names of their models")
    return {name: _profile(path, name, entry) for name, entry in entries.items()}


def _profile(path: Path, name: str, entry: Any) -> ModelProfile:
    where = f"{path}: {name}"
    if not isinstance(entry, dict):
        raise TestbedError(f"{where}: must be a table of the model's sizes")
    stated = entry.get("parameters")
    keys = {field.name for field in fields(ModelProfile)} - {"name"} | {"parameters"}
    for key in entry:
        if key not in keys:
            raise TestbedError(f"{where}: unknown key {key!r}{did_you_mean(str(key), keys)}")
    try:
        profile = msgspec.convert({**entry, "name": name}, ModelProfile)
    except msgspec.ValidationError as error:
        raise TestbedError(f"{where}: {error}") from None
    if profile.top_k > profile.experts:
        raise TestbedError(f"{where}: top_k is {profile.top_k}, but a layer has {profile.experts} experts")
    if profile.head_width is None and profile.hidden % profile.heads:
        raise TestbedError(f"{where}: {profile.heads} heads do not divide hidden {profile.hidden}; give head_width")
    if bool(profile.dense_blocks) != bool(profile.dense_ffn):
        raise TestbedError(f"{where}: dense_blocks and dense_ffn belong together; give both or neither")
    if profile.parameters != stated:
        raise TestbedError(f"{where}: adds up to {profile.parameters:,} parameters, but states {stated!r}")
    return profile


def _shared(total: int, layers: int) -> int:
    return -(-total // layers)  # rounded up


@cache
def _stored() -> Mapping[str, ModelProfile]:
    return MappingProxyType(read_profiles(PROFILES_FILE))
