"""From what a file says and what the user chose to a complete network, or to every question that is left.

The questions come together, each with the option that answers it, so that a file is understood in one round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.components import components
from testbed.generate import DEVICES
from testbed.importers import names as naming
from testbed.importers.graph import Edge, Graph, Vertex
from testbed.importers.links import Findings, LinkChoices, both_ways, check_ranges, filled, merged
from testbed.importers.reading import ImportRefusedError
from testbed.loading.document import MAX_FILE_BYTES
from testbed.words import enumerate_words, similar

DEVICE_CLASSES = tuple(line.split(":")[0].strip() for line in DEVICES.splitlines())
ALL, LEAVES = "all", "leaves"
_LEAST_LINK_BYTES = 48  # what no line of a link stays under


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user chose; empty is a question that was not answered."""

    servers: str = ""  # "all", "leaves" or names
    device: str = ""  # classes, dealt to the servers in turn
    only: str = ""  # names of the nodes to keep
    largest: bool = False  # keep the largest of several pieces
    links: LinkChoices = field(default_factory=LinkChoices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of the result."""

    name: str
    label: str
    device: str  # class; empty for a router
    cpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network in which nothing is missing; edges are between names, and every flow is complete."""

    title: str
    members: tuple[Member, ...]
    links: tuple[Edge, ...]
    sources: tuple[str, ...]  # where each kind of number comes from
    notes: tuple[str, ...]


def resolve(graph: Graph, choices: Choices, filename: str) -> Network:
    """The network that ``graph`` and ``choices`` describe together."""
    findings = Findings(notes=list(graph.notes))
    wished = naming.derive(vertex.wish or vertex.label for vertex in graph.vertices)
    graph, name_of = _only(graph, dict(zip((v.key for v in graph.vertices), wished, strict=True)), choices, filename)
    edges = both_ways(graph, graph.edges, findings)
    graph, edges = _one_piece(graph, edges, choices, findings)
    edges = merged(graph, filled(graph, edges, choices.links, findings), choices.links.parallel, findings)
    check_ranges(graph, edges, findings)
    if len(edges) * _LEAST_LINK_BYTES > MAX_FILE_BYTES:
        findings.asks.append(
            f"{len(edges)} links are more than a topology file of {MAX_FILE_BYTES // 1024**2} MiB can hold: keep fewer "
            f"nodes with --only NAME,NAME,... of {enumerate_words(name_of.values())}"
        )
    name_of = _without_clashes(name_of, graph, edges)
    servers = _servers(graph, edges, name_of, choices, filename, findings)
    devices = _devices(choices, findings)
    if findings.asks:
        questions = "\n".join(f"  - {ask}" for ask in findings.asks)
        raise ImportRefusedError(f"{filename} cannot be imported as it stands:\n{questions}")
    _tell_names(graph, name_of, findings)
    device_of = {key: devices[place % len(devices)] for place, key in enumerate(servers)}
    return Network(
        title=graph.title,
        members=tuple(
            Member(
                name=name_of[vertex.key],
                label=vertex.label,
                device=device_of.get(vertex.key, ""),
                cpus=vertex.cpus if vertex.key in device_of else None,
            )
            for vertex in graph.vertices
        ),
        links=tuple(replace(edge, a=name_of[edge.a], b=name_of[edge.b]) for edge in edges),
        sources=(*findings.sources, _other_sources(graph, edges), _device_source(choices)),
        notes=tuple(findings.notes),
    )


def _only(graph: Graph, name_of: Mapping[str, str], choices: Choices, filename: str) -> tuple[Graph, dict[str, str]]:
    """The graph with the nodes that ``--only`` names, or all."""
    if not choices.only:
        return graph, dict(name_of)
    kept = _chosen(choices.only, "--only", graph.vertices, name_of, filename)
    vertices = tuple(vertex for vertex in graph.vertices if vertex.key in kept)
    edges = tuple(edge for edge in graph.edges if edge.a in kept and edge.b in kept)
    note = f"{len(vertices)} of {len(graph.vertices)} nodes are kept (--only)"
    return replace(graph, vertices=vertices, edges=edges, notes=(*graph.notes, note)), {
        key: name_of[key] for key in kept
    }


def _one_piece(graph: Graph, edges: list[Edge], choices: Choices, findings: Findings) -> tuple[Graph, list[Edge]]:
    """The graph with the nodes that can reach each other."""
    parts = components((vertex.key for vertex in graph.vertices), ((edge.a, edge.b) for edge in edges))
    if len(parts) < 2:
        return graph, edges
    parts.sort(key=len, reverse=True)
    label = {vertex.key: vertex.label for vertex in graph.vertices}
    shown = [f"({enumerate_words([label[key] for key in part], most=6)})" for part in parts[:6]]
    listed = f"{', '.join(shown)}{f' and {len(parts) - 6} more' if len(parts) > 6 else ''}"
    if not choices.largest:
        findings.asks.append(
            f"the network is in {len(parts)} pieces that no link connects: {listed}; keep the largest with --largest"
        )
        return graph, edges
    kept = set(parts[0])
    left_out = [label[key] for part in parts[1:] for key in part]
    findings.notes.append(f"the network is in {len(parts)} pieces; left out by --largest: {enumerate_words(left_out)}")
    vertices = tuple(vertex for vertex in graph.vertices if vertex.key in kept)
    return replace(graph, vertices=vertices), [edge for edge in edges if edge.a in kept]


def _servers(
    graph: Graph,
    edges: Sequence[Edge],
    name_of: Mapping[str, str],
    choices: Choices,
    filename: str,
    findings: Findings,
) -> list[str]:
    """The keys of the servers, in the order of the file."""
    degrees = Counter(end for edge in edges for end in (edge.a, edge.b))
    leaves = [vertex.key for vertex in graph.vertices if degrees[vertex.key] == 1]
    if choices.servers == ALL:
        chosen: Collection[str] = [vertex.key for vertex in graph.vertices]
    elif choices.servers == LEAVES:
        chosen = leaves
        if not leaves:
            findings.asks.append("--servers leaves: no node has just one link; name the servers, or take all")
    elif choices.servers:
        chosen = _chosen(choices.servers, "--servers", graph.vertices, name_of, filename)
    elif any(vertex.role == "server" for vertex in graph.vertices):
        chosen = {vertex.key for vertex in graph.vertices if vertex.role == "server"}
        findings.notes.append(
            f"{len(chosen)} servers and {len(graph.vertices) - len(chosen)} routers, as the file says"
        )
    else:
        known = enumerate_words([name_of[vertex.key] for vertex in graph.vertices])
        findings.asks.append(
            "the file does not say which nodes are servers (the others become routers): --servers all, "
            f"--servers leaves ({len(leaves)} with just one link), or --servers NAME,NAME,... of {known}"
        )
        return []
    return [vertex.key for vertex in graph.vertices if vertex.key in set(chosen)]


def _devices(choices: Choices, findings: Findings) -> list[str]:
    classes = [name.strip() for name in choices.device.split(",") if name.strip()]
    for name in classes:
        if name not in DEVICE_CLASSES:
            near = similar(name, DEVICE_CLASSES)
            hint = f"did you mean '{near}'?" if near else f"there are {enumerate_words(DEVICE_CLASSES)}"
            findings.asks.append(f"--device: unknown class '{name}'; {hint}")
    if not classes:
        findings.asks.append(
            "the file does not say what a server computes with: --device CLASS, or --device CLASS,CLASS,... dealt to "
            f"the servers in turn; classes are {enumerate_words(DEVICE_CLASSES)} (topologies/edge10.yaml)"
        )
    return classes


def _chosen(
    written: str, option: str, vertices: Sequence[Vertex], name_of: Mapping[str, str], filename: str
) -> set[str]:
    """The keys that a list of names, labels or keys stands for; a label that occurs twice stands for both."""
    by_word: dict[str, list[str]] = {}
    for vertex in vertices:
        for word in dict.fromkeys((name_of[vertex.key], vertex.label, vertex.key)):
            by_word.setdefault(word, []).append(vertex.key)
    chosen: set[str] = set()
    for word in (part.strip() for part in written.split(",") if part.strip()):
        if word not in by_word:
            names = [name_of[vertex.key] for vertex in vertices]
            near, known = similar(word, [*by_word, *names]), enumerate_words(names)
            hint = f"did you mean '{near}'?" if near else f"there are {known}"
            raise ImportRefusedError(f"{filename}: {option}: no node '{word}'; {hint}")
        chosen.update(by_word[word])
    if not chosen:
        raise ImportRefusedError(f"{filename}: {option} names no node")
    return chosen


def _without_clashes(name_of: Mapping[str, str], graph: Graph, edges: Sequence[Edge]) -> dict[str, str]:
    keys = [vertex.key for vertex in graph.vertices]
    place = {key: number for number, key in enumerate(keys)}
    changed = naming.without_clashes([name_of[key] for key in keys], ((place[e.a], place[e.b]) for e in edges))
    return dict(zip(keys, changed, strict=True))


def _tell_names(graph: Graph, name_of: Mapping[str, str], findings: Findings) -> None:
    """Notes about labels that occur twice, and about names that are not just the label in small letters."""
    for label, count in Counter(vertex.label for vertex in graph.vertices).items():
        if count > 1:
            same = [name_of[vertex.key] for vertex in graph.vertices if vertex.label == label]
            findings.notes.append(f"{count} nodes are labelled {label!r}: {enumerate_words(same)}")
    changed = [
        f"{vertex.label!r} is {name_of[vertex.key]}"
        for vertex in graph.vertices
        if name_of[vertex.key] != naming.words(vertex.label)
    ]
    if changed:
        findings.notes.append(f"renamed: {enumerate_words(changed)}; the labels stand beside the names")


def _other_sources(graph: Graph, edges: Sequence[Edge]) -> str:
    flows = [flow for edge in edges for flow in (edge.forward, edge.backward) if flow]
    there = {"jitter": any(flow.jitter_s for flow in flows), "loss": any(flow.loss for flow in flows)}
    return "  ".join(
        f"{name.capitalize()}: "
        + (f"from the file ({graph.sources.get(name, name)})." if some else "the file has none.")
        for name, some in there.items()
    )


def _device_source(choices: Choices) -> str:
    dealt = ", dealt in turn," if "," in choices.device else ""
    return (
        f"Devices: --device {choices.device}{dealt} of the classes of topologies/edge10.yaml.  Users: the file has "
        "none; every server has 1."
    )
