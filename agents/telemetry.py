r"""What one server knows of the others: who is alive, how busy, and how the ways between them look now.

Every message on the data plane carries its sending time, so its receiver measures the path:

    small messages:   d  <-  d + alpha (transit - d)                                                              (1)
    large messages:   p  <-  p + alpha ((transit - d) / (8 size) - p)                                             (2)

    d  one-way delay, s; includes queueing behind other traffic        transit  receive time - send time
    p  pace that one message gets, s/bit, the inverse of a rate; congestion shows here

Estimates age back to the nominal value of the topology with time constant ``FORGET_S``: a path that is avoided gets no
messages and would otherwise look bad for ever.  Each server gossips the estimates of the paths INTO it; together
these rows make the matrix that planning reads.

Liveness has this one source: a server is alive until ``DEAD_AFTER_S`` passed without any message from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agents.cluster import Cluster
from agents.protocol import DEAD_AFTER_S, LinkEstimate, Message, State
from testbed.topology import BITS_PER_BYTE

SMOOTHING = 0.3
FORGET_S = 5.0
SMALL_BYTES = 4_096
LARGE_BYTES = 32_768


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


@dataclass(slots=True)
class _Peer:
    """What a server said of itself last."""

    heard_s: float
    backlog_s: float = 0.0
    wait_s: float = 0.0
    load_backlog_s: float = 0.0


class Telemetry:
    """The view of ``server`` on its cluster; a pure core, time is an argument."""

    def __init__(self, cluster: Cluster, server: str, *, now_s: float) -> None:
        self._cluster = cluster
        self._names = cluster.names
        self._places = {name: place for place, name in enumerate(self._names)}
        self._me = self._places[server]
        self._peers = {name: _Peer(heard_s=now_s) for name in self._names if name != server}
        self._lost: set[str] = set()
        self._paths: dict[tuple[int, int], _Path] = {}

    def received(self, message: Message, *, now_s: float) -> None:
        """Learn from a message that arrived at ``now_s``; messages of unknown servers teach nothing."""
        peer = self._peers.get(message.source)
        if peer is None:
            return
        peer.heard_s = now_s
        self._lost.discard(message.source)
        source = self._places[message.source]
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
            state = message.body
            peer.backlog_s, peer.wait_s, peer.load_backlog_s = state.backlog_s, state.wait_s, state.load_backlog_s
            for row in state.links:
                if row.source in self._places:
                    other = self._path(self._places[row.source], source, now_s)
                    if not row.rate_bps > 0:
                        continue  # nonsense from the wire
                    other.delay_s, other.pace_s, other.updated_s = row.delay_s, 1 / row.rate_bps, now_s

    def tick(self, *, now_s: float) -> list[str]:
        """Servers that are lost as of now and were not before."""
        lost = [
            name
            for name, peer in self._peers.items()
            if name not in self._lost and now_s - peer.heard_s >= DEAD_AFTER_S
        ]
        self._lost.update(lost)
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
        peer = self._peers[name]
        return peer.backlog_s, peer.wait_s, peer.load_backlog_s

    def path(self, source: str, target: str, *, now_s: float) -> tuple[float, float]:
        """Delay (s) and rate (bit/s) of the path between two servers, as estimated now."""
        ends = self._places[source], self._places[target]
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
                delay_s, pace_s = path.aged(now_s)
                rows.append(LinkEstimate(source=self._names[source], delay_s=delay_s, rate_bps=1 / pace_s))
        return rows

    def _path(self, source: int, target: int, now_s: float) -> _Path:
        if (source, target) not in self._paths:
            delay_s = self._cluster.delay_s[source][target]
            pace_s = 1 / self._cluster.rate_bps[source][target]
            self._paths[source, target] = _Path(delay_s, pace_s, delay_s, pace_s, now_s)
        return self._paths[source, target]
