"""The two seams of a server's work: the device, which serves jobs, and the channel, which reads experts.

Without a local scheduler both take what comes first: the moment at which a job ends is known when it is handed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from agents.clock import Clock
from agents.device import Meter, SerialLane
from agents.local.jobs import Job, Pricing
from agents.store import Loader

T = TypeVar("T")


class Lane(Meter, Protocol):
    """The device."""

    together: bool  # whether jobs of one message should all be handed over at once, also those that wait for loads

    async def serve(self, job: Job[T]) -> tuple[T, float]:
        """Do a job; its result, no earlier than its modelled finish, and that finish."""
        ...

    def forget(self, now_s: float) -> None:
        """Drop what is known of requests that have not come by for long."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class FirstCome(SerialLane):
    """A device that serves jobs in the order in which they come, each alone."""

    together = False

    def __init__(self, clock: Clock, pricing: Pricing) -> None:
        super().__init__(clock)
        self._pricing = pricing

    async def serve(self, job: Job[T]) -> tuple[T, float]:
        """See ``Lane``."""
        ready_s = job.ready_s if job.load is None else max(job.ready_s, await job.load)
        return await self.run(job.work, ready_s=ready_s, modelled_s=self._pricing.time_s([job.part]))

    def forget(self, now_s: float) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is under way but for those who wait for it."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Both of one server."""

    device: Lane
    loader: Loader
