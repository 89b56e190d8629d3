"""Tables of round trips: a matrix or a list of pairs, as CSV, JSON or one Markdown table.

    delay(a -> b) = RTT(a, b) / 2        delay(b -> a) = RTT(b, a) / 2, or RTT(a, b) / 2 where only that was measured

What a node measured to itself is left out.  A pair without a number gets no link.  Numbers are milliseconds unless a
column's name ends in ``_s`` or ``_us``.

>>> graph = read_rtt_text("from,to,rtt_ms\\nparis,rome,22\\nparis,oslo,-\\n", "rtt.csv", RttOptions())
>>> [(edge.a, edge.b, edge.forward.delay_s) for edge in graph.edges]
[('paris', 'rome', 0.011)]
"""

from __future__ import annotations

import csv
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from testbed.importers.graph import Edge, Flow, Graph, Vertex
from testbed.importers.reading import MAX_ITEMS, TABLE_HINT, ImportRefusedError, check_count, number
from testbed.words import counted, enumerate_words

_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6}
_DECIMALS = 9  # a nanosecond, finer than any measurement; without it 1/10^14 of rounding would be written out
_MISSING = frozenset(("", "-", "–", "—", "n/a", "na", "nan", "none", "null", "*"))
_FROM = ("from", "source", "src", "origin", "a", "cty1", "region1", "site1")
_TO = ("to", "target", "dest", "destination", "dst", "b", "cty2", "region2", "site2")
Repeated = Literal["min", "median", "mean"]
REPEATED: Mapping[Repeated, Callable[[Sequence[float]], float]] = {
    "min": min,
    "median": statistics.median,
    "mean": statistics.fmean,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RttOptions:
    """What only tables need."""

    columns: tuple[str, str, str] | None = None  # from, to, round trip
    repeated: Repeated | None = None  # how several measurements of one pair become one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One measurement."""

    a: str
    b: str
    written: str
    where: str


def is_matrix(document: object) -> bool:
    """Whether JSON looks like round trips: names to names to numbers."""
    inner = _inner(document)
    return bool(inner) and all(isinstance(row, dict) for row in inner.values())


def read_rtt_json(document: object, filename: str, options: RttOptions) -> Graph:
    """A matrix ``{"a": {"b": 12.5}}``, alone or as the only value of an object."""
    if not is_matrix(document):
        raise ImportRefusedError(f'{filename}: expected round trips as {{"paris": {{"rome": 22.5}}}}; or {TABLE_HINT}')
    if options.columns:
        raise ImportRefusedError(f"{filename}: --columns is for tables; JSON has none")
    cells = []
    for a, row in _inner(document).items():
        for b, value in row.items():
            if isinstance(value, dict | list | bool):
                raise ImportRefusedError(f"{filename}: {a}: {b}: expected a number of milliseconds")
            cells.append(_Cell(a=a, b=b, written="" if value is None else str(value), where=""))
    return _graph(cells, "ms", filename, options)


def read_rtt_text(text: str, filename: str, options: RttOptions) -> Graph:
    """A CSV or a Markdown table."""
    lines = text.splitlines()
    if len(lines) > MAX_ITEMS:
        raise ImportRefusedError(f"{filename}: more than {MAX_ITEMS} rows")
    rows = _markdown(lines, filename) if any(line.lstrip().startswith("|") for line in lines) else _csv(text, filename)
    if len(rows) < 2:
        raise ImportRefusedError(f"{filename}: a heading and at least one row are needed; {TABLE_HINT}")
    head = rows[0][1]
    if options.columns is None and _is_square(head, rows[1:]):
        return _graph(_of_matrix(head, rows[1:], filename), "ms", filename, options)
    chosen = _columns(head, filename, options)
    return _graph(_of_pairs(chosen, rows[1:], filename), _unit(head[chosen[2]]), filename, options)


def _graph(cells: Iterable[_Cell], unit: str, filename: str, options: RttOptions) -> Graph:
    measured: dict[tuple[str, str], list[tuple[float, str]]] = {}
    names: dict[str, None] = {}
    to_themselves = 0
    for cell in cells:
        names |= {cell.a: None, cell.b: None}
        if cell.a == cell.b:
            to_themselves += 1
        elif cell.written.strip().casefold() not in _MISSING:
            value = number(cell.written, _at(filename, cell))
            if value < 0:
                raise ImportRefusedError(
                    f"{_at(filename, cell)}: a round trip of {cell.written}; leave it empty if unknown"
                )
            measured.setdefault((cell.a, cell.b), []).append((round(value / _PER_S[unit] / 2, _DECIMALS), cell.where))
    check_count(len(names), filename)
    delays_s = {pair: _one(pair, values, filename, options) for pair, values in measured.items()}
    edges = []
    linked: set[tuple[str, str]] = set()
    for (a, b), delay_s in delays_s.items():
        if (b, a) in linked:
            continue  # the way back of a link that is there already
        linked.add((a, b))
        back_s = delays_s.get((b, a))
        edges.append(
            Edge(
                a=a,
                b=b,
                forward=Flow(delay_s=delay_s),
                backward=Flow(delay_s=delay_s if back_s is None else back_s),
                where=measured[a, b][0][1],
            )
        )
    notes = [f"left out: {counted(to_themselves, 'round trip')} of a place to itself"] if to_themselves else []
    missing = len(names) * (len(names) - 1) // 2 - len(edges)
    if missing:
        notes.append(f"{missing} of the file's {missing + len(edges)} pairs have no round trip; they get no link")
    return Graph(
        vertices=tuple(Vertex(key=name, label=name) for name in names),
        edges=tuple(edges),
        sources={"delays": f"half of the round trip, which the file gives in {unit}{_how(measured, options)}, to 1 ns"},
        notes=tuple(notes),
    )


def _one(pair: tuple[str, str], values: Sequence[tuple[float, str]], filename: str, options: RttOptions) -> float:
    if len(values) == 1:
        return values[0][0]
    if not options.repeated:
        second = f" (the second on {values[1][1]})" if values[1][1] else ""
        raise ImportRefusedError(
            f"{filename}: {pair[0]} - {pair[1]} has {len(values)} round trips{second}: say which "
            f"to take with --repeated {enumerate_words(REPEATED, last='or')}"
        )
    return round(REPEATED[options.repeated]([value for value, _ in values]), _DECIMALS)


def _at(filename: str, cell: _Cell) -> str:
    return f"{filename}: {cell.where}{': ' if cell.where else ''}{cell.a} - {cell.b}"


def _how(measured: Mapping[tuple[str, str], Sequence[object]], options: RttOptions) -> str:
    several = any(len(values) > 1 for values in measured.values())
    return f"; the {options.repeated} of several (--repeated)" if several else ""


def _of_matrix(head: Sequence[str], rows: Sequence[tuple[str, list[str]]], filename: str) -> list[_Cell]:
    cells = []
    for where, row in rows:
        if len(row) > len(head):
            raise ImportRefusedError(f"{filename}: {where}: {len(row)} columns; the heading has {len(head)}")
        cells += [
            _Cell(a=row[0], b=name, written=written, where=where)
            for name, written in zip(head[1:], row[1:], strict=False)
        ]
    return cells


def _of_pairs(chosen: tuple[int, int, int], rows: Sequence[tuple[str, list[str]]], filename: str) -> list[_Cell]:
    cells = []
    for where, row in rows:
        if len(row) <= max(chosen):
            raise ImportRefusedError(f"{filename}: {where}: {len(row)} columns, too few")
        a, b, written = (row[place] for place in chosen)
        if not a or not b:
            raise ImportRefusedError(f"{filename}: {where}: a name is missing")
        cells.append(_Cell(a=a, b=b, written=written, where=where))
    return cells


def _is_square(head: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> bool:
    """Whether the names of the rows are names of the columns."""
    columns = {name for name in head[1:] if name}
    return len(columns) > 1 and all(row and row[0] in columns for _, row in rows)


def _columns(head: Sequence[str], filename: str, options: RttOptions) -> tuple[int, int, int]:
    """Where in a row the two names and the round trip stand."""
    listed = ", ".join(head)
    if options.columns:
        for name in options.columns:
            if name not in head:
                raise ImportRefusedError(f"{filename}: no column {name!r}; there are {listed[:200]}")
        a, b, c = (head.index(name) for name in options.columns)
        return a, b, c
    lower = [name.lower() for name in head]
    found_from = [place for place, name in enumerate(lower) if name in _FROM]
    found_to = [place for place, name in enumerate(lower) if name in _TO]
    found_rtt = [place for place, name in enumerate(lower) if name in ("rtt", "rtt_ms", "rtt_s", "rtt_us")]
    if len(found_from) == len(found_to) == len(found_rtt) == 1:
        return found_from[0], found_to[0], found_rtt[0]
    if {"latitude", "longitude"} <= set(lower) and not any("rtt" in name for name in lower):
        raise ImportRefusedError(
            f"{filename}: a list of places, without links or round trips between them: {TABLE_HINT}; or draw a network "
            "by chance with `testbed generate`"
        )
    raise ImportRefusedError(
        f"{filename}: which columns name the two ends, and which has the round trip?  Say it with "
        f"--columns FROM,TO,RTT; there are {listed[:200]}"
    )


def _unit(column: str) -> str:
    match = re.search(r"_(s|ms|us)$", column.lower())
    return match[1] if match else "ms"


def _csv(text: str, filename: str) -> list[tuple[str, list[str]]]:
    head = text[: text.find("\n")]
    delimiter = max(",;\t", key=head.count)
    try:
        reader = csv.reader(text.splitlines(), delimiter=delimiter, strict=True)
        return [(f"line {reader.line_num}", [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise ImportRefusedError(f"{filename}: not a table: {error}; {TABLE_HINT}") from None


def _markdown(lines: Sequence[str], filename: str) -> list[tuple[str, list[str]]]:
    """The rows of the only table of a Markdown text."""
    tables: list[list[int]] = []
    for place, line in enumerate(lines):
        if line.lstrip().startswith("|"):
            if tables and tables[-1][-1] == place - 1:
                tables[-1].append(place)
            else:
                tables.append([place])
    if len(tables) > 1:
        first, last = tables[0][0] + 1, tables[0][-1] + 1
        raise ImportRefusedError(
            f"{filename}: {len(tables)} tables in one file; cut out the one you mean, for example the first with "
            f"`sed -n {first},{last}p {shlex.quote(filename)} > table.md`, and import that"
        )
    rows = []
    for place in tables[0]:
        cells = [re.sub(r"[*`]", "", cell).strip() for cell in lines[place].strip()[1:].removesuffix("|").split("|")]
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append((f"line {place + 1}", cells))
    return rows


def _inner(document: Any) -> dict[str, Any]:
    """The matrix itself, out of an object that has nothing else."""
    if not isinstance(document, dict):
        return {}
    if len(document) == 1:
        (value,) = document.values()
        if isinstance(value, dict) and value and all(isinstance(row, dict) for row in value.values()):
            return value
    return document
