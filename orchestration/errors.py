"""What can go wrong while runs are played."""

from __future__ import annotations

from testbed.errors import TestbedError

#: Exit code of what was interrupted, as shells have it.
INTERRUPTED = 130


class FleetError(TestbedError):
    """Agents that do not start, refuse a run, or have ended."""
