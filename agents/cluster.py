"""The servers and the ways between them, as placement and planning see them.

A ``Cluster`` is the topology reduced to pairs of servers: what a message from one to the other meets along the
network's path, nominally.  Live values come from telemetry (``agents.frameworks.base.View``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec import structs

from testbed.paths import Paths
from testbed.topology import BITS_PER_BYTE, Device, Topology


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One emulated edge server."""

    name: str
    device: Device
    home_share: float  # share of the requests that arrive here, in [0, 1]; shares of a cluster add up to 1
    domain_shares: tuple[tuple[str, float], ...] = ()  # what its users ask about, in all 1; empty: nobody knows


class Cluster(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # the dict holds what is cached; not on the wire
    """All servers, in topology order, and the nominal path between every two of them."""

    servers: tuple[Server, ...]
    delay_s: tuple[tuple[float, ...], ...]  # [from][to], one-way propagation along the path
    rate_bps: tuple[tuple[float, ...], ...]  # [from][to], the slowest link of the path
    arrival_rate_per_s: float  # expected requests per second, for placement
    tokens_per_request: int  # expected, for placement
    redundancy: float  # memory that a placement may use, in units of all experts once in full precision

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Server names, in order."""
        return tuple(server.name for server in self.servers)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """Position of a server; ValueError if there is none of that name."""
        try:
            return self._positions[name]
        except KeyError:
            raise ValueError(f"no server {name}") from None

    def transfer_s(self, source: int, target: int, size_bytes: float) -> float:
        """Time of a message on the idle path between two servers given by position; 0 within one server."""
        if source == target:
            return 0.0
        return self.delay_s[source][target] + BITS_PER_BYTE * size_bytes / self.rate_bps[source][target]


def cluster_of(
    topology: Topology,
    *,
    arrival_rate_per_s: float,
    tokens_per_request: int,
    redundancy: float = 2.0,
    domain_shares: Mapping[str, Mapping[str, float]] | None = None,
) -> Cluster:
    """Reduce a topology to its servers and the paths between them.

    ``domain_shares`` says by server what its users ask about, where that is known.
    """
    paths = Paths(topology)
    nodes = topology.servers
    users = sum(node.users for node in nodes)
    servers = []
    for node in nodes:
        if node.device is None:
            raise ValueError(f"server {node.name} has no device")
        asked = tuple((domain_shares or {}).get(node.name, {}).items())
        servers.append(Server(name=node.name, device=node.device, home_share=node.users / users, domain_shares=asked))
    names = [node.name for node in nodes]
    return Cluster(
        servers=tuple(servers),
        delay_s=paths.delays_s(names),
        rate_bps=paths.bottlenecks_bps(names),
        arrival_rate_per_s=arrival_rate_per_s,
        tokens_per_request=tokens_per_request,
        redundancy=redundancy,
    )


def part_of(cluster: Cluster, positions: Sequence[int]) -> Cluster:
    """The servers at these positions, with the ways between them; home shares are divided among them alone."""
    servers = [cluster.servers[position] for position in positions]
    share = sum(server.home_share for server in servers)
    return structs.replace(
        cluster,
        servers=tuple(structs.replace(server, home_share=server.home_share / share) for server in servers),
        delay_s=tuple(tuple(cluster.delay_s[a][b] for b in positions) for a in positions),
        rate_bps=tuple(tuple(cluster.rate_bps[a][b] for b in positions) for a in positions),
    )
