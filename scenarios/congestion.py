"""Link changes: congestion that comes and goes."""

from __future__ import annotations

from collections.abc import Iterable

from scenarios.timeline import LinkChange
from testbed.topology import Link, Topology


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


def links_between_busiest_metros(topology: Topology) -> tuple[str, ...]:
    """Links whose ends lie in the two metros with the most users; the links of routers where servers have no labels.

    The choice depends on the users alone, never on what a framework does with the links.
    """
    users: dict[str, float] = {}
    metro_of = {node.name: node.metro for node in topology.nodes}
    for node in topology.servers:
        users[node.metro] = users.get(node.metro, 0.0) + node.users
    busiest = sorted(users, key=lambda metro: (-users[metro], metro))[:2]

    def between(link: Link) -> bool:
        ends = {metro_of[link.a], metro_of[link.b]}
        return len(busiest) == 2 and ends == set(busiest)

    crossing = tuple(link.name for link in topology.links if between(link))
    return (
        crossing
        or tuple(link.name for link in topology.links if metro_of[link.a] != metro_of[link.b])
        or (topology.links[0].name,)
    )
