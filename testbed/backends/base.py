"""Where the nodes of a topology live, as the rest of the testbed sees it: the interfaces of every backend.

A backend makes one sandbox per node, the shaper puts cables between the sandboxes, then the backend gives the
interfaces their addresses and routes.  ``tests/contract`` says what each implementation must pass.

    create(wiring)  ->  shaper.plug(cables)  ->  connect(wiring)  ->  sandbox(node).popen(...)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from testbed.wiring import NodeWiring, Wiring


class Sandbox(Protocol):
    """One node of the emulated network."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def netns(self) -> Path:
        """Path of its network namespace, where a shaper puts interfaces and a measurement opens sockets."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to run on the host so that ``argv`` runs in the sandbox as ``popen`` would run it."""

    def popen(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program in the sandbox, without privileges; its output is appended to ``log``.

        Node names resolve to data-plane addresses there.  ``env`` is the whole environment; None inherits ours.
        """


class Backend(Protocol):
    """Makes and connects sandboxes.  What it creates on the host it records in the testbed's ledger first."""

    def create(self, wiring: Wiring) -> None:
        """Make all sandboxes, with the data-plane address on each loopback and no cables yet."""

    def connect(self, wiring: Wiring) -> None:
        """Give the plugged interfaces their addresses, and every node its routes."""

    def stretch(self, wiring: Wiring, dilation: float) -> None:
        """Run timers of the sandboxes' kernel ``dilation`` times slower, where they can be told."""

    def sandbox(self, wiring: NodeWiring) -> Sandbox:
        """The sandbox of that node, also of a testbed that another process brought up."""
