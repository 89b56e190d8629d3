"""The topologies that come with the testbed say what their first lines promise."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from testbed.load import load_topology
from testbed.paths import Paths
from testbed.topology import Device, Node, Topology

FOLDER = Path(__file__).parents[2] / "topologies"
FILES = sorted(FOLDER.glob("*.yaml"))
MIXTRAL_EXPERTS = 32 * 8
INT8_BYTES, FP16_BYTES = 176_000_000, 352_000_000
USABLE = 0.85  # of the fast memory; the rest is for the dense part and for activations


@pytest.fixture(scope="module")
def edge10() -> Topology:
    return load_topology(FOLDER / "edge10.yaml")


def device(node: Node) -> Device:
    assert node.device is not None
    return node.device


def experts_that_fit(nodes: list[Node], expert_bytes: int) -> int:
    return sum(int(USABLE * device(node).fast_bytes) // expert_bytes for node in nodes)


def metros(topology: Topology) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = defaultdict(list)
    for node in topology.servers:
        found[node.metro].append(node)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_file_loads_is_named_after_its_topology_and_opens_with_what_it_models(file: Path) -> None:
    topology = load_topology(file)

    assert topology.name == file.stem
    assert topology.description
    assert file.read_text("utf-8").startswith("# ")


def test_edge10_has_ten_servers_and_a_cable_for_each_of_the_45_pairs(edge10: Topology) -> None:
    names = [node.name for node in edge10.servers]

    assert names == [f"s{number}" for number in range(1, 11)]
    assert {frozenset((link.a, link.b)) for link in edge10.links} == set(
        map(frozenset, itertools.combinations(names, 2))
    )


def test_edge10_spans_the_ranges_that_are_given_for_hetroute_and_never_leaves_them(edge10: Topology) -> None:
    devices = [device(node) for node in edge10.servers]

    def span(values: list[float]) -> tuple[float, float]:
        return min(values), max(values)

    assert span([d.peak_flops_per_s / 1e12 for d in devices]) == (18, 120)
    assert span([d.fast_bytes / 1e9 for d in devices]) == (12, 48)
    assert span([d.slow_bytes / 1e9 for d in devices]) == (96, 512)
    assert span([d.load_bytes_per_s / 1e9 for d in devices]) == (12, 64)
    assert span([link.forward.rate_bps / 1e9 for link in edge10.links]) == (0.8, 10)
    least, most = span([1e3 * link.forward.delay_s for link in edge10.links])
    assert least == 0.3
    assert 20 < most <= 22
    assert len({node.users for node in edge10.servers}) > 3


def test_edge10_links_are_quick_inside_a_metro_and_long_between_metros(edge10: Topology) -> None:
    metro = {node.name: node.metro for node in edge10.nodes}
    assert len(set(metro.values())) == 3

    for link in edge10.links:
        assert link.forward == link.backward
        assert (link.forward.jitter_s, link.forward.loss) == (0, 0)
        delay_ms, rate_gbps = 1e3 * link.forward.delay_s, link.forward.rate_bps / 1e9
        if metro[link.a] == metro[link.b]:
            assert 0.3 <= delay_ms <= 1.5
            assert 5 <= rate_gbps <= 10
        else:
            assert 5 <= delay_ms <= 22
            assert 0.8 <= rate_gbps <= 4


def test_edge10_delays_could_be_distances_on_a_map(edge10: Topology) -> None:
    paths = Paths(edge10)
    names = [node.name for node in edge10.servers]

    for a, b, c in itertools.permutations(names, 3):
        assert paths.delay_s(a, c) <= paths.delay_s(a, b) + paths.delay_s(b, c)


def test_an_int8_mixtral_fits_each_metro_of_edge10_and_an_fp16_one_fits_none(edge10: Topology) -> None:
    for nodes in metros(edge10).values():
        assert experts_that_fit(nodes, INT8_BYTES) >= MIXTRAL_EXPERTS
        assert experts_that_fit(nodes, FP16_BYTES) < MIXTRAL_EXPERTS


def test_half_of_edge10s_users_are_at_its_weak_servers(edge10: Topology) -> None:
    weak = {"s6", "s7", "s10"}
    users = {node.name: node.users for node in edge10.servers}

    assert sum(users[name] for name in weak) / sum(users.values()) == 0.5
    assert {name for name in users if device(edge10.node(name)).fast_bytes == 12e9} == weak


def test_an_fp16_mixtral_fits_small3() -> None:
    small3 = load_topology(FOLDER / "small3.yaml")

    assert (len(small3.servers), len(small3.links)) == (3, 3)
    assert experts_that_fit(list(small3.servers), FP16_BYTES) >= MIXTRAL_EXPERTS


def test_every_pair_of_metro_routers_in_different_metros_shares_one_line() -> None:
    topology = load_topology(FOLDER / "metro-routers.yaml")
    paths, (one, other) = Paths(topology), metros(topology).values()

    for a, b in itertools.product(one, other):
        assert paths.path(a.name, b.name)[1:3] == ("north", "south")
    assert paths.transit_nodes() == {"north", "south"}
    assert sum(link.forward != link.backward for link in topology.links) == 2
    for nodes in (one, other):
        assert experts_that_fit(nodes, INT8_BYTES) >= MIXTRAL_EXPERTS
