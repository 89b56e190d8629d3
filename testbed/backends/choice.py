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
            from testbed.backends.docker import DockerBackend

            return DockerBackend(ledger, setup.topology, initial_window=setup.initial_window, visible=setup.visible)
        case "mininet":
            from testbed.backends.mininet import MininetBackend

            return MininetBackend(ledger, setup.topology, initial_window=setup.initial_window)
        case "netns":
            return NetnsBackend(ledger, setup.topology, initial_window=setup.initial_window)
