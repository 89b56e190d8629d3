r"""What the attributes of a Shadow network graph mean: GML since Shadow 2, GraphML before.

    rate(a -> b) = min(up of a, down of b)                                 (1)
    loss(a -> b) = 1 - (1 - l_a) (1 - l_e) (1 - l_b)                       (2)

    l_e  loss of the edge      l_a, l_b  loss at the nodes, which only the GraphML form has

Shadow gives bandwidth to hosts and none to edges, so by (1) one link carries what its two ends can; that a host's links
together share its bandwidth is lost.  In GML a quantity carries its unit ("83592 Kibit" is per second); in GraphML,
latency and jitter are in milliseconds and bandwidth in KiB/s.  An edge from a node to itself says how two hosts at one
place reach each other and has no counterpart here.
"""

from __future__ import annotations

import re

from testbed.importers.attributes import Attributed, AttributedEdge, AttributedGraph
from testbed.importers.graph import Edge, Flow, Graph, Vertex
from testbed.importers.reading import ImportRefusedError, number
from testbed.words import counted

_KIB_PER_S_BPS = 8 * 1024
_PREFIXES = {
    "": 1, "K": 10**3, "kilo": 10**3, "M": 10**6, "mega": 10**6, "G": 10**9, "giga": 10**9, "T": 10**12, "tera": 10**12,
    "Ki": 2**10, "kibi": 2**10, "Mi": 2**20, "mebi": 2**20, "Gi": 2**30, "gibi": 2**30, "Ti": 2**40, "tebi": 2**40,
}  # fmt: skip
_TIMES = {
    "ns": 1e9, "nanosecond": 1e9, "us": 1e6, "μs": 1e6, "µs": 1e6, "microsecond": 1e6, "ms": 1e3, "millisecond": 1e3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "": 1.0,
}  # fmt: skip
_NODE_ATTRIBUTES = {
    "label", "host_bandwidth_up", "host_bandwidth_down", "bandwidth_up", "bandwidth_down", "bandwidthup",
    "bandwidthdown", "packetloss", "country_code", "geocode",
}  # fmt: skip
_EDGE_ATTRIBUTES = {"latency", "jitter", "packet_loss", "packetloss", "label", "key", "id"}


def is_shadow(graph: AttributedGraph) -> bool:
    """Whether the attributes are Shadow's."""
    return any(
        {"host_bandwidth_up", "bandwidth_up", "bandwidthup"} & node.values.keys() for node in graph.nodes
    ) and any("latency" in edge.values for edge in graph.edges)


def read_shadow(graph: AttributedGraph, filename: str) -> Graph:
    """The network that the attributes describe."""
    nodes = {node.key: node for node in graph.nodes}
    loops = sum(edge.source == edge.target for edge in graph.edges)
    notes = [f"left out: {counted(loops, 'edge')} of a node to itself (hosts at one place)"] if loops else []
    if any(edge.text("jitter") for edge in graph.edges):
        notes.append("jitter is taken as a standard deviation; Shadow itself gives it no effect")
    is_old = any("bandwidthup" in node.values for node in graph.nodes)
    rate_unit, time_unit = (", in KiB/s", " in ms") if is_old else ("", "")
    return Graph(
        vertices=tuple(_vertex(node) for node in graph.nodes),
        edges=tuple(
            _edge(edge, nodes[edge.source], nodes[edge.target], filename)
            for edge in graph.edges
            if edge.source != edge.target
        ),
        sources={
            "rates": f"the lesser of the sender's upstream and the receiver's downstream bandwidth{rate_unit}",
            "delays": f"latency{time_unit}",
            "jitter": f"jitter{time_unit}",
            "loss": "packet_loss, with that of both nodes where they have one",
        },
        notes=(*notes, *graph.unused(_NODE_ATTRIBUTES, _EDGE_ATTRIBUTES)),
    )


def _vertex(node: Attributed) -> Vertex:
    label = node.text("label") or node.key
    # "node at 192.0.2.7" would make a poor name, cut in the middle of the address.
    addressed = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+", label)
    has_hosts = any(_rate_bps(node, way) is not None for way in ("up", "down"))
    return Vertex(
        key=node.key,
        label=label,
        wish=f"{node.text('country_code') or 'node'}-{node.key}" if addressed else "",
        role="server" if has_hosts else "router",
    )


def _edge(edge: AttributedEdge, source: Attributed, target: Attributed, filename: str) -> Edge:
    losses = [
        edge.number("packet_loss") or edge.number("packetloss") or 0.0,
        *(node.number("packetloss") or 0.0 for node in (source, target)),
    ]
    if not all(0 <= each <= 1 for each in losses):
        raise ImportRefusedError(f"{filename}: {edge.where}: packet loss {max(losses):g} is not between 0 and 1")
    kept = 1.0
    for each in losses:
        kept *= 1 - each
    delay_s, jitter_s = _seconds(edge, "latency"), _seconds(edge, "jitter") or 0.0

    def flow(sender: Attributed, receiver: Attributed) -> Flow:
        ends = (_rate_bps(sender, "up"), _rate_bps(receiver, "down"))
        known = [rate_bps for rate_bps in ends if rate_bps is not None]
        loss = round(1 - kept, 12) if sum(map(bool, losses)) > 1 else max(losses)  # (2), without binary dust
        return Flow(rate_bps=min(known, default=None), delay_s=delay_s, jitter_s=jitter_s, loss=loss)  # (1)

    return Edge(
        a=edge.source,
        b=edge.target,
        forward=flow(source, target),
        backward=None if edge.directed else flow(target, source),
        where=edge.where,
    )


def _rate_bps(node: Attributed, way: str) -> float | None:
    old = node.number(f"bandwidth{way}")
    if old is not None:
        return old * _KIB_PER_S_BPS
    written = node.text(f"host_bandwidth_{way}") or node.text(f"bandwidth_{way}")
    if not written:
        return None
    match = re.fullmatch(r"([0-9.eE+]+)\s*([A-Za-z]*?)\s*(bits?|B|bytes?)", written)
    if match is None or match[2] not in _PREFIXES:
        raise ImportRefusedError(f"{node.where}: bandwidth {written[:40]!r} is not one such as '100 Mbit'")
    value = number(match[1], f"{node.where}: bandwidth") * _PREFIXES[match[2]]
    return value * (1 if match[3].startswith("bit") else 8)


def _seconds(edge: AttributedEdge, name: str) -> float | None:
    written = edge.text(name)
    if not written:
        return None
    match = re.fullmatch(r"([0-9.eE+-]*[0-9.])\s*(\S*?)", written)
    unit = match[2] if match else "?"
    per_s = _TIMES.get(unit, _TIMES.get(unit.removesuffix("s")))
    if match is None or per_s is None:
        raise ImportRefusedError(f"{edge.where}: {name} {written[:40]!r} is not a time such as '10 ms'")
    is_old = not unit and "packetloss" in edge.values
    # Dividing by a power of ten gives the float nearest to the decimal; multiplying by 1e-6 does not.
    return number(match[1], f"{edge.where}: {name}") / (1e3 if is_old else per_s)
