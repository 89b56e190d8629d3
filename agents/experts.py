"""Running a batch of this server's experts: hold them in fast memory, load what is slow, pace them on the device.

Resident experts run as one job at once; experts that must be loaded follow as they arrive.  Each call multiplies
exactly the rows that one request sent to it, and the sum is made of integers, so its bits do not depend on who else is
served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from agents.device import SerialLane
from agents.frameworks.base import View
from agents.models.arithmetic import Arithmetic
from agents.models.twin import contribution
from agents.protocol import Array, ExpertCall
from agents.routing import Batch
from agents.store import ExpertStore


class ExpertRunner:
    """The experts of one server, on its device."""

    def __init__(self, *, server: str, lane: SerialLane, store: ExpertStore, twin: Arithmetic, view: View) -> None:
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
        outputs = np.zeros((len(batch.index), hidden.shape[1]), dtype=np.float32)
        bounds = np.cumsum([0, *(call.rows for call in batch.calls)]).tolist()
        spans = {call: slice(first, last) for call, first, last in zip(batch.calls, bounds, bounds[1:], strict=False)}
        keys = {call: (layer, call.expert, call.precision) for call in batch.calls}
        resident = [call for call in batch.calls if self._store.is_fast(keys[call])]
        slow = [call for call in batch.calls if call not in resident]

        def work(calls: list[ExpertCall]) -> Callable[[], None]:
            def compute() -> None:
                for call in calls:
                    inputs = hidden[batch.index[spans[call]]]
                    outputs[spans[call]] = self._twin.expert(layer, call.expert, call.precision, inputs)
                parts = contribution(outputs, batch.weights)  # once for all: many small calls cost more
                for call in calls:
                    total[batch.index[spans[call]]] += parts[spans[call]]

            return compute

        def modelled_s(calls: list[ExpertCall]) -> float:
            return sum(self._view.expert_s(self._server, call.precision, call.rows) for call in calls)

        for key in keys.values():
            self._store.hold(key)
        loads = [asyncio.ensure_future(self._store.fetch(keys[call], ready_s=ready_s)) for call in slow]
        try:
            finish_s = ready_s
            if resident:
                _, finish_s = await self._lane.run(work(resident), ready_s=ready_s, modelled_s=modelled_s(resident))
            for call, load in zip(slow, loads, strict=True):
                loaded_s = await load
                _, finish_s = await self._lane.run(
                    work([call]), ready_s=max(finish_s, loaded_s), modelled_s=modelled_s([call])
                )
        finally:
            for load in loads:
                load.cancel()
            for key in keys.values():
                self._store.release(key)
        return total, len(slow), finish_s
