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
from dataclasses import dataclass

import numpy as np

from agents.local.jobs import Experts, Job
from agents.local.lanes import Lane
from agents.models.arithmetic import Arithmetic
from agents.protocol import Array
from agents.routing import Batch
from agents.store import ExpertStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose batch it is."""

    request: int
    step: int
    layer: int


class ExpertRunner:
    """The experts of one server, on its device."""

    def __init__(self, *, lane: Lane, store: ExpertStore, twin: Arithmetic) -> None:
        self._lane = lane
        self._store = store
        self._twin = twin

    async def run(self, origin: Origin, batch: Batch, hidden: Array, ready_s: float) -> tuple[Array, int, float]:
        """The sum of the batch (tokens sent, width) int64, how many experts were loaded for it, and its finish.

        ``hidden`` is (tokens sent, width).  PlacementError when an expert of the batch is not on this server.
        """
        layer, store = origin.layer, self._store
        total = np.zeros(hidden.shape, dtype=np.int64)
        keys = [(layer, call.expert, call.precision) for call in batch.calls]
        ends = list(itertools.accumulate(call.rows for call in batch.calls))
        resident = [place for place, key in enumerate(keys) if store.is_fast(key)]
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

        for key in keys:
            store.hold(key)
        loads = [asyncio.ensure_future(store.fetch(keys[place], ready_s=ready_s)) for place in slow]

        def job(places: list[int], ready_s: float, load: asyncio.Future[float] | None = None) -> Job[None]:
            return Job(
                request=origin.request,
                step=origin.step,
                stage=2 * layer + 1,
                part=Experts(
                    calls=[batch.calls[place] for place in places],
                    launches=places is resident or (not resident and places[0] == slow[0]),
                ),
                work=work(places),
                ready_s=ready_s,
                needs=None if load is None else keys[places[0]],
                load=load,
            )

        waiting = [([place], load) for place, load in zip(slow, loads, strict=True)]
        parts = [(resident, None), *waiting] if resident else waiting
        try:
            if self._lane.together and len(parts) > 1:
                finish_s = await self._together([job(places, ready_s, load) for places, load in parts])
            else:
                finish_s = ready_s
                for places, load in parts:
                    _, finish_s = await self._lane.serve(job(places, finish_s, load))
        finally:
            for load in loads:
                load.cancel()
            for key in keys:
                store.release(key)
        return total, len(slow), finish_s

    async def _together(self, jobs: list[Job[None]]) -> float:
        """Hand all jobs over at once; the last finish."""
        served = [asyncio.ensure_future(self._lane.serve(job)) for job in jobs]
        try:
            return max([finish_s for _, finish_s in await asyncio.gather(*served)])
        finally:
            for each in served:
                each.cancel()
