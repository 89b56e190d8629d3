r"""When a new placement is worth moving to.  Prism, arXiv 2508.12851 [reconstruction].

    C(P)   = λ T sum_n λ_n sum_{l, e} q_n(l, e) r_n(l, e; P)     seconds that requests of the next T s wait for
                                                                 experts elsewhere                                (1)
    r_n    = rtt(n, d) + s_n(l, e) (1 / B_nd + 1 / B_dn)         d: its nearest holder; 0 if that is n itself     (2)
    T_mig  = max_n  sum over copies that n gets  [ delay(d, n) + size / B(d, n) ]    d: its quickest holder so far (3)
    migrate  iff  C(new) + T_mig < C(old)                                                                         (4)

    λ   requests/s      q_n  probability that a request of n's users calls the expert      T  the paper's 5 minutes
    λ_n share of n      s_n  bytes of the states that it then sends

(4) and the meaning of C are the paper's; the prices in (2) and (3) are ours, so that both sides of (4) are seconds:
servers receive in parallel, each one copy after the other.  Residency does not count: a copy arrives where it is to be.

The decision is here, pure; ``agents.migration`` moves the copies.
"""

from __future__ import annotations

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.expected import Floats
from agents.models.profile import ModelProfile
from agents.protocol import Placement, Replica
from testbed.topology import BITS_PER_BYTE

#: Seconds between two looks at the placement.
INTERVAL_S = 300.0


def worth_migrating(
    old: Placement,
    new: Placement,
    *,
    cluster: Cluster,
    profile: ModelProfile,
    usage: Floats,
    interval_s: float = INTERVAL_S,
) -> bool:
    """Equation (4), for usage (servers, layers, experts) as counted lately."""
    stay_s = waiting_s(old, cluster=cluster, profile=profile, usage=usage, interval_s=interval_s)
    go_s = waiting_s(new, cluster=cluster, profile=profile, usage=usage, interval_s=interval_s)
    return go_s + migration_s(old, new, cluster=cluster, profile=profile) < stay_s


def waiting_s(
    placement: Placement, *, cluster: Cluster, profile: ModelProfile, usage: Floats, interval_s: float = INTERVAL_S
) -> float:
    """Equation (1)."""
    tokens = max(1, cluster.tokens_per_request)
    each = np.minimum(1.0, profile.top_k * usage)  # (servers, layers, experts): share of tokens
    called = 1.0 - (1.0 - each) ** tokens
    # q r: the round trip is paid when the expert is called at all, bytes for every token that chooses it.
    rtt_s, byte_s = _nearest(placement, cluster, profile)
    wait_s = called * rtt_s + tokens * each * profile.hidden_bytes * byte_s
    share = np.array([server.home_share for server in cluster.servers])
    return float(cluster.arrival_rate_per_s * interval_s * (share @ wait_s.sum(axis=(1, 2))))


def migration_s(old: Placement, new: Placement, *, cluster: Cluster, profile: ModelProfile) -> float:
    """Equation (3); ValueError if a copy has no holder of its expert and precision to come from."""
    holders: dict[tuple[int, int, str], list[int]] = {}
    for copy in old.replicas:
        holders.setdefault((copy.layer, copy.expert, copy.precision), []).append(cluster.index(copy.server))
    receiving_s = [0.0] * len(cluster.servers)
    for copy in new.replicas:
        sources, target = holders.get(_key(copy), []), cluster.index(copy.server)
        if not sources:
            raise ValueError(f"nobody holds expert {copy.expert} of layer {copy.layer} in precision {copy.precision}")
        size_bytes = profile.expert_bytes[copy.precision]
        receiving_s[target] += min(cluster.transfer_s(source, target, size_bytes) for source in sources)
    return max(receiving_s, default=0.0)


def _key(copy: Replica) -> tuple[int, int, str]:
    return copy.layer, copy.expert, copy.precision


def _nearest(placement: Placement, cluster: Cluster, profile: ModelProfile) -> tuple[Floats, Floats]:
    """Round trip and seconds per byte, both ways, from each server to each expert's nearest copy (2)."""
    servers = range(len(cluster.servers))
    shape = (len(cluster.servers), profile.layers, profile.experts)
    rtt_s, byte_s = np.full(shape, np.inf), np.zeros(shape)
    for copy in placement.replicas:
        there = cluster.index(copy.server)
        for here in servers:
            away_s = 0.0 if here == there else cluster.delay_s[here][there] + cluster.delay_s[there][here]
            if away_s < rtt_s[here, copy.layer, copy.expert]:
                rtt_s[here, copy.layer, copy.expert] = away_s
                paces = (cluster.rate_bps[here][there], cluster.rate_bps[there][here])
                byte_s[here, copy.layer, copy.expert] = (
                    0.0 if here == there else sum(BITS_PER_BYTE / rate_bps for rate_bps in paces)
                )
    return rtt_s, byte_s
