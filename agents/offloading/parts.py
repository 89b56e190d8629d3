"""Layers in parts: a request that stands before a layer's experts as what can run now, and what waits for a load.

A scheduler that ``splits`` meets the resident experts of a request as one part and each missing one as another.  Parts
are standings with numbers of their own, below zero; the request goes on when all of them have run.  Its arithmetic is
done once, with the last part, so nothing here touches a bit of an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from agents.schedulers.base import Key, Standing


@dataclass(slots=True)
class _Whole:
    """A request in parts."""

    standing: Standing
    left: int  # parts that have not run


class Parts:
    """The requests that stand in parts."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}  # number of a part -> request
        self._wholes: dict[int, _Whole] = {}  # by request
        self._made = 0

    def owner(self, number: int) -> int:
        """The request of a standing."""
        return self._owners.get(number, number)

    def split(self, standing: Standing, resident: Collection[Key]) -> list[Standing]:
        """What stands instead of a request whose experts are partly ``resident``."""
        missing = [key for key in standing.needs if key not in resident]
        lots: list[tuple[Key, ...]] = [(key,) for key in missing]
        if resident:
            lots.insert(0, tuple(key for key in standing.needs if key in resident))
        parts = [self._part(standing, needs) for needs in lots]
        for part in parts:
            part.missing = int(part.needs[0] not in resident)
        parts[0].guess = standing.guess  # once, for those who count guesses
        self._wholes[standing.request] = _Whole(standing, len(parts))
        return parts

    def joined(self, part: Standing) -> Standing | None:
        """The request whose part has run; None while other parts of it have not."""
        request = self._owners.pop(part.request, part.request)
        whole = self._wholes.get(request)
        if whole is None:
            return part
        whole.left -= 1
        if whole.left:
            return None
        del self._wholes[request]
        whole.standing.needs, whole.standing.missing = (), 0
        return whole.standing

    def completed(self, members: Sequence[Standing]) -> list[int]:
        """Requests all of whose experts of this layer have run when these have."""
        left: dict[int, int] = {}
        for each in members:
            request = self.owner(each.request)
            whole = self._wholes.get(request)
            left[request] = left.get(request, 1 if whole is None else whole.left) - 1
        return [request for request, parts in left.items() if not parts]

    def _part(self, standing: Standing, needs: tuple[Key, ...]) -> Standing:
        self._made -= 1
        self._owners[self._made] = standing.request
        return replace(standing, request=self._made, needs=needs, guess=(), passed_over=0)
