"""Where runs are played: on the packets of an emulated network, or in virtual time.  The rest is the same for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from orchestration.comparison import Candidate, Comparison, Episode
from orchestration.divergences import Hear, ignored
from orchestration.manifest import HostFacts
from orchestration.player import Played

if TYPE_CHECKING:
    from testbed.judging import LinkMeasurement

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Watcher:
    """How a person follows a comparison; the defaults follow nothing."""

    say: Callable[[str], None] = lambda text: None
    begin: Callable[[str, float, int], None] = lambda what, seconds, requests: None
    tick: Callable[[float, int], None] = lambda seconds, ended: None
    end: Callable[[], None] = lambda: None
    answered: int = 0  # requests, in all runs
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)


class Stage(Protocol):
    """Plays the runs of one comparison, one after the other."""

    backend: str  # as manifests name it
    disturbed_by_work: bool  # on the same machine: whatever can be computed before the runs must be

    async def measure(self, watcher: Watcher) -> Sequence[LinkMeasurement]:
        """Measure the links before anything runs on them; nothing where there is nothing to measure."""
        ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Do work that takes seconds without being deaf to an interruption, where that is possible."""
        ...

    def agents(self, comparison: Comparison, watcher: Watcher) -> AbstractAsyncContextManager[None]:
        """The agents, ready for runs as long as the context lasts."""
        ...

    def ended(self) -> list[str]:
        """Servers whose agent has ended although nobody ended it."""
        ...

    def duration(self, dilation: float, duration_s: float) -> str:
        """What a person may expect of a run, in words."""
        ...

    async def play(
        self,
        comparison: Comparison,
        candidate: Candidate,
        episode: Episode,
        name: str,
        watcher: Watcher,
        *,
        logits: Hear = ignored,
    ) -> tuple[Played, HostFacts]:
        """One run, with links as in the file at its beginning; ``logits`` takes those that agents send."""
        ...
