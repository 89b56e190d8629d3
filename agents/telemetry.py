r"""What one server knows of the others: who is alive, how busy, and how the ways between them look now.

Every message on the data plane carries its sending time, so its receiver measures the path:

    small messages:   d  <-  d + alpha (transit - d)                                                              (1)
    large messages:   p  <-  p + alpha ((transit - d) / (8 size) - p)                                             (2)

    d  one-way delay, s; includes queueing behind other traffic        transit  receive time - send time
    p  pace that one message gets, s/bit, the inverse of a rate; congestion shows here

Both stamps of a transit are of one clock: agents share their host's.  In the field an offset between two clocks would
be part of d, and cancel in (2); servers there need NTP or better.

Estimates age back to the nominal value of the topology with time constant ``FORGET_S``: a path that is avoided gets no
messages and would otherwise look bad for ever.  Each server gossips the estimates of the paths INTO it; together
these rows make the matrix that planning reads.

In a large cluster gossip travels over others (``agents.gossip``): of two reports about a server the later counts.
There only paths that differ from their nominal values are told, and only to those who are spoken to directly.

Liveness has this one source: a server is alive until ``dead_after_s`` passed without any news of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agents.cluster import Cluster
from agents.gossip import dead_after_s, relays
from agents.protocol import Array, LinkEstimate, Message, State
from testbed.topology import BITS_PER_BYTE

SMOOTHING = 0.3
FORGET_S = 5.0
SMALL_BYTES = 4_096
LARGE_BYTES = 32_768
#: Deviations from the nominal values that are not worth telling in a large cluster.
UNREMARKABLE, UNREMARKABLE_S = 0.05, 0.5e-3
#: After so many times ``FORGET_S`` an estimate is as good as nominal.
FADED = 4.0
NO_NEWS: Array = np.zeros((0, 0))


@dataclass(slots=True)
class _Path:
    """Running estimate of the path from one server to another."""

    nominal_delay_s: float
    nominal_pace_s: float  # seconds per bit
    delay_s: float
    pace_s: float
    updated_s: float

    def aged(self, now_s: float) -> tuple[float, float]:
        """Delay and pace, faded towards the nominal values since they were measured."""
        keep = math.exp(-max(0.0, now_s - self.updated_s) / FORGET_S)
        return (
            self.nominal_delay_s + keep * (self.delay_s - self.nominal_delay_s),
            self.nominal_pace_s + keep * (self.pace_s - self.nominal_pace_s),
        )

    def looks_nominal(self) -> bool:
        """Whether the estimate was so close to the nominal values that nobody need be told; age brings it closer."""
        return (
            abs(self.delay_s - self.nominal_delay_s) <= UNREMARKABLE * self.nominal_delay_s + UNREMARKABLE_S
            and self.pace_s <= (1 + UNREMARKABLE) * self.nominal_pace_s
        )


class Telemetry:
    """The view of ``server`` on its cluster; a pure core, time is an argument."""

    def __init__(self, cluster: Cluster, server: str, *, now_s: float) -> None:
        self._cluster = cluster
        self._names = cluster.names
        self._me = cluster.index(server)
        self._large = relays(len(self._names))
        self._dead_after_s = dead_after_s(len(self._names))
        #: Rows: when each server was last heard of; when it said how it is; its backlog, mean wait and load backlog.
        self._news = np.zeros((5, len(self._names)))
        self._heard_s, self._said_s, self._loads = self._news[0], self._news[1], self._news[2:]
        self._heard_s[:] = self._said_s[:] = now_s
        self._slowness = [1.0] * len(self._names)
        self._cached: list[frozenset[tuple[int, int, str]]] = [frozenset()] * len(self._names)
        self._lost: set[str] = set()
        self._paths: dict[tuple[int, int], _Path] = {}

    def received(self, message: Message, *, now_s: float) -> None:
        """Learn from a message that arrived at ``now_s``; messages of unknown servers teach nothing."""
        source = self._place(message.source)
        if source is None or source == self._me:
            return
        self._heard_s[source] = now_s
        if self._lost:
            self._lost.discard(message.source)
        transit_s = max(1e-6, now_s - message.sent_s)
        path = self._path(source, self._me, now_s)
        delay_s, pace_s = path.aged(now_s)
        if message.size_bytes <= SMALL_BYTES:
            path.delay_s, path.pace_s = delay_s + SMOOTHING * (transit_s - delay_s), pace_s
            path.updated_s = now_s
        elif message.size_bytes >= LARGE_BYTES:
            # Never faster than the slowest link of the path: a clock that jumps must not invent bandwidth.
            measured_s = max(path.nominal_pace_s, (transit_s - delay_s) / (BITS_PER_BYTE * message.size_bytes))
            path.delay_s, path.pace_s = delay_s, pace_s + SMOOTHING * (measured_s - pace_s)
            path.updated_s = now_s
        if isinstance(message.body, State):
            self._told(source, message.body, message.arrays, now_s)

    def news(self, own: tuple[float, float, float], *, now_s: float) -> Array:
        """What gossip carries of all servers: when each was heard of, and its load; nothing in a small cluster."""
        if not self._large:
            return NO_NEWS
        self._heard_s[self._me] = self._said_s[self._me] = now_s
        self._loads[:, self._me] = own
        return self._news.copy()

    def tick(self, *, now_s: float) -> list[str]:
        """Servers that are lost as of now and were not before."""
        self._heard_s[self._me] = now_s
        silent = now_s - self._heard_s >= self._dead_after_s
        if not silent.any():
            self._lost.clear()
            return []
        names = [self._names[place] for place in np.flatnonzero(silent)]
        lost = [name for name in names if name not in self._lost]
        self._lost = set(names)
        return lost

    @property
    def lost(self) -> frozenset[str]:
        """Servers taken for dead."""
        return frozenset(self._lost)

    def alive(self, name: str) -> bool:
        """Whether a server answers, as far as is known here."""
        return name not in self._lost

    def peer_state(self, name: str) -> tuple[float, float, float]:
        """Backlog, recent mean wait, load backlog of another server, in seconds, as last heard."""
        backlog_s, wait_s, load_backlog_s = self._loads[:, self._cluster.index(name)].tolist()
        return backlog_s, wait_s, load_backlog_s

    def slowness(self, name: str) -> float:
        """How many times longer than on its data sheet a server's device takes, as it last said itself."""
        return self._slowness[self._cluster.index(name)]

    def cached(self, name: str) -> frozenset[tuple[int, int, str]]:
        """What a server has loaded from slow memory, as it last said itself: (layer, expert, precision)."""
        return self._cached[self._cluster.index(name)]

    def path(self, source: str, target: str, *, now_s: float) -> tuple[float, float]:
        """Delay (s) and rate (bit/s) of the path between two servers, as estimated now."""
        ends = self._cluster.index(source), self._cluster.index(target)
        known = self._paths.get(ends)
        if known is None:
            return self._cluster.delay_s[ends[0]][ends[1]], self._cluster.rate_bps[ends[0]][ends[1]]
        delay_s, pace_s = known.aged(now_s)
        return delay_s, 1 / pace_s

    def own_rows(self, *, now_s: float) -> list[LinkEstimate]:
        """The measured paths into this server, for gossip."""
        rows = []
        for (source, target), path in self._paths.items():
            if target == self._me:
                if self._large and path.looks_nominal():
                    continue
                delay_s, pace_s = path.aged(now_s)
                rows.append(LinkEstimate(source=self._names[source], delay_s=delay_s, rate_bps=1 / pace_s))
        return rows

    def forget(self, *, now_s: float) -> None:
        """Drop estimates that have faded: a large cluster has too many paths to remember."""
        if self._large:
            faded = [ends for ends, path in self._paths.items() if now_s - path.updated_s > FADED * FORGET_S]
            for ends in faded:
                del self._paths[ends]

    def _told(self, source: int, state: State, arrays: tuple[Array, ...], now_s: float) -> None:
        self._said_s[source] = now_s
        self._loads[:, source] = (state.backlog_s, state.wait_s, state.load_backlog_s)
        self._slowness[source] = state.slowness if state.slowness > 0 else 1.0
        self._cached[source] = frozenset(state.cached)
        for row in state.links:
            other_source = self._place(row.source)
            if other_source is None or not row.rate_bps > 0:
                continue  # nonsense from the wire
            other = self._path(other_source, source, now_s)
            other.delay_s, other.pace_s, other.updated_s = row.delay_s, 1 / row.rate_bps, now_s
        if arrays and arrays[0].shape == self._news.shape:
            told = arrays[0]
            np.copyto(self._heard_s, told[0], where=(told[0] > self._heard_s) & (told[0] <= now_s))
            np.copyto(self._news[1:], told[1:], where=(told[1] > self._said_s) & (told[1] <= now_s))

    def _place(self, name: str) -> int | None:
        try:
            return self._cluster.index(name)
        except ValueError:
            return None

    def _path(self, source: int, target: int, now_s: float) -> _Path:
        if (source, target) not in self._paths:
            delay_s = self._cluster.delay_s[source][target]
            pace_s = 1 / self._cluster.rate_bps[source][target]
            self._paths[source, target] = _Path(delay_s, pace_s, delay_s, pace_s, now_s)
        return self._paths[source, target]
