"""What can go wrong while runs are played."""

from __future__ import annotations

from testbed.errors import TestbedError


class FleetError(TestbedError):
    """Agents that do not start, refuse a run, or have ended."""
