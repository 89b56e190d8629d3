r"""Who hosts which layers: contiguous spans that even out the swarm's throughput.  Petals, arXiv 2209.01188,
section 3.2, and its public server code [reconstruction].

    n_d = layers that fit d's fast memory                                                                         (1)
    T_l = sum of θ_d over servers d whose span has layer l                                                        (2)
    a server that joins takes the n_d layers in a row whose sorted T_l are least, lexicographically               (3)
    then, while it helps, servers in turn leave and join again                                                    (4)

    θ_d   throughput of server d: min(1 / (t_d (n_d + 1) / 2), B_d / s),  requests/s                              (5)
    t_d   time of one layer of an average request on d       B_d   median rate of the ways from d
    s     bytes of such a request's states                   (n_d + 1) / 2   layers that it runs on d on average

Ours: servers join quickest first, because there is no other order to take, and the common budget cuts the span of
who joins last; "helps" in (4) means that the sorted T_l of all layers grow, lexicographically.  Where fast memory
cannot hold the model, spans grow into slow memory, at the server whose loads would then take least time.  By (3) a
layer that nobody hosts comes first, so nothing stays uncovered once the lengths add up to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.expected import Expected, Floats
from agents.frameworks.placements import budget_bytes
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.store import FAST_SHARE
from testbed.topology import BITS_PER_BYTE

#: Turns of all servers in (4); the order of improvement ends it sooner.
ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Layers ``begin`` to ``end - 1`` on one server, by position; the first ``fast`` of them in fast memory."""

    server: int
    begin: int
    end: int
    fast: int


def spans(
    cluster: Cluster, profile: ModelProfile, calibration: Calibration, precision: str, *, framework: str
) -> tuple[list[Span], list[float]]:
    """Equations (1) to (5): the spans, by server, and the mean time of a layer on every server.

    FrameworkError when budget or memory is too small for one copy of the model.
    """
    expected = Expected(cluster, profile, calibration)
    layer_s = expected.layer_s(precision).mean(axis=1)  # (servers,)
    load_s = expected.layer_load_s(precision).mean(axis=1)
    layer_bytes = profile.experts * profile.expert_bytes[precision]
    fits = [min(profile.layers, int(FAST_SHARE * s.device.fast_bytes // layer_bytes)) for s in cluster.servers]
    lengths = grown(fits, [s.device.slow_bytes // layer_bytes for s in cluster.servers], load_s, profile.layers)
    allowed = int(budget_bytes(cluster, profile) // layer_bytes)
    if allowed < profile.layers:
        raise FrameworkError(
            f"{framework} needs one copy of all experts; redundancy {cluster.redundancy:g} is too small"
        )
    if sum(lengths) < profile.layers:
        raise FrameworkError(
            f"the servers have no room for {profile.name} in precision {precision}, not even in slow memory"
        )
    throughput = np.zeros(len(lengths))
    for server, length in enumerate(lengths):
        if length:
            slow = max(0, length - fits[server]) / length
            layer_s[server] += slow * load_s[server]
            network_per_s = _rate_from(cluster, server) / (BITS_PER_BYTE * expected.state_bytes)
            throughput[server] = min(1.0 / (layer_s[server] * (length + 1) / 2), network_per_s)
    begins, lengths = laid(lengths, throughput.tolist(), layers=profile.layers, allowed=allowed)
    return [
        Span(server=server, begin=begins[server], end=begins[server] + length, fast=min(length, fits[server]))
        for server, length in enumerate(lengths)
        if length
    ], layer_s.tolist()


def grown(fits: Sequence[int], slow: Sequence[int], load_s: Floats, layers: int) -> list[int]:
    """Span lengths: what fits, and as many layers in slow memory as the model still lacks."""
    lengths = list(fits)
    while sum(lengths) < layers:
        more = [s for s in range(len(lengths)) if lengths[s] < min(layers, fits[s] + slow[s])]
        if not more:
            break
        lengths[min(more, key=lambda s: (lengths[s] - fits[s] + 1) * load_s[s])] += 1
    return lengths


def laid(
    lengths: Sequence[int], throughput: Sequence[float], *, layers: int, allowed: int
) -> tuple[list[int], list[int]]:
    """Equations (2) to (4): where every span begins, and its length within ``allowed`` layers in all.

    >>> laid([2, 2, 2], [4.0, 2.0, 1.0], layers=4, allowed=8)
    ([0, 2, 2], [2, 2, 2])
    >>> laid([2, 2, 2], [4.0, 2.0, 1.0], layers=4, allowed=5)
    ([0, 2, 2], [2, 2, 1])
    """
    total = np.zeros(layers)
    begins, kept = [0] * len(lengths), [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda server: (-throughput[server], server))
    for server in order:
        kept[server] = min(lengths[server], allowed - sum(kept))
        begins[server] = weakest(total, kept[server])
        total[begins[server] : begins[server] + kept[server]] += throughput[server]
    for _ in range(ROUNDS):
        moved = False
        for server in order:
            without = total.copy()
            without[begins[server] : begins[server] + kept[server]] -= throughput[server]
            begin = weakest(without, kept[server])
            without[begin : begin + kept[server]] += throughput[server]
            if _better(without, total):
                begins[server], total, moved = begin, without, True
        if not moved:
            break
    return begins, kept


def weakest(total: Floats, length: int) -> int:
    """Equation (3): the first layer of the window; the first of equals.

    >>> weakest(np.array([2.0, 1.0, 0.0, 3.0, 0.0]), 2)
    1
    """
    windows = [sorted(total[begin : begin + length].round(9).tolist()) for begin in range(len(total) - length + 1)]
    return windows.index(min(windows))


def _better(one: Floats, other: Floats) -> bool:
    return sorted(one.round(9).tolist()) > sorted(other.round(9).tolist())


def _rate_from(cluster: Cluster, server: int) -> float:
    others = [rate for peer, rate in enumerate(cluster.rate_bps[server]) if peer != server]
    return float(np.median(others)) if others else float("inf")
