"""What the attributes of the Internet Topology Zoo mean (and of other collections that write the same ones).

The Zoo has maps that network operators drew: coordinates for most nodes, a speed for some links, no delay anywhere.
A speed is ``LinkSpeedRaw`` in bit/s, or ``LinkSpeed`` with ``LinkSpeedUnits``; what only a ``LinkLabel`` says in words
("OC-192c") is shown to the person who must give the rate, and not interpreted.  A node that the operator's map had only
as a crossing of lines (``hyperedge``) is a router.
"""

from __future__ import annotations

from testbed.importers.attributes import Attributed, AttributedEdge, AttributedGraph
from testbed.importers.graph import Edge, Flow, Graph, Place, Vertex
from testbed.importers.reading import ImportRefusedError

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NODE_ATTRIBUTES = ("label", "Latitude", "Longitude", "hyperedge", "id")
_EDGE_ATTRIBUTES = ("LinkSpeedRaw", "LinkSpeed", "LinkSpeedUnits", "LinkLabel", "key", "id")


def read_zoo(graph: AttributedGraph) -> Graph:
    """The network that the attributes describe."""
    odd = [edge for edge in graph.edges if edge.text("LinkSpeed") and _rate_bps(edge) is None]
    notes = [f"{edge.where}: LinkSpeed {edge.text('LinkSpeed')!r} is no speed; taken as missing" for edge in odd]
    return Graph(
        title=graph.values.get("Network", "") or graph.values.get("label", ""),
        vertices=tuple(_vertex(node) for node in graph.nodes),
        edges=tuple(_edge(edge) for edge in graph.edges),
        sources={"rates": "LinkSpeedRaw in bit/s, or LinkSpeed with LinkSpeedUnits"},
        notes=(*notes, *graph.unused(_NODE_ATTRIBUTES, _EDGE_ATTRIBUTES)),
    )


def _vertex(node: Attributed) -> Vertex:
    crossing = node.text("hyperedge") in ("1", "true", "True")
    label = node.text("label")
    if label in ("", "None"):
        label = ""
    return Vertex(
        key=node.key,
        label=label or f"{'crossing' if crossing else 'node'} {node.key}",
        role="router" if crossing else None,
        place=_place(node),
    )


def _place(node: Attributed) -> Place | None:
    latitude_deg, longitude_deg = node.number("Latitude"), node.number("Longitude")
    if latitude_deg is None or longitude_deg is None:
        return None
    if not (-90 <= latitude_deg <= 90 and -180 <= longitude_deg <= 180):
        raise ImportRefusedError(
            f"{node.where}: latitude {latitude_deg:g}, longitude {longitude_deg:g} is no place on earth "
            "(-90 to 90, -180 to 180 degrees)"
        )
    return Place(latitude_deg=latitude_deg, longitude_deg=longitude_deg)


def _edge(edge: AttributedEdge) -> Edge:
    flow = Flow(rate_bps=_rate_bps(edge))
    return Edge(
        a=edge.source,
        b=edge.target,
        forward=flow,
        backward=None if edge.directed else flow,
        where=edge.where,
        remark=edge.text("LinkLabel"),
    )


def _rate_bps(edge: AttributedEdge) -> float | None:
    if edge.text("LinkSpeedRaw"):
        return edge.number("LinkSpeedRaw")
    unit = _UNITS.get(edge.text("LinkSpeedUnits").upper())
    if not edge.text("LinkSpeed") or unit is None:
        return None
    try:
        return float(f"{edge.number('LinkSpeed')}") * unit
    except ImportRefusedError:  # such as "<10" or "45/155"
        return None
