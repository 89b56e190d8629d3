"""Local schedulers by name: what stands behind the plus of a composed name and is not a depth policy.

Schedulers that lead one batch through all layers of one machine (``lockstep``, ``prefetch``) have no meaning where
requests come and go in the middle of a model, so only those that run whoever is ready stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agents.clock import Clock
from agents.local.interleaved import Interleaved
from agents.local.jobs import Pricing
from agents.local.lanes import FirstCome, Lanes
from agents.models.profile import ModelProfile
from agents.schedulers.base import Scheduler
from agents.schedulers.bevy import Bevy
from agents.schedulers.oldest import Oldest
from agents.store import InOrder

LOCALS: Mapping[str, Callable[[Mapping[str, Any]], Scheduler]] = {"bevy": Bevy, "oldest": Oldest}


def lanes_of(local: str | None, *, clock: Clock, pricing: Pricing, profile: ModelProfile) -> Lanes:
    """Device and load channel of one server; without a scheduler, first come first served."""
    if local is None:
        return Lanes(FirstCome(clock, pricing), InOrder(clock))
    device = Interleaved(clock, pricing, LOCALS[local]({}), profile)
    return Lanes(device, device.loader)
