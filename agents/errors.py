"""What can be wrong with a decision about experts, worded for the person who wrote the framework."""

from __future__ import annotations

from testbed.errors import TestbedError


class PlacementError(TestbedError):
    """A placement that the servers cannot hold, or a call for an expert that is not here."""


class FrameworkError(TestbedError):
    """A framework that is unknown, cannot be loaded, or decided something impossible; the message names it."""
