"""The quickest servers slow down in the middle third of the run: who notices, who gets round them, how soon?

One server of every metro, the one with the most FLOP/s, takes four times as long for everything it computes, as under
another tenant or a thermal limit.  Links stay as they are.  Which servers these are follows from the topology alone.

    python scenarios/server_slowdown.py --help
"""

from __future__ import annotations

import sys

from scenarios.timeline import Scenario, ServerSlowdown, Setting
from scenarios.workload import FIRST_ARRIVAL_S, domain_shares, poisson
from testbed.topology import Topology

RATE_PER_S = 8.0
DURATION_S = 12.0
FACTOR = 4.0


def quickest_of_each_metro(topology: Topology) -> tuple[str, ...]:
    """The server with the most FLOP/s of every metro, the first of equals."""
    best: dict[str, tuple[float, str]] = {}
    for node in topology.servers:
        if node.device is None:
            continue
        flops = node.device.efficiency * node.device.peak_flops_per_s
        if node.metro not in best or flops > best[node.metro][0]:
            best[node.metro] = flops, node.name
    return tuple(name for _, name in best.values())


def build(setting: Setting) -> Scenario:
    """The timeline for one setting."""
    rate_per_s = setting.arrival_rate_per_s or RATE_PER_S
    duration_s = setting.duration_s or DURATION_S
    servers = quickest_of_each_metro(setting.topology)
    from_s, to_s = FIRST_ARRIVAL_S + duration_s / 3, FIRST_ARRIVAL_S + 2 * duration_s / 3
    return Scenario(
        name="server_slowdown",
        question="How soon does each framework recover when the quickest servers slow down?",
        duration_s=duration_s,
        arrival_rate_per_s=rate_per_s,
        domain_shares=domain_shares(setting),
        requests=poisson(
            setting, rate_per_s=rate_per_s, duration_s=duration_s, generate_share=setting.generate_share or 0.0
        ),
        slowdowns=tuple(
            ServerSlowdown(at_s=at_s, server=server, factor=factor)
            for at_s, factor in ((from_s, FACTOR), (to_s, 1.0))
            for server in servers
        ),
    )


if __name__ == "__main__":
    from orchestrator import main

    main(["compare", "server_slowdown", *sys.argv[1:]])
