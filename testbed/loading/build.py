"""From the sections of a file to a frozen ``Topology``, with the checks that need more than one section.

Names must lead somewhere, links must join two different known nodes once, and every node must reach every other.
The graph is judged only when all else is right: a link that could not be read would look like a hole in the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from testbed.loading.fileformat import (
    BETWEEN,
    CLASS,
    DEFAULTS,
    DELAY,
    DESCRIPTION,
    DEVICE,
    DEVICES,
    EFFICIENCY,
    FAST,
    JITTER,
    LAUNCH,
    LINK_DEFAULTS,
    LINKS,
    LOAD,
    LOSS,
    MAX_NODES,
    MEMORY,
    METRO,
    NODES,
    PEAK,
    QUEUE,
    RATE,
    REVERSE,
    ROUTER,
    SLOW,
    TITLE,
    USERS,
)
from testbed.loading.problems import MAX_SHOWN, Position, Report, did_you_mean, enumerate_words
from testbed.loading.sections import Entry, Key, Section
from testbed.topology import DEFAULT_EFFICIENCY, DEFAULT_LAUNCH_S, Device, Direction, Link, Node, Topology

T = TypeVar("T")


def build(root: Section, report: Report) -> Topology | None:
    """The topology that ``root`` describes; None once anything has been reported."""
    classes = root.get(DEVICES) or {}
    nodes = _nodes(root, classes, report)
    links = _links(root, nodes, report)
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
            for unwanted in (section.entry(DEVICE), section.entry(USERS)):
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
            message = _unknown_name(named.value, classes, "device class", "'devices'", report)
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


def _links(root: Section, nodes: Mapping[str, Node], report: Report) -> tuple[Link, ...]:
    defaults = (root.get(DEFAULTS) or Section({})).get(LINK_DEFAULTS) or Section({})
    links: list[Link] = []
    seen: dict[frozenset[str], Entry[Section]] = {}
    names: dict[str, Entry[Section]] = {}
    for entry in root.get(LINKS) or []:
        section = entry.value
        if section is None:
            continue
        reverse = section.get(REVERSE) or Section({})
        _check_complete(entry, section, defaults, report)
        ends = _ends(section, nodes, report)
        if ends is None:
            continue
        a, b = ends
        earlier = seen.setdefault(frozenset(ends), entry)
        same_name = names.setdefault(f"{a}-{b}", entry)
        if earlier is not entry:
            message = f"a second link between {a} and {b}; the first is {earlier.path} on line {earlier.at.line}"
            report.add(entry.at, entry.path, f"{message}; parallel links are not supported")
        elif same_name is not entry:
            message = f"this link and {same_name.path} on line {same_name.at.line} would both be called '{a}-{b}'"
            report.add(entry.at, entry.path, f"{message}; rename a node")
        else:
            names.setdefault(f"{b}-{a}", entry)
            forward = _direction(section, defaults)
            backward = _direction(reverse, section, defaults)
            if forward and backward:
                links.append(Link(a=a, b=b, forward=forward, backward=backward))
    return tuple(links)


def _check_complete(entry: Entry[Section], section: Section, defaults: Section, report: Report) -> None:
    missing = [f"'{key.name}'" for key in (RATE, DELAY) if key not in section and key not in defaults]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        where = "here or under 'defaults: link:'"
        report.add(entry.at, entry.path, f"{enumerate_words(missing)} {verb} missing; write it {where}")


def _ends(section: Section, nodes: Mapping[str, Node], report: Report) -> tuple[str, str] | None:
    pair = section.get(BETWEEN)
    if pair is None:
        return None
    known = True
    for end in pair:
        if end.value is not None and end.value not in nodes:
            report.add(end.at, end.path, _unknown_name(end.value, nodes, "node", "'nodes'", report))
            known = False
    a, b = (end.value for end in pair)
    if not known or a is None or b is None:
        return None
    if a == b:
        report.add(pair[1].at, pair[1].path, f"a link from '{a}' to itself")
        return None
    return a, b


def _direction(*sections: Section) -> Direction | None:
    rate, delay = _first(RATE, *sections), _first(DELAY, *sections)
    if rate is None or delay is None:
        return None
    return Direction(
        rate_bps=rate,
        delay_s=delay,
        jitter_s=_or(_first(JITTER, *sections), 0.0),
        loss=_or(_first(LOSS, *sections), 0.0),
        queue_bytes=_first(QUEUE, *sections),
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
    parts = _parts(nodes, links)
    if len(parts) > 1:
        at, path = _where(root, LINKS) if LINKS in root else (at, path)
        pieces = enumerate_words([f"({enumerate_words(part)})" for part in parts])
        report.add(at, path, f"the network is in {len(parts)} pieces that no link connects: {pieces}")


def _parts(nodes: tuple[Node, ...], links: tuple[Link, ...]) -> list[list[str]]:
    """The names of the nodes that can reach each other, in file order."""
    neighbours: dict[str, list[str]] = {node.name: [] for node in nodes}
    for link in links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    parts: list[list[str]] = []
    reached: set[str] = set()
    for start in neighbours:
        if start in reached:
            continue
        part, front = {start}, [start]
        while front:
            fresh = [peer for peer in neighbours[front.pop()] if peer not in part]
            part.update(fresh)
            front.extend(fresh)
        reached |= part
        parts.append([name for name in neighbours if name in part])
    return parts


def _unknown_name(name: str, known: Mapping[str, Any], what: str, where: str, report: Report) -> str:
    if not known:
        return f"unknown {what} '{name}'; there is nothing under {where}"
    # Comparing thousands of wrong names with thousands of right ones takes minutes, for messages that nobody is shown.
    similar = did_you_mean(name, known) if len(report.problems) < MAX_SHOWN else ""
    hint = f"did you mean '{similar}'?" if similar else f"{where} has {enumerate_words(known)}"
    return f"unknown {what} '{name}'; {hint}"


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
