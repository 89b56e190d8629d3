"""Link changes: congestion that comes and goes."""

from __future__ import annotations

from collections.abc import Iterable

from scenarios.timeline import LinkChange
from testbed.topology import Topology


def squeeze(
    topology: Topology, links: Iterable[str], *, from_s: float, to_s: float, rate_share: float, extra_delay_s: float
) -> tuple[LinkChange, ...]:
    """Between two moments these links keep ``rate_share`` of their (slower direction's) rate and gain some delay."""
    changes = []
    for name in links:
        link = topology.link(name)
        rate_bps = rate_share * min(link.forward.rate_bps, link.backward.rate_bps)
        delay_s = max(link.forward.delay_s, link.backward.delay_s) + extra_delay_s
        changes.append(LinkChange(at_s=from_s, link=link.name, rate_bps=rate_bps, delay_s=delay_s))
        changes.append(LinkChange(at_s=to_s, link=link.name, restore=True))
    return tuple(sorted(changes, key=lambda change: (change.at_s, change.link)))


def links_between_metros(topology: Topology) -> tuple[str, ...]:
    """Links whose ends lie in different metros, in file order; all links where no two metros are linked.

    The choice looks at the topology alone, never at what a framework does with the links.
    """
    metro_of = {node.name: node.metro for node in topology.nodes}
    crossing = tuple(link.name for link in topology.links if metro_of[link.a] != metro_of[link.b])
    return crossing or tuple(link.name for link in topology.links)
