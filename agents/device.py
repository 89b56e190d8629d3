r"""The emulated accelerator: one job at a time, each as long as the large model's would take.

    finish_j = max(ready_j, finish_{j-1}) + modelled_j          first come, first served                (1)

``ready_j`` is when the job's input was complete in emulated time: the previous job's finish along a request's chain,
not the moment at which Python got round to it.  So a late wake-up of the host does not add to the next job's finish:
lateness does not accumulate, and a job with time to spare makes up for one before it that had not enough.

The real arithmetic runs at once when a job is handed over; its result is held back until (1).  Where the host is slower
than the modelled device, a result leaves the server late.  That is what a reader of latencies must know, so it is
measured where results leave (``agents.engine``), added up along each request's critical path, and never hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from agents.clock import Clock

T = TypeVar("T")

#: Weight of the newest job in the recent mean wait that is gossiped.
WAIT_SMOOTHING = 0.1


class Meter(Protocol):
    """What is told to others and sampled of a lane."""

    busy_s: float
    jobs: int
    overruns: int
    wait_s: float
    wake_ups_late_s: list[float]

    def backlog_s(self) -> float:
        """Modelled work in front of a job that would arrive now."""
        ...

    def busy_share(self) -> float:
        """Share of the time since the previous call that was busy, in [0, 1]."""
        ...


class SerialLane:
    """A resource that serves one job at a time: the device, or the slow -> fast load channel."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_s = float("-inf")
        self._sampled_s = 0.0
        self._busy_before_sample_s = 0.0
        self.busy_s = 0.0  # modelled time, in all
        self.jobs = 0
        self.overruns = 0  # jobs whose real computation ended after their modelled end
        self.wait_s = 0.0  # recent mean time from ready to start
        self.wake_ups_late_s: list[float] = []

    def reserve(self, ready_s: float, modelled_s: float) -> float:
        """Book the next slot; returns its finish (1)."""
        start_s = max(ready_s, self._free_s)
        self.waited(start_s - ready_s)
        return self.book(start_s, modelled_s)

    def waited(self, wait_s: float) -> None:
        """A job begins that has been ready for so long."""
        self.wait_s += WAIT_SMOOTHING * (wait_s - self.wait_s)

    def book(self, start_s: float, modelled_s: float) -> float:
        """Be busy from ``start_s`` on, which is not before the end of what was booked; returns the finish."""
        self._free_s = start_s + modelled_s
        self.busy_s += modelled_s
        self.jobs += 1
        return self._free_s

    async def run(self, work: Callable[[], T], *, ready_s: float, modelled_s: float) -> tuple[T, float]:
        """Do ``work``; returns its result, no earlier than its modelled finish (1), and that finish."""
        finish_s = self.reserve(ready_s, modelled_s)
        return await self.hold(work, finish_s), finish_s

    async def hold(self, work: Callable[[], T], finish_s: float) -> T:
        """Do ``work`` and hold its result back until ``finish_s``."""
        result = work()
        if self._clock.now_s() > finish_s:
            self.overruns += 1
        else:
            await self._clock.sleep_until_s(finish_s)
            self.wake_ups_late_s.append(self._clock.now_s() - finish_s)
        return result

    def booked_s(self) -> float:
        """What is left of the jobs that have a slot."""
        return max(0.0, self._free_s - self._clock.now_s())

    def backlog_s(self) -> float:
        """Modelled work in front of a job that would arrive now."""
        return self.booked_s()

    def busy_share(self) -> float:
        """Share of the time since the previous call that was busy, in [0, 1]."""
        now_s = self._clock.now_s()
        done_s = self.busy_s - self.booked_s()
        elapsed_s = now_s - self._sampled_s
        share = (done_s - self._busy_before_sample_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._sampled_s, self._busy_before_sample_s = now_s, done_s
        return min(1.0, max(0.0, share))
