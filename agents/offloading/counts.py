"""What is counted while requests run: plain sums, so that a window of a run is a difference of two copies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counts:
    """Sums since the beginning."""

    groups: int = 0  # jobs of the device
    grouped: int = 0  # requests in them
    expert_calls: int = 0  # experts in them, each once per group
    demands: int = 0  # experts that gates named, for every request
    hits: int = 0  # those that were in fast memory then
    loads: int = 0
    prefetches: int = 0  # loads of what nobody demanded when they began
    prefetches_used: int = 0  # experts loaded ahead that a group used before they were evicted
    prefetches_wasted: int = 0  # evicted unused
    taken_back: int = 0  # experts that a waiting request lost to one before it
    guesses: int = 0  # experts that the next layer's gate named too early
    guesses_right: int = 0
    absent_guesses: int = 0  # those that were not in fast memory when they were made: what a prefetch could bring
    absent_guesses_right: int = 0
    tokens: int = 0  # generated

    def began(self, demanded: bool) -> None:
        """A load begins."""
        self.loads += 1
        self.prefetches += not demanded

    def guessed(self, guess: Collection[int], absent: Collection[int], demanded: Collection[int]) -> None:
        """A guess meets what came true."""
        self.absent_guesses += len(absent)
        self.absent_guesses_right += sum([key in demanded for key in absent])
        self.guesses += len(guess)
        self.guesses_right += sum([key in demanded for key in guess])

    def copy(self) -> Counts:
        """These sums as they are now."""
        return Counts(**{field.name: getattr(self, field.name) for field in fields(self)})

    def since(self, earlier: Counts) -> Counts:
        """What was counted after ``earlier`` was copied."""
        return Counts(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})
