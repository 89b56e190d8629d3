"""The agents of a testbed, as the orchestrator holds them: start, command, hear, stop.

The management plane is one ROUTER socket in the testbed's run directory; agents connect to it by name.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import zmq

from agents.codec import decode_report, encode_management
from agents.protocol import Collected, Command, Ping, Ready, Refused, Report, Stop
from orchestration.errors import FleetError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
PING_INTERVAL_S = 2.0
#: What agents see of our environment: enough to find Python and the user's modules.
ENVIRONMENT = ("LANG", "PATH", "PYTHONPATH")


class Process(Protocol):
    """What a sandbox hands back for a started program."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once it has ended."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Sandboxes(Protocol):
    """Where agents are started: a testbed that is up."""

    def popen(self, node: str, argv: list[str], *, log: Path, env: dict[str, str]) -> Process:
        """Run a program in a node's sandbox."""
        ...


@contextmanager
def only_run(run_directory: Path) -> Iterator[None]:
    """One run at a time on one testbed: a second one would take the first one's agents and links away."""
    lock = os.open(run_directory / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FleetError("another run is using this testbed: wait for its end, or stop it") from None
        yield
    finally:
        os.close(lock)


class Fleet:
    """The running agents.  Use as an async context manager."""

    def __init__(self, *, sandboxes: Sandboxes, servers: Iterable[str], model: Path, run_directory: Path) -> None:
        self._sandboxes = sandboxes
        self.servers = tuple(servers)
        self._model = model.resolve()
        self._logs = run_directory / "logs"
        #: Containers see this directory, and nothing else of the run directory.
        self._shared = run_directory / "agents"
        self._socket = self._shared / "management.sock"
        self._endpoint = f"ipc://{self._socket}"
        self._processes: dict[str, Process] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 500)
        self._router.set(zmq.SNDHWM, 0)
        self._router.set(zmq.RCVHWM, 0)
        self.killed: set[str] = set()  # servers whose agent was ended by ``kill``
        self._fd = -1
        self._pings: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[Report]] = {}
        self.listener: Callable[[Report], None] = lambda report: None

    async def __aenter__(self) -> Fleet:
        self._logs.mkdir(mode=0o700, exist_ok=True)
        self._shared.mkdir(mode=0o755, exist_ok=True)
        self._router.bind(self._endpoint)
        self._socket.chmod(0o777)  # agents in containers are other users; nobody else gets into the run directory
        loop = asyncio.get_running_loop()
        self._fd = int(self._router.get(zmq.FD))
        loop.add_reader(self._fd, self._drain)
        try:
            await self.restart()
            self._pings = asyncio.ensure_future(self._ping())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def restart(self) -> None:
        """Start the agents that do not run; FleetError when one cannot."""
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        missing = [server for server in self.servers if server not in self._processes or server in self.ended()]
        ready = [self._expect(server) for server in missing]
        for server in missing:
            argv = [sys.executable, "-m", "agents.main", "--server", server]
            argv += ["--management", self._endpoint, "--model", str(self._model)]
            log = self._logs / f"{server}.log"
            self._processes[server] = self._sandboxes.popen(server, argv, log=log, env=environment)
        self.killed.clear()
        await self._all(ready, timeout_s=START_TIMEOUT_S, doing="start")

    def kill(self, server: str) -> None:
        """End an agent at once, as a server fails that loses its power; ``restart`` brings it back."""
        self.killed.add(server)
        self._processes[server].kill()

    def send(self, server: str, command: Command) -> None:
        """Tell one agent; a command to an agent that has ended is lost."""
        self._router.send_multipart([server.encode(), encode_management(command)], zmq.NOBLOCK)
        asyncio.get_running_loop().call_soon(self._drain)  # sending can use up the socket's edge

    async def ask(self, commands: dict[str, Command], *, timeout_s: float, doing: str) -> dict[str, Report]:
        """Tell several agents and wait for each one's answer; FleetError when one refuses, ends or says nothing."""
        waiting = [self._expect(server) for server in commands]
        for server, command in commands.items():
            self.send(server, command)
        reports = await self._all(waiting, timeout_s=timeout_s, doing=doing)
        return dict(zip(commands, reports, strict=True))

    async def collect(self, command: Command, *, timeout_s: float) -> dict[str, Report]:
        """Tell all agents and return the answers of those that give one in time."""
        waiting = {server: self._expect(server) for server in self.servers if server not in self.ended()}
        for server in waiting:
            self.send(server, command)
        until_s = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < until_s:
            ended = self.ended()
            missing = [future for server, future in waiting.items() if not future.done() and server not in ended]
            if not missing:
                break
            await asyncio.wait(missing, timeout=0.2)
        return {server: future.result() for server, future in waiting.items() if future.done()}

    def ended(self) -> list[str]:
        """Servers whose agent process has ended, by itself or by ``kill``."""
        return [server for server, process in self._processes.items() if process.poll() is not None]

    def log_of(self, server: str) -> str:
        """The last lines that an agent printed."""
        path = self._logs / f"{server}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-5:]) if path.exists() else ""

    def _expect(self, server: str) -> asyncio.Future[Report]:
        self._waiting[server] = asyncio.get_running_loop().create_future()
        return self._waiting[server]

    async def _all(self, waiting: list[asyncio.Future[Report]], *, timeout_s: float, doing: str) -> list[Report]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not all(future.done() for future in waiting):
            await asyncio.wait(waiting, timeout=0.2)
            for server in self.ended():
                future = self._waiting.get(server)
                if future is not None and not future.done():
                    raise FleetError(f"the agent of {server} ended before it could {doing}: {self.log_of(server)}")
            if loop.time() > until_s:
                silent = [server for server, future in self._waiting.items() if not future.done()]
                raise FleetError(f"no answer from {', '.join(silent)} within {timeout_s:g} s (asked to {doing})")
        reports = [future.result() for future in waiting]
        for report in reports:
            if isinstance(report, Refused):
                raise FleetError(f"{report.server}: {report.reason}")
        return reports

    def _drain(self) -> None:
        while not self._router.closed:
            try:
                _, frame = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            report = decode_report(frame)
            if isinstance(report, Ready | Refused | Collected):
                future = self._waiting.get(report.server)
                if future is not None and not future.done():
                    future.set_result(report)
                    continue
            self.listener(report)

    async def _ping(self) -> None:
        while True:
            for server in self.servers:
                self.send(server, Ping())
            await asyncio.sleep(PING_INTERVAL_S)

    async def _close(self) -> None:
        if self._pings is not None:
            self._pings.cancel()
        for server, process in self._processes.items():
            if process.poll() is None:
                self.send(server, Stop())
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STOP_TIMEOUT_S
        while loop.time() < until_s and any(process.poll() is None for process in self._processes.values()):
            await asyncio.sleep(0.05)
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            try:
                process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue  # `testbed down` finds it by its recorded pid
        if self._fd >= 0:
            loop.remove_reader(self._fd)
        self._router.close()
        self._context.term()
