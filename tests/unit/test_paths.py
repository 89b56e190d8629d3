"""Shortest paths: the rules in words, and agreement with an enumeration of every path."""

from __future__ import annotations

import doctest
import itertools

import msgspec
import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.cluster import Cluster, cluster_of
from testbed import paths
from testbed.generate import generate
from testbed.load import parse_topology
from testbed.paths import PS_PER_S, Paths
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


@st.composite
def networks_with_dead_ends(draw: st.DrawFn) -> Topology:
    """A few nodes, some of them joined twice, with servers that have one neighbour; unequal delays and rates."""
    hubs = [draw(st.sampled_from("rs")) + str(number) for number in range(draw(st.integers(1, 4)))]
    ends = [f"s{number}" for number in range(10, 10 + draw(st.integers(1, 5)))]
    spanning = [(hubs[draw(st.integers(0, number - 1))], hubs[number]) for number in range(1, len(hubs))]
    extra = [pair for pair in itertools.combinations(hubs, 2) if draw(st.booleans())]
    joined = dict.fromkeys([*spanning, *extra, *((end, draw(st.sampled_from(hubs))) for end in ends)])
    value = st.builds(
        Direction, rate_bps=st.sampled_from([1e8, 3e8, 1e9]), delay_s=st.sampled_from([0.0, 0.0001, 0.0003, 0.001])
    )
    return Topology(
        name="net",
        nodes=tuple(
            Node(name=name, kind="router" if name[0] == "r" else "server")
            for name in draw(st.permutations([*hubs, *ends]))
        ),
        links=tuple(Link(a=a, b=b, forward=draw(value), backward=draw(value)) for a, b in joined),
    )


@given(net=networks_with_dead_ends())
def test_next_hops_delays_and_rates_are_those_of_the_cheapest_of_all_paths(net: Topology) -> None:
    directions = {(link.a, link.b): link.forward for link in net.links}
    directions |= {(link.b, link.a): link.backward for link in net.links}
    graph = nx.DiGraph(list(directions))
    place = {node.name: number for number, node in enumerate(net.nodes)}
    found, crossed = Paths(net), set()

    def delay_ps(path: tuple[str, ...]) -> int:
        return sum(round(directions[hop].delay_s * PS_PER_S) for hop in itertools.pairwise(path))

    def cost(path: tuple[str, ...]) -> tuple[int, int, int, list[int]]:
        servers = sum(name[0] == "s" for name in path[1:-1])
        return servers, delay_ps(path), len(path), [place[name] for name in path]

    for a, b in itertools.permutations(place, 2):
        best = min(map(tuple, nx.all_simple_paths(graph, a, b)), key=cost)
        crossed |= set(best[1:-1])
        assert found.path(a, b) == best
        assert found.delay_s(a, b) == delay_ps(best) / PS_PER_S
        assert found.bottleneck_bps(a, b) == min(directions[hop].rate_bps for hop in itertools.pairwise(best))
    assert found.transit_nodes() == crossed


@given(net=networks_with_dead_ends(), data=st.data())
def test_a_matrix_says_what_its_pairs_say(net: Topology, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([node.name for node in net.nodes]), unique=True))
    found = Paths(net)

    assert found.delays_s(names) == tuple(tuple(found.delay_s(a, b) for b in names) for a in names)
    assert found.bottlenecks_bps(names) == tuple(tuple(found.bottleneck_bps(a, b) for b in names) for a in names)


def test_a_matrix_of_nodes_that_do_not_reach_each_other_is_refused() -> None:
    islands = network("s1 s2 s3 s4", ("s1", "s2", 1, 1), ("s3", "s4", 1, 1))

    assert Paths(islands).delays_s(["s3", "s4"]) == ((0.0, 0.001), (0.001, 0.0))
    with pytest.raises(KeyError, match="no path from s3 to s1"):
        Paths(islands).delays_s(["s1", "s2", "s3"])
    with pytest.raises(KeyError, match="no path from s1 to s4"):
        Paths(islands).bottleneck_bps("s1", "s4")


def test_servers_behind_a_router_need_no_search_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    net = parse_topology(generate(servers=60, metros=4, seed=1))
    searched: list[int] = []
    search = Paths._dijkstra

    def counted(found: Paths, target: int) -> object:
        searched.append(target)
        return search(found, target)

    monkeypatch.setattr(Paths, "_dijkstra", counted)
    found = Paths(net)
    names = [node.name for node in net.nodes]
    found.delays_s(names)
    found.bottlenecks_bps(names)

    assert len(searched) == 4


@pytest.fixture
def cluster() -> Cluster:
    return cluster_of(parse_topology(generate(servers=12, seed=1)), arrival_rate_per_s=5.0, tokens_per_request=37)


def test_a_cluster_has_the_paths_between_its_servers(cluster: Cluster) -> None:
    found = Paths(parse_topology(generate(servers=12, seed=1)))

    for (i, a), (j, b) in itertools.product(enumerate(cluster.names), repeat=2):
        assert cluster.delay_s[i][j] == found.delay_s(a, b)
        assert cluster.rate_bps[i][j] == found.bottleneck_bps(a, b)


def test_a_cluster_knows_the_position_of_each_of_its_servers_and_of_no_other(cluster: Cluster) -> None:
    assert cluster.names == tuple(f"s{number}" for number in range(1, 13))
    assert [cluster.index(name) for name in cluster.names] == list(range(12))
    with pytest.raises(ValueError, match="no server r1"):
        cluster.index("r1")


def test_what_a_cluster_remembers_is_no_part_of_it(cluster: Cluster) -> None:
    asked = msgspec.structs.replace(cluster)
    asked.index("s3")
    fewer = msgspec.structs.replace(asked, servers=asked.servers[2:])

    assert asked == cluster
    assert msgspec.msgpack.encode(asked) == msgspec.msgpack.encode(cluster)
    assert (fewer.names[0], fewer.index("s3")) == ("s3", 0)
