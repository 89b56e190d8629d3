r"""Which requests are under way where, as far as a server was told, and what a job waits for them.  HetRoute [ours].

    L_i   = W_i (P_i (t - t_i) / T_i - (P_i - 1))            device time of its last pass that i has had           (1)
    R_id  = max(0, W_id - L_i),  before the last pass W_id^2 / W_i:  time for which a newcomer shares d with i     (2)
    w_d   = sum over all i:  R_id / jobs_id                  wait of one job on d                                   (3)

    W_i, W_id  device time of one pass of i, in all and on d     jobs_id  its jobs there
    P_i        its passes; of decoding passes, which are shorter, as many as make up a W_i count as one
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

from collections import deque
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
#: Passes and seconds that a request can be said to take, at most; and seconds at least.
MOST_PASSES, LONGEST_S, LEAST_S = 1e6, 1e6, 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The servers that a request is expected to visit, in one pass."""

    work_s: Floats  # (servers,): W_id
    jobs: Floats  # (servers,)
    away_s: float  # on links, in all

    @classmethod
    def of(cls, owners: Sequence[int], work_s: Sequence[float], *, servers: int, away_s: float = 0.0) -> Route:
        """``owners``: server of each layer; ``work_s``: its device time there."""
        on_s, jobs = np.zeros(servers), np.zeros(servers)
        np.add.at(on_s, owners, work_s)
        np.add.at(jobs, owners, JOBS_PER_LAYER)
        return cls(work_s=on_s, jobs=jobs, away_s=away_s)

    def pass_s(self, wait_s: Floats) -> float:
        """How long a pass takes, if a job waits so long on each server."""
        return float(self.work_s.sum() + self.jobs @ wait_s) + self.away_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request under way."""

    route: Route
    entered_s: float
    duration_s: float
    passes: float  # device time, in units of a pass over a whole prompt


class Underway:
    """Equation (3)."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._visits: deque[Visit] = deque(maxlen=MOST)

    def __len__(self) -> int:
        """How many requests are known."""
        return len(self._visits)

    def add(self, visit: Visit) -> None:
        """A request has entered, here or elsewhere."""
        self._visits.append(visit)

    def wait_s(self, now_s: float) -> Floats:
        """(1) to (3) of all who have not ended (servers,)."""
        left = [visit for visit in self._visits if now_s < visit.entered_s + visit.duration_s]
        if len(left) < len(self._visits):
            self._visits = deque(left, maxlen=MOST)
        if not left:
            return np.zeros(self._servers)
        entered_s, duration_s, passes = np.array([(each.entered_s, each.duration_s, each.passes) for each in left]).T
        work_s = np.array([each.route.work_s for each in left])  # (visits, servers)
        jobs = np.array([each.route.jobs for each in left])
        total_s = np.maximum(work_s.sum(axis=1), LEAST_S)[:, None]
        last = passes * (np.clip((now_s - entered_s) / duration_s, 0.0, 1.0) - 1.0) + 1.0  # L_i / W_i
        last = last[:, None]
        shared_s = np.where(last < 0, work_s**2 / total_s, np.maximum(0.0, work_s - total_s * last))
        wait_s: Floats = (shared_s / np.maximum(jobs, 1.0)).sum(axis=0)
        return wait_s


class Announcement(msgspec.Struct, frozen=True, array_like=True):  # in this order on the wire
    """What a home tells of a request that has entered."""

    first: Annotated[int, msgspec.Meta(ge=0)]  # position of the server
    passes: Annotated[float, msgspec.Meta(ge=1, le=MOST_PASSES)]
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]  # expected


def announcement(first: int, passes: float, duration_s: float) -> bytes:
    """To be told to the others.

    >>> announced(announcement(3, 1, 0.05), servers=4).first
    3
    """
    return msgspec.msgpack.encode(
        Announcement(first, min(passes, MOST_PASSES), max(LEAST_S, min(duration_s, LONGEST_S)))
    )


def announced(text: bytes, *, servers: int) -> Announcement:
    """The same at the other end.  FrameworkError if it makes no sense."""
    try:
        told = msgspec.msgpack.decode(text, type=Announcement)
    except msgspec.MsgspecError as error:
        raise FrameworkError(f"hetroute: not an announcement of a request: {error}") from error
    if told.first >= servers:
        raise FrameworkError(f"hetroute: a request entered server {told.first}, of {servers}")
    return told
