"""GML: ``key value`` pairs, where a value is a number, a text in quotes or a list of such pairs in brackets.

>>> graph = read_gml('graph [ node [ id 0 label "a" ] node [ id 1 ] edge [ source 0 target 1 latency "5 ms" ] ]', "x")
>>> [node.key for node in graph.nodes], graph.edges[0].values
(['0', '1'], {'latency': '5 ms'})
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from testbed.importers.attributes import Attributed, AttributedEdge, AttributedGraph
from testbed.importers.reading import MAX_DEPTH, MAX_ITEMS, ImportRefusedError

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*) | (?P<open>\[) | (?P<close>\]) | "(?P<text>[^"]*)"
      | (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[\s\[\]]|$)) | (?P<key>[A-Za-z_][\w.-]*)""",
    re.ASCII | re.VERBOSE,
)


@dataclass(slots=True)
class _List:
    """What stands between two brackets."""

    line: int
    values: dict[str, str] = field(default_factory=dict)
    lists: list[tuple[str, _List]] = field(default_factory=list)


def read_gml(text: str, filename: str) -> AttributedGraph:
    """The graph in a GML text."""
    graphs = [graph for key, graph in _parse(text, filename).lists if key.lower() == "graph"]
    if len(graphs) != 1:
        raise ImportRefusedError(f"{filename}: {len(graphs)} graphs in one file; keep one of them")
    (graph,) = graphs
    directed = graph.values.get("directed", "0") not in ("0", "")
    read = AttributedGraph(
        values=graph.values,
        nodes=tuple(
            Attributed(
                key=_value(node, "node", "id", filename),
                values={key: value for key, value in node.values.items() if key != "id"},
                where=f"line {node.line}",
            )
            for kind, node in graph.lists
            if kind == "node"
        ),
        edges=tuple(
            AttributedEdge(
                key="",
                values={key: value for key, value in edge.values.items() if key not in ("source", "target")},
                where=f"line {edge.line}",
                source=_value(edge, "edge", "source", filename),
                target=_value(edge, "edge", "target", filename),
                directed=directed,
            )
            for kind, edge in graph.lists
            if kind == "edge"
        ),
    )
    read.check(filename)
    return read


def _parse(text: str, filename: str) -> _List:
    """The pairs of the whole text, as one list."""
    top = _List(1)
    open_lists, key, line = [top], "", 1
    for kind, token, line in _tokens(text, filename):
        current = open_lists[-1]
        if kind == "close" and not key and len(open_lists) > 1:
            open_lists.pop()
        elif kind == "key" and not key:
            key = token
        elif kind == "open" and key:
            if len(open_lists) > MAX_DEPTH:
                raise ImportRefusedError(f"{filename}:{line}: nested more than {MAX_DEPTH} levels deep")
            inner = _List(line)
            current.lists.append((key, inner))
            open_lists.append(inner)
            key = ""
        elif kind in ("text", "number") and key:
            # A key may stand several times; of a node's or edge's only the first means anything to us.
            current.values.setdefault(key, html.unescape(token))
            key = ""
        else:
            raise ImportRefusedError(f"{filename}:{line}: not valid GML: {token[:40]!r} was not expected here")
    if key or len(open_lists) > 1:
        raise ImportRefusedError(f"{filename}:{line}: not valid GML: the file ends inside a list; is it complete?")
    return top


def _tokens(text: str, filename: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and line of each token."""
    at, line, count = 0, 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ImportRefusedError(f"{filename}:{line}: not valid GML at {text[at : at + 20]!r}")
        if match.lastgroup != "space":
            count += 1
            if count > 4 * MAX_ITEMS:
                raise ImportRefusedError(f"{filename}:{line}: more than {MAX_ITEMS} values")
            yield match.lastgroup, match[match.lastgroup], line
        line += match[0].count("\n")
        at = match.end()


def _value(entry: _List, kind: str, key: str, filename: str) -> str:
    if key not in entry.values:
        raise ImportRefusedError(f"{filename}:{entry.line}: this {kind} has no '{key}'")
    return entry.values[key]
