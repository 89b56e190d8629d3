"""The shape of a twin: every number that the arithmetic needs, stored as ``model.json`` beside the weights."""

from __future__ import annotations

from dataclasses import dataclass

#: No twin has more of anything; larger numbers would only take memory.
LARGEST = 100_000


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

    def __post_init__(self) -> None:
        """ValueError naming the field when a number cannot be a model's."""
        for field in ("layers", "experts", "top_k", "width", "heads", "expert_width", "vocab", "context"):
            value = getattr(self, field)
            if not 1 <= value <= LARGEST:
                raise ValueError(f"{field} is {value}; it must be between 1 and {LARGEST}")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"heads is {self.heads}; it must divide width {self.width} into even parts")
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}; there are {self.experts} experts")
        if not (self.norm_eps > 0 and self.rope_base > 1):
            raise ValueError("norm_eps must be above 0 and rope_base above 1")

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
