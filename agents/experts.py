"""Running a batch of this server's experts: hold them in fast memory, load what is slow, pace them on the device.

Resident experts run as one job at once; experts that must be loaded follow as they arrive.  The batch pays the launch
once, with the first job that runs (``agents.frameworks.cost``, (2)).  Each call multiplies
exactly the rows that one request sent to it, and the sum is made of integers, so its bits do not depend on who else is
served.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import numpy as np

from agents.device import SerialLane
from agents.frameworks.base import View
from agents.models.arithmetic import Arithmetic
from agents.protocol import Array
from agents.routing import Batch
from agents.store import ExpertStore


class ExpertRunner:
    """The experts of one server, on its device."""

    def __init__(self, *, server: str, lane: SerialLane, store: ExpertStore, twin: Arithmetic, view: View) -> None:
        #: How many times longer than on its data sheet the device takes; a scenario may change it.
        self.slowness = 1.0
        self._server = server
        self._lane = lane
        self._store = store
        self._twin = twin
        self._view = view

    async def run(self, layer: int, batch: Batch, hidden: Array, ready_s: float) -> tuple[Array, int, float]:
        """The sum of the batch (tokens sent, width) int64, how many experts were loaded for it, and its finish.

        ``hidden`` is (tokens sent, width).  PlacementError when an expert of the batch is not on this server.
        """
        total = np.zeros(hidden.shape, dtype=np.int64)
        keys = [(layer, call.expert, call.precision) for call in batch.calls]
        ends = list(itertools.accumulate(call.rows for call in batch.calls))
        resident = [place for place, key in enumerate(keys) if self._store.is_fast(key)]
        slow = [place for place in range(len(keys)) if place not in resident] if len(resident) < len(keys) else []

        def work(places: list[int]) -> Callable[[], None]:
            def compute() -> None:
                index, weights = batch.index, batch.weights
                if len(places) < len(keys):
                    spans = [slice(ends[place] - batch.calls[place].rows, ends[place]) for place in places]
                    index = np.concatenate([index[span] for span in spans])
                    weights = np.concatenate([weights[span] for span in spans])
                calls = [(call.expert, call.precision, call.rows) for call in map(batch.calls.__getitem__, places)]
                self._twin.experts(layer, calls, hidden, index, weights, total)

            return compute

        nominal, server = self._view.nominal, self._server

        def modelled_s(places: list[int], *, first: bool) -> float:
            time_s = nominal.launch_s(server) if first else 0.0
            for call in map(batch.calls.__getitem__, places):
                time_s += nominal.call_s(server, call.precision, call.rows)
            return self.slowness * time_s

        for key in keys:
            self._store.hold(key)
        loads = [asyncio.ensure_future(self._store.fetch(keys[place], ready_s=ready_s)) for place in slow]
        try:
            finish_s = ready_s
            if resident:
                _, finish_s = await self._lane.run(
                    work(resident), ready_s=ready_s, modelled_s=modelled_s(resident, first=True)
                )
            for place, load in zip(slow, loads, strict=True):
                loaded_s = await load
                first = not resident and place == slow[0]
                _, finish_s = await self._lane.run(
                    work([place]), ready_s=max(finish_s, loaded_s), modelled_s=modelled_s([place], first=first)
                )
        finally:
            for load in loads:
                load.cancel()
            for key in keys:
                self._store.release(key)
        return total, len(slow), finish_s
