"""The wiring plan: unique names, addresses that agree with each other, routes that arrive."""

from __future__ import annotations

import doctest
import itertools
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed import wiring
from testbed.load import load_topology
from testbed.loading.kinds import NAME
from testbed.topology import Direction, Link, Node, Topology
from testbed.wiring import MAX_INTERFACE_NAME, Wiring, wire

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "topologies").glob("*.yaml"))
PLAIN = Direction(rate_bps=1e9, delay_s=0.001)


def star(center: str, leaves: list[str]) -> Topology:
    return Topology(
        name="star",
        nodes=tuple(Node(name=name) for name in (center, *leaves)),
        links=tuple(Link(a=center, b=leaf, forward=PLAIN, backward=PLAIN) for leaf in leaves),
    )


@pytest.fixture(params=SHIPPED, ids=lambda path: path.stem)
def plan(request: pytest.FixtureRequest) -> Wiring:
    return wire(load_topology(request.param), "lab")


def test_every_address_is_given_once_and_links_do_not_overlap(plan: Wiring) -> None:
    nodes = [IPv4Address(node.address) for node in plan.nodes]
    ends = [IPv4Address(end.address) for cable in plan.cables for end in (cable.a, cable.b)]

    assert len({*nodes, *ends}) == len(plan.nodes) + 2 * len(plan.cables)
    assert all(address in IPv4Network("10.0.0.0/9") for address in nodes)
    assert all(address in IPv4Network("10.128.0.0/9") for address in ends)


def test_both_ends_of_a_cable_share_a_31_and_name_each_other(plan: Wiring) -> None:
    for cable in plan.cables:
        a, b = cable.a, cable.b
        subnet = IPv4Network(f"{a.address}/{a.prefix_length}")
        assert {str(address) for address in subnet} == {a.address, b.address}
        assert (a.peer_address, b.peer_address) == (b.address, a.address)
        assert (a.peer, b.peer) == (b.node, a.node)
        assert plan.node(a.node).interface_to(b.node) == a
        assert plan.node(b.node).interface_to(a.node) == b


def test_a_packet_that_follows_the_routes_arrives(plan: Wiring) -> None:
    for source, target in itertools.permutations(plan.nodes, 2):
        here, hops = source, 0
        while here is not target:
            route = next(route for route in here.routes if route.destination == target.address)
            interface = next(end for end in here.interfaces if end.name == route.interface)
            assert route.via == interface.peer_address
            assert route.source == here.address
            # Whoever passes on a packet that is not its own has to be told to.
            assert here is source or here.forwards
            here, hops = plan.node(interface.peer), hops + 1
            assert hops <= len(plan.nodes)


def test_in_a_full_mesh_no_server_forwards_and_behind_routers_only_routers_do() -> None:
    mesh = wire(load_topology(ROOT / "topologies/edge10.yaml"), "lab")
    routed = wire(load_topology(ROOT / "topologies/metro-routers.yaml"), "lab")

    assert [node.name for node in mesh.nodes if node.forwards] == []
    assert [node.name for node in routed.nodes if node.forwards] == ["north", "south"]


def test_a_name_leads_to_the_address_that_others_reach_and_not_to_the_loopback(plan: Wiring) -> None:
    hosts = dict(reversed(line.split()) for line in plan.hosts.splitlines())

    assert hosts.pop("localhost") == "127.0.0.1"
    assert hosts == {node.name: node.address for node in plan.nodes}


def test_sandboxes_of_two_testbeds_never_share_a_name() -> None:
    one = wire(star("b-c", ["d"]), "a")
    other = wire(star("c", ["d"]), "a-b")

    assert {node.sandbox for node in one.nodes}.isdisjoint(node.sandbox for node in other.nodes)


def test_the_same_topology_gives_the_same_plan() -> None:
    topology = load_topology(ROOT / "topologies/edge10.yaml")

    assert wire(topology, "lab") == wire(topology, "lab")


def test_a_short_name_stays_readable_beside_long_ones_that_look_alike() -> None:
    plan = wire(star("s1", ["rack-12-port-1a", "rack-12-port-1b", "rack-12-po-1", "s2"]), "lab")

    assert [end.name for end in plan.node("s1").interfaces] == [
        "to-rack-12-po-2",
        "to-rack-12-po-3",
        "to-rack-12-po-1",
        "to-s2",
    ]


@settings(deadline=None)
@given(leaves=st.lists(st.from_regex(NAME, fullmatch=True), min_size=1, max_size=30, unique=True))
def test_interface_names_fit_the_kernel_and_differ_within_a_node(leaves: list[str]) -> None:
    plan = wire(star("centre-of-it-all", leaves), "lab")
    names = [end.name for end in plan.nodes[0].interfaces]

    assert len(set(names)) == len(leaves)
    assert max(map(len, names)) <= MAX_INTERFACE_NAME


def test_a_cable_is_found_from_either_end_and_nothing_else_is() -> None:
    plan = wire(star("s1", ["s2", "s3"]), "lab")

    assert plan.cable("s3-s1") is plan.cable("s1-s3")
    with pytest.raises(KeyError):
        plan.cable("s2-s3")
    with pytest.raises(KeyError):
        plan.node("s9")


def test_the_plan_prints_as_it_is_documented() -> None:
    expected = ROOT / "tests/golden/wiring/metro-routers.txt"

    assert f"{wire(load_topology(ROOT / 'topologies/metro-routers.yaml'), 'lab')}\n" == expected.read_text("utf-8")


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(wiring).failed == 0
