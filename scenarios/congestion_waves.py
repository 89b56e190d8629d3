"""Congestion that moves: each metro's links to the others congest in turn.  How fast does each framework react?

Time is cut into as many spells as there are metros and one calm spell before and after.  In each spell the links that
leave one metro keep a tenth of their rate and gain 10 ms; then they are restored and the next metro's turn comes.

    python scenarios/congestion_waves.py --help
"""

from __future__ import annotations

import sys

from scenarios.congestion import squeeze
from scenarios.timeline import LinkChange, Scenario, Setting
from scenarios.workload import FIRST_ARRIVAL_S, domain_shares, poisson
from testbed.topology import Topology

RATE_PER_S = 8.0
DURATION_S = 15.0
RATE_SHARE = 0.10
EXTRA_DELAY_S = 0.010


def links_of_each_metro(topology: Topology) -> list[tuple[str, ...]]:
    """For every metro, in file order, the links that leave it; metros without any are left out."""
    metro_of = {node.name: node.metro for node in topology.nodes}
    crossing = [link for link in topology.links if metro_of[link.a] != metro_of[link.b]]
    groups = [
        tuple(link.name for link in crossing if metro in (metro_of[link.a], metro_of[link.b]))
        for metro in dict.fromkeys(metro_of.values())
    ]
    return [group for group in groups if group]


def build(setting: Setting) -> Scenario:
    """The timeline for one setting."""
    rate_per_s = setting.arrival_rate_per_s or RATE_PER_S
    duration_s = setting.duration_s or DURATION_S
    groups = links_of_each_metro(setting.topology)
    spell_s = duration_s / (len(groups) + 2)
    changes: list[LinkChange] = []
    for number, links in enumerate(groups, start=1):
        from_s = FIRST_ARRIVAL_S + number * spell_s
        changes += squeeze(
            setting.topology,
            links,
            from_s=from_s,
            to_s=from_s + spell_s,
            rate_share=RATE_SHARE,
            extra_delay_s=EXTRA_DELAY_S,
        )
    # A link between two metros is in both groups: at the same moment it is restored first, then squeezed again.
    changes.sort(key=lambda change: (change.at_s, not change.restore, change.link))
    return Scenario(
        name="congestion_waves",
        question="How fast does each framework react to congestion that moves from metro to metro?",
        duration_s=duration_s,
        arrival_rate_per_s=rate_per_s,
        domain_shares=domain_shares(setting),
        requests=poisson(
            setting, rate_per_s=rate_per_s, duration_s=duration_s, generate_share=setting.generate_share or 0.0
        ),
        changes=tuple(changes),
    )


if __name__ == "__main__":
    from orchestrator import main

    main(["compare", "congestion_waves", *sys.argv[1:]])
