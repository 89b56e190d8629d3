"""Where one process of a sweep plays cell after cell: what they share is loaded, placed and computed once.

Nothing that is kept changes a record.  Placements depend on network, load and memory, not on the seed; references and
remembered arithmetic are equal bit for bit to new ones; virtual time begins anew with every run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl

from agents.models.model import Model
from orchestration.cells import Identity, Source, digest, digest_of_text
from orchestration.comparison import Candidate, Comparison, prepare
from orchestration.manifest import label
from orchestration.session import play
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Scenario
from testbed.errors import TestbedError
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology

#: How a request's error begins when nothing is wrong but the load (``agents.home``).
TOO_LATE = "no answer within"
#: How often what broke may break again while it is ended.
UNWIND_TURNS = 8


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with all that it takes to play it."""

    identity: Identity
    framework: str  # as asked for
    topology: Topology
    scenario: Scenario


class CellError(TestbedError):
    """Why a cell has no records."""


class Bench:
    """What is kept from cell to cell."""

    def __init__(self, model: Path, *, memory_bytes: int) -> None:
        """``memory_bytes`` bounds the arithmetic that is remembered."""
        loaded = Model.load(model)
        self._files = digest_of_model(loaded)
        self._model = loaded.remembering(memory_bytes)
        self._network = ""  # digest of the topology that the rest belongs to
        self._stage: tuple[VirtualLoop, Simulation] | None = None
        self._placed: dict[tuple[str, str | None, float, float], Candidate] = {}
        self._episode: tuple[tuple[str, int], Comparison] | None = None  # the latest timeline, without candidates

    def play(self, task: Task, directory: Path) -> tuple[Path, str]:
        """Play a cell below a directory that is there; returns where the run lies, and in a line what came out.

        CellError when there are no records worth keeping, and whatever else may go wrong.
        """
        self._check(task)
        loop, stage = self._place(task)
        said: list[str] = []
        watcher = Watcher(say=said.append)
        try:
            loop.run_until_complete(play(self._comparison(task), stage, directory, watcher))
        except BaseException:
            self._stage = None
            _unwind(loop)  # whatever broke left something under way
            raise
        self._check(task)
        name = f"{label(task.framework)}-r0"
        run = directory / name
        if not watcher.answered:
            _look_why(run)
        return run, said[-1].removeprefix(f"{name}: ")

    def _check(self, task: Task) -> None:
        """Whether the files are still those that the cell was named by."""
        if self._files != task.identity.model_files:
            raise CellError("the model has changed since the sweep began; start it again")
        if digest_of_text(source(task.framework).text) != task.identity.framework_text:
            raise CellError(f"{task.framework} has changed since the sweep began; start it again")

    def _place(self, task: Task) -> tuple[VirtualLoop, Simulation]:
        """The network to play on, and its time."""
        content = task.identity.topology_content
        if content != self._network:
            self._network, self._stage, self._episode = content, None, None
            self._placed.clear()
        if self._stage is None:
            loop = VirtualLoop()
            self._stage = loop, Simulation(task.topology, self._model, loop)
        return self._stage

    def _comparison(self, task: Task) -> Comparison:
        """The cell as a comparison of one."""
        identity, scenario = task.identity, task.scenario

        def prepared(*frameworks: str) -> Comparison:
            return prepare(
                scenarios={identity.seed: scenario},
                topology=task.topology,
                model=self._model,
                frameworks=frameworks,
                redundancy=identity.redundancy,
            )

        episode = identity.timeline, identity.seed
        if self._episode is None or self._episode[0] != episode:
            self._episode = episode, prepared()
        key = task.framework, identity.framework_text, scenario.arrival_rate_per_s, identity.redundancy
        if key not in self._placed:
            self._placed[key] = prepared(task.framework).candidates[0]
        return replace(self._episode[1], candidates=(self._placed[key],))


def source(asked: str) -> Source:
    """A scenario or framework with its file's text, where it is a file; TestbedError when that cannot be read."""
    if not asked.endswith(".py"):
        return Source(asked=asked)
    try:
        return Source(asked=asked, text=Path(asked).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TestbedError(f"{asked} cannot be read: {error}") from None


def digest_of_model(model: Model) -> str:
    """Of all files of a model's directory, or of a trace and of the losses that it borrows; and of its profile."""
    path = model.directory
    known = hashlib.blake2b(digest_size=16)
    for file in [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file()):
        known.update(f"{'' if file == path else file.name} {file.stat().st_size} ".encode())
        with file.open("rb") as content:  # a checkpoint's files are larger than memory
            known.update(hashlib.file_digest(content, "blake2b").digest())
    known.update(repr(model.profile).encode())
    losses = model.calibration.precision_loss, model.calibration.precision_loss_total
    known.update(digest([dict(each) for each in losses]).encode())
    return known.hexdigest()


def _unwind(loop: VirtualLoop) -> None:
    """End all that is under way, as far as it lets itself be ended."""
    for _ in range(UNWIND_TURNS):
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if not tasks:
            break
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def _look_why(run: Path) -> None:
    """CellError when no request was answered for another reason than that all of them were late."""
    reasons = Counter(pl.read_parquet(run / "requests.parquet")["error"].drop_nulls().to_list())
    if reasons and not any(reason.startswith(TOO_LATE) for reason in reasons):
        reason, count = reasons.most_common(1)[0]
        raise CellError(f"no request was answered; {count} failed: {reason}")
