r"""Bevy: requests interleave, so that neither the device nor the load channel waits while it could work
[reconstruction of "Accelerating Offloading-Based MoE Inference by Interleaving Concurrent Requests"].

The device runs, of all ready requests,

    the overdue one, if there is one:   passed over >= patience;  the longest passed over first       [ours]      (1)
    else the least advanced:            argmin  advance                                                           (2)

with everybody else who is ready before the same stage: one batch, its weights read once.  The channel reads, of all
experts that a waiting request demands,

    the overdue one:                    loads begun since it was demanded >= patience                 [ours]      (3)
    else what the least advanced waits for:   argmin over requests of  advance, then fewest missing               (4)

    advance   stages behind a request, plus where the least advanced stood when it came: a newcomer is as advanced as
              the least advanced, so that a stream of newcomers cannot hold those before them back

By (2) requests that have fallen behind catch up and merge with those ahead; somebody runs ahead alone only while all
behind him wait for loads.  So groups balance themselves: nobody waits for one to form.

Passes go round the layers, so what was used longest ago is what the next request needs: with many requests, ``lru``
evicts all of it in time, and every order of loads starves.  Unless told otherwise Bevy evicts what will be needed last
(``next-use`` of ``agents.schedulers.caches``) [ours].

Invariants, held by ``tests/unit/test_schedulers_bevy.py`` on random runs:

    work     the device is never idle while a request is ready
    demand   the channel never reads an expert that no waiting request demands, and never idles while one is demanded
             and fast memory has room for it
    bound    no ready request is passed over by more than  patience + requests - 1  groups
"""

from __future__ import annotations

from typing import Any

from agents.schedulers.base import BaseScheduler, Group, Key, Standing, State, number_option

#: Groups that may overtake a ready request: some passes of a deep model.
PATIENCE = 256


class Bevy(BaseScheduler):
    """Equations (1) to (4)."""

    name = "bevy"
    cache = "next-use"

    def configure(self, options: dict[str, Any]) -> None:
        """``patience``."""
        self._patience = number_option(options, "patience", PATIENCE)

    def next_group(self, state: State) -> Group:
        """Equations (1) and (2)."""
        ready = state.ready()
        if not ready or state.running:
            return ()
        first = max(ready, key=lambda each: (each.passed_over, -each.advance))
        if first.passed_over < self._patience:
            first = min(ready, key=self.urgency)
        return state.at_stage(first.stage)

    def next_load(self, state: State) -> Key | None:
        """Equations (3) and (4)."""
        demanded = state.demanded
        if not demanded:
            return None
        oldest = next(iter(demanded))
        if state.loads - demanded[oldest] >= self._patience:
            return oldest
        standing, needers, urgency = state.standing, state.needers, self.urgency
        return min(demanded, key=lambda key: min((urgency(standing[r])[0], standing[r].missing) for r in needers[key]))

    def urgency(self, standing: Standing) -> tuple[int, int]:
        """What (2) and (4) minimise, and what decides among equals."""
        return standing.rank
