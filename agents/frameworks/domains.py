r"""What the users of each server ask for: calibration usage per domain, mixed by who lives where.

    f_n(l, e) = sum_d m_nd u_d(l, e)                                                                              (1)
    m_nd      = own [d is the subject of n's metro] + (1 - own) / D                                               (2)

    u_d  usage of the calibration text of domain d, a share of its layer        D  number of domains

A deployed system measures f_n by counting.  Here it must be known before the first request, and a ``Cluster`` does not
say what is asked where.  (2) is therefore [ours]: what ``scenarios.workload`` does on average.  Metros are inferred
from delays, and take the calibration's domains in turn, in topology order.  Where a scenario of one's own mixes domains
otherwise, a placement made from (1) is made for the wrong users, as it would be from an old measurement.
"""

from __future__ import annotations

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.expected import Floats, delays
from agents.models.calibrate import Calibration

#: Servers closer than this share a metro: some 500 km of fibre, there and back.
METRO_S = 2.5e-3
#: Share of a server's requests that are about the subject of its metro.
OWN_SHARE = 0.7


def metros(cluster: Cluster) -> tuple[int, ...]:
    """The metro of every server, numbered in topology order; steps of up to ``METRO_S`` lead all over a metro."""
    near = np.maximum(delays(cluster), delays(cluster).T) <= METRO_S
    found = [-1] * len(cluster.servers)
    count = 0
    for first in range(len(found)):
        if found[first] >= 0:
            continue
        reached = [first]
        for server in reached:
            if found[server] < 0:
                found[server] = count
                reached.extend(np.flatnonzero(near[server]).tolist())
        count += 1
    return tuple(found)


def domain_mix(cluster: Cluster, domains: int) -> Floats:
    """Equation (2), (servers, domains); rows add up to 1."""
    mix = np.full((len(cluster.servers), domains), (1.0 - OWN_SHARE) / domains)
    for server, metro in enumerate(metros(cluster)):
        mix[server, metro % domains] += OWN_SHARE
    return mix


def server_usage(cluster: Cluster, calibration: Calibration) -> Floats:
    """Equation (1), (servers, layers, experts); adds up to 1 over experts."""
    usage: Floats = np.tensordot(domain_mix(cluster, len(calibration.usage)), calibration.usage, axes=1)
    return usage
