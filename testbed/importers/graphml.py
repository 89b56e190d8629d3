"""GraphML: XML whose ``<data key="d33">`` elements carry attributes that ``<key>`` elements name.

Parallel edges are all kept.  (networkx, the usual reader, merges those whose ``key`` attribute is the same.)
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.importers.attributes import Attributed, AttributedEdge, AttributedGraph
from testbed.importers.reading import ImportRefusedError
from testbed.importers.xmltree import Element


def read_graphml(root: Element, filename: str) -> AttributedGraph:
    """The graph in a GraphML document."""
    graphs = list(root.named("graph"))
    if len(graphs) != 1:
        raise ImportRefusedError(f"{filename}: {len(graphs)} graphs in one file; keep one of them")
    (graph,) = graphs
    keys = {key.attributes.get("id", ""): key for key in root.named("key")}
    directed = graph.attributes.get("edgedefault") == "directed"
    for element in graph.children:
        if element.tag == "hyperedge" or any(element.named("graph")):
            what = "a hyperedge" if element.tag == "hyperedge" else "a graph inside a node"
            raise ImportRefusedError(
                f"{filename}:{element.line}: {what} is not read; write it as a node with an edge to each member"
            )
    read = AttributedGraph(
        values=_values(graph, keys, "graph"),
        nodes=tuple(
            Attributed(
                key=_attribute(node, "id", filename), values=_values(node, keys, "node"), where=f"line {node.line}"
            )
            for node in graph.named("node")
        ),
        edges=tuple(
            AttributedEdge(
                key=edge.attributes.get("id", ""),
                values=_values(edge, keys, "edge"),
                where=f"line {edge.line}",
                source=_attribute(edge, "source", filename),
                target=_attribute(edge, "target", filename),
                directed={"true": True, "false": False}.get(edge.attributes.get("directed", ""), directed),
            )
            for edge in graph.named("edge")
        ),
    )
    read.check(filename)
    return read


def _values(element: Element, keys: Mapping[str, Element], kind: str) -> dict[str, str]:
    values = {
        _name(key): default.text
        for key in keys.values()
        if key.attributes.get("for", "all") in (kind, "all")
        for default in key.named("default")
    }
    for data in element.named("data"):
        identity = data.attributes.get("key", "")
        values[_name(keys[identity]) if identity in keys else identity] = data.text
    return values


def _name(key: Element) -> str:
    return key.attributes.get("name") or key.attributes.get("attr.name") or key.attributes.get("id", "")


def _attribute(element: Element, name: str, filename: str) -> str:
    if name not in element.attributes:
        raise ImportRefusedError(f"{filename}:{element.line}: <{element.tag}> has no '{name}'")
    return element.attributes[name]
