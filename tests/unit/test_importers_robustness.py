"""Files that are hostile, broken or large: refused in a sentence, before memory is taken."""

from __future__ import annotations

import contextlib
import doctest
import gzip
import lzma
import pkgutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import importers
from testbed.errors import TestbedError
from testbed.generate import DEVICES
from testbed.importers import detect, names, reading, write
from testbed.importers.links import LEAST_RATE_BPS, MOST_DELAY_S, MOST_RATE_BPS, LinkChoices
from testbed.importers.pipeline import import_topology
from testbed.importers.reading import MAX_BYTES, ImportRefusedError
from testbed.importers.resolve import Choices
from testbed.importers.rtt import RttOptions
from testbed.load import TopologyError, parse_topology
from testbed.loading.kinds import is_name
from testbed.loading.problems import Position, Report
from testbed.units import bits_per_second, fraction, seconds

MESH = "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]"
ANSWERS = Choices(
    servers="all", device="l4", largest=True, links=LinkChoices(rate_bps=1e9, delay_s=1.0, parallel="sum")
)


def refusal(data: bytes, name: str) -> str:
    with pytest.raises(ImportRefusedError) as caught:
        detect.read_graph(data, name, None, RttOptions())
    return str(caught.value)


def refused(path: Path) -> str:
    with pytest.raises(ImportRefusedError) as caught:
        reading.read(path)
    return str(caught.value)


def test_a_document_type_is_refused_before_any_entity_grows() -> None:
    laughs = b'<?xml version="1.0"?>\n<!DOCTYPE g [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>\n<graphml>&b;</graphml>'
    assert refusal(laughs, "x.graphml").startswith("x.graphml:2: the file defines a document type (<!DOCTYPE g ...>)")
    outside = b'<!DOCTYPE g SYSTEM "file:///etc/hostname"><experiment/>'
    assert "document type" in refusal(outside, "x.xml")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_small_file_that_unpacks_into_a_huge_one_is_refused(tmp_path: Path, pack) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(pack(b"0" * (MAX_BYTES + 1)))
    assert refused(path) == "bomb.csv.gz: larger than 16 MiB; import a smaller network"


def test_a_broken_or_cut_packed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"graph [ ]")[:4] + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
    assert "cannot be unpacked" in refused(path)
    path.write_bytes(lzma.compress(b"graph [ ]")[:20])
    assert "the file is empty" in refused(path)


def test_size_and_kind_of_the_file_come_first(tmp_path: Path) -> None:
    (tmp_path / "large.gml").write_bytes(b" " * (MAX_BYTES + 1))
    (tmp_path / "empty.gml").write_bytes(b" \n")

    assert "larger than 16 MiB" in refused(tmp_path / "large.gml")
    assert refused(tmp_path / "empty.gml") == "empty.gml: the file is empty"
    assert "not a regular file" in refused(tmp_path)
    assert "no such file" in refused(tmp_path / "missing.gml")


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"graph [ " * 40, "x.gml", "nested more than 32 levels deep"),
        (b"graph [ node [ id 0 ]", "x.gml", "the file ends inside a list"),
        (b"graph [ ] ]", "x.gml", "']' was not expected here"),
        (b"graph [ node 7 7 ]", "x.gml", "'7' was not expected here"),
        (b'graph [ a "b ]', "x.gml", "not valid GML"),
        (b"graph [ node [ label 3 ] ]", "x.gml", "x.gml:1: this node has no 'id'"),
        (b"graph [ node [ id 0 ] node [ id 0 ] ]", "x.gml", "a second node with the id '0'"),
        (b"graph [ node [ id 0 ] edge [ source 0 target 9 ] ]", "x.gml", "the edge leads to '9', which is no node"),
        (b"graph [ node [ id 0 ] ]", "x.gml", "1 nodes and 0 edges"),
        (b"graph [\n\xff ]", "x.gml", "x.gml:2: not UTF-8 text (byte 0xff)"),
        (b"<graphml>" * 40, "x.xml", "nested more than 32 levels deep"),
        (b"<graphml><graph></graphml>", "x.xml", "x.xml:1: not valid XML: mismatched tag"),
        (b"<graphml/>", "x.graphml", "0 graphs in one file"),
        (b"<graphml><graph><hyperedge/></graph></graphml>", "x.graphml", "a hyperedge is not read"),
        (b"<graphml><graph><node/></graph></graphml>", "x.graphml", "<node> has no 'id'"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "x.xml", "x.xml"),
        (b"[" * 100_000, "x.json", "nested too deep"),
        (b'{"nodes": [1], "edges": []}', "x.json", "nodes[0]: expected a JSON object"),
        (b"topology: {nodes: &a {x: *a}}", "x.yml", "'*a' is used inside its own value"),
        (b"topology: !!python/object:os.system {}", "x.yml", "the tag '!!python/object:os.system' has no meaning here"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_in_a_sentence(data: bytes, name: str, message: str) -> None:
    assert message in refusal(data, name)


def test_more_nodes_than_a_topology_has_are_refused() -> None:
    nodes = " ".join(f"node [ id {number} ]" for number in range(6001))
    assert "6001 nodes; a topology has at most 6000" in refusal(f"graph [ {nodes} ]".encode(), "x.gml")


def test_more_elements_than_a_network_needs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.importers.xmltree.MAX_ITEMS", 10)
    monkeypatch.setattr("testbed.importers.gml.MAX_ITEMS", 10)

    assert "more than 10 elements" in refusal(b"<graphml>" + b"<x/>" * 20 + b"</graphml>", "x.xml")
    assert "more than 10 values" in refusal(b"graph [ " + b"a 1 " * 40 + b"]", "x.gml")


LABELS = st.text(st.characters(codec="utf-8", exclude_characters='"'), max_size=30)


@given(labels=st.lists(LABELS, min_size=2, max_size=5))
def test_no_label_can_break_the_file_that_is_written(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str]
) -> None:
    path = tmp_path_factory.mktemp("labels") / "x.gml"
    nodes = "".join(f'node [ id {number} label "{label}" ]\n' for number, label in enumerate(labels))
    edges = "".join(f'edge [ source 0 target {n} LinkLabel "{labels[n]}" ]\n' for n in range(1, len(labels)))
    path.write_text(f"graph [ {nodes} {edges} ]", encoding="utf-8", newline="")
    net = import_topology(path, ANSWERS, command="testbed import $'a\nlinks: []'").topology

    assert len(net.nodes) == len(labels)
    assert len(net.links) == len(labels) - 1


@given(labels=st.lists(LABELS, max_size=40))
def test_every_label_gets_a_name_of_its_own_that_the_loader_takes(labels: list[str]) -> None:
    derived = names.derive(labels)
    report = Report()

    assert len(set(derived)) == len(labels)
    assert all(is_name(name, Position(1, 1), "", report) for name in derived)
    assert all(names.is_usable(name) for name in derived)


def test_thousands_of_equal_labels_are_numbered() -> None:
    assert names.derive(["a-rather-long-label"] * 6000)[-1] == "a-rather-l-6000"


@given(value=st.floats(1e3, 1e13) | st.integers(1_000, 10**13).map(float))
def test_a_rate_is_written_exactly(value: float) -> None:
    assert bits_per_second(write.rate(value)) == value


@given(value=st.just(0.0) | st.floats(1e-15, 60) | st.integers(0, 60 * 10**9).map(lambda ns: ns / 1e9))
def test_a_delay_is_written_exactly(value: float) -> None:
    assert seconds(write.delay(value)) == value


@given(value=st.just(0.0) | st.floats(1e-15, 1))
def test_a_share_is_written_exactly(value: float) -> None:
    assert fraction(write.share(value)) == value


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        (f"rate: {LEAST_RATE_BPS} bit/s, delay: {MOST_DELAY_S} s, jitter: {MOST_DELAY_S} s", True),
        (f"rate: {MOST_RATE_BPS} bit/s, delay: 0 s", True),
        (f"rate: {LEAST_RATE_BPS * 0.999} bit/s, delay: 0 s", False),
        (f"rate: {MOST_RATE_BPS * 1.001} bit/s, delay: 0 s", False),
        (f"rate: 1 Gbit/s, delay: {MOST_DELAY_S * 1.001} s", False),
        (f"rate: 1 Gbit/s, delay: 0 s, jitter: {MOST_DELAY_S * 1.001} s", False),
    ],
)
def test_our_ranges_are_those_of_the_loader(values: str, taken: bool) -> None:
    nodes = "nodes: {a: {device: l4}, b: {device: l4}}"
    text = f"name: x\ndevices:\n{DEVICES}{nodes}\nlinks: [{{between: [a, b], {values}}}]\n"
    with contextlib.nullcontext() if taken else pytest.raises(TopologyError, match=r"too (small|large)"):
        parse_topology(text)


FRAGMENTS = [
    "graph",
    "[",
    "]",
    "node",
    "id",
    "0",
    '"',
    "<graphml>",
    "</",
    "{",
    "}",
    ":",
    ",",
    "\n",
    "|",
    "from,to,rtt",
    "a",
]


@given(
    parts=st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=4).map(lambda b: b.decode("latin-1")), max_size=30)
)
@pytest.mark.parametrize("name", ["x.gml", "x.graphml", "x.json", "x.csv", "x.yml", "x.md", "x"])
def test_whatever_is_in_a_file_ends_in_a_network_or_in_a_sentence(name: str, parts: list[str]) -> None:
    with contextlib.suppress(TestbedError):  # any other exception fails
        detect.read_graph(" ".join(parts).encode(), name, None, RttOptions())


@given(data=st.binary(max_size=200), form=st.sampled_from(detect.FORMATS))
def test_whatever_is_forced_into_a_format_ends_in_a_network_or_in_a_sentence(data: bytes, form: detect.Form) -> None:
    with contextlib.suppress(TestbedError):
        detect.read_graph(data, "x", form, RttOptions())


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(importers.__path__)])
def test_the_examples_of_the_modules_hold(module: str) -> None:
    found = __import__(f"testbed.importers.{module}", fromlist=["_"])
    assert doctest.testmod(found).failed == 0
