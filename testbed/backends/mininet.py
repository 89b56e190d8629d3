"""Sandboxes that are Mininet hosts, for people whose scripts and habits speak Mininet.

The hosts live in a process of their own (``mininet_keeper``); here their namespaces are mounted in the run directory,
so that links, addresses, measurements and programs are the same as on every other backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
import zmq

from testbed.backends.mininet_keeper import Failed, Hosts, Renew, Reply, Request, Tell
from testbed.backends.namespaces import NamespaceBackend
from testbed.backends.netns import NetnsSandbox
from testbed.errors import TestbedError
from testbed.wiring import NodeWiring, Wiring

LOG = "mininet.log"
#: A hundred hosts take some seconds to start.
START_S = 120.0
#: Once they run, one is started anew, or they are told.
ANSWER_S = 15.0
LOOK_MS = 100


class MininetBackend(NamespaceBackend):
    """Makes, connects and finds Mininet hosts."""

    def sandbox(self, wiring: NodeWiring) -> NetnsSandbox:
        """The sandbox of that node."""
        return NetnsSandbox(node=wiring.name, netns=self.netns(wiring.name), hosts=self.hosts)

    def create(self, wiring: Wiring) -> None:
        """Start all hosts, with the data-plane address on each loopback and no cables yet."""
        self._prepare(wiring)
        self._start_keeper()
        pids = self._ask(Tell(), within_s=START_S)
        for node in wiring.nodes:
            self._adopt(node, pids[node.name])

    def recreate(self, wiring: Wiring, node: str) -> None:
        """End the host ``node`` and everything in it, and start it again."""
        if not self._keeper_alive():
            raise TestbedError("the process that keeps the Mininet hosts is gone: type `testbed down`, then up again")
        self._ledger.end_inside(self.netns(node))
        pids = self._ask(Renew(node=node))
        self._forget(node)
        self._adopt(wiring.node(node), pids[node])

    def broken(self, wiring: Wiring, *, plugged: Collection[str]) -> dict[str, str]:
        """The nodes whose host is not as it was made, and what is wrong with it, worded for people."""
        if not self._keeper_alive():
            return {node.name: f"{node.name} has gone with the process that kept it" for node in wiring.nodes}
        pids = self._ask(Tell())
        gone = [node.name for node in wiring.nodes if not self._is_home(node.name, pids)]
        others = super().broken(wiring, plugged=plugged)
        return {**{node: f"the Mininet host {node} is gone" for node in gone}, **others}

    def _is_home(self, node: str, pids: dict[str, int]) -> bool:
        try:
            return node in pids and os.path.samestat(os.stat(f"/proc/{pids[node]}/ns/net"), self.netns(node).stat())
        except FileNotFoundError:
            return False

    def _start_keeper(self) -> None:
        directory, socket = self._ledger.directory, f"mininet-{time.time_ns():x}.ipc"
        self._ledger.record({"kind": "keeper-socket", "file": socket})
        with (directory / LOG).open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "testbed.backends.mininet_keeper", str(directory), socket],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        keeper.returncode = 0  # it outlives us; this object is not to complain about that
        self._ledger.record_process("keeper", keeper.pid)

    def _keeper_alive(self) -> bool:
        return any(process.alive() for process in self._ledger.processes("keeper"))

    def _ask(self, request: Request, *, within_s: float = ANSWER_S) -> dict[str, int]:
        socket_file = self._ledger.directory / str(self._ledger.entries("keeper-socket")[-1]["file"])
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RECONNECT_IVL, 5)
            socket.connect(f"ipc://{socket_file}")
            socket.send(msgspec.json.encode(request))
            until_s = time.monotonic() + within_s
            while not socket.poll(LOOK_MS):
                if not self._keeper_alive() or time.monotonic() > until_s:
                    raise TestbedError(
                        f"the keeper of the Mininet hosts does not answer: {_last_line(self._ledger.directory / LOG)}"
                    )
            reply = msgspec.json.decode(socket.recv(), type=Reply)
        if isinstance(reply, Failed):
            raise TestbedError(f"Mininet refused: {reply.reason}")
        assert isinstance(reply, Hosts)  # noqa: S101 - for the type checker: there is no third answer
        return reply.pids


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "no reason given")
