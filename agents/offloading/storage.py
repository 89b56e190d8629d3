"""Experts that are really read: a temporary file, and two ways of bringing a piece of it into memory.

    read     one large read past the page cache (``O_DIRECT``); where the file system refuses that, an ordinary read
             after which the piece is dropped from the page cache again (``posix_fadvise``)
    fault    the piece is mapped and touched page by page, as an engine does that maps its weights and loads on demand;
             it is dropped from the page cache before

The file holds random bytes, so that nothing compresses it.  Its size is checked against the free space before it is
written, and it has no name in the file system, so it is gone when the process is.  Reads run in a thread: the event
loop, and so the device, goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from agents.clock import Clock
from agents.offloading.core import Load
from testbed.errors import TestbedError

#: More is never written, whoever asks.
MAX_FILE_BYTES = 8 * 2**30
#: Share of the free space that the file may take.
FREE_SHARE = 0.5
#: What O_DIRECT wants offsets and sizes to be multiples of, on every usual drive; also the mapping's granularity.
ALIGNED_BYTES = 2**16
_CHUNK_BYTES = 2**24
#: Faults without read-ahead are so slow that a few pieces tell.
SLOW_PIECES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast this drive is, bytes/s, each by itself on pieces in random order."""

    read_bytes_per_s: float
    fault_bytes_per_s: float
    small_fault_bytes_per_s: float  # the same with the kernel's read-ahead switched off
    direct: bool  # whether O_DIRECT was possible

    @property
    def fault_share(self) -> float:
        """What page faults reach of large reads, at most 1."""
        return min(1.0, self.fault_bytes_per_s / self.read_bytes_per_s)


class ExpertFile:
    """A file of equal pieces; use it as a context manager."""

    def __init__(self, *, pieces: int, piece_bytes: int, directory: Path | None = None) -> None:
        """Nothing is written yet.  TestbedError where the file would be too large, or does not fit."""
        if pieces < 1 or piece_bytes < 1 or piece_bytes % ALIGNED_BYTES:
            raise TestbedError(f"a piece must be a multiple of {ALIGNED_BYTES} bytes, not {piece_bytes}")
        self.pieces, self.piece_bytes = pieces, piece_bytes
        self._directory = Path(tempfile.gettempdir()) if directory is None else directory
        if not self._directory.is_dir():
            raise TestbedError(f"{self._directory} is no directory for the file of experts")
        size_bytes = pieces * piece_bytes
        allowed_bytes = min(MAX_FILE_BYTES, int(FREE_SHARE * shutil.disk_usage(self._directory).free))
        if size_bytes > allowed_bytes:
            raise TestbedError(
                f"a file of {size_bytes / 1e9:.1f} GB is more than the {allowed_bytes / 1e9:.1f} GB that may be used "
                f"in {self._directory}; make experts smaller"
            )
        self._fd = -1
        self.direct = False

    def __enter__(self) -> Self:
        written, name = tempfile.mkstemp(prefix="edge-moe-experts-", dir=self._directory)
        try:
            os.unlink(name)  # the file lives as long as it is open: nothing stays behind, however this process ends
            self._write(written)
            self._fd = self._open(f"/proc/self/fd/{written}")
        finally:
            os.close(written)
        self._buffer = mmap.mmap(-1, self.piece_bytes)  # aligned to a page, as O_DIRECT wants it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, which is its end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, piece: int) -> None:
        """Bring a piece into memory by one large read."""
        offset, done = self._offset(piece), 0
        view = memoryview(self._buffer)
        while done < self.piece_bytes:
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if not got:
                raise TestbedError(f"the file of experts ended at {offset + done} bytes")
            done += got
        if not self.direct:
            os.posix_fadvise(self._fd, offset, self.piece_bytes, os.POSIX_FADV_DONTNEED)

    def fault(self, piece: int, *, read_ahead: bool = True) -> None:
        """Bring a piece into memory by touching its pages."""
        offset = self._offset(piece)
        os.posix_fadvise(self._fd, offset, self.piece_bytes, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(self._fd, self.piece_bytes, access=mmap.ACCESS_READ, offset=offset) as pages:
            if not read_ahead:
                pages.madvise(mmap.MADV_RANDOM)
            for start in range(0, self.piece_bytes, mmap.PAGESIZE):
                pages[start]
        os.posix_fadvise(self._fd, offset, self.piece_bytes, os.POSIX_FADV_DONTNEED)

    def _offset(self, piece: int) -> int:
        if not 0 <= piece < self.pieces:
            raise ValueError(f"there is no piece {piece}")
        return piece * self.piece_bytes

    def _write(self, fd: int) -> None:
        noise = np.random.default_rng(0).bytes(_CHUNK_BYTES)
        left = self.pieces * self.piece_bytes
        while left:
            left -= os.write(fd, noise[: min(left, len(noise))])
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _open(self, path: str) -> int:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return os.open(path, os.O_RDONLY)
        self.direct = True
        return fd


def measured(file: ExpertFile, clock: Clock, *, pieces: int) -> Rates:
    """Time each way of reading on ``pieces`` pieces; ``clock`` must be of real time.

    A file that was just written may still be in a drive's own cache, or a hypervisor's: what is measured is what a
    run on this host gets, not the medium.
    """
    order = np.random.default_rng(1).permutation(file.pieces)[:pieces].tolist()

    def rate(bring: Callable[[int], None], count: int = len(order)) -> float:
        began_s = clock.now_s()
        for piece in order[:count]:
            bring(piece)
        return count * file.piece_bytes / max(clock.now_s() - began_s, 1e-9)

    return Rates(
        read_bytes_per_s=rate(file.read),
        fault_bytes_per_s=rate(file.fault),
        small_fault_bytes_per_s=rate(lambda piece: file.fault(piece, read_ahead=False), min(SLOW_PIECES, len(order))),
        direct=file.direct,
    )


class RealChannel:
    """``Channel`` of a file: a load takes what the drive takes, and nothing paces it."""

    def __init__(self, clock: Clock, file: ExpertFile, *, faults: bool) -> None:
        self._clock = clock
        self._file = file
        self._bring = file.fault if faults else file.read
        self.busy_s = 0.0

    async def read(self, load: Load, ready_s: float) -> float:  # noqa: ARG002
        """See ``Channel``: it begins when it is asked."""
        began_s = self._clock.now_s()
        await asyncio.to_thread(self._bring, load.key % self._file.pieces)
        finish_s = self._clock.now_s()
        self.busy_s += finish_s - began_s
        return finish_s
