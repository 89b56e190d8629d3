r"""What the users of each server ask for: calibration usage per domain, mixed by what they ask about.

    f_n(l, e) = sum_d m_nd u_d(l, e)                                                                              (1)

    m_nd  share of domain d among the requests of n's users (``Server.domain_shares``)
    u_d   usage of the calibration text of domain d, a share of its layer

A deployed system measures f_n by counting; before the first request it comes from (1).  A server of which nothing is
known is taken to ask about all domains alike.
"""

from __future__ import annotations

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.expected import Floats
from agents.models.calibrate import Calibration


def domain_mix(cluster: Cluster, domains: tuple[str, ...]) -> Floats:
    """m of equation (1), (servers, domains); rows add up to 1.  Domains without calibration text count for nothing."""
    shares = [dict(server.domain_shares) for server in cluster.servers]
    mix = np.array([[known.get(domain, 0.0) for domain in domains] for known in shares])
    mix[mix.sum(axis=1) <= 0] = 1.0
    normal: Floats = mix / mix.sum(axis=1, keepdims=True)
    return normal


def server_usage(cluster: Cluster, calibration: Calibration) -> Floats:
    """Equation (1), (servers, layers, experts); adds up to 1 over experts."""
    usage: Floats = np.tensordot(domain_mix(cluster, calibration.domains), calibration.usage, axes=1)
    return usage
