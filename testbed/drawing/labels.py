"""Texts on a picture where they cover nothing: each takes the first of its places that is free.

Boxes are (left, bottom, right, top) in inches of paper.

>>> page = Page(box=(0.0, 0.0, 4.0, 2.0), lines=[(0.0, 1.0, 4.0, 1.0)])
>>> page.take([(1.0, 0.8, 2.0, 1.2), (1.0, 1.1, 2.0, 1.5)])  # the first lies on the line
(1.0, 1.1, 2.0, 1.5)
>>> page.take([(1.5, 1.2, 2.5, 1.6)]) is None  # taken
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
Line = tuple[float, float, float, float]  # from x, y to x, y

_EDGE = 1e-6


class Page:
    """What lies where on the paper."""

    def __init__(self, *, box: Box, lines: Iterable[Line]) -> None:
        self._box = box
        self._lines = np.array(list(lines), dtype=np.float64).reshape(-1, 4)
        self._taken = np.empty((64, 4))
        self._count = 0

    def block(self, box: Box) -> None:
        """Nothing may cover this."""
        if self._count == len(self._taken):
            self._taken = np.concatenate([self._taken, np.empty_like(self._taken)])
        self._taken[self._count] = box
        self._count += 1

    def take(
        self, candidates: Sequence[Box], *, most_lines: int | None = None, own: int | None = None, aside: float = 0.0
    ) -> Box | None:
        """The free candidate across the fewest lines (the earliest of equals); None where there is none.

        ``most_lines`` may cross it or come as near as ``aside``; ``own`` is a line that is not counted.
        """
        free = [box for box in candidates if self._is_free(box)]
        around = [(box[0] - aside, box[1] - aside, box[2] + aside, box[3] + aside) for box in free]
        counted = [self.crossing(box, own) for box in around]
        if not free or (most_lines is not None and min(counted) > most_lines):
            return None
        chosen = free[counted.index(min(counted))]
        self.block(chosen)
        return chosen

    def crossing(self, box: Box, own: int | None = None) -> int:
        """How many lines run through a box."""
        hits = _meeting(self._lines, box)
        if own is not None:
            hits[own] = False
        return int(hits.sum())

    def _is_free(self, box: Box) -> bool:
        left, bottom, right, top = box
        page = self._box
        if left < page[0] or bottom < page[1] or right > page[2] or top > page[3]:
            return False
        taken = self._taken[: self._count]
        meets = (taken[:, 0] < right) & (taken[:, 2] > left) & (taken[:, 1] < top) & (taken[:, 3] > bottom)
        return not meets.any()


def _meeting(lines: NDArray[np.float64], box: Box) -> NDArray[np.bool_]:
    """Which lines run through a box: their shares inside its width and inside its height overlap."""
    enter, leave = np.zeros(len(lines)), np.ones(len(lines))
    inside = np.ones(len(lines), dtype=bool)
    for axis in (0, 1):
        start, along = lines[:, axis], lines[:, axis + 2] - lines[:, axis]
        level = np.abs(along) < _EDGE
        inside &= ~level | ((start > box[axis]) & (start < box[axis + 2]))
        along = np.where(level, 1.0, along)
        first, last = (box[axis] - start) / along, (box[axis + 2] - start) / along
        enter = np.where(level, enter, np.maximum(enter, np.minimum(first, last)))
        leave = np.where(level, leave, np.minimum(leave, np.maximum(first, last)))
    result: NDArray[np.bool_] = inside & (enter < leave)
    return result
