"""On-demand lockstep, as llama.cpp serves several sequences: one batch goes through the layers together.

Whoever has arrived joins between two passes.  At every layer the batch waits until the union of its experts is there,
each faulted in as it is touched; nothing is loaded while the device computes, because the next layer's gate has not
spoken yet.
"""

from __future__ import annotations

from agents.schedulers.base import BaseScheduler, Group, State


class Lockstep(BaseScheduler):
    """One batch, layer by layer."""

    name = "lockstep"
    faults = True

    def next_group(self, state: State) -> Group:
        """The batch under way, once all of it is ready; between passes, everybody who is there."""
        if state.running:
            return ()
        inside = [each for each in state.standing.values() if each.stage]
        batch = inside or list(state.standing.values())
        if any(each.missing for each in batch):
            return ()
        return tuple(each.request for each in batch)
