"""Shortest paths: the rules in words, and agreement with an enumeration of every path."""

from __future__ import annotations

import doctest
import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed import paths
from testbed.paths import Paths
from testbed.topology import Direction, Link, Node, Topology


def direction(delay_ms: float, rate_bps: float = 1e9) -> Direction:
    return Direction(rate_bps=rate_bps, delay_s=delay_ms / 1e3)


def network(nodes: str, *links: tuple[str, str, float, float]) -> Topology:
    """Nodes whose names start with ``r`` are routers; a link is (a, b, delay there in ms, delay back in ms)."""
    return Topology(
        name="net",
        nodes=tuple(Node(name=name, kind="router" if name[0] == "r" else "server") for name in nodes.split()),
        links=tuple(Link(a=a, b=b, forward=direction(there), backward=direction(back)) for a, b, there, back in links),
    )


def test_a_cable_beats_a_quicker_detour_over_another_server() -> None:
    net = network("s1 s2 s3", ("s1", "s3", 20, 20), ("s1", "s2", 1, 1), ("s2", "s3", 1, 1))

    assert Paths(net).path("s1", "s3") == ("s1", "s3")


def test_a_quicker_way_over_routers_beats_a_cable() -> None:
    net = network("s1 s2 r1", ("s1", "s2", 20, 20), ("s1", "r1", 1, 1), ("r1", "s2", 1, 1))

    assert Paths(net).path("s1", "s2") == ("s1", "r1", "s2")


def test_a_server_forwards_only_where_nothing_else_connects_a_pair() -> None:
    chain = network("s1 s2 s3", ("s1", "s2", 1, 1), ("s2", "s3", 1, 1))
    ring = network("s1 s2 s3 r1", ("s1", "s2", 1, 1), ("s2", "s3", 1, 1), ("s1", "r1", 50, 50), ("r1", "s3", 50, 50))

    assert Paths(chain).path("s1", "s3") == ("s1", "s2", "s3")
    assert Paths(chain).transit_nodes() == {"s2"}
    assert Paths(ring).path("s1", "s3") == ("s1", "r1", "s3")


def test_among_equal_ways_the_shorter_then_the_earlier_in_the_file_wins() -> None:
    diamond = network("s1 s9 r2 r1", ("s1", "r1", 1, 1), ("r1", "s9", 1, 1), ("s1", "r2", 1, 1), ("r2", "s9", 1, 1))
    longer = network("s1 s9 r1 r2", ("s1", "r1", 1, 1), ("r1", "r2", 1, 1), ("r2", "s9", 1, 1), ("s1", "s9", 3, 3))

    assert Paths(diamond).path("s1", "s9") == ("s1", "r2", "s9")
    assert Paths(longer).path("s1", "s9") == ("s1", "s9")


def test_the_way_back_may_be_another_way() -> None:
    net = network("s1 s2 r1 r2", ("s1", "r1", 1, 9), ("r1", "s2", 1, 9), ("s1", "r2", 9, 1), ("r2", "s2", 9, 1))
    found = Paths(net)

    assert found.path("s1", "s2") == ("s1", "r1", "s2")
    assert found.path("s2", "s1") == ("s2", "r2", "s1")
    assert found.expected_rtt_s("s1", "s2") == pytest.approx(0.004)


def test_the_slowest_link_on_the_way_is_the_bottleneck_of_that_direction() -> None:
    net = Topology(
        name="net",
        nodes=(Node(name="s1"), Node(name="r1", kind="router"), Node(name="s2")),
        links=(
            Link(a="s1", b="r1", forward=direction(1, 5e9), backward=direction(1, 4e9)),
            Link(a="r1", b="s2", forward=direction(1, 2e9), backward=direction(1, 9e9)),
        ),
    )

    assert paths.bottleneck_bps(net, "s1", "s2") == 2e9
    assert paths.bottleneck_bps(net, "s2", "s1") == 4e9
    assert paths.bottleneck_bps(net, "s1", "s1") == float("inf")


def test_a_node_reaches_itself_without_any_link() -> None:
    net = network("s1 s2", ("s1", "s2", 5, 5))

    assert paths.path(net, "s1", "s1") == ("s1",)
    assert paths.expected_rtt_s(net, "s1", "s1") == 0.0


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(min_value=2, max_value=6))
    names = [draw(st.sampled_from("rs")) + str(number) for number in range(size)]
    pairs = list(itertools.combinations(names, 2))
    # Few different delays, so that ties are common; a random tree first, so that the network is connected.
    delay = st.sampled_from([0.0, 1.0, 2.0, 3.0])
    tree = [(names[draw(st.integers(0, number - 1))], names[number]) for number in range(1, size)]
    extra = draw(st.lists(st.sampled_from(pairs), unique=True))
    chosen = dict.fromkeys([*tree, *extra])
    return network(" ".join(names), *[(a, b, draw(delay), draw(delay)) for a, b in chosen])


@settings(deadline=None)
@given(net=networks())
def test_no_other_path_is_cheaper(net: Topology) -> None:
    graph = nx.DiGraph()
    for link in net.links:
        graph.add_edge(link.a, link.b, ms=round(1e3 * link.forward.delay_s))
        graph.add_edge(link.b, link.a, ms=round(1e3 * link.backward.delay_s))
    place = {node.name: number for number, node in enumerate(net.nodes)}
    found = Paths(net)

    def cost(path: tuple[str, ...]) -> tuple[int, int, int, list[int]]:
        crossed = sum(name[0] == "s" for name in path[1:-1])
        delay_ms = sum(graph.edges[hop]["ms"] for hop in itertools.pairwise(path))
        return crossed, delay_ms, len(path), [place[name] for name in path]

    for a, b in itertools.permutations(place, 2):
        assert found.path(a, b) == min(map(tuple, nx.all_simple_paths(graph, a, b)), key=cost)


@settings(deadline=None)
@given(net=networks())
def test_following_the_next_hops_gives_the_path(net: Topology) -> None:
    hops, found = paths.routes(net), Paths(net)

    for a, b in itertools.permutations([node.name for node in net.nodes], 2):
        walked = [a]
        while walked[-1] != b:
            walked.append(hops[walked[-1]][b])
        assert tuple(walked) == found.path(a, b)


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(paths).failed == 0
