"""The plan of who is plugged into whom: sandboxes, interfaces, addresses and routes, before anything is created.

A backend executes this plan and decides nothing itself, so the network is the same whether it is made of namespaces,
containers or Mininet hosts, and a person can read the plan (``print(wire(topology, "lab"))``) before it is carried out.

Every node has ONE address that programs use, a /32 on its loopback, and every end of a cable has a link address out
of a /31 that only the kernel uses.  Routes name the /32 as their source, so packets that leave through any cable carry
the address under which the node is known.  Names in the hosts file lead to these addresses and to no other: traffic
between servers cannot bypass the emulated links.

Where the two directions of a link differ, the way back may be another way: nodes must accept packets from an interface
that they would not answer through (``rp_filter`` off).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from testbed.paths import Paths
from testbed.topology import MTU_BYTES, NodeKind, Topology

#: The kernel's limit (IFNAMSIZ without the terminating zero).
MAX_INTERFACE_NAME = 15
#: 10.0.0.1 upwards: one address per node, in file order.
FIRST_NODE_ADDRESS = IPv4Address("10.0.0.1")
#: 10.128.0.0 upwards: two addresses per link, in file order; the first is the end at ``link.a``.
FIRST_LINK_ADDRESS = IPv4Address("10.128.0.0")
LINK_PREFIX_LENGTH = 31
NODE_PREFIX_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One end of a cable, as it looks inside its node's sandbox."""

    name: str  # at most 15 characters, unique within the node
    link: str  # name of the link this is an end of
    node: str  # where this end is
    peer: str  # the node at the other end
    address: str  # link address of this end, of a /31
    peer_address: str  # link address of the other end
    prefix_length: int = LINK_PREFIX_LENGTH
    mtu_bytes: int = MTU_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a node reaches one other node: ``destination/32 via via dev interface src source``."""

    node: str  # the node this leads to
    destination: str  # its /32
    interface: str  # the interface to leave through
    via: str  # link address of the next hop
    source: str  # the /32 of the node that owns this route


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWiring:
    """Everything one sandbox needs."""

    name: str  # the node's name in the topology, also its host name
    sandbox: str  # unique on the host: "<testbed>.<node>"
    kind: NodeKind
    address: str  # its /32, on the loopback interface
    interfaces: tuple[Interface, ...]  # in file order of the links
    routes: tuple[Route, ...]  # to every other node, in file order
    forwards: bool  # net.ipv4.ip_forward

    def interface_to(self, peer: str) -> Interface:
        """The interface whose cable ends at ``peer``; KeyError if there is none."""
        for interface in self.interfaces:
            if interface.peer == peer:
                return interface
        raise KeyError(peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """Both ends of one link."""

    link: str
    a: Interface  # at the node ``Link.a``
    b: Interface  # at the node ``Link.b``


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The whole plan."""

    name: str  # of the testbed
    nodes: tuple[NodeWiring, ...]
    cables: tuple[Cable, ...]  # in file order of the links
    hosts: str  # text of /etc/hosts, the same in every sandbox

    def node(self, name: str) -> NodeWiring:
        """The wiring of the node of that name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def cable(self, link: str) -> Cable:
        """The cable of that link, written from either end; KeyError if there is none."""
        for cable in self.cables:
            if link in (cable.link, f"{cable.b.node}-{cable.a.node}"):
                return cable
        raise KeyError(link)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def wire(topology: Topology, name: str) -> Wiring:
    """The plan for ``topology`` as the testbed ``name``; the same input always gives the same plan."""
    paths = Paths(topology)
    names = [node.name for node in topology.nodes]
    address = {node: str(FIRST_NODE_ADDRESS + number) for number, node in enumerate(names)}
    cables = _cables(topology)
    plugged: dict[str, dict[str, Interface]] = {node: {} for node in names}
    for cable in cables:
        for interface in (cable.a, cable.b):
            plugged[interface.node][interface.peer] = interface
    transit = paths.transit_nodes()
    nodes = tuple(
        NodeWiring(
            name=node.name,
            sandbox=f"{name}.{node.name}",
            kind=node.kind,
            address=address[node.name],
            interfaces=tuple(plugged[node.name].values()),
            routes=_routes(node.name, names, paths, plugged[node.name], address),
            forwards=node.kind == "router" or node.name in transit,
        )
        for node in topology.nodes
    )
    return Wiring(name=name, nodes=nodes, cables=cables, hosts=_hosts(address))


def interface_name(peer: str, taken: Collection[str]) -> str:
    """A readable name for the interface towards ``peer``, unlike all that are ``taken``.

    >>> interface_name("s2", [])
    'to-s2'
    >>> interface_name("rack-12-port-1a", []), interface_name("rack-12-port-1b", ["to-rack-12-po-1"])
    ('to-rack-12-po-1', 'to-rack-12-po-2')
    """
    whole = f"to-{peer}"
    if len(whole) <= MAX_INTERFACE_NAME and whole not in taken:
        return whole
    number = 1
    while True:
        suffix = f"-{number}"
        short = whole[: MAX_INTERFACE_NAME - len(suffix)] + suffix
        if short not in taken:
            return short
        number += 1


def _cables(topology: Topology) -> tuple[Cable, ...]:
    neighbours: dict[str, list[str]] = {node.name: [] for node in topology.nodes}
    for link in topology.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    names = {node: _interface_names(peers) for node, peers in neighbours.items()}
    cables = []
    for number, link in enumerate(topology.links):
        a_address, b_address = (str(FIRST_LINK_ADDRESS + 2 * number + end) for end in (0, 1))
        a = Interface(
            name=names[link.a][link.b],
            link=link.name,
            node=link.a,
            peer=link.b,
            address=a_address,
            peer_address=b_address,
        )
        b = Interface(
            name=names[link.b][link.a],
            link=link.name,
            node=link.b,
            peer=link.a,
            address=b_address,
            peer_address=a_address,
        )
        cables.append(Cable(link=link.name, a=a, b=b))
    return tuple(cables)


def _interface_names(peers: list[str]) -> dict[str, str]:
    # Short names keep their readable form whatever the order: only then are the long ones cut to what is left.
    names: dict[str, str] = {}
    taken: set[str] = set()
    for peer in sorted(peers, key=lambda peer: len(peer) > MAX_INTERFACE_NAME - len("to-")):
        names[peer] = interface_name(peer, taken)
        taken.add(names[peer])
    return names


def _routes(
    node: str, names: list[str], paths: Paths, plugged: Mapping[str, Interface], address: Mapping[str, str]
) -> tuple[Route, ...]:
    routes = []
    for target in names:
        if target == node:
            continue
        interface = plugged[paths.next_hop(node, target)]
        routes.append(
            Route(
                node=target,
                destination=address[target],
                interface=interface.name,
                via=interface.peer_address,
                source=address[node],
            )
        )
    return tuple(routes)


def _hosts(address: Mapping[str, str]) -> str:
    # No name leads to 127.0.0.1 but localhost: a server that looks itself up finds the address others know it by.
    lines = ["127.0.0.1 localhost", *(f"{ip} {node}" for node, ip in address.items())]
    return "\n".join(lines) + "\n"


def _lines(wiring: Wiring) -> list[str]:
    lines = [f"testbed {wiring.name}: {len(wiring.nodes)} sandboxes, {len(wiring.cables)} cables"]
    for node in wiring.nodes:
        forwards = ", forwards" if node.forwards else ""
        lines.append(f"{node.sandbox} ({node.kind}{forwards}) lo {node.address}/{NODE_PREFIX_LENGTH}")
        lines += [
            f"  {i.name:<{MAX_INTERFACE_NAME}} {i.address}/{i.prefix_length} peer {i.peer_address}"
            f" mtu {i.mtu_bytes} link {i.link}"
            for i in node.interfaces
        ]
        lines += [
            f"  route {r.destination}/{NODE_PREFIX_LENGTH} ({r.node}) via {r.via} dev {r.interface} src {r.source}"
            for r in node.routes
        ]
    return lines
