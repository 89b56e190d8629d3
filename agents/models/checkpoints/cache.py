"""What the attention blocks of one layer keep of one request; some layers have several blocks.

A block keeps rows per position under a number of its own: keys, values, or the compressed form of both.  Rows are
copied when some are added, so the arrays that are multiplied do not depend on how much room was asked for.
"""

from __future__ import annotations

import numpy as np

from agents.models.mixture import Floats


class LayerCache:
    """Rows of every block of one layer, for the ``length`` positions so far."""

    __slots__ = ("_rows", "length")

    def __init__(self) -> None:
        self.length = 0
        self._rows: dict[tuple[int, str], Floats] = {}

    def block(self, number: int) -> Kept:
        """The part of one attention block."""
        return Kept(self._rows, number)


class Kept:
    """Rows of one attention block, by name."""

    __slots__ = ("_number", "_rows")

    def __init__(self, rows: dict[tuple[int, str], Floats], number: int) -> None:
        self._rows = rows
        self._number = number

    def extend(self, name: str, rows: Floats) -> Floats:
        """Add rows, (n, ...); returns all so far, (length, ...)."""
        before = self._rows.get((self._number, name))
        found = np.ascontiguousarray(rows) if before is None else np.concatenate([before, rows])
        self._rows[self._number, name] = found
        return found

    def once(self, name: str, rows: Floats | None) -> Floats:
        """Keep rows that never change, and return them; without any, those that were kept."""
        if rows is not None:
            self._rows[self._number, name] = rows
        return self._rows[self._number, name]
