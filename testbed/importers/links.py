"""From the edges of a file to links with both directions and every number, by what the user chose.

Nothing is added that the user did not ask for: what is missing or ambiguous comes back as a sentence about which option
decides it, and all such sentences together make one refusal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from testbed import units
from testbed.importers.distance import FIBRE_S_PER_KM, ROUNDED_TO_S, delay_s
from testbed.importers.graph import Edge, Flow, Graph, Place
from testbed.words import counted, enumerate_words

Parallel = Literal["first", "sum", "fastest"]
#: What the loader takes; a test holds the two together.
LEAST_RATE_BPS, MOST_RATE_BPS = 1e3, 10e12
MOST_DELAY_S = 60.0  # and jitter
MOST_QUEUE_PACKETS = 10_000_000
_LEAST = 1e-15  # smaller numbers mean nothing, and some could not be written
_SHOWN = 5  # links named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChoices:
    """What the user gives for links; None is a question that was not answered."""

    rate_bps: float | None = None
    delay_s: float | None = None
    per_km_s: float | None = None
    route_factor: float | None = None
    parallel: Parallel | None = None


@dataclass(slots=True)
class Findings:
    """What a person should read: questions that stop the import, notes, and where numbers came from."""

    asks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def both_ways(graph: Graph, edges: Iterable[Edge], findings: Findings) -> list[Edge]:
    """Edges that lead one way joined with those that lead back; an edge to itself is left out."""
    joined: list[Edge] = []
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)  # places in ``joined`` that want a way back
    loops = 0
    for edge in edges:
        if edge.a == edge.b:
            loops += 1
        elif edge.backward is None and waiting[edge.b, edge.a]:
            place = waiting[edge.b, edge.a].pop(0)
            joined[place] = replace(joined[place], backward=edge.forward)
        else:
            if edge.backward is None:
                waiting[edge.a, edge.b].append(len(joined))
            joined.append(edge)
    if loops:
        findings.notes.append(f"left out: {counted(loops, 'link')} of a node to itself")
    lonely = [edge for edge in joined if edge.backward is None]
    if lonely:
        findings.asks.append(
            f"one way only: {counted(len(lonely), 'link')}, and ours lead both ways; add the way back to the file: "
            f"{_listed(graph, lonely)}"
        )
    return [edge for edge in joined if edge.backward is not None]


def filled(graph: Graph, edges: Sequence[Edge], choices: LinkChoices, findings: Findings) -> list[Edge]:
    """Edges with a rate and a delay in both directions, from the file, from coordinates or from the options."""
    places = {vertex.key: vertex.place for vertex in graph.vertices}
    rates = [_rate_origin(edge, choices) for edge in edges]
    delays = [_delay_origin(edge, places, choices) for edge in edges]
    _ask_rates(graph, [edge for edge, origin in zip(edges, rates, strict=True) if not origin], len(edges), findings)
    _ask_delays(
        graph, [edge for edge, origin in zip(edges, delays, strict=True) if not origin], places, len(edges), findings
    )
    _tell_sources(graph, Counter(rates), Counter(delays), choices, findings)
    return [_filled(edge, places, choices) for edge in edges]


def merged(graph: Graph, edges: Sequence[Edge], how: Parallel | None, findings: Findings) -> list[Edge]:
    """At most one edge between two nodes."""
    groups: dict[frozenset[str], list[Edge]] = defaultdict(list)
    for edge in edges:
        groups[frozenset((edge.a, edge.b))].append(edge)
    several = [group for group in groups.values() if len(group) > 1]
    if several and not how:
        pairs = "; ".join(" and ".join(graph.named(edge) for edge in group[:3]) for group in several[:_SHOWN])
        findings.asks.append(
            "we have one link between two nodes: say what to keep of parallel ones with --parallel first, fastest, or "
            f"sum (rates added, the rest as the first): {pairs}"
            + (f"; and {len(several) - _SHOWN} more pairs of nodes" if len(several) > _SHOWN else "")
        )
    elif several:
        findings.notes.append(
            f"parallel links merged by --parallel {how}: "
            + "; ".join(f"{len(group)} at {graph.named(group[0])}" for group in several[:_SHOWN])
            + (f"; and {len(several) - _SHOWN} more pairs" if len(several) > _SHOWN else "")
        )
    return [_MERGE[how or "first"](group) for group in groups.values()]


def check_ranges(graph: Graph, edges: Iterable[Edge], findings: Findings) -> None:
    """Ask about every number that a topology file would not take."""
    wrong = [
        (edge, problem)
        for edge in edges
        for problem in dict.fromkeys(p for flow in (edge.forward, edge.backward) if flow for p in _out_of_range(flow))
    ]
    findings.asks += [f"{graph.named(edge)}: {problem}" for edge, problem in wrong[:_SHOWN]]
    if len(wrong) > _SHOWN:
        findings.asks.append(f"and {len(wrong) - _SHOWN} more numbers out of range")


def _rate_origin(edge: Edge, choices: LinkChoices) -> str:
    if all(flow is None or flow.rate_bps is not None for flow in (edge.forward, edge.backward)):
        return "file"
    return "option" if choices.rate_bps is not None else ""


def _delay_origin(edge: Edge, places: Mapping[str, Place | None], choices: LinkChoices) -> str:
    if all(flow is None or flow.delay_s is not None for flow in (edge.forward, edge.backward)):
        return "file"
    if places[edge.a] and places[edge.b]:
        return "coordinates"
    return "option" if choices.delay_s is not None else ""


def _filled(edge: Edge, places: Mapping[str, Place | None], choices: LinkChoices) -> Edge:
    a, b = places[edge.a], places[edge.b]
    fibre_s = choices.delay_s
    if a and b:
        per_km_s, factor = choices.per_km_s or FIBRE_S_PER_KM, choices.route_factor or 1.0
        fibre_s = delay_s(a, b, per_km_s=per_km_s, route_factor=factor)

    def complete(flow: Flow | None) -> Flow | None:
        return flow and replace(
            flow,
            rate_bps=choices.rate_bps if flow.rate_bps is None else flow.rate_bps,
            delay_s=fibre_s if flow.delay_s is None else flow.delay_s,
        )

    return replace(
        edge,
        forward=complete(edge.forward) or edge.forward,
        backward=complete(edge.backward),
        # What the file says in words helps whoever checks a rate that was not in it.
        remark=edge.remark if _rate_origin(edge, choices) == "option" else "",
    )


def _ask_rates(graph: Graph, missing: Sequence[Edge], total: int, findings: Findings) -> None:
    if missing:
        remarks = list(dict.fromkeys(edge.remark for edge in missing if edge.remark))
        hint = f"; the file says in words: {enumerate_words(remarks, most=4)}" if remarks else ""
        findings.asks.append(
            f"{_missing(graph, missing, total, 'rate')}: give them one, such as --rate '10 Gbit/s'{hint}"
        )


def _ask_delays(
    graph: Graph, missing: Sequence[Edge], places: Mapping[str, Place | None], total: int, findings: Findings
) -> None:
    if missing:
        label = {vertex.key: vertex.label for vertex in graph.vertices}
        ends = dict.fromkeys(end for edge in missing for end in (edge.a, edge.b) if places[end] is None)
        # Where no node has coordinates, listing them all says nothing.
        nowhere = (
            f"; without coordinates: {enumerate_words([label[end] for end in ends])}" if any(places.values()) else ""
        )
        findings.asks.append(
            f"{_missing(graph, missing, total, 'delay')}: give them one, one way, such as --delay '5 ms'{nowhere}"
        )


def _tell_sources(
    graph: Graph, rates: Mapping[str, int], delays: Mapping[str, int], choices: LinkChoices, findings: Findings
) -> None:
    said = []
    if rates["file"]:
        said.append(f"of {counted(rates['file'], 'link')} from the file ({graph.sources.get('rates', 'as written')})")
    if rates["option"]:
        said.append(f"of {counted(rates['option'], 'link')} from --rate {units.format_rate(choices.rate_bps or 0)}")
    elif choices.rate_bps is not None:
        findings.notes.append("--rate had no effect: the file gives every link's rate")
    findings.sources.append(f"Rates: {'; '.join(said) or 'no links'}.")
    said = []
    if delays["file"]:
        said.append(f"of {counted(delays['file'], 'link')} from the file ({graph.sources.get('delays', 'as written')})")
    if delays["coordinates"]:
        per_km = units.format_seconds(choices.per_km_s or FIBRE_S_PER_KM, digits=5)
        given = "--delay-per-km" if choices.per_km_s else "light in fibre, 2/3 c"
        factor = f", --route-factor {choices.route_factor:g}" if choices.route_factor else ""
        said.append(
            f"of {counted(delays['coordinates'], 'link')} from the coordinates in the file: great circle at {per_km} "
            f"per km ({given}){factor}, rounded to {units.format_seconds(ROUNDED_TO_S)}"
        )
    elif choices.per_km_s or choices.route_factor:
        findings.notes.append("--delay-per-km and --route-factor had no effect: no delay comes from coordinates")
    if delays["option"]:
        said.append(f"of {counted(delays['option'], 'link')} from --delay {units.format_seconds(choices.delay_s or 0)}")
    elif choices.delay_s is not None:
        findings.notes.append("--delay had no effect: every delay comes from the file or from its coordinates")
    findings.sources.append(f"Delays, one way: {'; '.join(said) or 'no links'}.")


def _out_of_range(flow: Flow) -> list[str]:
    problems = []
    for name, value, least, most, show in (
        ("rate", flow.rate_bps, LEAST_RATE_BPS, MOST_RATE_BPS, units.format_rate),
        ("delay", flow.delay_s, 0.0, MOST_DELAY_S, units.format_seconds),
        ("jitter", flow.jitter_s, 0.0, MOST_DELAY_S, units.format_seconds),
    ):
        if value is not None and not least <= value <= most:
            problems.append(f"a {name} of {show(value)} is out of range: {show(least)} to {show(most)}")
    for name, value in (("delay", flow.delay_s), ("jitter", flow.jitter_s), ("loss", flow.loss)):
        if value is not None and 0 < value < _LEAST:
            problems.append(f"a {name} of {value:g} is next to nothing; write 0")
    if flow.queue_packets is not None and not 1 <= flow.queue_packets <= MOST_QUEUE_PACKETS:
        problems.append(f"a queue of {flow.queue_packets} packets is out of range: 1 to {MOST_QUEUE_PACKETS}")
    if not 0 <= flow.loss <= 1:
        problems.append(f"a loss of {flow.loss:g} is out of range: 0 to 1")
    return problems


def _fastest(group: Sequence[Edge]) -> Edge:
    return max(group, key=lambda edge: edge.forward.rate_bps or 0.0)  # the first of equals


def _sum(group: Sequence[Edge]) -> Edge:
    first = group[0]
    # The others may be written from the other end.
    turned = [edge if edge.a == first.a else replace(edge, forward=edge.backward or edge.forward) for edge in group]
    back = [edge.backward if edge.a == first.a else edge.forward for edge in group]
    return replace(
        first,
        forward=replace(first.forward, rate_bps=sum(edge.forward.rate_bps or 0.0 for edge in turned)),
        backward=first.backward and replace(first.backward, rate_bps=sum(f.rate_bps or 0.0 for f in back if f)),
    )


_MERGE: Mapping[Parallel, Callable[[Sequence[Edge]], Edge]] = {
    "first": lambda group: group[0],
    "sum": _sum,
    "fastest": _fastest,
}


def _missing(graph: Graph, missing: Sequence[Edge], total: int, what: str) -> str:
    if len(missing) == total:
        return f"no link has a {what}"
    return f"{len(missing)} of {total} links have no {what} ({_listed(graph, missing)})"


def _listed(graph: Graph, edges: Sequence[Edge]) -> str:
    names = [graph.named(edge) for edge in edges[:_SHOWN]]
    return "; ".join(names) + (f"; and {len(edges) - _SHOWN} more" if len(edges) > _SHOWN else "")
