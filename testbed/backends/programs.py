"""Programs in containers: started through the engine, waited for and killed from the host.

The engine starts a program inside everything the container is: namespaces, cgroups, user, system call filter.  To the
host it is a process like any other, though nobody's child here, so its end is seen through a pidfd, which also signals
that very process and no later one of the same id.  Only the exit code has to be asked from the engine.

One thread per program moves its output to the log; it ends with the program.  The output is read from a connection of
its own instead of through the SDK, which loses what arrives together with the answer to the request.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, cast

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from testbed.backends import containers, engine
from testbed.errors import TestbedError

#: How long the engine may take to start a program, or to notice the end of one.
ENGINE_S = 20.0
#: How long the last output may take; children that a program leaves behind may keep it open for ever.
OUTPUT_S = 1.0
#: One byte for the stream, three of nothing, four for the length of what follows.
FRAME_HEADER_BYTES = 8
#: The engine's exit code for a program that a signal ended is this plus the signal's number.
SIGNALLED = 128
#: What we say of a program whose container went away, and its exit code with it.
KILLED = -int(signal.SIGKILL)


class Program:
    """A program that runs in a container, or has run."""

    def __init__(self, api: docker.APIClient, execution: str, argv: Sequence[str], output: threading.Thread) -> None:
        """Use ``start``."""
        self._api = api
        self._execution = execution
        self._argv = list(argv)
        self._output = output
        self._returncode: int | None = None
        self.pid = self._await_pid()
        self._pidfd = _opened(self.pid)
        # Whoever lets go of a program that still runs lets go of these, too.
        self._close = weakref.finalize(self, _close, api, self._pidfd)

    def poll(self) -> int | None:
        """Its exit code (minus the signal that ended it); None while it runs."""
        return self._returncode if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self._argv, timeout or 0.0)
        return cast(int, self._returncode)

    def kill(self) -> None:
        """End it at once."""
        if self._returncode is None and self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _ended(self, within_s: float | None) -> bool:
        if self._returncode is None and self._pidfd is not None:
            watched = select.poll()
            watched.register(self._pidfd, select.POLLIN)
            if not watched.poll(None if within_s is None else 1e3 * within_s):
                return False
        if self._returncode is None:
            self._output.join(OUTPUT_S)
            self._returncode = self._exit_code()
            self._close()
        return True

    def _await_pid(self) -> int:
        """The host's id of the process; 0 when it could not even be made."""
        deadline_s = time.monotonic() + ENGINE_S
        while time.monotonic() < deadline_s:
            with containers.worded():
                state = self._api.exec_inspect(self._execution)
            if state["Pid"] or state["ExitCode"] is not None:
                return int(state["Pid"])
            time.sleep(0.002)
        raise TestbedError(f"the Docker Engine did not start {self._argv[0]} within {ENGINE_S:g} s")

    def _exit_code(self) -> int:
        deadline_s = time.monotonic() + ENGINE_S
        while time.monotonic() < deadline_s:
            try:
                state = self._api.exec_inspect(self._execution)
            except (DockerException, RequestException):
                break  # the container is gone
            if not state["Running"] and state["ExitCode"] is not None:
                code = int(state["ExitCode"])
                return code if code <= SIGNALLED else SIGNALLED - code
            time.sleep(0.002)
        return KILLED


def start(container: str, command: Sequence[str], *, log: Path) -> Program:
    """Run ``command`` in a running container, as its user; the output is appended to ``log``."""
    with ExitStack() as opened:
        output = opened.enter_context(log.open("ab"))
        api = opened.enter_context(containers.connect())
        execution = _created(api, container, command)
        stream = opened.enter_context(_started(execution))
        opened.pop_all()  # from here on the thread and the program close them
    mover = threading.Thread(target=_move, args=(stream, output), name=f"output of {container}", daemon=True)
    mover.start()
    return Program(api, execution, command, mover)


def _created(api: docker.APIClient, container: str, command: Sequence[str]) -> str:
    try:
        with containers.worded():
            return str(api.exec_create(container, list(command), stdin=False)["Id"])
    except TestbedError as error:
        raise TestbedError(
            f"the container {container} takes no program: {error}; type `testbed status` to see what is broken"
        ) from error


def _started(execution: str) -> BinaryIO:
    """Start what was created; what is read from the result are frames of its output."""
    body = b'{"Detach": false, "Tty": false}'
    request = (
        f"POST /exec/{execution}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(engine.socket_path())
        sock.sendall(request.encode() + body)
        stream = sock.makefile("rb")  # keeps the connection open
    status = stream.readline().split()
    headers = http.client.parse_headers(stream)
    if len(status) < 2 or status[1] not in (b"101", b"200"):
        with stream:
            said = stream.read(int(headers.get("Content-Length", 0))).decode(errors="replace").strip()
        raise TestbedError(f"the Docker Engine starts no program: {said or status}")
    return stream


def _move(stream: BinaryIO, output: BinaryIO) -> None:
    with stream, output, suppress(OSError):
        while len(header := stream.read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
            output.write(stream.read(int.from_bytes(header[4:], "big")))
            output.flush()


def _opened(pid: int) -> int | None:
    if not pid:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _close(api: docker.APIClient, pidfd: int | None) -> None:
    api.close()
    if pidfd is not None:
        os.close(pidfd)
