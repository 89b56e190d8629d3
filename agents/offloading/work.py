"""What requests ask of the machine, and who computes it: a twin, or a table of what was recorded or drawn.

The executor knows stages; what happens inside one is a :class:`Work`'s.  Both kinds reveal the experts of a layer only
when its dense part has run, for each request by itself, so no answer depends on who else was in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and how many tokens are to follow it."""

    number: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        """ValueError for a request that asks for nothing."""
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("a request has at least one token of prompt and one of output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """What the dense part of a layer says of one request."""

    counts: Mapping[int, int]  # expert of this layer -> tokens of the pass
    guess: tuple[int, ...] = ()  # experts of the next layer, likeliest first, were this layer to change nothing


class Work(Protocol):
    """The arithmetic of requests, one stage of one request at a time."""

    def begin(self, request: Request) -> None:
        """A request has come."""
        ...

    def dense(self, request: int, layer: int) -> Revealed:
        """Attention and gate of the tokens of its pass."""
        ...

    def experts(self, request: int, layer: int) -> None:
        """The experts that ``dense`` named; after the last layer, also its next token."""
        ...

    def end(self, request: int) -> None:
        """A request leaves."""
        ...
