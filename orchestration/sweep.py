"""Plays the cells of a sweep in several processes, and never one twice.

The parent decides (``Chains``) and hears; workers play, and write what they played (``SweepDirectory``).  They speak
JSON over a pipe.  Workers are spawned, not forked: numerical libraries have threads, whose locks a fork would copy.

A worker that dies costs the cell that it played, which counts as failed; another worker goes on.  When the parent dies,
its workers do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import msgspec

from orchestration.bench import Bench, Task
from orchestration.cells import Cell, Chains, Timeline, as_plain, digest
from orchestration.sweepfiles import SweepDirectory
from scenarios.timeline import Scenario
from testbed.errors import TestbedError
from testbed.topology import Topology

#: Of the machine's memory, what all workers together may take.
MEMORY_SHARE = 0.25
#: What a worker takes beside the arithmetic that it remembers.
WORKER_BYTES = 256 * 2**20
#: Where the system does not say how much memory there is.
USUAL_MEMORY_BYTES = 8 * 2**30
#: Wall seconds until a cell that another sweep plays is looked at again, and within which a worker ends by itself.
AGAIN_S, END_S = 0.5, 2.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of a cell."""

    kind: Literal["finished", "failed", "taken"]
    text: str = ""  # what came out, or why it failed


@dataclass(slots=True, kw_only=True)
class Onlooker:
    """How a person follows a sweep; the defaults follow nothing."""

    say: Callable[[str], None] = lambda text: None
    over: Callable[[], None] = lambda: None  # one more cell is finished or has failed


def steady(build: Timeline, *, scenario: str) -> Timeline:
    """The same timelines as plain values that a pipe can carry; TestbedError when the user's ``build`` fails."""

    def timeline(topology: Topology, rate_per_s: float | None, seed: int) -> Scenario:
        try:
            built = msgspec.json.encode(build(topology, rate_per_s, seed), enc_hook=as_plain)
            return msgspec.json.decode(built, type=Scenario)
        except TestbedError:
            raise
        except Exception as error:  # a user's scenario may raise anything
            what = f"{type(error).__name__}: {error}"
            raise TestbedError(f"scenario {scenario} cannot be built for {topology.name}: {what}") from error

    return timeline


def usable_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def remembered_bytes(machine_bytes: int, processes: int) -> int:
    """What each of several workers may remember on a machine with this memory.

    >>> remembered_bytes(16 * 2**30, 4) == 768 * 2**20
    True
    """
    return max(0, int(MEMORY_SHARE * machine_bytes / processes) - WORKER_BYTES)


# --- in a worker ------------------------------------------------------------------------------------------------------


def work_on(bench: Bench, task: Task, directory: SweepDirectory) -> Reply:
    """Play a cell, unless somebody has finished it or is about to."""
    name = task.identity.name
    with directory.claimed(name) as mine:
        if not mine:
            return Reply(kind="taken")
        if directory.is_finished(name):
            return Reply(kind="finished", text="finished by another sweep")
        try:
            with directory.beside(name) as beside:
                run, text = bench.play(task, beside)
                directory.keep(task.identity, run, digest(task.identity))
        except (Exception, SystemExit) as error:  # a user's framework may raise anything
            reason = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
            directory.fail(task.identity, reason, "".join(traceback.format_exception(error)))
            return Reply(kind="failed", text=reason)
    return Reply(kind="finished", text=text)


def _work(connection: Connection, directory: Path, model: Path, memory_bytes: int) -> None:
    """The whole life of a worker: until the parent has nothing more, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    bench = Bench(model, memory_bytes=memory_bytes)
    while True:
        try:
            task = msgspec.json.decode(connection.recv_bytes(), type=Task)
        except EOFError:
            return
        reply = work_on(bench, task, SweepDirectory(directory))
        connection.send_bytes(msgspec.json.encode(reply))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


# --- in the parent ----------------------------------------------------------------------------------------------------


class Worker:
    """A worker as its parent sees it."""

    def __init__(self, directory: Path, model: Path, memory_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.cell: Cell | None = None  # that it plays
        self._process = context.Process(target=_work, args=(theirs, directory, model, memory_bytes), daemon=True)
        with _interrupts_held():
            self._process.start()
        theirs.close()  # so that its end is the pipe's

    def give(self, cell: Cell, task: Task) -> None:
        """Let it play a cell; OSError when it has ended."""
        self.connection.send_bytes(msgspec.json.encode(task))
        self.cell = cell

    def end(self) -> None:
        """Let it go if it has nothing to do, else end it at once."""
        self.connection.close()
        if self.cell is None:
            self._process.join(END_S)
        self._process.kill()
        self._process.join()

    def how_it_ended(self) -> str:
        """In words, once its pipe is closed."""
        self._process.join(END_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"its process ended with code {code}"


@dataclass(slots=True, kw_only=True)
class Sweep:
    """The cells of a sweep, and the processes that play them."""

    cells: Sequence[Cell]
    timeline: Timeline
    directory: SweepDirectory
    model: Path
    processes: int
    onlooker: Onlooker = field(default_factory=Onlooker)
    failed: dict[str, str] = field(default_factory=dict)  # why, by name of the cell
    _crew: dict[int, Worker] = field(default_factory=dict)
    _elsewhere: deque[Cell] = field(default_factory=deque)  # played by another sweep when last looked at
    _announced: set[str] = field(default_factory=set)  # of those
    _again_s: float = 0.0  # monotonic moment at which to look again

    def play(self) -> Mapping[str, str]:
        """Play every cell that is not finished; returns why cells failed.  An interruption ends all work at once."""
        left = [cell for cell in self.cells if not self.directory.is_finished(cell.name)]
        chains = Chains(left)
        numbers = range(min(self.processes, len(left)))
        try:
            for number in numbers:
                self._crew[number] = self._worker()
            while True:
                for number in numbers:
                    idle = number not in self._crew or self._crew[number].cell is None
                    if idle and (cell := self._next(chains, number)) is not None:
                        self._give(number, cell)
                busy = {worker.connection: number for number, worker in self._crew.items() if worker.cell is not None}
                if not busy and not self._elsewhere:
                    return self.failed
                for connection in wait(list(busy), AGAIN_S if self._elsewhere else None):
                    self._hear(busy[connection])  # type: ignore[index]  # wait() returns what it was given
        finally:
            for worker in self._crew.values():
                worker.end()

    def _next(self, chains: Chains, number: int) -> Cell | None:
        cell = chains.next_for(number)
        while cell is None and self._elsewhere and time.monotonic() >= self._again_s:
            cell = self._elsewhere.popleft()
            if self.directory.is_finished(cell.name):
                self._over(cell, "finished by another sweep")
                cell = None
        return cell

    def _give(self, number: int, cell: Cell) -> None:
        task = self._task(cell)
        if number in self._crew:
            with contextlib.suppress(OSError):  # it has ended while it had nothing to do
                self._crew[number].give(cell, task)
                return
            self._crew.pop(number).end()
        self._crew[number] = self._worker()
        self._crew[number].give(cell, task)

    def _task(self, cell: Cell) -> Task:
        scenario = self.timeline(cell.topology, cell.rate_per_s, cell.identity.seed)
        if digest(scenario) != cell.identity.timeline:
            raise TestbedError(
                f"scenario {cell.identity.scenario} plays something else each time that it is built; "
                "whatever its build() draws must come from setting.seed"
            )
        return Task(identity=cell.identity, framework=cell.framework, topology=cell.topology, scenario=scenario)

    def _hear(self, number: int) -> None:
        worker = self._crew[number]
        cell = worker.cell
        assert cell is not None  # noqa: S101 - only workers that play are listened to
        try:
            reply = msgspec.json.decode(worker.connection.recv_bytes(), type=Reply)
        except (EOFError, OSError):
            reply = Reply(kind="failed", text=worker.how_it_ended())
            self.directory.fail(cell.identity, reply.text)
            self._crew.pop(number).end()
        else:
            worker.cell = None
        if reply.kind == "taken":
            if cell.name not in self._announced:
                self.onlooker.say(f"{cell.identity.title}: another sweep plays it")
                self._announced.add(cell.name)
            self._elsewhere.append(cell)
            self._again_s = time.monotonic() + AGAIN_S
            return
        if reply.kind == "failed":
            self.failed[cell.name] = reply.text
        self._over(cell, f"failed: {reply.text}" if reply.kind == "failed" else reply.text)

    def _over(self, cell: Cell, text: str) -> None:
        self.onlooker.say(f"{cell.identity.title}: {text}")
        self.onlooker.over()

    def _worker(self) -> Worker:
        return Worker(self.directory.path, self.model, remembered_bytes(_memory_bytes(), self.processes))


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile, and for a process that is started here it never comes."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _memory_bytes() -> int:
    """Memory of this machine, or what its container may use of it."""
    found = [USUAL_MEMORY_BYTES]
    if hasattr(os, "sysconf"):
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            found.append(int(Path(limit).read_text()))
    return min(found)
