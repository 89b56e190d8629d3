"""From the sections of a file to a frozen ``Topology``, with the checks that need more than one section.

Names must lead somewhere, links must join two different known nodes once (``links``), and every node must reach every
other.  The graph is judged only when all else is right: a link that could not be read would look like a hole in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from testbed.components import components
from testbed.loading.fileformat import (
    CLASS,
    CPUS,
    DESCRIPTION,
    DEVICE,
    DEVICES,
    EFFICIENCY,
    FAST,
    LAUNCH,
    LINKS,
    LOAD,
    MAX_NODES,
    MEMORY,
    METRO,
    NODES,
    PEAK,
    RAM,
    ROUTER,
    SLOW,
    TITLE,
    USERS,
)
from testbed.loading.links import read_links, unknown_name
from testbed.loading.problems import Position, Report
from testbed.loading.recordings import Recordings
from testbed.loading.sections import Entry, Key, Section
from testbed.topology import DEFAULT_EFFICIENCY, DEFAULT_LAUNCH_S, Device, Link, Node, Topology
from testbed.words import enumerate_words

T = TypeVar("T")


def build(root: Section, directory: Path, report: Report) -> Topology | None:
    """The topology that ``root`` describes; None once anything has been reported.  Files are under ``directory``."""
    classes = root.get(DEVICES) or {}
    nodes = _nodes(root, classes, report)
    links = read_links(root, nodes, Recordings(directory, report))
    if report.problems:
        return None
    _check_network(root, tuple(nodes.values()), links, report)
    if report.problems:
        return None
    return Topology(
        name=root.get(TITLE) or "",
        description=(root.get(DESCRIPTION) or "").strip(),
        nodes=tuple(nodes.values()),
        links=links,
    )


def _nodes(root: Section, classes: Mapping[str, Entry[Section]], report: Report) -> dict[str, Node]:
    nodes = {}
    for name, entry in (root.get(NODES) or {}).items():
        section = entry.value or Section({})
        is_router = section.get(ROUTER) is True
        if is_router:
            for unwanted in (section.entry(key) for key in (DEVICE, USERS, CPUS, RAM)):
                if unwanted is not None:
                    report.add(unwanted.key_at, unwanted.path, f"'{name}' is a router; only servers have this")
        elif section.get(ROUTER) is False and DEVICE not in section:
            report.add(entry.key_at, entry.path, f"'{name}' is a server; give it a 'device', or write 'router: true'")
        nodes[name] = Node(
            name=name,
            kind="router" if is_router else "server",
            device=None if is_router else _device(section, classes, report),
            users=0.0 if is_router else _or(section.get(USERS), 1.0),
            metro=section.get(METRO) or "",
            cpus=section.get(CPUS),
            ram_bytes=section.get(RAM),
        )
    return nodes


def _device(node: Section, classes: Mapping[str, Entry[Section]], report: Report) -> Device | None:
    entry = node.entry(DEVICE)
    if entry is None or entry.value is None:
        return None
    if isinstance(entry.value, Section):
        own, named = entry.value, entry.value.entry(CLASS)
    else:
        own, named = Section({}), Entry(value=entry.value, at=entry.at, key_at=entry.key_at, path=entry.path)
    base = Section({})
    if named is not None and named.value is not None:
        if named.value not in classes:
            message = unknown_name(named.value, classes, "device class", "'devices'", report)
            report.add(named.at, named.path, message)
            return None
        base = classes[named.value].value or base
    peak, memory, load = _first(PEAK, own, base), _first(MEMORY, own, base), _first(LOAD, own, base)
    fast, slow = _first(FAST, own, base), _first(SLOW, own, base)
    if peak is None or memory is None or fast is None or slow is None or load is None:
        return None  # reported where it is written, or missing
    return Device(
        peak_flops_per_s=peak,
        memory_bytes_per_s=memory,
        fast_bytes=fast,
        slow_bytes=slow,
        load_bytes_per_s=load,
        efficiency=_or(_first(EFFICIENCY, own, base), DEFAULT_EFFICIENCY),
        launch_s=_or(_first(LAUNCH, own, base), DEFAULT_LAUNCH_S),
    )


def _check_network(root: Section, nodes: tuple[Node, ...], links: tuple[Link, ...], report: Report) -> None:
    at, path = _where(root, NODES)
    servers = [node for node in nodes if node.kind == "server"]
    if len(nodes) > MAX_NODES:
        report.add(at, path, f"{len(nodes)} nodes; at most {MAX_NODES}")
    elif not servers:
        report.add(at, path, "no server: at least one node needs a 'device'")
    elif not any(server.users for server in servers):
        report.add(at, path, "'users' is 0 everywhere; at least one server needs users, or no request ever arrives")
    parts = components((node.name for node in nodes), ((link.a, link.b) for link in links))
    if len(parts) > 1:
        at, path = _where(root, LINKS) if LINKS in root else (at, path)
        pieces = enumerate_words([f"({enumerate_words(part)})" for part in parts])
        report.add(at, path, f"the network is in {len(parts)} pieces that no link connects: {pieces}")


def _where(root: Section, key: Key[Any]) -> tuple[Position, str]:
    entry = root.entry(key)
    return (entry.key_at, entry.path) if entry else (Position(0, 0), "")


def _first(key: Key[T], *sections: Section) -> T | None:
    """The value of the first section that gives one."""
    for section in sections:
        if key in section:
            return section.get(key)
    return None


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
