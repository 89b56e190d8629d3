"""A graph whose nodes and edges carry attributes with names: what GraphML, GML and node-link JSON have in common.

What an attribute means, ``zoo`` and ``shadow`` know.

>>> node = Attributed(key="0", values={"label": "New York", "Latitude": "40.7"}, where="line 3")
>>> node.text("label"), node.number("Latitude"), node.number("Longitude")
('New York', 40.7, None)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.importers.reading import ImportRefusedError, check_count, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """A node with its attributes as they are written."""

    key: str
    values: Mapping[str, str]
    where: str  # such as "line 7"

    def text(self, name: str) -> str:
        """The attribute, or nothing."""
        return self.values.get(name, "").strip()

    def number(self, name: str) -> float | None:
        """The attribute as a number; None where it is absent, refused where it is none."""
        written = self.text(name)
        return number(written, f"{self.where}: {name}") if written else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedEdge(Attributed):
    """An edge with its attributes; its key is of no interest."""

    source: str
    target: str
    directed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedGraph:
    """All of a file."""

    values: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Attributed, ...]
    edges: tuple[AttributedEdge, ...]

    def check(self, filename: str) -> None:
        """Refuse nodes that occur twice, edges to nowhere, and graphs that are none."""
        check_count(len(self.nodes), filename)
        keys: dict[str, str] = {}
        for node in self.nodes:
            if node.key in keys:
                raise ImportRefusedError(
                    f"{filename}: {node.where}: a second node with the id {node.key!r}; the first is {keys[node.key]}"
                )
            keys[node.key] = node.where
        if not self.nodes or not self.edges:
            raise ImportRefusedError(f"{filename}: {len(self.nodes)} nodes and {len(self.edges)} edges; nothing to do")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in keys:
                    raise ImportRefusedError(f"{filename}: {edge.where}: the edge leads to {end!r}, which is no node")

    def unused(self, nodes: Iterable[str], edges: Iterable[str]) -> list[str]:
        """A note about attributes that no reader looks at, such as ``Country`` of nodes."""
        of_nodes = {name for node in self.nodes for name in node.values} - set(nodes)
        of_edges = {name for edge in self.edges for name in edge.values} - set(edges)
        parts = [
            f"of {what}: {', '.join(sorted(names))}"
            for what, names in (("nodes", of_nodes), ("edges", of_edges))
            if names
        ]
        return [f"attributes that are not imported, {'; '.join(parts)}"] if parts else []
