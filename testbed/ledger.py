"""What a testbed owns on this machine, written down before it exists, so that tear-down is exact after any crash.

Each testbed has one run directory, ``/run/edge-moe-testbed/<name>/`` (``TESTBED_RUN_DIR`` moves the parent), readable
by its owner only.  Everything that is visible on the host lies in it or is named in its ledger:

    ledger.jsonl     one JSON object per line, on disk before the thing it names is created
    netns/<node>     mounted network namespaces
    relay-*.ipc, hosts, topology.json, relay.log, ...

Interfaces need no entry: they live in the namespaces and in the relay process, and go with them.  A process is recorded
with its start time, so an id that the kernel has given to somebody else is never signalled.

Who changes a testbed holds a lock on the directory itself.  A lock file would have to be removed by its holder while
others wait for it; a directory can be compared with its path after the lock is won.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.backends import kernel
from testbed.errors import FULL_DISK, TestbedError

DEFAULT_ROOT = Path("/run/edge-moe-testbed")
ROOT_VARIABLE = "TESTBED_RUN_DIR"
LEDGER = "ledger.jsonl"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
MAX_SOCKET_PATH = 107  # bytes the kernel takes for a socket's path
LONGEST_SOCKET_NAME = 40  # what we and the orchestrator put below the run directory
#: Processes that stay until the testbed goes.
KEEPERS = ("relay", "keeper")
#: How long a killed process may take to vanish.
DEATH_S = 5.0
#: How long the relay may take to close its devices before it is killed.
GRACE_S = 3.0
#: How often and how long apart a lock that somebody holds is asked for again.
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedProcess:
    """A process that this testbed started."""

    pid: int
    started: int  # clock ticks after boot; tells it from a later process of the same id

    def alive(self) -> bool:
        """Whether that very process still runs (a zombie does not)."""
        return _start_time(self.pid) == self.started


class Ledger:
    """The run directory of one testbed and the record in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        """The testbed's name."""
        return self.directory.name

    def record(self, *entries: dict[str, object]) -> None:
        """Append entries and wait until they are safe; only then may the things they name be created."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        fd = os.open(self.directory / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before_bytes, remaining = os.fstat(fd).st_size, text.encode()
            try:
                while remaining:  # a disk takes what still fits before it says that it is full
                    remaining = remaining[os.write(fd, remaining) :]
            except OSError:
                os.ftruncate(fd, before_bytes)  # or the next entry would continue a line cut short
                raise
            os.fsync(fd)
        finally:
            os.close(fd)

    def record_process(self, kind: str, pid: int) -> None:
        """Record a process just started."""
        started = _start_time(pid)
        if started is not None:
            self.record({"kind": kind, "pid": pid, "started": started})

    def entries(self, kind: str | None = None) -> list[dict[str, object]]:
        """All entries (of a kind).  A last line cut short by a crash names nothing that was created."""
        try:
            lines = (self.directory / LEDGER).read_text(errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise TestbedError(f"{self.directory} belongs to another user: {_remedy()}") from error
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "kind" in entry and kind in (None, entry["kind"]):
                    found.append(entry)
        return found

    def processes(self, kind: str) -> list[OwnedProcess]:
        """The recorded processes of a kind."""
        return [OwnedProcess(pid=int(str(e["pid"])), started=int(str(e["started"]))) for e in self.entries(kind)]

    def end_processes(self) -> int:
        """End the programs that were started on nodes and still run; how many those were."""
        running = [process for process in self.processes("process") if process.alive()]
        _kill(running)
        return len(running)

    def end_inside(self, netns: Path) -> int:
        """End every process in a mounted network namespace, whoever started it; how many those were."""
        inside = _inside([netns])
        _kill(inside)
        return len(inside)

    @property
    def complete(self) -> bool:
        """Whether ``up`` came to its end."""
        return bool(self.entries("up"))

    def remove_everything(self) -> None:
        """Remove all that is recorded, in any state, and the directory last.  Interrupted, it can be run again."""
        # These are asked first: the relay can close all its devices at once, the kernel at its death only one by one;
        # the keeper of Mininet hosts ends them.
        _end([process for kind in KEEPERS for process in self.processes(kind)], signal.SIGTERM, GRACE_S)
        _kill([process for kind in KEEPERS for process in self.processes(kind)])
        # Whatever a damaged ledger says, nothing outside of our directory is touched.
        spaces = [self.directory / "netns" / Path(str(entry["path"])).name for entry in self.entries("netns")]
        containers = {str(entry["name"]): str(entry["owner"]) for entry in self.entries("container")}
        if containers:
            from testbed.backends.containers import remove  # the only backend that needs the engine's library

            remove(containers)
        # Only now: what is frozen in a paused container dies with its container alone.
        _kill([*self.processes("process"), *_inside(spaces)])
        for path in spaces:
            with contextlib.suppress(OSError):  # never mounted, or already unmounted
                kernel.unmount(path)
            path.unlink(missing_ok=True)
        # The ledger goes last: as long as anything is left, it is named.
        for path in sorted(self.directory.iterdir(), key=lambda path: path.name == LEDGER):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.directory.rmdir()


def root_directory() -> Path:
    """Where run directories live; absolute, since what is recorded there is removed from other directories, too."""
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT).absolute()


def ledger_of(name: str) -> Ledger:
    """The ledger of the testbed ``name``, which need not exist."""
    if not NAME.fullmatch(name):
        raise TestbedError(
            f"{name!r} cannot name a testbed: use up to 40 of a-z, 0-9, '-', '_', '.', starting with a letter or digit"
        )
    directory = root_directory() / name
    if len(os.fsencode(directory)) + 1 + LONGEST_SOCKET_NAME > MAX_SOCKET_PATH:
        raise TestbedError(f"{directory} is too long for sockets below it: set {ROOT_VARIABLE} to a shorter path")
    return Ledger(directory)


def all_names() -> list[str]:
    """The testbeds that have a run directory."""
    try:
        return sorted(path.name for path in root_directory().iterdir() if (path / LEDGER).exists())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TestbedError(f"{error.filename}: {error.strerror}: {_remedy()}") from error


def _taken(fd: int) -> bool:
    """Lock a directory.  A child of a killed command may hold its lock until it has become another program."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(LOCK_PAUSE_S)
    return False


@contextlib.contextmanager
def locked(ledger: Ledger, *, create: bool) -> Iterator[bool]:
    """Hold the testbed for oneself; TestbedError if another command has it.

    Yields whether the directory exists.  With ``create`` it always does.
    """
    _check_private(ledger.directory.parent, create=create)
    while True:
        if create:
            with contextlib.suppress(FileExistsError):
                _make(ledger.directory)
        try:
            fd = os.open(ledger.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        except OSError as error:
            raise TestbedError(f"{ledger.directory}: not a directory of ours ({error.strerror})") from error
        try:
            _check_owner(ledger.directory, os.fstat(fd))
            if create and os.fstat(fd).st_mode & 0o077:
                # Whoever can reach the sockets in there may give orders.
                raise TestbedError(f"{ledger.directory} is open to other users: remove it, or chmod 700 it")
            if not _taken(fd):
                raise TestbedError(
                    f"testbed {ledger.name!r} is being brought up or down by another command: wait for it to finish"
                )
            if not _is_at(fd, ledger.directory):
                continue  # the holder before us removed it: start over
            _check_ours(ledger)
            yield True
            return
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise TestbedError(f"{ledger.directory} cannot be written: {error.strerror}") from error
        finally:
            os.close(fd)


def _check_ours(ledger: Ledger) -> None:
    if not (ledger.directory / LEDGER).exists() and any(ledger.directory.iterdir()):
        raise TestbedError(f"{ledger.directory} holds files of somebody else: choose another name or {ROOT_VARIABLE}")


def _check_private(directory: Path, *, create: bool) -> None:
    if create:
        with contextlib.suppress(FileExistsError):  # whatever it is, is looked at next
            _make(directory)
    try:
        _check_owner(directory, directory.lstat())
    except FileNotFoundError:
        return


def _make(directory: Path) -> None:
    """A directory that only we may enter; TestbedError where there cannot be one."""
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise TestbedError(f"{directory} cannot be made: {error.strerror}: {_remedy()}") from error


def _remedy() -> str:
    """What to do where run directories cannot be used."""
    return "type it again with `sudo`" if os.geteuid() else f"set {ROOT_VARIABLE} to a directory that can be written"


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise TestbedError(f"{path} is not a directory (a link?): remove it or set {ROOT_VARIABLE}")
    if status.st_uid != os.geteuid():
        raise TestbedError(f"{path} belongs to user {status.st_uid}: set {ROOT_VARIABLE} to a directory of your own")


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _end(processes: list[OwnedProcess], number: signal.Signals, wait_s: float) -> list[OwnedProcess]:
    """Signal the processes and wait until they are gone; those that are not."""
    deadline_s = time.monotonic() + wait_s
    waiting = [process for process in processes if process.alive()]
    for process in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
    while (waiting := [process for process in waiting if process.alive()]) and time.monotonic() < deadline_s:
        time.sleep(0.002)
    return waiting


def _kill(processes: list[OwnedProcess]) -> None:
    if immortal := _end(processes, signal.SIGKILL, DEATH_S):
        raise TestbedError(f"process {immortal[0].pid} of this testbed does not die: try again")


def _start_time(pid: int) -> int | None:
    """When the process started, in ticks after boot; None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()  # the command name before it may hold anything
        # A zombie whose other threads still live has not given back its files yet.
        if fields[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1:
            return None
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])


def _inside(spaces: list[Path]) -> list[OwnedProcess]:
    """Every process whose network namespace is one of ours: an agent not yet recorded at a crash, a forgotten shell."""
    ours = set()
    for path in spaces:
        if kernel.is_mounted(path):
            status = path.stat()
            ours.add((status.st_dev, status.st_ino))
    found = []
    for entry in os.scandir("/proc") if ours else ():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{entry.name}/ns/net")
                started = _start_time(int(entry.name))
                if (status.st_dev, status.st_ino) in ours and started is not None:
                    found.append(OwnedProcess(pid=int(entry.name), started=started))
    return found
