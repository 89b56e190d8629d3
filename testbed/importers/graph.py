"""An imported network as far as its file tells: the neutral value between the readers and the writer.

A number that the file does not give is None here, never a guess.  Whoever adds it later says where it came from.

>>> vertices = (Vertex(key="0", label="New York"), Vertex(key="1", label="Chicago"))
>>> edge = Edge(a="0", b="1", forward=Flow(rate_bps=1e9), backward=Flow(rate_bps=1e9), where="line 7")
>>> Graph(vertices=vertices, edges=(edge,)).named(edge)
'line 7 (New York - Chicago)'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.topology import NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Somewhere on the globe, in degrees."""

    latitude_deg: float  # -90 to 90, north is positive
    longitude_deg: float  # -180 to 180, east is positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """One node of the file."""

    key: str  # what the edges of the file call it; unique
    label: str  # what people call it; may occur twice
    wish: str = ""  # what to make a name from, where the label would be of no use
    role: NodeKind | None = None  # where the format tells servers from routers
    place: Place | None = None
    cpus: float | None = None  # processors of this machine that its sandbox may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One direction of an edge; None where the file does not say."""

    rate_bps: float | None = None
    delay_s: float | None = None  # one way
    jitter_s: float = 0.0
    loss: float = 0.0  # probability in [0, 1]
    queue_packets: int | None = None  # drop-tail limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One edge of the file."""

    a: str  # keys of vertices
    b: str
    forward: Flow  # a -> b
    backward: Flow | None  # b -> a; None: the file's edge leads one way only
    where: str = ""  # such as "line 7"
    remark: str = ""  # what the file says about it in words, such as "OC-192c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What a file says."""

    title: str = ""  # the name that the file gives the network
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    #: kind of number ("rates", "delays", ...) -> how it was read from the file, in words
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a person should know about this import

    def named(self, edge: Edge) -> str:
        """``edge`` as messages name it."""
        label = {vertex.key: vertex.label for vertex in self.vertices if vertex.key in (edge.a, edge.b)}
        ends = f"{label.get(edge.a, edge.a)} - {label.get(edge.b, edge.b)}"
        return f"{edge.where} ({ends})" if edge.where else ends
