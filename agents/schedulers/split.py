"""Layers in parts: the resident experts of a layer run while those that it misses are read [ours].

    lockstep-overlap    one batch, layer by layer, that computes with what is here while the rest comes
    bevy-split          Bevy, whose requests leave behind at a layer only what waits for a load

The first is the strongest engine that does not interleave requests: what Bevy gains over it is due to their order
alone.  Both read whole experts.
"""

from __future__ import annotations

from agents.schedulers.base import BaseScheduler, Group, State
from agents.schedulers.bevy import Bevy


class OverlappedLockstep(BaseScheduler):
    """Lockstep that overlaps the reads of a layer with its computation."""

    name = "lockstep-overlap"
    splits = True

    def next_group(self, state: State) -> Group:
        """Of the batch under way, who is ready before its stage; between passes, everybody who is there."""
        if state.running or not state.standing:
            return ()
        inside = [each for each in state.standing.values() if each.stage]
        stage = min([each.stage for each in inside], default=0)
        return state.at_stage(stage)


class SplitBevy(Bevy):
    """Bevy in parts."""

    name = "bevy-split"
    splits = True
