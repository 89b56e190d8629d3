"""The shape of a twin: every number that the arithmetic needs, stored as ``model.json`` beside the weights.

What differs between the three kinds of model that have twins:

    mixtral   SwiGLU experts; the gate's weights are a softmax over the chosen scores
    qwen      the gate's weights are the chosen experts' shares of the softmax over all, and do not sum to 1; one more
              expert is shared by all tokens, weighed by a sigmoid of its own
    switch    two-matrix ReLU experts; one expert per token, weighed by its share of the softmax over all; a dense block
              (attention and feed-forward) precedes every mixture-of-experts block
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.errors import TestbedError, did_you_mean

#: No twin has more of anything; larger numbers would only take memory.
LARGEST = 100_000

Activation = Literal["swiglu", "relu"]
#: Over which scores the softmax goes that weighs the chosen experts.
Gating = Literal["chosen", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Layers, experts and widths of a twin."""

    name: str
    layers: int  # mixture-of-experts layers
    experts: int
    top_k: int
    width: int
    heads: int
    expert_width: int
    vocab: int
    context: int  # positions that it was trained on
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    activation: Activation = "swiglu"
    gating: Gating = "chosen"
    shared_width: int = 0  # of the expert that all tokens share; 0: there is none
    dense_width: int = 0  # of the feed-forward in the dense block before every layer; 0: there is none

    def __post_init__(self) -> None:
        """ValueError naming the field when a number cannot be a model's."""
        for field in ("layers", "experts", "top_k", "width", "heads", "expert_width", "vocab", "context"):
            value = getattr(self, field)
            if not 1 <= value <= LARGEST:
                raise ValueError(f"{field} is {value}; it must be between 1 and {LARGEST}")
        for field in ("shared_width", "dense_width"):
            value = getattr(self, field)
            if not 0 <= value <= LARGEST:
                raise ValueError(f"{field} is {value}; it must be between 0 and {LARGEST}")
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

    @property
    def inner_width(self) -> int:
        """Columns of an expert's first matrix: with SwiGLU the gate's and the value's stand side by side."""
        return self.expert_width * (2 if self.activation == "swiglu" else 1)

    @property
    def attentions(self) -> int:
        """Attention blocks in one layer."""
        return 2 if self.dense_width else 1


_VOCAB, _CONTEXT = 2048, 128

TWINS = {
    spec.name: spec
    for spec in (
        ModelSpec(
            name="mixtral-8x7b",
            layers=32,
            experts=8,
            top_k=2,
            width=64,
            heads=4,
            expert_width=96,
            vocab=_VOCAB,
            context=_CONTEXT,
        ),
        ModelSpec(
            name="qwen1.5-moe-a2.7b",
            layers=24,
            experts=60,
            top_k=4,
            width=64,
            heads=4,
            expert_width=24,
            shared_width=96,
            gating="all",
            vocab=_VOCAB,
            context=_CONTEXT,
        ),
        ModelSpec(
            name="switch-base-8",
            layers=12,
            experts=8,
            top_k=1,
            width=96,
            heads=6,
            expert_width=256,
            dense_width=256,
            activation="relu",
            gating="all",
            vocab=_VOCAB,
            context=_CONTEXT,
        ),
    )
}


def twin_directory(name: str) -> Path:
    """Where the files of the twin of the large model ``name`` lie."""
    return Path(__file__).parent / f"{name}-twin"


def model_path(named: Path) -> Path:
    """What ``--model`` means: a file or directory, else the stored twin of that name.  TestbedError for unknown names.

    >>> model_path(Path("mixtral-8x7b")).name
    'mixtral-8x7b-twin'
    """
    if named.exists() or len(named.parts) > 1 or named.suffix == ".jsonl":
        return named
    if str(named) not in TWINS:
        raise TestbedError(
            f"there is no model {str(named)!r}{did_you_mean(str(named), TWINS)}; known: {', '.join(TWINS)}, "
            f"or a path: the directory of a twin or checkpoint, or a routing trace (.jsonl)"
        )
    return twin_directory(str(named))
