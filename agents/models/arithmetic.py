"""What the engine needs of a model: the pieces of a forward pass that different servers run.

:class:`agents.models.twin.Twin` computes them; :class:`agents.models.replay.Replay` looks recorded gate decisions up
and computes nothing.  Engine, messages and frameworks are the same for both, because whatever lives between two pieces
is opaque to them: a residual stream of some width, and a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from agents.models.mixture import Call, Floats, Gate, Totals

#: What ``new_cache`` makes; only the model that made it looks inside.
Cache = Any


class Shape(Protocol):
    """The numbers of a model that others ask for."""

    @property
    def name(self) -> str:
        """Which profile it stands for."""
        ...

    @property
    def layers(self) -> int:
        """Mixture-of-experts layers."""
        ...

    @property
    def experts(self) -> int:
        """Experts of every layer."""
        ...

    @property
    def top_k(self) -> int:
        """Experts that every token chooses in every layer."""
        ...

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        ...

    @property
    def vocab(self) -> int:
        """Token numbers are below this."""
        ...


class Arithmetic(Protocol):
    """A decoder, cut into the pieces that different servers run; n tokens of one request at a time."""

    @property
    def spec(self) -> Shape:
        """Its shape."""
        ...

    @property
    def measures_quality(self) -> bool:
        """Whether logits mean something: negative log likelihoods and top-1 tokens of a replay say nothing."""
        ...

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """The residual stream before the first layer, (n, width); TestbedError for a token number out of range."""
        ...

    def new_cache(self, capacity: int = 64) -> Cache:
        """An empty cache for one layer of one request; ``capacity`` is a hint, in positions."""
        ...

    def attend(self, layer: int, x: Floats, cache: Cache | None = None, start: int = 0) -> Floats:
        """The stream after attention of the new positions ``start``.. to all up to their own, (n, width)."""
        ...

    def gate(self, layer: int, x: Floats) -> Gate:
        """Which experts every token chooses, and how much each weighs."""
        ...

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """The outputs of several experts on rows of ``Gate.hidden``, call after call, (m, width).

        The bits of a call's lines depend on that call alone.
        """
        ...

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """Adds the weighted outputs of several experts to ``total``, (rows, width), in fixed point.

        ``index`` and ``weights`` hold, call after call, which rows of ``hidden`` a call takes and what each weighs.
        """
        ...

    def logits(self, x: Floats) -> Floats:
        """Scores of the next token, (n, vocab)."""
        ...
