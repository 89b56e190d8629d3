"""containerlab's lab files: nodes with kinds, links between their interfaces, nothing about speed or distance.

Where some nodes are plain ``linux`` containers and others are network operating systems or bridges, the containers are
servers and the others routers.  A link may carry ``rate``, ``delay``, ``jitter`` and ``loss`` under its ``vars`` or
``labels``, in our units; containerlab itself leaves both to the user (it sets impairments with a command, after the lab
is up).  Links to the host or to the management network lead out of the lab and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from testbed import units
from testbed.errors import TestbedError
from testbed.importers.graph import Edge, Flow, Graph, Vertex
from testbed.importers.reading import ImportRefusedError, check_count
from testbed.loading.document import compose
from testbed.loading.problems import Report, render
from testbed.topology import NodeKind
from testbed.words import enumerate_words

_HOSTS = frozenset(("linux",))
#: What an endpoint names when it does not name a node.
_OUTSIDE = frozenset(("host", "mgmt-net", "macvlan"))
_IMPAIRMENTS: Mapping[str, Callable[[str], float]] = {
    "rate": units.bits_per_second,
    "delay": units.seconds,
    "jitter": units.seconds,
    "loss": units.fraction,
}


def load_yaml(text: str, filename: str) -> object:
    """Plain values of a YAML text, within the limits of topology files; mistakes come with their lines."""
    report = Report()
    root = compose(text, report)
    if root is None:
        raise ImportRefusedError(render(filename, text, report.problems))
    try:
        return yaml.constructor.SafeConstructor().construct_document(root)
    except (yaml.YAMLError, ValueError) as error:
        raise ImportRefusedError(f"{filename}: not valid YAML: {error}") from None


def is_containerlab(document: object) -> bool:
    """Whether YAML looks like a lab file."""
    return isinstance(document, dict) and isinstance(document.get("topology"), dict) and "nodes" in document["topology"]


def read_containerlab(document: object, filename: str) -> Graph:
    """The network of a lab file."""
    if not isinstance(document, dict) or not is_containerlab(document):
        raise ImportRefusedError(f"{filename}: no 'topology: nodes:', so this is no containerlab file")
    topology = document["topology"]
    nodes = _mapping(topology["nodes"], "topology.nodes", filename)
    check_count(len(nodes), filename)
    kinds = {str(name): _kind(node, topology, filename) for name, node in nodes.items()}
    notes: list[str] = []
    edges = []
    for place, link in enumerate(_list(topology.get("links"), "topology.links", filename)):
        edge = _edge(link, f"links[{place}]", kinds, notes, filename)
        if edge is not None:
            edges.append(edge)
    return Graph(
        title=str(document.get("name") or ""),
        vertices=tuple(Vertex(key=name, label=name, role=role) for name, role in _roles(kinds).items()),
        edges=tuple(edges),
        sources={"rates": "rate of the link's vars or labels", "delays": "delay of the link's vars or labels"},
        notes=tuple(notes),
    )


def _kind(node: object, topology: Mapping[str, Any], filename: str) -> str:
    """The kind of a node: its own, its group's, or the default."""
    own = _mapping(node, "topology.nodes", filename)
    groups = _mapping(topology.get("groups"), "topology.groups", filename)
    group = _mapping(groups.get(own.get("group")), "topology.groups", filename)
    defaults = _mapping(topology.get("defaults"), "topology.defaults", filename)
    return str(own.get("kind") or group.get("kind") or defaults.get("kind") or "")


def _roles(kinds: Mapping[str, str]) -> dict[str, NodeKind | None]:
    """Servers and routers, where the kinds tell them apart."""
    hosts = {name for name, kind in kinds.items() if kind in _HOSTS}
    if not hosts or len(hosts) == len(kinds):
        return dict.fromkeys(kinds)
    return {name: "server" if name in hosts else "router" for name in kinds}


def _edge(link: object, where: str, nodes: Mapping[str, str], notes: list[str], filename: str) -> Edge | None:
    entry = _mapping(link, where, filename)
    kind = str(entry.get("type") or "veth")
    if kind != "veth" or "endpoints" not in entry:
        notes.append(f"{where}: a link of type {kind} leads out of the lab; left out")
        return None
    ends = [_end(end, where, filename) for end in _list(entry["endpoints"], where, filename)]
    if len(ends) != 2:
        raise ImportRefusedError(f"{filename}: {where}: {len(ends)} endpoints; a link has two")
    if any(end in _OUTSIDE and end not in nodes for end in ends):
        notes.append(f"{where}: {' - '.join(ends)} leads out of the lab; left out")
        return None
    for end in ends:
        if end not in nodes:
            known = enumerate_words(nodes)
            raise ImportRefusedError(f"{filename}: {where}: unknown node {end!r}; topology.nodes has {known}")
    flow = _flow(entry, where, filename)
    return Edge(a=ends[0], b=ends[1], forward=flow, backward=flow, where=where)


def _end(end: object, where: str, filename: str) -> str:
    if isinstance(end, dict) and end.get("node"):
        return str(end["node"])
    if isinstance(end, str) and ":" in end:
        return end.split(":")[0]
    raise ImportRefusedError(f"{filename}: {where}: an endpoint is 'node:interface', found {str(end)[:40]!r}")


def _flow(entry: Mapping[str, Any], where: str, filename: str) -> Flow:
    given = {
        **_mapping(entry.get("labels"), where, filename),
        **_mapping(entry.get("vars"), where, filename),
    }
    values: dict[str, float] = {}
    for key, parse in _IMPAIRMENTS.items():
        if key in given:
            try:
                values[key] = parse(str(given[key]))
            except TestbedError as error:
                raise ImportRefusedError(f"{filename}: {where}: {key}: {error}") from None
    return Flow(
        rate_bps=values.get("rate"),
        delay_s=values.get("delay"),
        jitter_s=values.get("jitter", 0.0),
        loss=values.get("loss", 0.0),
    )


def _mapping(value: object, where: str, filename: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ImportRefusedError(f"{filename}: {where}: expected keys and values")
    return value


def _list(value: object, where: str, filename: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ImportRefusedError(f"{filename}: {where}: expected a list")
    return value
