r"""What the rest of a request will cost, by layer and aggregation server.  HetRoute's look-ahead [reconstruction].

    V(l, a)    = w_a + T_dense(a) + min_{a'} [ M(l, a, a') + V(l+1, a') ]                                         (1)
    V(L, a, h) = w_a + T_head(a) + delay(a, h)                                                                    (2)
    M(l, a, a') = min_t  max_{d in t} [ x(a, d, n_td) + w_d + work_td + x(d, a', n_td) ] + price · bytes          (3)

    t           a team of copies for layer l
    x(a, d, n)  time to move the states of n tokens from a to d; 0 if a = d       w_d   wait in front of device d
    work_td     expected time of layer l's experts that team t runs on d, with one launch of the batch
    h           home server of the request

A team says which copy computes which expert: every server that holds the whole layer is a team of its own, and for
every a one more team takes for each expert the copy that is nearest in time.  The paper looks one layer ahead; a
link of 20 ms costs more than any layer, so looking to the end decides whether a request crosses it at all.  All of
(3) is one array operation over (layers, a, d, a'), and (1) one small one per layer, so live waits and links can be
put in anew several times a second.

The same tables, driven by expected waits, tell offline which copies the router will select (``flow``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.frameworks.cost import head_s
from agents.frameworks.expected import Expected, delays
from agents.models.profile import ModelProfile
from agents.protocol import Replica
from testbed.topology import BITS_PER_BYTE

Floats = NDArray[np.float64]

#: Stands for "impossible" where an infinity would turn sums and differences into NaN.
NEVER_S = 1e6
#: The wait of a device that is busy all the time, in units of its job time, in place of infinity.
MOST_BUSY = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Waits and links as they are now, or are expected to be."""

    wait_s: Floats  # (servers,)
    load_wait_s: Floats  # (servers,)
    delay_s: Floats  # (servers, servers), zero diagonal
    s_per_byte: Floats  # (servers, servers), zero diagonal
    slowness: Floats | None = None  # (servers,): how many times longer devices take; None: as on their data sheets


def nominal(cluster: Cluster) -> Live:
    """Idle devices, idle links."""
    rate_bps = np.array(cluster.rate_bps, dtype=np.float64)
    s_per_byte = BITS_PER_BYTE / rate_bps
    np.fill_diagonal(s_per_byte, 0.0)
    zero = np.zeros(len(cluster.servers))
    return Live(wait_s=zero, load_wait_s=zero, delay_s=delays(cluster), s_per_byte=s_per_byte)


class Outlook:
    """Equations (1) to (3) for one set of copies."""

    def __init__(
        self,
        cluster: Cluster,
        profile: ModelProfile,
        expected: Expected,
        replicas: Iterable[Replica],
        *,
        price_s_per_byte: float,
        penalty_s: Mapping[str, Floats],
        detour_s: Floats | float = 0.0,
    ) -> None:
        """``penalty_s``: price of a layer's loss in each precision that may be used (layers,); others are left out.

        ``detour_s``: what a step must gain that leaves a pipeline (layers, a, a'), see ``hetroute``.
        """
        self._detour_s = detour_s
        self.layers, self.servers = profile.layers, len(cluster.servers)
        self._price_s_per_byte = price_s_per_byte
        self._state_bytes = float(expected.state_bytes)
        self.dense_s = expected.dense_s
        self.head_s = np.array([head_s(server.device, profile, expected.tokens) for server in cluster.servers])
        self._names = cluster.names
        idle = nominal(cluster)
        shape = (profile.layers, profile.experts, self.servers)
        #: Of the best copy of each expert on each server; NEVER_S where there is none.
        self.copy_s = np.full(shape, NEVER_S)
        self.copy_load_s = np.zeros(shape)
        #: The part of ``copy_s`` that is no time but the price of the copy's loss.
        self.copy_price_s = np.zeros(shape)
        self.best: dict[tuple[int, int, int], Replica] = {}
        for replica in replicas:
            self._offer(replica, cluster.index(replica.server), cluster, profile, expected, penalty_s)
        self.launch_s = expected.launch_s
        #: Of single-server teams (layers, servers).
        self.work_s: Floats = np.minimum(self.copy_s.sum(axis=1) + self.launch_s, NEVER_S)
        self._load_s: Floats = self.copy_load_s.sum(axis=1)
        self.whole = self.work_s < NEVER_S
        #: Device time of these teams, without the price of losses; zero where there is none (layers, servers).
        self.device_s: Floats = np.where(self.whole, self.work_s - self.copy_price_s.sum(axis=1), 0.0)
        self._nearest_teams(expected, idle)

    def _offer(
        self,
        replica: Replica,
        position: int,
        cluster: Cluster,
        profile: ModelProfile,
        expected: Expected,
        penalty_s: Mapping[str, Floats],
    ) -> None:
        if replica.precision not in penalty_s:
            return
        layer, expert = replica.layer, replica.expert
        called = float(expected.called[layer, expert])
        penalty = (
            float(penalty_s[replica.precision][layer]) * float(expected.token_share[layer, expert]) / profile.top_k
        )
        work_s = float(expected.expert_s(replica.precision)[layer, expert, position]) + penalty
        size_bytes = profile.expert_bytes[replica.precision]
        load_s = 0.0 if replica.fast else called * size_bytes / cluster.servers[position].device.load_bytes_per_s
        known_s = self.copy_s[layer, expert, position] + self.copy_load_s[layer, expert, position]
        if work_s + load_s < known_s:
            self.copy_s[layer, expert, position], self.copy_load_s[layer, expert, position] = work_s, load_s
            self.copy_price_s[layer, expert, position] = penalty
            self.best[layer, expert, position] = replica

    def _nearest_teams(self, expected: Expected, idle: Live) -> None:
        """For every layer and aggregation server: each expert at the copy that answers first on an idle cluster."""
        servers = self.servers
        trip_s = 0.5 * self._state_bytes * (idle.s_per_byte + idle.s_per_byte.T) + idle.delay_s + idle.delay_s.T
        answer_s = (self.copy_s + self.copy_load_s)[:, :, None, :] + trip_s  # (layers, experts, a, d)
        taken = answer_s.argmin(axis=3)  # (layers, experts, a)
        member = taken[..., None] == np.arange(servers)  # (layers, experts, a, d)
        self.taken = taken
        spared = np.where(member, (1.0 - expected.called)[:, :, None, None], 1.0).prod(axis=1)  # (layers, a, d)
        self._team_work_s: Floats = (member * self.copy_s[:, :, None, :]).sum(axis=1) + (1.0 - spared) * self.launch_s
        self._team_load_s: Floats = (member * self.copy_load_s[:, :, None, :]).sum(axis=1)
        untouched = np.where(member, (1.0 - expected.token_share)[:, :, None, None], 1.0).prod(axis=1)
        self._team_bytes: Floats = (1.0 - untouched) * self._state_bytes  # (layers, a, d)
        self._team_used = member.any(axis=1)
        split = self._team_used.sum(axis=2) > 1  # (layers, a)
        self._split_layers = np.flatnonzero(split.any(axis=1))

    def transitions(self, live: Live) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """M of (3) (layers, a, a'), the best single-server team's time (layers, a, a') and its server."""
        state_bytes, here = self._state_bytes, np.arange(self.servers)
        move_s = live.delay_s + state_bytes * (live.s_per_byte + self._price_s_per_byte * (live.delay_s > 0))
        wait_s = live.wait_s + np.where(self._load_s > 0, self._load_s + live.load_wait_s, 0.0)  # (layers, d)
        core_s: Floats = np.minimum(_slower(self.work_s, live) + wait_s, NEVER_S)  # (layers, d)
        # (layers, a, d, a'): to d, through it, on to a'.
        single_s = move_s[None, :, :, None] + core_s[:, None, :, None] + move_s[None, None, :, :]
        # Experts elsewhere: the residual stream moves on its own, which costs traffic only.
        aside = self._price_s_per_byte * state_bytes * (live.delay_s > 0)  # (a, a')
        single_s += np.where((here[:, None] != here[None, :])[:, :, None], aside[:, None, :], 0.0)
        alone_s: Floats = single_s.min(axis=2) + self._detour_s
        server = single_s.argmin(axis=2)
        best_s = alone_s
        if len(self._split_layers):
            best_s = alone_s.copy()
            best_s[self._split_layers] = np.minimum(
                alone_s[self._split_layers], self._split_s(live) + self._detours()[self._split_layers]
            )
        return best_s, alone_s, server

    def _detours(self) -> Floats:
        return np.broadcast_to(np.asarray(self._detour_s), (self.layers, self.servers, self.servers))

    def _split_s(self, live: Live) -> Floats:
        """(3) of the nearest teams, for layers that have a split one (split layers, a, a')."""
        rows = self._split_layers
        used, size_bytes = self._team_used[rows], self._team_bytes[rows]
        load_s = self._team_load_s[rows]
        wait_s = live.wait_s + np.where(load_s > 0, load_s + live.load_wait_s, 0.0)
        there_s = (
            live.delay_s + size_bytes * live.s_per_byte + wait_s + _slower(self._team_work_s[rows], live)
        )  # (rows, a, d)
        back_s = live.delay_s[None, None] + size_bytes[..., None] * live.s_per_byte[None, None]  # (rows, a, d, a')
        away = live.delay_s > 0
        part_s = np.where(used[..., None], there_s[..., None] + back_s, 0.0)
        size = size_bytes[..., None]
        traffic = (size * used[..., None] * (away[None, :, :, None] + 1.0 * away[None, None])).sum(axis=2)
        slowest_s: Floats = np.minimum(part_s.max(axis=2), NEVER_S)
        moved = self._state_bytes * away[None]
        priced_s: Floats = slowest_s + self._price_s_per_byte * (traffic + moved)
        return priced_s

    def values(self, live: Live, best_s: Floats) -> Floats:
        """V of (1) and (2), (layers + 1, a, home)."""
        value_s = np.empty((self.layers + 1, self.servers, self.servers))
        value_s[self.layers] = (live.wait_s + _slower(self.head_s, live))[:, None] + live.delay_s
        base_s = (live.wait_s + _slower(self.dense_s, live))[:, None]
        for layer in range(self.layers - 1, -1, -1):
            value_s[layer] = base_s + (best_s[layer][:, :, None] + value_s[layer + 1][None]).min(axis=1)
        return value_s

    def next_layer_s(self, live: Live, best_s: Floats) -> Floats:
        """V of (1) cut off after one layer, the paper's look-ahead (layers + 1, a, home)."""
        value_s = np.empty((self.layers + 1, self.servers, self.servers))
        value_s[self.layers] = (live.wait_s + _slower(self.head_s, live))[:, None] + live.delay_s
        value_s[:-1] = (live.wait_s + _slower(self.dense_s, live) + best_s.min(axis=2))[:, :, None]
        return value_s


def _slower(time_s: Floats, live: Live) -> Floats:
    """Times whose last axis is servers, as the devices are now."""
    return time_s if live.slowness is None else time_s * live.slowness


@dataclass(frozen=True, slots=True)
class Flow:
    """What the router does with the average traffic."""

    selected: Floats  # (layers, experts, servers): probability that a request runs this expert there
    busy: Floats  # (servers,)
    wait_s: Floats  # (servers,), by (4)


def flow(outlook: Outlook, cluster: Cluster, expected: Expected, *, rounds: int = 24) -> Flow:
    r"""The router of (1) to (3) under the cluster's arrivals, in equilibrium with the waits that it causes.

        w_d = s_d ρ_d / (1 - ρ_d)          s_d  mean time of a job on d, ρ_d  share of time that it is busy      (4)

    Requests that visit a device for many layers share it layer by layer; their time there is S / (1 - ρ), which is what
    (4) adds up to.  Successive averages: every round sends all traffic along the best routes of the waits so far, and
    counts with weight 1 / round.
    """
    servers, layers = outlook.servers, outlook.layers
    idle = nominal(cluster)
    busy, jobs_per_s = np.zeros(servers), np.zeros(servers)
    selected = np.zeros((layers, outlook.copy_s.shape[1], servers))
    wait_s = np.zeros(servers)
    for step in range(1, rounds + 1):
        job_s = np.divide(busy, jobs_per_s, out=np.zeros(servers), where=jobs_per_s > 0)
        held = np.minimum(busy, MOST_BUSY)
        wait_s = job_s * held / (1 - held) + 10.0 * job_s * np.maximum(busy - MOST_BUSY, 0.0)
        live = Live(wait_s=wait_s, load_wait_s=idle.load_wait_s, delay_s=idle.delay_s, s_per_byte=idle.s_per_byte)
        chosen, work, jobs = _all_or_nothing(outlook, cluster, live)
        weight = 1.0 / step
        selected += weight * (chosen * expected.called[:, :, None] - selected)
        busy += weight * (cluster.arrival_rate_per_s * work - busy)
        jobs_per_s += weight * (cluster.arrival_rate_per_s * jobs - jobs_per_s)
    return Flow(selected, busy, wait_s)


def _all_or_nothing(outlook: Outlook, cluster: Cluster, live: Live) -> tuple[Floats, Floats, Floats]:
    """Every home's request along its best route: shares per copy, device time, and jobs."""
    best_s, alone_s, through = outlook.transitions(live)
    value_s = outlook.values(live, best_s)
    servers = outlook.servers
    chosen = np.zeros((outlook.layers, outlook.copy_s.shape[1], servers))
    work, jobs = np.zeros(servers), np.zeros(servers)
    for home, entry in enumerate(cluster.servers):
        share = entry.home_share
        if share <= 0:
            continue
        entry_s = live.delay_s[home] + value_s[0, :, home]
        here = int(entry_s.argmin())
        for layer in range(outlook.layers):
            work[here] += share * outlook.dense_s[here]
            jobs[here] += share
            following = int((best_s[layer, here] + value_s[layer + 1, :, home]).argmin())
            if alone_s[layer, here, following] <= best_s[layer, here, following]:
                members = np.full(chosen.shape[1], through[layer, here, following])
            else:
                members = outlook.taken[layer, :, here]
            experts = np.arange(len(members))
            chosen[layer, experts, members] += share
            copy_s = outlook.copy_s[layer, experts, members] - outlook.copy_price_s[layer, experts, members]
            np.add.at(work, members, share * copy_s)
            used = np.unique(members)
            work[used] += share * outlook.launch_s[used]
            jobs[used] += share
            here = following
        work[here] += share * outlook.head_s[here]
        jobs[here] += share
    return chosen, work, jobs
