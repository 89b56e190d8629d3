"""Kollaps (formerly NEED) experiments: services are servers, bridges are routers, links have upload and download.

    origin -> dest has the upload, dest -> origin the download; latency and jitter in ms, one way; drop a probability

A service with several replicas becomes that many servers.  Where the service says ``share="true"`` its replicas share
each link: a router stands between them and it.  As in Kollaps, a ``<dynamic>`` section that lets replicas join decides
how many there are: as many as are present at once, or as ever join where ``reuse="false"``.  Its events themselves are
counted and left out; scenarios change links at run time here.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from testbed.importers.graph import Edge, Flow, Graph, Vertex
from testbed.importers.reading import MAX_ITEMS, ImportRefusedError, check_count, number
from testbed.importers.xmltree import Element

#: The parts of an experiment, and what stands in each.
_SECTIONS = {"services": "service", "bridges": "bridge", "links": "link", "dynamic": "schedule"}
_BPS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_MS_PER_S = 1e3
_LEAVING = ("leave", "crash")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A service's replicas, or one bridge."""

    keys: tuple[str, ...]
    shared: bool = False  # the replicas go over one link together


def read_kollaps(root: Element, filename: str) -> Graph:
    """The network of an experiment."""
    for child in root.children:
        if child.tag not in _SECTIONS:
            raise ImportRefusedError(f"{filename}:{child.line}: <{child.tag[:40]}> is no part of a Kollaps experiment")
        for entry in child.children:
            if entry.tag != _SECTIONS[child.tag]:
                found, expected = f"<{entry.tag[:40]}> under <{child.tag}>", f"<{_SECTIONS[child.tag]}>"
                raise ImportRefusedError(f"{filename}:{entry.line}: {found}; expected {expected}")
    parts = {name: [child for section in root.named(name) for child in section.children] for name in _SECTIONS}
    services, bridges, links = parts["services"], parts["bridges"], parts["links"]
    notes: list[str] = []
    vertices: list[Vertex] = []
    groups: dict[str, _Group] = {}
    for service in services:
        name = _text(service, "name", filename)
        _check_new(name, groups, service, filename)
        if "supervisor" in service.attributes:
            notes.append(f"service {name} supervises the experiment and is not part of its network; left out")
            continue
        count = _replicas(service, parts["dynamic"], filename)
        check_count(len(vertices) + count, filename)
        keys = tuple(name if count == 1 else f"{name} {number}" for number in range(1, count + 1))
        groups[name] = _Group(keys=keys, shared=count > 1 and service.attributes.get("share") == "true")
        vertices += [Vertex(key=key, label=key, role="server") for key in keys]
        if count != 1:
            notes.append(f"service {name} has {count} replicas")
    for bridge in bridges:
        name = _text(bridge, "name", filename)
        _check_new(name, groups, bridge, filename)
        groups[name] = _Group(keys=(name,))
        vertices.append(Vertex(key=name, label=name, role="router"))
    check_count(len(vertices), filename)
    edges = list(itertools.islice(_edges(links, groups, vertices, filename), MAX_ITEMS + 1))
    if len(edges) > MAX_ITEMS:
        raise ImportRefusedError(f"{filename}: more than {MAX_ITEMS} links between replicas")
    notes += _events(parts["dynamic"])
    return Graph(
        vertices=tuple(vertices),
        edges=tuple(edges),
        sources={
            "rates": "upload and download",
            "delays": "latency in ms, one way",
            "jitter": "jitter in ms",
            "loss": "drop",
        },
        notes=tuple(notes),
    )


def _edges(links: list[Element], groups: Mapping[str, _Group], vertices: list[Vertex], filename: str) -> Iterator[Edge]:
    """The links between replicas; where replicas share one, ``vertices`` gets the router that joins them."""
    for link in links:
        origin, dest = (_end(link, side, groups, filename) for side in ("origin", "dest"))
        forward, backward = _flows(link, filename)
        where = f"line {link.line}"
        joined = []
        for side, group in (("origin", origin), ("dest", dest)):
            if not group.shared:
                joined.append(group.keys)
                continue
            hub = f"{link.attributes[side]} shared {link.line}"
            vertices.append(Vertex(key=hub, label=hub, role="router"))
            out, back = (forward, backward) if side == "origin" else (backward, forward)
            for key in group.keys:
                yield Edge(
                    a=key,
                    b=hub,
                    forward=Flow(rate_bps=(out or forward).rate_bps, delay_s=0.0),
                    backward=None if back is None else Flow(rate_bps=back.rate_bps, delay_s=0.0),
                    where=where,
                )
            joined.append((hub,))
        for a, b in itertools.product(*joined):
            yield Edge(a=a, b=b, forward=forward, backward=backward, where=where)


def _flows(link: Element, filename: str) -> tuple[Flow, Flow | None]:
    def given(name: str) -> float:
        written = link.attributes.get(name, "0")
        value = number(written, f"{filename}:{link.line}: {name}")
        if value < 0:
            raise ImportRefusedError(f"{filename}:{link.line}: {name} {written!r} is negative")
        return value

    delay_s = given("latency") / _MS_PER_S if "latency" in link.attributes else None
    jitter_s, loss = given("jitter") / _MS_PER_S, given("drop")

    def flow(name: str) -> Flow:
        return Flow(rate_bps=_rate_bps(link, name, filename), delay_s=delay_s, jitter_s=jitter_s, loss=loss)

    return flow("upload"), flow("download") if "download" in link.attributes else None


def _rate_bps(link: Element, name: str, filename: str) -> float | None:
    written = link.attributes.get(name)
    if written is None:
        return None
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]?)bps", written.strip())
    if match is None:
        raise ImportRefusedError(f"{filename}:{link.line}: {name} {written[:40]!r} is not a rate such as '100Mbps'")
    return number(match[1], f"{filename}:{link.line}: {name}") * _BPS[match[2]]


def _replicas(service: Element, dynamic: list[Element], filename: str) -> int:
    """How many instances of a service there are."""
    name = service.attributes["name"]
    events = sorted(
        (
            (
                number(event.attributes.get("time", "0"), f"{filename}:{event.line}: time"),
                event.attributes.get("action", ""),
                _whole(event, "amount", filename),
            )
            for event in dynamic
            if event.attributes.get("name") == name
        ),
        key=lambda event: event[0],
    )
    if not any(action == "join" for _, action, _ in events):
        return _whole(service, "replicas", filename)
    present = most = joined = 0
    for _, action, amount in events:
        if action == "join":
            present, joined = present + amount, joined + amount
        elif action in _LEAVING:
            present -= amount
        most = max(most, present)
    return joined if service.attributes.get("reuse", "true") != "true" else most


def _events(dynamic: list[Element]) -> list[str]:
    """A note about what would have happened during the run."""
    if not dynamic:
        return []
    kinds = Counter(event.attributes.get("action", "change of a link") for event in dynamic)
    listed = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return [f"{len(dynamic)} scheduled events are not imported ({listed}): a scenario does that at run time"]


def _whole(element: Element, name: str, filename: str) -> int:
    written = element.attributes.get(name, "1").strip()
    if not re.fullmatch(r"[0-9]{1,9}", written, re.ASCII) or int(written) < 1:
        raise ImportRefusedError(f"{filename}:{element.line}: {name} {written[:40]!r} is not a whole number from 1")
    return int(written)


def _end(link: Element, side: str, groups: Mapping[str, _Group], filename: str) -> _Group:
    name = _text(link, side, filename)
    if name not in groups:
        raise ImportRefusedError(f"{filename}:{link.line}: {side} {name!r} is no service and no bridge of this file")
    return groups[name]


def _text(element: Element, name: str, filename: str) -> str:
    if not element.attributes.get(name):
        raise ImportRefusedError(f"{filename}:{element.line}: <{element.tag}> has no '{name}'")
    return element.attributes[name]


def _check_new(name: str, groups: Mapping[str, _Group], element: Element, filename: str) -> None:
    if name in groups:
        raise ImportRefusedError(f"{filename}:{element.line}: a second service or bridge named {name!r}")
