"""Where the nodes of a topology live, as the rest of the testbed sees it: the interfaces of every backend.

A backend makes one sandbox per node, the shaper puts cables between the sandboxes, then the backend gives the
interfaces their addresses and routes.  ``tests/contract`` says what each implementation must pass.

    create(wiring)  ->  shaper.plug(cables)  ->  connect(wiring)  ->  sandbox(node).popen(...)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from testbed.wiring import NodeWiring, Wiring


class Process(Protocol):
    """A program that was started in a sandbox."""

    @property
    def pid(self) -> int:
        """Its id on the host."""

    def poll(self) -> int | None:
        """Its exit code (minus the signal that ended it); None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""

    def kill(self) -> None:
        """End it at once."""


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

    def popen(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
        """Start a program in the sandbox, without privileges; its output is appended to ``log``.

        Node names resolve to data-plane addresses there.  ``env`` is the whole environment; None inherits ours.
        """


class Backend(Protocol):
    """Makes and connects sandboxes.  What it creates on the host it records in the testbed's ledger first."""

    def create(self, wiring: Wiring) -> None:
        """Make all sandboxes, with the data-plane address on each loopback and no cables yet."""

    def recreate(self, wiring: Wiring, node: str) -> None:
        """End everything in the sandbox of ``node`` and make it again, without cables; ``netns`` keeps its path."""

    def connect(self, wiring: Wiring, *, nodes: Collection[str] | None = None, dilation: float = 1.0) -> None:
        """Give the plugged interfaces (of ``nodes`` only) their addresses, and the nodes their routes; repeatable."""

    def broken(self, wiring: Wiring, *, plugged: Collection[str]) -> dict[str, str]:
        """The nodes whose sandbox is not as it was made, and what is wrong with it, worded for people.

        ``plugged`` names the links whose interfaces ought to be there; of the others nothing is expected.
        """

    def stretch(self, wiring: Wiring, dilation: float) -> None:
        """Run timers of the sandboxes' kernel ``dilation`` times slower, where they can be told."""

    def sandbox(self, wiring: NodeWiring) -> Sandbox:
        """The sandbox of that node, also of a testbed that another process brought up."""
