"""Bevy's way of interleaving with another order: who came first is served first, together with those beside him [ours].

    the device runs      the request that came first, of those that are ready, and everybody ready before its stage
    the channel reads    what the request waits for that came first

Bevy's order makes the tokens of all requests together come fast: laggards catch up, and batches grow.  It does so by
holding back who is nearly through, which is wrong where requests come by once and each wants its answer soon.  This
order takes the batches that chance offers and holds nobody back (docs/bevy.md, "In the distributed stack").  All else,
the bound on starvation too, is Bevy's.

It is a local scheduler only (``agents.local``): the executor of one machine without room for all demands gives room
to the least advanced (``agents.offloading.core``), and would wait for ever for another order's first.
"""

from __future__ import annotations

from agents.schedulers.base import Standing
from agents.schedulers.bevy import Bevy


class Oldest(Bevy):
    """First come, first served, in batches."""

    name = "oldest"

    def urgency(self, standing: Standing) -> tuple[int, int]:
        """By arrival; parts of one request by their order in it."""
        return standing.arrived, standing.advance
