"""One relay as seen by the process that gives it orders: start it, talk to it, notice when it is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from testbed.errors import TestbedError
from testbed.shaping import protocol as wire
from testbed.shaping.base import CablePlan, DirectionReport, Lateness
from testbed.topology import Direction

LOG = "relay.log"
#: What messages call the only relay of a testbed.
ONLY = "the relay"
#: A relay that carries traffic at its ceiling still answers within this.
ANSWER_S = 10.0
#: While waiting, look this often whether it still runs.
LOOK_MS = 100


def start_relay(directory: Path, socket: str, *, seed: int, log: str = LOG) -> int:
    """Start a relay process of the run directory and return its id; it outlives the caller."""
    argv = [sys.executable, "-m", "testbed.shaping.relay", str(directory / socket), str(seed)]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory / log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


class RelayShaper:
    """A ``Shaper`` that asks the relay process.  Any thread may call; calls take turns."""

    def __init__(
        self, directory: Path, socket: str, alive: Callable[[], bool], *, name: str = ONLY, log: str = LOG
    ) -> None:
        """``socket`` and ``log`` are its files in the run directory; ``alive`` tells whether its process still runs.

        ``name`` is what messages call it.
        """
        self.alive = alive
        self._name = name
        self._address = f"ipc://{directory / socket}"
        self._log = directory / log
        self._context = zmq.Context()
        self._socket = self._connect()
        self._turn = threading.Lock()

    def plug(self, cables: Sequence[CablePlan]) -> None:
        """Create both interfaces of every cable and start shaping."""
        self._ask(wire.Plug(cables=tuple(cables)))

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on one direction of ``link``; returns what is applied."""
        reply = self._ask(wire.Shape(link=link, source=source, direction=direction))
        if not isinstance(reply, wire.Applied):
            raise TypeError(reply)
        return reply.direction

    def report(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:
        """Every direction, as the relay has it; with ``reachable`` none if the relay is gone."""
        return () if reachable and not self.alive() else self._reported().directions

    def lateness(self, *, reset: bool = False) -> Lateness:
        """How late the relay has been since the last reset."""
        reply = self._ask(wire.TellLateness(reset=reset))
        if not isinstance(reply, wire.Late):
            raise TypeError(reply)
        return reply.lateness

    def dilate(self, dilation: float) -> None:
        """Run all links ``dilation`` times slower than what was and will be asked for."""
        self._ask(wire.Dilate(dilation=dilation))

    def rewind(self, seed: int) -> None:
        """Begin recordings and chances anew, these from ``seed``."""
        self._ask(wire.Rewind(seed=seed))

    @property
    def dilation(self) -> float:
        """How many times slower all links run."""
        return self._reported().dilation

    def in_force(self) -> tuple[float, bool]:
        """The dilation, and whether the relay has links that run by it."""
        reported = self._reported()
        return reported.dilation, bool(reported.directions)

    def close(self) -> None:
        """Stop talking to the relay, which goes on."""
        self._socket.close()
        self._context.term()

    def _reported(self) -> wire.Reported:
        reply = self._ask(wire.Report())
        if not isinstance(reply, wire.Reported):
            raise TypeError(reply)
        return reply

    def _connect(self) -> zmq.Socket[bytes]:
        connected = self._context.socket(zmq.REQ)
        connected.setsockopt(zmq.LINGER, 0)
        connected.setsockopt(zmq.RECONNECT_IVL, 5)  # the relay may still be starting
        connected.connect(self._address)
        return connected

    def _ask(self, request: wire.Request) -> wire.Reply:
        with self._turn:
            self._socket.send(wire.encode(request))
            if not self._answered():
                self._socket.close()
                self._socket = self._connect()
                lost = "the links" if self._name == ONLY else "its links"
                raise TestbedError(
                    f"{self._name} does not answer: {lost} are gone (see {self._log}); type `testbed restart`"
                )
            reply = wire.decode_reply(self._socket.recv())
        if isinstance(reply, wire.Failed):
            raise TestbedError(f"{self._name} refused: {reply.reason}")
        return reply

    def _answered(self) -> bool:
        deadline_s = time.monotonic() + ANSWER_S
        while not self._socket.poll(LOOK_MS):
            if not self.alive() or time.monotonic() > deadline_s:
                return bool(self._socket.poll(0))
        return True
