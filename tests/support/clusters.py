"""Small clusters for tests."""

from __future__ import annotations

from agents.cluster import Cluster, Server
from testbed.topology import Device

DEVICE = Device(
    peak_flops_per_s=100e12,
    memory_bytes_per_s=900e9,
    fast_bytes=48 * 10**9,
    slow_bytes=256 * 10**9,
    load_bytes_per_s=24e9,
)


def cluster(servers: int, *, delay_s: float = 0.002, rate_bps: float = 2e9, device: Device = DEVICE) -> Cluster:
    """Equal servers s1, s2 ... in a full mesh of equal links."""
    names = [f"s{number}" for number in range(1, servers + 1)]
    return Cluster(
        servers=tuple(Server(name=name, device=device, home_share=1 / servers) for name in names),
        delay_s=tuple(tuple(0.0 if a == b else delay_s for b in names) for a in names),
        rate_bps=tuple(tuple(float("inf") if a == b else rate_bps for b in names) for a in names),
        arrival_rate_per_s=5.0,
        tokens_per_request=37,
        redundancy=2.0,
    )
