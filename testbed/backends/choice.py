"""The backend of that name.  Each is imported only where it is used: two of them need packages of others at work."""

from __future__ import annotations

from testbed.backends.base import Backend
from testbed.backends.netns import NetnsBackend
from testbed.ledger import Ledger
from testbed.setup import Setup


def backend_of(setup: Setup, ledger: Ledger) -> Backend:
    """The backend that a testbed was brought up on."""
    match setup.backend:
        case "docker":
            from testbed.backends.containers import Limits
            from testbed.backends.docker import DockerBackend

            limits = {node.name: Limits(cpus=node.cpus, memory_bytes=node.ram_bytes) for node in setup.topology.nodes}
            return DockerBackend(
                ledger, setup.topology, initial_window=setup.initial_window, visible=setup.visible, limits=limits
            )
        case "mininet":
            from testbed.backends.mininet import MininetBackend

            return MininetBackend(ledger, setup.topology, initial_window=setup.initial_window)
        case "netns":
            return NetnsBackend(ledger, setup.topology, initial_window=setup.initial_window)
