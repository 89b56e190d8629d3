"""Each request alone, from its arrival to its end, in order of arrival: nothing is shared, nothing overlaps."""

from __future__ import annotations

from agents.schedulers.base import BaseScheduler, Group, State


class EachAlone(BaseScheduler):
    """First come, first served, one at a time."""

    name = "each-alone"
    faults = True

    def next_group(self, state: State) -> Group:
        """The request that came first."""
        first = min(state.standing.values(), key=lambda each: each.arrived, default=None)
        return (first.request,) if first is not None and first.ready and not state.running else ()
