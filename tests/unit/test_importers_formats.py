"""What each format's reader takes, leaves out and refuses."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.importers import detect
from testbed.importers.graph import Graph
from testbed.importers.reading import ImportRefusedError
from testbed.importers.rtt import RttOptions


def read(text: str | bytes, name: str, form: detect.Form | None = None, **options) -> Graph:
    data = text.encode() if isinstance(text, str) else text
    return detect.read_graph(data, name, form, RttOptions(**options))[1]


def refusal(text: str | bytes, name: str, **options) -> str:
    with pytest.raises(ImportRefusedError) as caught:
        read(text, name, **options)
    return str(caught.value)


def pairs(graph: Graph) -> list[tuple[str, str]]:
    return [(edge.a, edge.b) for edge in graph.edges]


ATTRIBUTES = {"label": "Paris", "Latitude": 48.85, "Longitude": 2.35}


@st.composite
def multigraphs(draw: st.DrawFn) -> nx.MultiGraph:
    size = draw(st.integers(2, 6))
    ends = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(ends, ends, st.sampled_from([None, 1e6, 2.5e9])), min_size=1, max_size=12))
    graph = nx.MultiGraph()
    graph.add_nodes_from((number, {"label": f"city {number}"}) for number in range(size))
    for a, b, speed in edges:
        graph.add_edge(a, b, **({} if speed is None else {"LinkSpeedRaw": speed}))
    return graph


def content(graph: Graph) -> list[tuple[frozenset[str], float | None]]:
    found = [(frozenset((edge.a, edge.b)), edge.forward.rate_bps) for edge in graph.edges]
    return sorted(found, key=lambda edge: (sorted(edge[0]), edge[1] or 0))


def content_of_nx(graph: nx.MultiGraph) -> list[tuple[frozenset[str], float | None]]:
    found = [(frozenset((str(a), str(b))), data.get("LinkSpeedRaw")) for a, b, data in graph.edges(data=True)]
    return sorted(found, key=lambda edge: (sorted(edge[0]), edge[1] or 0))


@given(graph=multigraphs())
def test_what_networkx_writes_is_read_with_every_parallel_edge(graph: nx.MultiGraph) -> None:
    for text, name in (
        ("\n".join(nx.generate_graphml(graph)), "x.graphml"),
        ("\n".join(nx.generate_gml(nx.relabel_nodes(graph, str))), "x.gml"),
        (json.dumps(nx.node_link_data(graph, edges="links")), "x.json"),
    ):
        ours = read(text, name)
        assert content(ours) == content_of_nx(graph), name
        assert len(ours.vertices) == len(graph)


def test_parallel_edges_with_one_key_are_all_kept() -> None:
    # networkx merges these two
    edge = '<edge source="0" target="1"><data key="k">0</data></edge>'
    text = (
        '<graphml><key id="k" for="edge" attr.name="key" attr.type="int"/>'
        f'<graph edgedefault="undirected"><node id="0"/><node id="1"/>{edge}{edge}</graph></graphml>'
    )
    assert pairs(read(text, "x.graphml")) == [("0", "1"), ("0", "1")]


@pytest.mark.parametrize(
    ("attributes", "rate_bps"),
    [
        ({"LinkSpeedRaw": "2500000000.0"}, 2.5e9),
        ({"LinkSpeed": "155", "LinkSpeedUnits": "M"}, 155e6),
        ({"LinkSpeed": "2.5", "LinkSpeedUnits": "G", "LinkSpeedRaw": "2.5e9"}, 2.5e9),
        ({"LinkSpeed": "<10", "LinkSpeedUnits": "G"}, None),
        ({"LinkLabel": "OC-192c"}, None),
        ({}, None),
    ],
)
def test_zoo_speeds_are_read_and_words_are_not(attributes: dict[str, str], rate_bps: float | None) -> None:
    graph = nx.Graph()
    graph.add_edge("0", "1", **attributes)
    read_back = read("\n".join(nx.generate_graphml(graph)), "x.graphml")

    assert read_back.edges[0].forward.rate_bps == rate_bps
    assert any("'<10'" in note for note in read_back.notes) == (attributes.get("LinkSpeed") == "<10")


def test_zoo_crossings_are_routers_and_coordinates_must_be_on_earth() -> None:
    text = (
        'graph [ node [ id 0 label "None" hyperedge 1 ] node [ id 1 Latitude {} Longitude 2 ] '
        "edge [ source 0 target 1 ] ]"
    )
    crossing, place = read(text.format(48), "x.gml").vertices

    assert (crossing.label, crossing.role, crossing.place) == ("crossing 0", "router", None)
    assert place.place is not None
    assert "latitude 480" in refusal(text.format(480), "x.gml")


def test_attributes_that_are_not_imported_are_named() -> None:
    text = 'graph [ node [ id 0 Country "France" ] node [ id 1 ] edge [ source 0 target 1 weight 3 ] ]'
    assert "attributes that are not imported, of nodes: Country; of edges: weight" in read(text, "x.gml").notes


SHADOW_NODES = (
    'graph [ node [ id 0 host_bandwidth_up "{up}" host_bandwidth_down "8 Mbit" ] '
    'node [ id 1 host_bandwidth_up "4 Mbit" host_bandwidth_down "100 Mbit" ] '
)


@pytest.mark.parametrize(
    ("up", "bps"),
    [("83592 Kibit", 83592 * 1024), ("1 Mbit", 1e6), ("2 MB", 16e6), ("3 kilobits", 3e3), ("1 Gbit/s", None)],
)
def test_shadow_bandwidths_carry_their_unit(up: str, bps: float | None) -> None:
    text = SHADOW_NODES.format(up=up) + 'edge [ source 0 target 1 latency "5 ms" ] ]'
    if bps is None:
        assert "bandwidth '1 Gbit/s' is not one such as '100 Mbit'" in refusal(text, "x.gml")
    else:
        assert read(text, "x.gml").edges[0].forward.rate_bps == bps


@pytest.mark.parametrize(("latency", "s"), [("118555 us", 0.118555), ("5 ms", 0.005), ("1 second", 1.0), ("2", 2.0)])
def test_shadow_latencies_are_one_way_with_unit(latency: str, s: float) -> None:
    text = SHADOW_NODES.format(up="1 Mbit") + f'edge [ source 0 target 1 latency "{latency}" packet_loss 0.25 ] ]'
    (edge,) = read(text, "x.gml").edges

    assert (edge.forward.delay_s, edge.forward.loss) == (s, 0.25)
    assert edge.backward is not None
    assert edge.backward.rate_bps == 4e6


def test_shadow_edges_of_a_node_to_itself_are_left_out_and_counted() -> None:
    text = SHADOW_NODES.format(up="1 Mbit") + (
        'edge [ source 0 target 0 latency "1 ms" ] edge [ source 0 target 1 latency "1 ms" ] ]'
    )
    graph = read(text, "x.gml")

    assert pairs(graph) == [("0", "1")]
    assert any(note.startswith("left out: 1 edge of a node to itself") for note in graph.notes)


def test_old_shadow_counts_ms_and_kib_and_loses_at_the_nodes_too() -> None:
    graph = nx.Graph()
    graph.add_node("a", bandwidthup=100, bandwidthdown=200, packetloss=0.5)
    graph.add_node("b", bandwidthup=300, bandwidthdown=50, packetloss=0.0)
    graph.add_edge("a", "b", latency=25.0, jitter=4.0, packetloss=0.5)
    (edge,) = read("\n".join(nx.generate_graphml(graph)), "x.graphml").edges

    assert edge.backward is not None
    assert (edge.forward.rate_bps, edge.backward.rate_bps) == (50 * 8192, 200 * 8192)
    assert (edge.forward.delay_s, edge.forward.jitter_s, edge.forward.loss) == (0.025, 0.004, 0.75)


LAB = """\
name: lab
topology:
  nodes:
    a: {{kind: {a}}}
    b: {{kind: {b}}}
  links:
    - endpoints: ['a:e1', 'b:e1']
"""


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("linux", "nokia_srlinux", ["server", "router"]),
        ("bridge", "linux", ["router", "server"]),
        ("linux", "linux", [None, None]),
        ("nokia_srlinux", "ceos", [None, None]),
    ],
)
def test_containerlab_kinds_tell_servers_where_they_differ(a: str, b: str, expected: list[str | None]) -> None:
    assert [vertex.role for vertex in read(LAB.format(a=a, b=b), "x.yml").vertices] == expected


def test_containerlab_kinds_come_from_groups_and_defaults() -> None:
    text = """
topology:
  defaults: {kind: ceos}
  groups: {hosts: {kind: linux}}
  nodes: {h: {group: hosts}, r: }
  links: [{endpoints: ["h:1", "r:1"]}, {endpoints: ["h:2", "host:x"]}, {type: dummy, endpoint: {node: h, interface: d}}]
"""
    graph = read(text, "x.yaml")

    assert [(vertex.key, vertex.role) for vertex in graph.vertices] == [("h", "server"), ("r", "router")]
    assert pairs(graph) == [("h", "r")]
    assert len(graph.notes) == 2


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("{endpoints: ['a:1', 'c:1']}", "links[1]: unknown node 'c'; topology.nodes has a and b"),
        ("{endpoints: ['a:1']}", "links[1]: 1 endpoints; a link has two"),
        ("{endpoints: [a, b]}", "links[1]: an endpoint is 'node:interface', found 'a'"),
        ("{endpoints: ['a:1', 'b:1'], vars: {rate: 100 mbps}}", "links[1]: rate: '100 mbps' is ambiguous"),
        ("17", "links[1]: expected keys and values"),
    ],
)
def test_containerlab_mistakes_are_named(link: str, message: str) -> None:
    assert message in refusal(LAB.format(a="linux", b="ceos") + f"    - {link}\n", "x.yml")


def kollaps(links: str, *, services: str = '<service name="a" image="i"/>', dynamic: str = "") -> str:
    return (
        f'<experiment boot="k"><services>{services}</services><bridges><bridge name="s"/></bridges>'
        f"<links>{links}</links><dynamic>{dynamic}</dynamic></experiment>"
    )


LINK = '<link origin="a" dest="s" latency="10" upload="{}" download="2Mbps" network="n"/>'


@pytest.mark.parametrize(("upload", "bps"), [("100Mbps", 100e6), ("9Kbps", 9e3), ("1Gbps", 1e9)])
def test_kollaps_rates_are_decimal(upload: str, bps: float) -> None:
    (edge,) = read(kollaps(LINK.format(upload)), "x.xml").edges

    assert edge.backward is not None
    assert (edge.forward.rate_bps, edge.backward.rate_bps, edge.forward.delay_s) == (bps, 2e6, 0.01)


@pytest.mark.parametrize(
    ("service", "events", "count"),
    [
        ("", "", 1),
        ('replicas="3"', "", 3),
        ('replicas="3"', '<schedule name="a" time="0" action="join" amount="2"/>', 2),
        ("", '<schedule name="a" time="9" action="leave"/><schedule name="a" time="0" action="join"/>'
             '<schedule name="a" time="10" action="join"/>', 1),
        ('reuse="false"', '<schedule name="a" time="9" action="leave"/><schedule name="a" time="0" action="join"/>'
             '<schedule name="a" time="10" action="join"/>', 2),
    ],
)  # fmt: skip
def test_kollaps_services_have_as_many_replicas_as_its_schedule_needs(service: str, events: str, count: int) -> None:
    text = kollaps(LINK.format("1Mbps"), services=f'<service name="a" image="i" {service}/>', dynamic=events)
    graph = read(text, "x.xml")

    assert sum(vertex.role == "server" for vertex in graph.vertices) == count
    assert len(graph.edges) == count
    assert any("scheduled events are not imported" in note for note in graph.notes) == bool(events)


def test_kollaps_replicas_that_share_a_link_share_it_behind_a_router() -> None:
    graph = read(
        kollaps(LINK.format("1Mbps"), services='<service name="a" image="i" replicas="2" share="true"/>'), "x.xml"
    )

    assert [vertex.label for vertex in graph.vertices if vertex.role == "router"] == ["s", "a shared 1"]
    assert pairs(graph) == [("a 1", "a shared 1"), ("a 2", "a shared 1"), ("a shared 1", "s")]
    assert [edge.forward.delay_s for edge in graph.edges] == [0, 0, 0.01]
    assert all(edge.forward.rate_bps == 1e6 for edge in graph.edges)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kollaps(LINK.format("100mbit")), "x.xml:1: upload '100mbit' is not a rate such as '100Mbps'"),
        (kollaps(LINK.format("1Mbps").replace('dest="s"', 'dest="t"')), "dest 't' is no service and no bridge"),
        (kollaps(LINK.format("1Mbps").replace("10", "-1")), "latency '-1' is negative"),
        (kollaps("", services='<service name="a" image="i" replicas="999999999"/>'), "at most 6000"),
        (kollaps("", services='<service name="a" image="i" replicas="0"/>'), "replicas '0' is not a whole number"),
        (kollaps("<lnik/>"), "x.xml:1: <lnik> under <links>; expected <link>"),
        (kollaps("", services='<service name="s" image="i"/>'), "a second service or bridge named 's'"),
    ],
)
def test_kollaps_mistakes_are_named(text: str, message: str) -> None:
    assert message in refusal(text, "x.xml")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from,to,rtt_ms\na,b,10\nb,c,20\n", "x.csv"),
        ("source;target;rtt\na;b;10\nb;c;20\n", "x.csv"),
        ("from,to,rtt_us\na,b,10000\nb,c,20000\n", "x.csv"),
        (",a,b,c\na,0,10,\nb,,0,20\nc,-,,0\n", "x.csv"),
        (
            "| ms | a | b | c |\n| --- | :---: | --- | --- |\n| **a** | | 10 | |\n| b | | 0.1 | 20 |\n| c | | | |\n",
            "x.md",
        ),
        ('{"a": {"a": 0, "b": 10, "c": null}, "b": {"c": 20}}', "x.json"),
        ('{"data": {"a": {"b": 10}, "b": {"c": 20.0}}}', "x.json"),
    ],
)
def test_round_trips_are_read_in_every_shape(text: str, name: str) -> None:
    graph = read(text, name)

    assert [(edge.a, edge.b, edge.forward.delay_s, edge.backward) for edge in graph.edges] == [
        ("a", "b", 0.005, graph.edges[0].forward),
        ("b", "c", 0.01, graph.edges[1].forward),
    ]
    assert any(note.startswith("1 of the file's 3 pairs have no round trip") for note in graph.notes)


def test_asymmetric_round_trips_are_halved_in_their_own_direction() -> None:
    (edge,) = read('{"a": {"b": 10}, "b": {"a": 30}}', "x.json").edges

    assert edge.backward is not None
    assert (edge.forward.delay_s, edge.backward.delay_s) == (0.005, 0.015)


@pytest.mark.parametrize(("how", "delay_s"), [("min", 0.001), ("median", 0.002), ("mean", 0.003)])
def test_several_round_trips_of_a_pair_become_the_one_that_is_asked_for(how, delay_s: float) -> None:
    text = "from,to,rtt\na,b,2\na,b,4\na,b,12\n"
    assert "a - b has 3 round trips (the second on line 3): say which to take with --repeated" in refusal(text, "x.csv")
    assert read(text, "x.csv", repeated=how).edges[0].forward.delay_s == delay_s


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("a,b,c\n1,2,3\n", "x.csv", "Say it with --columns FROM,TO,RTT; there are a, b, c"),
        ("Latitude,Longitude\n1,2\n", "x.csv", "a list of places, without links"),
        ("from,to,rtt\na,b,fast\n", "x.csv", "x.csv: line 2: a - b: 'fast' is not a number"),
        ("from,to,rtt\na,b,-3\n", "x.csv", "line 2: a - b: a round trip of -3"),
        ("from,to,rtt\na,b\n", "x.csv", "line 2: 2 columns, too few"),
        ("from,to,rtt\n,b,1\n", "x.csv", "line 2: a name is missing"),
        ("from,to,rtt\n", "x.csv", "a heading and at least one row"),
        ('{"a": {"b": NaN}}', "x.json", "NaN is not a number"),
        ('{"a": {"b": 1, "b": 2}}', "x.json", "'b' stands twice"),
        ('{"a": {"b": [1]}}', "x.json", "expected a number of milliseconds"),
        ('{"a": 1}', "x.json", "neither a node-link graph nor round trips"),
        ("[1, 2]", "x.json", "neither a node-link graph nor round trips"),
        ('{"a": ', "x.json", "x.json:1:7: not valid JSON"),
        (
            "| a | b |\n\n| c | d |\n",
            "two tables.md",
            "cut out the one you mean, for example the first with `sed -n 1,1p 'two",
        ),
    ],
)
def test_round_trip_mistakes_are_named(text: str, name: str, message: str) -> None:
    assert message in refusal(text, name)


def test_columns_are_chosen_by_name() -> None:
    text = "rtt_avg,x,y,rtt_max\n10,a,b,99\n"
    assert "--columns" in refusal(text, "x.csv")
    assert read(text, "x.csv", columns=("x", "y", "rtt_avg")).edges[0].forward.delay_s == 0.005
    assert "no column 'z'; there are rtt_avg, x, y, rtt_max" in refusal(text, "x.csv", columns=("x", "z", "rtt_avg"))
    gml = "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]"
    assert "this is gml" in refusal(gml, "x.gml", columns=("x", "y", "z"))


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("?SNDlib native format", "polska.txt", "SNDlib's native format is not read"),
        ("x-fogify: {}\nservices: {}\n", "docker-compose.yaml", "a Fogify file, which is not read"),
        ("network: {}\nhosts: {}\n", "shadow.yaml", "save what stands under 'network: graph: inline:' as graph.gml"),
        ("name: x\nnodes: {}\nlinks: []\n", "edge.yaml", "this is a topology file already"),
        ("a: 1\n", "x.yaml", "no containerlab file"),
        ("a: [1\n", "x.yaml", "x.yaml:2:1: not valid YAML"),
        ("<svg/>", "x.xml", "<svg> is neither GraphML nor a Kollaps experiment"),
        ("just words", "LICENSE", "not recognised as any of graphml, gml, nodelink"),
    ],
)
def test_what_is_not_read_is_refused_by_name(text: str, name: str, message: str) -> None:
    assert message in refusal(text, name)


def test_the_format_can_be_forced(tmp_path: Path) -> None:
    gml = "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]"
    assert pairs(read(gml, "x.dat", "gml")) == [("0", "1")]
    with pytest.raises(ImportRefusedError, match="not valid XML"):
        read(gml, "x.gml", "graphml")
    with pytest.raises(ImportRefusedError, match="is not a Kollaps experiment"):
        read("<graphml/>", "x.xml", "kollaps")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_files_are_unpacked(tmp_path: Path, pack) -> None:
    from testbed.importers.reading import read as read_file

    path = tmp_path / "x.gml.packed"
    path.write_bytes(pack(b"graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]"))
    assert pairs(read(read_file(path), path.name)) == [("0", "1")]
