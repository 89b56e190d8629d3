"""From a file and options to a network: nothing is made up, and every question comes with its answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testbed.generate import DEVICES
from testbed.importers.links import LinkChoices
from testbed.importers.pipeline import Imported, import_topology
from testbed.importers.reading import ImportRefusedError
from testbed.importers.resolve import DEVICE_CLASSES, Choices
from testbed.topology import Topology

PARIS, LYON, ROME = (48.85, 2.35), (45.76, 4.84), (41.9, 12.5)


def zoo(
    nodes: list[tuple[str, tuple[float, float] | None]],
    edges: list[tuple[int, int, float | None]],
    *,
    directed: int = 0,
) -> str:
    """GML as the Zoo writes it."""
    lines = ["graph [", f"  directed {directed}"]
    for number, (label, place) in enumerate(nodes):
        at = f" Latitude {place[0]} Longitude {place[1]}" if place else ""
        lines.append(f'  node [ id {number} label "{label}"{at} ]')
    for source, target, rate_bps in edges:
        speed = "" if rate_bps is None else f" LinkSpeedRaw {rate_bps}"
        lines.append(f"  edge [ source {source} target {target}{speed} ]")
    return "\n".join([*lines, "]", ""])


TRIANGLE = zoo([("Paris", PARIS), ("Lyon", LYON), ("Rome", ROME)], [(0, 1, 1e9), (1, 2, 1e9), (0, 2, 1e9)])
LINE = zoo([("Paris", PARIS), ("Lyon", LYON), ("Rome", ROME)], [(0, 1, 1e9), (1, 2, 2e9)])


@pytest.fixture
def bring(tmp_path: Path):
    """Import a text as a file of that name."""

    def run(text: str, *, name: str = "net.gml", title: str = "", links: dict | None = None, **choices) -> Imported:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        chosen = {"servers": "all", "device": "l4", **choices}
        return import_topology(path, Choices(links=LinkChoices(**(links or {})), **chosen), name=title)

    return run


def roles(net: Topology) -> dict[str, str]:
    return {node.name: node.kind for node in net.nodes}


def test_a_file_without_any_number_is_refused_once_with_every_option(bring) -> None:
    text = zoo([("a", None), ("b", None), ("c", None), ("d", None)], [(0, 1, None), (0, 1, None), (2, 3, None)])
    with pytest.raises(ImportRefusedError) as caught:
        bring(text, servers="", device="")

    message = str(caught.value)
    assert message.startswith("net.gml cannot be imported as it stands:\n  - ")
    for option in ("--servers", "--device", "--rate", "--delay", "--parallel", "--largest"):
        assert option in message
    assert "(a and b), (c and d)" in message
    assert "line 7 (a - b) and line 8 (a - b)" in message


def test_the_options_answer_all_of_it(bring) -> None:
    text = zoo([("a", None), ("b", None), ("c", None), ("d", None)], [(0, 1, None), (0, 1, None), (2, 3, None)])
    net = bring(text, largest=True, links={"rate_bps": 1e9, "delay_s": 0.002, "parallel": "first"}).topology

    assert roles(net) == {"a": "server", "b": "server"}
    assert (net.links[0].forward.rate_bps, net.links[0].forward.delay_s) == (1e9, 0.002)


def test_only_what_is_missing_comes_from_the_options(bring) -> None:
    text = zoo([("a", PARIS), ("b", LYON), ("c", None)], [(0, 1, 5e8), (1, 2, None)])
    imported = bring(text, links={"rate_bps": 1e9, "delay_s": 0.002})

    known, asked = imported.topology.link("a-b").forward, imported.topology.link("b-c").forward
    assert known.rate_bps == 5e8
    assert known.delay_s == pytest.approx(392e3 / (299_792_458 * 2 / 3), rel=0.01)
    assert (asked.rate_bps, asked.delay_s) == (1e9, 0.002)
    header = re.sub(r"\s*\n# +", " ", imported.text)
    assert "of 1 link from the file (LinkSpeedRaw" in header
    assert "of 1 link from --rate 1 Gbit/s" in header
    assert "of 1 link from --delay 2 ms" in header


def test_an_option_without_effect_is_mentioned(bring) -> None:
    notes = bring(LINE, links={"rate_bps": 1e6, "delay_s": 1.0}).notes
    assert "--rate had no effect: the file gives every link's rate" in notes
    assert any(note.startswith("--delay had no effect") for note in notes)

    notes = bring(zoo([("a", None), ("b", None)], [(0, 1, 1e9)]), links={"delay_s": 0.1, "route_factor": 2.0}).notes
    assert any(note.startswith("--delay-per-km and --route-factor had no effect") for note in notes)


@pytest.mark.parametrize(("factor", "per_km_s"), [(1.3, None), (None, 7e-6), (2.0, 4e-6)])
def test_delays_follow_the_route_factor_and_the_delay_of_a_km(bring, factor, per_km_s) -> None:
    plain = bring(LINE).topology.links[1].forward.delay_s
    changed = bring(LINE, links={"route_factor": factor, "per_km_s": per_km_s}).topology.links[1].forward.delay_s

    expected = plain * (factor or 1) * (per_km_s or 5.0035e-6) / 5.0035e-6
    assert changed == pytest.approx(expected, rel=1e-3)


def test_two_nodes_at_one_place_have_no_delay(bring) -> None:
    net = bring(zoo([("a", PARIS), ("b", PARIS)], [(0, 1, 1e9)])).topology
    assert net.links[0].forward.delay_s == 0


def test_leaves_are_servers_and_the_others_routers(bring) -> None:
    assert roles(bring(LINE, servers="leaves").topology) == {"paris": "server", "lyon": "router", "rome": "server"}
    with pytest.raises(ImportRefusedError, match="no node has just one link"):
        bring(TRIANGLE, servers="leaves")


@pytest.mark.parametrize("written", ["paris,rome", "Paris, Rome", "0,2"])
def test_servers_are_named_by_name_label_or_id(bring, written: str) -> None:
    assert roles(bring(TRIANGLE, servers=written).topology) == {"paris": "server", "lyon": "router", "rome": "server"}


def test_an_unknown_name_is_refused_with_the_near_one(bring) -> None:
    with pytest.raises(ImportRefusedError, match="--servers: no node 'pari'; did you mean 'paris'"):
        bring(TRIANGLE, servers="pari")
    with pytest.raises(ImportRefusedError, match="--only: no node 'zzz'; there are paris, lyon and rome"):
        bring(TRIANGLE, only="zzz")


def test_devices_are_dealt_in_turn_and_are_those_of_edge10(bring) -> None:
    imported = bring(TRIANGLE, device="l4,gateway")

    peaks = [node.device.peak_flops_per_s for node in imported.topology.servers]
    assert peaks == [120e12, 18e12, 120e12]
    assert "orin" not in imported.text
    assert re.findall(r"^  (\S+):", DEVICES, re.MULTILINE) == list(DEVICE_CLASSES)
    with pytest.raises(ImportRefusedError, match="unknown class 'l5'; there are l4, rtx3090"):
        bring(TRIANGLE, device="l5")


def test_parallel_links_are_merged_as_the_user_says(bring) -> None:
    text = zoo([("a", PARIS), ("b", LYON)], [(0, 1, 1e9), (1, 0, 3e9), (0, 1, 2e9)])

    def merged(how: str) -> tuple[float, float]:
        link = bring(text, links={"parallel": how}).topology.links[0]
        return link.forward.rate_bps, link.backward.rate_bps

    assert (merged("first"), merged("fastest"), merged("sum")) == ((1e9, 1e9), (3e9, 3e9), (6e9, 6e9))
    with pytest.raises(ImportRefusedError, match=r"--parallel first, fastest, or sum .*line 5 \(a - b\) and line 6"):
        bring(text)


def test_the_sum_of_unequal_directions_keeps_the_directions_apart(bring) -> None:
    text = (
        '<experiment boot="x"><services><service name="a" image="i"/><service name="b" image="i"/></services><links>'
        '<link origin="a" dest="b" latency="1" upload="1Mbps" download="10Mbps"/>'
        '<link origin="b" dest="a" latency="1" upload="20Mbps" download="2Mbps"/></links></experiment>'
    )
    link = bring(text, name="x.xml", servers="", links={"parallel": "sum"}).topology.link("a-b")

    assert (link.forward.rate_bps, link.backward.rate_bps) == (3e6, 30e6)


def test_pieces_are_named_and_the_largest_is_kept(bring) -> None:
    text = zoo([("x", PARIS), ("a", PARIS), ("b", LYON), ("c", ROME)], [(1, 2, 1e9), (2, 3, 1e9)])
    with pytest.raises(
        ImportRefusedError, match=r"in 2 pieces that no link connects: \(a, b and c\), \(x\); .*--largest"
    ):
        bring(text)
    imported = bring(text, largest=True)

    assert [node.name for node in imported.topology.nodes] == ["a", "b", "c"]
    assert any("left out by --largest: x" in note for note in imported.notes)


def test_only_keeps_the_named_nodes_and_the_links_between_them(bring) -> None:
    net = bring(TRIANGLE, only="paris,rome").topology
    assert [link.name for link in net.links] == ["paris-rome"]


def test_equal_labels_become_different_names_and_are_reported(bring) -> None:
    imported = bring(
        zoo([("Springfield", PARIS), ("Springfield", LYON), ("springfield", ROME)], [(0, 1, 1e9), (1, 2, 1e9)])
    )

    assert [node.name for node in imported.topology.nodes] == ["springfield", "springfield-2", "springfield-3"]
    assert "2 nodes are labelled 'Springfield': springfield and springfield-2" in imported.notes


def test_labels_stand_beside_the_names_and_long_ones_are_listed(bring) -> None:
    imported = bring(zoo([("Hradec Kralove Czech", PARIS), ("42", LYON)], [(0, 1, 1e9)]))

    assert "  hradec-kralove: {device: l4}  # Hradec Kralove Czech\n" in imported.text
    assert any("'Hradec Kralove Czech' is hradec-kralove and '42' is n42" in note for note in imported.notes)


def test_norway_is_a_node_and_not_a_boolean(bring) -> None:
    net = bring(zoo([("NO", PARIS), ("SE", LYON), ("null", ROME)], [(0, 1, 1e9), (1, 2, 1e9)])).topology
    assert [link.name for link in net.links] == ["no-se", "se-null"]


def test_links_never_share_a_name(bring) -> None:
    net = bring(
        zoo([("a b", PARIS), ("c", LYON), ("a", ROME), ("b c", PARIS)], [(0, 1, 1e9), (2, 3, 1e9), (0, 2, 1e9)])
    ).topology
    assert len({link.name for link in net.links}) == 3


def test_ways_there_and_back_of_a_directed_graph_become_one_link(bring) -> None:
    nodes = [("a", PARIS), ("b", LYON)]
    link = bring(zoo(nodes, [(0, 1, 1e9), (1, 0, 2e9)], directed=1)).topology.link("a-b")
    assert (link.forward.rate_bps, link.backward.rate_bps) == (1e9, 2e9)

    with pytest.raises(ImportRefusedError, match=r"one way only: 1 link.*line 5 \(a - b\)"):
        bring(zoo(nodes, [(0, 1, 1e9)], directed=1))


@pytest.mark.parametrize(
    ("rate_bps", "message"),
    [
        (12, r"line 7 \(Lyon - Rome\): a rate of 12 bit/s is out of range: 1 kbit/s to 10 Tbit/s"),
        (2e13, r"line 7 \(Lyon - Rome\): a rate of 20 Tbit/s is out of range"),
        (-1, r"line 7 \(Lyon - Rome\): a rate of -1"),
    ],
)
def test_a_rate_out_of_range_is_refused_with_its_link(bring, rate_bps: float, message: str) -> None:
    with pytest.raises(ImportRefusedError, match=message):
        bring(zoo([("Paris", PARIS), ("Lyon", LYON), ("Rome", ROME)], [(0, 1, 1e9), (1, 2, rate_bps)]))


def test_a_delay_out_of_range_is_refused_with_its_link(bring) -> None:
    with pytest.raises(ImportRefusedError, match="a - b: a delay of 61 s is out of range: 0 s to 60 s"):
        bring(json.dumps({"a": {"b": 122_000}}), name="r.json", links={"rate_bps": 1e9})


def test_a_name_of_the_topology_is_checked(bring) -> None:
    assert bring(TRIANGLE, title="mine").topology.name == "mine"
    with pytest.raises(ImportRefusedError, match="--name 'My Net': a name starts with"):
        bring(TRIANGLE, title="My Net")
    assert bring(TRIANGLE, name="2024 Net (v2).gml").topology.name == "n2024-net-v2"


def test_more_links_than_a_topology_file_holds_are_refused(bring) -> None:
    names = [f"n{number}" for number in range(220)]
    matrix = {a: dict.fromkeys(names, 10) for a in names}
    with pytest.raises(ImportRefusedError, match=r"24090 links are more .*--only NAME,NAME"):
        bring(json.dumps(matrix), name="r.json", links={"rate_bps": 1e9})
    net = bring(json.dumps(matrix), name="r.json", links={"rate_bps": 1e9}, only="n1,n2,n3").topology
    assert len(net.links) == 3


def test_the_file_says_where_it_comes_from_without_naming_this_machine(bring, tmp_path: Path) -> None:
    text = bring(TRIANGLE).text

    assert text.startswith("# Imported from net.gml (gml).\n")
    assert str(tmp_path) not in text
    for kind in ("Rates:", "Delays, one way:", "Jitter:", "Loss:", "Devices:", "Users:"):
        assert kind in text
