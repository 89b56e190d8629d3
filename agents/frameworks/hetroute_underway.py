r"""Which requests are under way where, as far as a server was told, and what a job waits for them.  HetRoute [ours].

    L_i   = W_i (P_i (t - t_i) / T_i - (P_i - 1))            device time of its last pass that i has had           (1)
    R_id  = max(0, W_id - L_i),  before the last pass W_id^2 / W_i:  time for which a newcomer shares d with i     (2)
    w_d   = sum over all i:  R_id / jobs_id                  wait of one job on d                                   (3)

    W_i, W_id  device time of one pass of i, in all and on d     jobs_id  its jobs there     P_i  its passes
    t_i, T_i   when i entered, and for how long it was expected to stay

Requests share a device job by job.  A newcomer that follows i on the same way stays behind it by the lead L_i: it
finds i on d for W_id - L_i, and waits in front of each job for one of i's during that time, which (3) spreads over all
its jobs there.  Where generated text has got to in its many passes nobody knows: the mean over all leads counts.
Gossip cannot say this: it is older than many a request lives.  Homes tell each other when a request enters
(``announcement``); the end is estimated.

>>> route = Route.of([0, 0, 1, 1], [0.010, 0.010, 0.030, 0.030], servers=3)
>>> underway = Underway(3)
>>> underway.add(Visit(route=route, entered_s=0.0, duration_s=0.080, passes=1))
>>> [[round(wait_s, 4) for wait_s in underway.wait_s(now_s).tolist()] for now_s in (0.0, 0.010, 0.030, 0.080)]
[[0.005, 0.015, 0.0], [0.0025, 0.0125, 0.0], [0.0, 0.0075, 0.0], [0.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from agents.errors import FrameworkError
from agents.frameworks.expected import Floats

#: Jobs of a layer on the device that runs it: the dense part, and the experts.
JOBS_PER_LAYER = 2
#: Requests that are remembered; of more the oldest are forgotten.
MOST = 4096
#: Passes and seconds that a request can be said to take, at most.
MOST_PASSES, LONGEST_S = 1e6, 1e6


@dataclass(frozen=True, slots=True)
class Route:
    """The servers that a request is expected to visit, in one pass."""

    work_s: Floats  # (servers,): W_id
    jobs: Floats  # (servers,)
    quiet_s: float  # from home to home without any wait

    @classmethod
    def of(cls, owners: Sequence[int], work_s: Sequence[float], *, servers: int, away_s: float = 0.0) -> Route:
        """``owners``: server of each layer; ``work_s``: its device time there; ``away_s``: on links, in all."""
        on_s, jobs = np.zeros(servers), np.zeros(servers)
        np.add.at(on_s, owners, work_s)
        np.add.at(jobs, owners, JOBS_PER_LAYER)
        return cls(on_s, jobs, sum(work_s) + away_s)

    def pass_s(self, wait_s: Floats) -> float:
        """How long a pass takes, if a job waits so long on each server."""
        return self.quiet_s + float(self.jobs @ wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request under way."""

    route: Route
    entered_s: float
    duration_s: float
    passes: float

    def wait_s(self, now_s: float) -> Floats:
        """(1), (2): its term of (3) (servers,)."""
        route, total_s = self.route, float(self.route.work_s.sum())
        passes = self.passes * min(1.0, max(0.0, now_s - self.entered_s) / self.duration_s)
        last = passes - (self.passes - 1.0)
        shared_s = route.work_s**2 / total_s if last < 0 else np.maximum(0.0, route.work_s - total_s * last)
        return shared_s / np.maximum(route.jobs, 1.0)


class Underway:
    """Equation (3)."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._visits: list[Visit] = []

    def add(self, visit: Visit) -> None:
        """A request has entered, here or elsewhere."""
        self._visits = [*self._visits[1 - MOST :], visit]

    def wait_s(self, now_s: float) -> Floats:
        """w of (3) (servers,)."""
        self._visits = [visit for visit in self._visits if now_s < visit.entered_s + visit.duration_s]
        return sum((visit.wait_s(now_s) for visit in self._visits), start=np.zeros(self._servers))


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """What a home tells of a request that has entered."""

    first: Annotated[int, msgspec.Meta(ge=0)]  # position of the server
    passes: Annotated[float, msgspec.Meta(ge=1, le=MOST_PASSES)]
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]  # expected


def announcement(first: int, passes: float, duration_s: float) -> bytes:
    """To be told to the others.

    >>> announced(announcement(3, 1, 0.05), servers=4).first
    3
    """
    return msgspec.msgpack.encode(Announcement(first, min(passes, MOST_PASSES), min(duration_s, LONGEST_S)))


def announced(text: bytes, *, servers: int) -> Announcement:
    """The same at the other end.  FrameworkError if it makes no sense."""
    try:
        told = msgspec.msgpack.decode(text, type=Announcement)
    except msgspec.MsgspecError as error:
        raise FrameworkError(f"hetroute: not an announcement of a request: {error}") from error
    if told.first >= servers:
        raise FrameworkError(f"hetroute: a request entered server {told.first}, of {servers}")
    return told
