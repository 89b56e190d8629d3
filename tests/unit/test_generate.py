"""Generated topologies: what the first lines of the file promise, for every size and seed."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed import generate as module
from testbed.errors import TestbedError
from testbed.generate import KINDS, MAX_METROS, MAX_SERVERS, default_metros, generate
from testbed.load import load_topology, parse_topology
from testbed.loading.document import MAX_FILE_BYTES
from testbed.loading.fileformat import MAX_NODES
from testbed.topology import Device, Link, Node, Topology

ROOT = Path(__file__).parents[2]
MIXTRAL_EXPERTS = 32 * 8
FP16_BYTES = 352_000_000
USABLE = 0.85  # of the fast memory; the rest is for the dense part and for activations
WEAK_FAST_BYTES = 12 * 10**9
S_PER_KM = 5e-6 * 1.3


@pytest.fixture(scope="module")
def large() -> Topology:
    return parse_topology(generate(servers=200, seed=1))


@pytest.fixture(scope="module")
def edge10() -> Topology:
    return load_topology(ROOT / "topologies/edge10.yaml")


def device(node: Node) -> Device:
    assert node.device is not None
    return node.device


def access(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.a[0] == "s"]


def lines(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.a[0] == "r"]


def backbone(topology: Topology) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(node.name for node in topology.nodes if node.kind == "router")
    graph.add_edges_from((line.a, line.b) for line in lines(topology))
    return graph


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    servers = draw(st.integers(2, 60))
    return servers, draw(st.integers(1, servers)), draw(st.integers(0, 999_999))


@settings(max_examples=25)
@given(size=sizes())
def test_every_size_and_seed_is_a_network_of_servers_behind_the_router_of_their_metro(
    size: tuple[int, int, int],
) -> None:
    servers, metros, seed = size
    net = parse_topology(generate(servers=servers, metros=metros, seed=seed))

    assert {node.name for node in net.servers} == {f"s{number}" for number in range(1, servers + 1)}
    routers = {node.name: node.metro for node in net.nodes if node.kind == "router"}
    assert routers == {f"r{number}": f"m{number}" for number in range(1, metros + 1)}
    assert sorted(link.a for link in access(net)) == sorted(node.name for node in net.servers)
    metro = {node.name: node.metro for node in net.nodes}
    assert all(metro[link.a] == metro[link.b] for link in access(net))
    assert set(metro.values()) == {node.metro for node in net.servers}


@settings(max_examples=25)
@given(size=sizes())
def test_the_metros_stay_joined_when_any_one_line_fails_and_have_few_lines(size: tuple[int, int, int]) -> None:
    servers, metros, seed = size
    graph = backbone(parse_topology(generate(servers=servers, metros=metros, seed=seed)))

    if metros >= 3:
        assert nx.edge_connectivity(graph) >= 2
    assert nx.is_connected(graph)
    assert graph.number_of_edges() <= 2 * (metros - 1)


@settings(max_examples=25)
@given(servers=st.integers(10, 60), seed=st.integers(0, 999_999))
def test_from_ten_servers_on_two_fp16_mixtrals_fit_into_the_fast_memory(servers: int, seed: int) -> None:
    net = parse_topology(generate(servers=servers, seed=seed))

    fitting = sum(int(USABLE * device(node).fast_bytes) // FP16_BYTES for node in net.servers)
    assert fitting >= 2 * MIXTRAL_EXPERTS


def test_devices_are_those_of_edge10_in_its_proportions(large: Topology, edge10: Topology) -> None:
    of_ten = Counter(device(node) for node in edge10.servers)

    assert Counter(device(node) for node in large.servers) == {each: 20 * count for each, count in of_ten.items()}


def test_users_and_access_lines_of_a_class_are_those_that_edge10_states(edge10: Topology) -> None:
    text = (ROOT / "topologies/edge10.yaml").read_text("utf-8")
    class_of = dict(re.findall(r"^  (s\d+): +{device: ([\w-]+)", text, re.MULTILINE))

    def stated(row: str) -> dict[str, float]:
        (line,) = re.findall(rf"^# +{row} +(s1 .*)$", text, re.MULTILINE)
        return {name: float(number) for name, number in re.findall(r"(s\d+) ([\d.]+)", line)}

    inside_gbps, between_gbps, ms = stated("inside"), stated("between"), stated("access")
    for kind in KINDS:
        own = [name for name, device_class in class_of.items() if device_class == kind.device]
        assert len(own) == kind.per_ten
        assert {edge10.node(name).users for name in own} == {kind.users}
        assert kind.gbps == (min(between_gbps[name] for name in own), max(inside_gbps[name] for name in own))
        assert all(kind.ms[0] <= ms[name] <= kind.ms[1] for name in own)


def test_access_lines_are_within_the_ranges_of_edge10(large: Topology) -> None:
    for link in access(large):
        assert link.forward == link.backward
        assert 0.8e9 <= link.forward.rate_bps <= 10e9
        assert 0.15e-3 <= link.forward.delay_s <= 0.75e-3


def test_delays_between_metros_are_distances_on_the_map_of_the_comments(large: Topology) -> None:
    text = generate(servers=200, seed=1)
    found = re.findall(r"^  (r\d+): .*# (\d+) km east, (\d+) km north$", text, re.MULTILINE)
    at_km = {name: complex(int(east), int(north)) for name, east, north in found}

    assert len(at_km) == 7
    for line in lines(large):
        assert line.forward == line.backward
        assert line.forward.delay_s == pytest.approx(S_PER_KM * abs(at_km[line.a] - at_km[line.b]), abs=6e-6)


def test_a_line_between_metros_has_a_tenth_of_the_access_rates_at_its_ends_rounded_up() -> None:
    net = parse_topology(generate(servers=200, metros=8, seed=1))
    asked_bps: Counter[str] = Counter()
    for link in access(net):
        asked_bps[link.b] += int(link.forward.rate_bps)

    assert len({line.forward.rate_bps for line in lines(net)}) > 1
    for line in lines(net):
        tenth_bps = (asked_bps[line.a] + asked_bps[line.b]) / 10
        assert line.forward.rate_bps == min(gbps * 1e9 for gbps in (40, 100, 200, 400) if gbps * 1e9 >= tenth_bps)


def test_metros_are_unequal_and_about_half_of_the_users_are_at_weak_servers(large: Topology) -> None:
    sizes = Counter(node.metro for node in large.servers)
    weak = [node for node in large.servers if device(node).fast_bytes == WEAK_FAST_BYTES]

    assert max(sizes.values()) >= 3 * min(sizes.values())
    assert len({node.users for node in large.servers}) > 10
    assert 0.4 < sum(node.users for node in weak) / sum(node.users for node in large.servers) < 0.6


def test_equal_arguments_give_equal_bytes_in_every_process() -> None:
    program = "import sys; from testbed.generate import generate; sys.stdout.write(generate(servers=60, seed=3))"

    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert printed == {generate(servers=60, seed=3).encode()}


def test_another_seed_or_another_number_of_metros_is_another_network() -> None:
    nets = [parse_topology(generate(servers=30, metros=metros, seed=seed)) for metros, seed in ((3, 1), (3, 2), (4, 1))]

    assert len({net.nodes for net in nets}) == 3
    assert len({net.links for net in nets}) == 3


def test_metros_grow_with_the_servers() -> None:
    assert [default_metros(servers) for servers in (2, 10, 200, 1000, 5000)] == [1, 2, 7, 16, 35]
    assert generate(servers=200, seed=1) == generate(servers=200, metros=7, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": 1}, "1 servers: generate makes 2 to 5000"),
        ({"servers": 5001}, "5001 servers: generate makes 2 to 5000"),
        ({"servers": 20, "metros": 0}, "0 metros: write 1 to 20; .* at least one of the 20 servers"),
        ({"servers": 20, "metros": 21}, "21 metros: write 1 to 20;"),
        ({"servers": 5000, "metros": 501}, "501 metros: write 1 to 500; .* at most 500"),
        ({"servers": 20, "seed": -1}, "seed -1: write a whole number from 0 to 999999"),
        ({"servers": 20, "seed": 10**6}, "seed 1000000: write a whole number from 0 to 999999"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_can(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(TestbedError, match=f"^{message}"):
        generate(**arguments)


def test_the_largest_file_is_within_the_limits_of_the_loader() -> None:
    text = generate(servers=MAX_SERVERS, metros=MAX_METROS, seed=999_999)

    assert MAX_SERVERS + MAX_METROS <= MAX_NODES
    assert len(text.encode()) <= MAX_FILE_BYTES
    assert max(map(len, text.splitlines())) <= 120


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(module).failed == 0
