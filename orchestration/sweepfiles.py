"""The directory of a sweep, which is its only memory.

    sweep.json                    the cells that were asked for last
    <cell>/                       a finished cell: the files of a run, and cell.json with its identity
    failed/<cell>.json            why a cell has no records
    .under-way/<cell>/, .lock     what is being played; worthless when nobody holds the lock

A cell is played beside its place by the process that holds its lock, and renamed into place when it is whole.  So it
does not matter who is killed when: the operating system takes the lock back, and the next one begins the cell anew.
Two sweeps may share a directory; each plays what the other does not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from orchestration.cells import Cell, Identity
from orchestration.manifest import RESULT_FORMAT
from orchestration.recorder import write_json
from testbed.errors import TestbedError

PLAN_FILE, CELL_FILE, MANIFEST_FILE = "sweep.json", "cell.json", "manifest.json"
UNDER_WAY, FAILED = ".under-way", "failed"


@dataclass(frozen=True, slots=True)
class SweepDirectory:
    """Where a sweep keeps its cells."""

    path: Path

    def plan(self, cells: Sequence[Cell], *, question: str, finished: bool) -> None:
        """Write down which cells are asked for.  TestbedError when the directory cannot be written to."""
        try:
            for each in (UNDER_WAY, FAILED):
                (self.path / each).mkdir(parents=True, exist_ok=True)
            mine = self.path / UNDER_WAY / f"{os.getpid()}.json"  # another sweep may write its own just now
            write_json(
                mine,
                {
                    "format": RESULT_FORMAT,
                    "scenario": cells[0].identity.scenario,
                    "question": question,
                    "cells": [cell.name for cell in cells],
                    "finished": finished,
                },
            )
            mine.replace(self.path / PLAN_FILE)
        except OSError as error:
            raise TestbedError(f"the sweep cannot be written to {self.path}: {error.strerror}") from None

    def is_finished(self, name: str) -> bool:
        """Whether a cell has been played."""
        return (self.path / name / MANIFEST_FILE).is_file()

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Whether this process is the one that may play the cell; a claim ends with the process that has it."""
        file = self.path / UNDER_WAY / f"{name}.lock"
        lock = FileLock(file, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()
            if self.is_finished(name):  # whoever holds the file by now finds that out, too, so it may go
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)

    @contextmanager
    def beside(self, name: str) -> Iterator[Path]:
        """An empty directory in which the cell may be played; gone afterwards.  For who has claimed the cell."""
        directory = self.path / UNDER_WAY / name
        shutil.rmtree(directory, ignore_errors=True)  # of somebody who was killed
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def keep(self, identity: Identity, run: Path, digest: str) -> None:
        """Put a whole run into its place: from now on the cell is finished."""
        about = {"name": identity.name, "digest": digest, **msgspec.structs.asdict(identity)}
        write_json(run / CELL_FILE, about)
        run.rename(self.path / identity.name)
        (self.path / FAILED / f"{identity.name}.json").unlink(missing_ok=True)

    def fail(self, identity: Identity, reason: str, trace: str = "") -> None:
        """Write down why a cell has no records; the next sweep tries it again."""
        failure = {"cell": msgspec.structs.asdict(identity), "reason": reason, "trace": trace}
        with contextlib.suppress(OSError):  # a full disk may be the very reason, which is also said aloud
            write_json(self.path / FAILED / f"{identity.name}.json", failure)
