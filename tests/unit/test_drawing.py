"""Pictures and Mermaid texts of topologies: everything is in them, nothing covers anything, and they repeat."""

from __future__ import annotations

import doctest
import io
import itertools
import pkgutil
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from testbed import drawing, generate
from testbed.drawing import layout as layouts
from testbed.drawing.layout import layout
from testbed.drawing.legend import ALERT
from testbed.drawing.mermaid import beyond_mermaid, mermaid
from testbed.drawing.picture import picture, save
from testbed.drawing.view import View
from testbed.errors import TestbedError
from testbed.load import load_topology, parse_topology
from testbed.topology import Device, Direction, Link, Node, Topology

ROOT = Path(__file__).parents[2]
DEVICE = Device(
    peak_flops_per_s=1e13, memory_bytes_per_s=1e11, fast_bytes=10**10, slow_bytes=10**11, load_bytes_per_s=1e10
)
THERE = Direction(rate_bps=1e9, delay_s=0.002)


def network(pairs: list[tuple[int, int]], *, metro: str = "", name: str = "net") -> Topology:
    count = 1 + max(itertools.chain([0], *pairs))
    nodes = tuple(Node(name=f"n{i}", device=DEVICE, metro=metro) for i in range(count))
    links = tuple(Link(a=f"n{a}", b=f"n{b}", forward=THERE, backward=THERE) for a, b in pairs)
    return Topology(name=name, nodes=nodes, links=links)


def chain(count: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise(range(count)))


def mesh(count: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(count), 2))


GRID = [(6 * i + j, 6 * i + j + 1) for i in range(5) for j in range(5)] + [(i, i + 6) for i in range(24)]
CASES = {
    "small3": load_topology(ROOT / "topologies/small3.yaml"),
    "edge10": load_topology(ROOT / "topologies/edge10.yaml"),
    "metro-routers": load_topology(ROOT / "topologies/metro-routers.yaml"),
    "sixty servers": parse_topology(generate.generate(servers=60), "generated"),
    "300 servers": parse_topology(generate.generate(servers=300), "generated"),
    "one": network([]),
    "two": network([(0, 1)]),
    "a line": network(chain(10)),
    "a star": network([(0, i) for i in range(1, 9)]),
    "a large star": network([(0, i) for i in range(1, 120)]),
    "a ring": network([*chain(12), (0, 11)]),
    "a grid": network(GRID),
    "a mesh": network(mesh(16)),
    "a tree of 300": network([((i - 1) // 3, i) for i in range(1, 300)]),
    "a chain in a metro": network(chain(8), metro="here"),
}


def drawn(view: View, form: str) -> bytes:
    file = io.BytesIO()
    save(picture(view), file, form)
    return file.getvalue()


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(drawing.__path__)])
def test_the_examples_of_the_modules_hold(module: str) -> None:
    found = __import__(f"testbed.drawing.{module}", fromlist=["_"])
    assert doctest.testmod(found).failed == 0


@pytest.mark.parametrize("case", CASES)
def test_nodes_keep_their_distance(case: str) -> None:
    places = np.array(list(layout(CASES[case]).places.values()))
    apart = np.hypot(*np.moveaxis(places[:, None] - places[None, :], 2, 0)) + np.where(np.eye(len(places)), 9, 0)
    assert apart.min() > 0.55  # a node is half a unit across


@pytest.mark.parametrize("case", CASES)
def test_no_text_covers_another_or_leaves_the_paper(case: str) -> None:
    figure = picture(View(topology=CASES[case]))
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]

    assert len(boxes) > 2
    width, height = figure.get_size_inches() * figure.dpi
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    covered = [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert covered == []


def test_every_node_stands_in_its_metro_and_metros_do_not_meet() -> None:
    placed = layout(CASES["300 servers"])
    disc_of = {disc.name: disc for disc in placed.discs}

    for node in CASES["300 servers"].nodes:
        disc = disc_of[node.metro]
        assert np.hypot(*np.subtract(placed.places[node.name], disc.centre)) < disc.radius
    for a, b in itertools.combinations(placed.discs, 2):
        assert np.hypot(*np.subtract(a.centre, b.centre)) > a.radius + b.radius


def test_what_is_near_stands_near() -> None:
    centres = {disc.name: disc.centre for disc in layout(CASES["edge10"]).discs}
    apart = {
        pair: np.hypot(*np.subtract(centres[pair[0]], centres[pair[1]])) for pair in itertools.combinations(centres, 2)
    }
    assert min(apart, key=lambda pair: apart[pair]) == ("northport", "eastvale")


def test_a_line_is_straight_and_lies_flat() -> None:
    places = layout(network(chain(7))).places
    assert max(abs(y) for _, y in places.values()) < 0.01
    assert [x for x, _ in places.values()] == sorted(x for x, _ in places.values())


def test_links_of_a_mesh_lead_past_other_nodes() -> None:
    topology = CASES["edge10"]
    places = layout(topology).places
    for link in topology.links:
        a, b = np.array(places[link.a]), np.array(places[link.b])
        for name in places.keys() - {link.a, link.b}:
            share = np.clip(np.dot(np.array(places[name]) - a, b - a) / np.dot(b - a, b - a), 0, 1)
            assert np.hypot(*(np.array(places[name]) - a - share * (b - a))) > 0.2


def test_the_same_topology_is_the_same_picture() -> None:
    view = View(topology=CASES["metro-routers"])
    assert drawn(view, "svg") == drawn(view, "svg")
    assert drawn(view, "png") == drawn(view, "png")


def test_text_in_svg_is_text() -> None:
    root = ElementTree.fromstring(drawn(View(topology=CASES["metro-routers"]), "svg"))  # noqa: S314 - our own
    found = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}

    assert {"northport", "s1", "north", "5 Gbit/s, 0.3 ms", "router", "one-way delay (ms)"} <= found


def test_rates_are_widths_and_delays_are_colours() -> None:
    axes = picture(View(topology=CASES["small3"])).axes[0]
    lines = {tuple(line.get_xdata()): line for line in axes.lines if len(line.get_xdata()) == 2}

    assert sorted(round(line.get_linewidth(), 1) for line in lines.values()) == [0.8, 1.8, 5.0]
    assert len({line.get_color() for line in lines.values()}) == 3


def test_a_link_that_differs_by_direction_is_two_lines_with_arrows() -> None:
    one = network([(0, 1)])
    (link,) = one.links
    faster = Link(a=link.a, b=link.b, forward=Direction(rate_bps=4e9, delay_s=0.002), backward=link.backward)
    figure = picture(View(topology=Topology(name="two", nodes=one.nodes, links=(faster,))))

    assert sum(len(line.get_xdata()) == 2 for line in figure.axes[0].lines) == 2
    assert sum(isinstance(line.get_marker(), tuple) for line in figure.axes[0].lines) == 2
    assert any("n0 → n1: 4 Gbit/s, 2 ms" in text for text in words(figure))


def test_changed_links_and_broken_nodes_are_marked() -> None:
    topology = CASES["small3"]
    shaping = {
        (link.name, source): way
        for link in topology.links
        for source, way in ((link.a, link.forward), (link.b, link.backward))
    }
    shaping["s1-s2", "s1"] = Direction(rate_bps=1e7, delay_s=0.03)
    del shaping["s2-s3", "s3"]
    view = View(topology=topology, shaping=shaping, broken=frozenset({"s3"}))
    figure = picture(view)

    red = [text.get_text() for text in figure.axes[0].texts if text.get_color() == ALERT]
    assert any("s1 → s2: 10 Mbit/s, 30 ms" in text for text in red)
    assert "s2-s3 is not shaped" in red
    assert "s3" in red
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-3:] == ["broken", "changed since up", "not shaped"]

    text = mermaid(view)
    assert '"s1 → s2: 10 Mbit/s, 30 ms (changed)<br/>s2 → s1: 1 Gbit/s, 2 ms"' in text
    assert '-.-|"500 Mbit/s, 6 ms (not shaped)"|' in text
    assert re.search(r'n_s3\(\["s3.*"\]\):::broken', text)
    assert "linkStyle 0,1 stroke:" in text


def test_what_finds_no_room_is_counted() -> None:
    assert "Left out for lack of room: devices and users; rate and delay of all 316 links." in words(
        picture(View(topology=CASES["300 servers"]))
    )
    assert not any("Left out" in text for text in words(picture(View(topology=CASES["small3"]))))
    ends = mesh(60)
    names = [f"with-a-name-{i:03}" for i in range(60)]
    crowd = Topology(
        name="crowd",
        nodes=tuple(Node(name=name, device=DEVICE) for name in names),
        links=tuple(Link(a=names[a], b=names[b], forward=THERE, backward=THERE) for a, b in ends),
    )
    figure = picture(View(topology=crowd), width_in=4.0)
    (said,) = (text for text in words(figure) if text.startswith("Left out"))
    assert re.match(r"Left out for lack of room: names of \d+ of 60 nodes; ", said)


def test_a_dollar_is_a_dollar() -> None:
    assert b"$x_1$" in drawn(View(topology=network([(0, 1)], metro="$x_1$")), "svg")


def test_too_many_nodes_without_metro_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MAX_GROUPS", 9)
    with pytest.raises(TestbedError, match="net: 10 nodes and metros are more than a picture can show"):
        picture(View(topology=network(chain(10))))


@pytest.mark.parametrize("case", CASES)
def test_mermaid_has_every_node_and_link_once(case: str) -> None:
    text, topology = mermaid(View(topology=CASES[case])), CASES[case]

    nodes = re.findall(r'^ +(n_[a-z0-9_]+)(?:\(\["|\[")', text, re.MULTILINE)
    assert len(set(nodes)) == len(nodes) == len(topology.nodes)
    ends = re.findall(r'^  (n_[a-z0-9_]+) ---\|"[^"|]+"\| (n_[a-z0-9_]+)$', text, re.MULTILINE)
    assert len(ends) == len(topology.links)
    assert {end for pair in ends for end in pair} <= set(nodes)
    metros = {node.metro for node in topology.nodes} - {""}
    assert text.count("subgraph ") == text.count("\n  end\n") == len(metros)


def test_mermaid_escapes_what_people_write() -> None:
    text = mermaid(View(topology=network([(0, 1)], metro='a "b" #1 <c> `d`\n\\')))
    assert 'subgraph m1["a #34;b#34; #35;1 #60;c#62; #96;d#96; #92;"]' in text


def test_a_mermaid_text_that_pages_do_not_draw_is_told() -> None:
    small, large = View(topology=CASES["small3"]), View(topology=network(mesh(33)))
    assert beyond_mermaid(small, mermaid(small)) == ""
    assert "here are 528 and" in beyond_mermaid(large, mermaid(large))
