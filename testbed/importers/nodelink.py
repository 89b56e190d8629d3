"""Node-link JSON, as networkx writes it and the topohub collection publishes it: lists of ``nodes`` and of ``edges``.

topohub gives nodes a ``pos`` of longitude and latitude; we read it as the coordinates of Topology Zoo's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.importers.attributes import Attributed, AttributedEdge, AttributedGraph
from testbed.importers.reading import ImportRefusedError


def is_nodelink(document: object) -> bool:
    """Whether JSON looks like a node-link graph."""
    return isinstance(document, dict) and isinstance(document.get("nodes"), list) and _edges_key(document) != ""


def read_nodelink(document: Mapping[str, Any], filename: str) -> AttributedGraph:
    """The graph in node-link JSON."""
    directed = document.get("directed") is True
    nodes = [_entry(entry, f"nodes[{place}]", filename) for place, entry in enumerate(document["nodes"])]
    edges_key = _edges_key(document)
    edges = [_entry(entry, f"{edges_key}[{place}]", filename) for place, entry in enumerate(document[edges_key])]
    graph = document.get("graph")
    read = AttributedGraph(
        values={"Network": str(graph.get("name", ""))} if isinstance(graph, dict) else {},
        nodes=tuple(
            Attributed(key=_needed(node, "id", where, filename), values=_node_values(node), where=where)
            for where, node in ((f"nodes[{place}]", node) for place, node in enumerate(nodes))
        ),
        edges=tuple(
            AttributedEdge(
                key="",
                values=_scalars(edge, but=("source", "target", "key")),
                where=where,
                source=_needed(edge, "source", where, filename),
                target=_needed(edge, "target", where, filename),
                directed=directed,
            )
            for where, edge in ((f"{edges_key}[{place}]", edge) for place, edge in enumerate(edges))
        ),
    )
    read.check(filename)
    return read


def _edges_key(document: Mapping[str, Any]) -> str:
    return next((key for key in ("edges", "links") if isinstance(document.get(key), list)), "")


def _entry(entry: object, where: str, filename: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ImportRefusedError(f"{filename}: {where}: expected a JSON object")
    return entry


def _needed(entry: Mapping[str, Any], key: str, where: str, filename: str) -> str:
    if not isinstance(entry.get(key), str | int):
        raise ImportRefusedError(f"{filename}: {where} has no '{key}'")
    return str(entry[key])


def _node_values(node: Mapping[str, Any]) -> dict[str, str]:
    values = _scalars(node, but=("id",))
    match node.get("pos"):
        case [int() | float() as longitude, int() | float() as latitude]:
            values |= {"Longitude": str(longitude), "Latitude": str(latitude)}
    if "label" not in values and "name" in values:
        values["label"] = values.pop("name")
    return values


def _scalars(entry: Mapping[str, Any], *, but: tuple[str, ...]) -> dict[str, str]:
    return {key: str(value) for key, value in entry.items() if key not in but and isinstance(value, str | int | float)}
