"""Logits by key in a file that has no name: they are too many for memory, and gone when their holder is.

Reading and writing may happen in two threads.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as directory, LogitsFile(Path(directory), limit_bytes=24) as kept:
...     kept.keep(7, np.zeros((2, 3), np.float32)), kept.keep(8, np.zeros((1, 1), np.float32)), kept.read(7).shape
(True, False, (2, 3))
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Self

import numpy as np

from agents.models.mixture import Floats

#: Some 3000 requests of a usual length with a vocabulary of 2048.
LIMIT_BYTES = 2**30


class LogitsFile:
    """Keeps what fits, in the order in which it comes.  Use as a context manager, or close it."""

    def __init__(self, directory: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """In ``directory``, without a name there."""
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open as long as this object lives
        self._limit_bytes = limit_bytes
        self._places: dict[Hashable, tuple[int, tuple[int, ...]]] = {}  # offset and shape
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep(self, key: Hashable, logits: Floats) -> bool:
        """Whether they are kept; a full disk is a lack of room like the limit, and after the end there is none."""
        if key in self._places:
            return True
        values = np.ascontiguousarray(logits, dtype=np.float32)
        if self._file.closed or self._end + values.nbytes > self._limit_bytes:
            return False
        try:
            if os.pwrite(self._file.fileno(), values.data, self._end) < values.nbytes:
                return False
        except OSError:
            return False
        self._places[key] = self._end, values.shape
        self._end += values.nbytes
        return True

    def read(self, key: Hashable) -> Floats | None:
        """What was kept under this key."""
        if key not in self._places:
            return None
        offset, shape = self._places[key]
        values = os.pread(self._file.fileno(), 4 * shape[0] * shape[1], offset)
        return np.frombuffer(values, dtype=np.float32).reshape(shape)

    def close(self) -> None:
        """Give the space back."""
        self._file.close()
