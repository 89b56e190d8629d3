"""The shape of a twin: every number that the arithmetic needs, stored as ``model.json`` beside the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Layers, experts and widths of a twin."""

    name: str
    layers: int
    experts: int
    top_k: int
    width: int
    heads: int
    expert_width: int
    vocab: int
    context: int  # positions that it was trained on
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


MIXTRAL_TWIN = ModelSpec(
    name="mixtral-8x7b",
    layers=32,
    experts=8,
    top_k=2,
    width=64,
    heads=4,
    expert_width=96,
    vocab=1024,
    context=160,
)
