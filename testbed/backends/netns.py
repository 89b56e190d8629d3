"""Sandboxes made of Linux network namespaces: the embedded backend where we are root.

The namespaces are mounted in the run directory instead of /run/netns, so they cannot collide with anybody's.  Programs
on a node see the host's files, under the host's process ids, and have no privileges.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.backends import kernel
from testbed.backends.namespaces import NamespaceBackend
from testbed.wiring import NodeWiring, Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class NetnsSandbox:
    """A node that is a network namespace."""

    node: str
    netns: Path
    hosts: Path

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to run on the host so that ``argv`` runs in the sandbox as ``popen`` would run it."""
        return [sys.executable, "-m", "testbed.backends.enter", str(self.netns), str(self.hosts), *argv]

    def popen(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program in the sandbox, without privileges; its output is appended to ``log``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )


class NetnsBackend(NamespaceBackend):
    """Makes, connects and finds network namespaces."""

    def sandbox(self, wiring: NodeWiring) -> NetnsSandbox:
        """The sandbox of that node."""
        return NetnsSandbox(node=wiring.name, netns=self.netns(wiring.name), hosts=self.hosts)

    def create(self, wiring: Wiring) -> None:
        """Make all namespaces, with the data-plane address on each loopback and no cables yet."""
        self._prepare(wiring)
        for node in wiring.nodes:
            kernel.create_netns(self.netns(node.name))
            self._furnish(node)

    def recreate(self, wiring: Wiring, node: str) -> None:
        """End everything in the namespace of ``node`` and make it again."""
        self._ledger.end_inside(self.netns(node))
        self._forget(node)
        kernel.create_netns(self.netns(node))
        self._furnish(wiring.node(node))
