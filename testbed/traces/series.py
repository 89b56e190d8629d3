"""Values over time: lines of ``time value`` as Pensieve has them, and columns of CSV files.

Both become ``Steps``, which start anew after the last.  In ``time value`` lines the value of line i holds on
(t[i-1], t[i]], so the first line only starts the clock.  In CSV a sample holds until the next one, and the last as long
as the one before it.  Several samples at one time are allowed, the last of them holds; time that goes back is not.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from testbed.errors import did_you_mean
from testbed.impairments import Steps
from testbed.traces.lines import MAX_ROWS, Scale, TraceError, lines_of, shown, text_of, too_many_rows
from testbed.units import plain_number

#: What recorders write where they have nothing to say.
MISSING = ("", "-")
#: What lasts shorter or longer has its times in another unit.
SHORTEST_S, LONGEST_S = 0.001, 366 * 86_400
#: strptime's words that mean something else on another machine.
_OF_THE_MACHINE = re.compile(r"(?<!%)(?:%%)*%[ZcxX]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of a CSV file to read, and how its times are written: one of the three kinds is given."""

    value: str
    time: str = ""
    time_unit_s: float | None = None  # seconds per unit of the time column
    time_format: str = ""  # or how its dates look, for strptime
    every_s: float | None = None  # or no time column: a row each
    hold_missing: bool = False  # a value that is not there keeps the one before


def read_steps(path: Path, scale: Scale) -> Steps:
    """The lines ``time_s value`` of the file; TraceError where it is malformed."""
    times_s: list[float] = []
    values: list[float] = []
    for line, text in lines_of(path):
        fields = text.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) != 2:
            raise TraceError(path, line, f"expected a time in seconds and a value, found {shown(text.strip())}")
        at_s = plain_number(fields[0])
        if at_s is None:
            raise TraceError(path, line, f"{shown(fields[0])} is not a time in seconds")
        _check_order(path, line, times_s, at_s, fields[0], "split it")
        times_s.append(at_s)
        values.append(scale.value(fields[1], path, line))
    if len(times_s) < 2:
        raise TraceError(path, 0, "fewer than two lines; the first only starts the clock")
    return _steps(path, times_s, values[1:])


def read_csv(path: Path, columns: Columns, scale: Scale) -> Steps:
    """The named columns of the file; TraceError where it is malformed."""
    reader = csv.reader(io.StringIO(text_of(path), newline=""), strict=True)
    times_s: list[float] = []
    values: list[float | None] = []
    try:
        head = next(reader, None)
        if not head:
            raise TraceError(path, 0, "the file is empty; its first line should name the columns")
        of_value = _place(path, head, columns.value)
        of_time = _place(path, head, columns.time) if columns.time else None
        time_of = _clock(path, columns)
        for row in reader:
            if not row:
                continue
            if len(row) != len(head):
                raise TraceError(path, reader.line_num, f"{len(row)} fields; the first line names {len(head)} columns")
            if len(values) == MAX_ROWS:
                raise too_many_rows(path, reader.line_num)
            if of_time is not None:
                written = row[of_time].strip()
                at_s = time_of(written, reader.line_num)
                _check_order(path, reader.line_num, times_s, at_s, written, "split it, or write 'every' for 'time'")
                times_s.append(at_s)
            values.append(_value(row[of_value].strip(), columns, scale, path, reader.line_num))
    except csv.Error as error:
        raise TraceError(path, reader.line_num, f"not CSV: {error}") from None
    if columns.every_s is not None:
        times_s = [columns.every_s * number for number in range(len(values) + 1)]
    elif len(times_s) < 2:
        raise TraceError(path, 0, "fewer than two rows; a row holds until the next one")
    else:
        gaps_s = (b - a for a, b in zip(times_s[-2::-1], times_s[:0:-1], strict=True))
        times_s.append(times_s[-1] + next((gap_s for gap_s in gaps_s if gap_s > 0), 0.0))
    return _steps(path, times_s, _filled(path, columns, values))


def date_problem(time_format: str) -> str:
    """What is wrong with a format of dates; nothing if it can be used."""
    machine = _OF_THE_MACHINE.search(time_format)
    if machine:
        word = machine[0][-2:]
        return f"'{word}' depends on the machine; write what stands in the file instead, such as 'UTC'"
    try:
        _date("", time_format)
    except re.error:
        return "a part of the date is asked for twice"
    except ValueError as error:
        return "" if "does not match" in str(error) else str(error)
    return "no part of a date is asked for"


def _clock(path: Path, columns: Columns) -> Callable[[str, int], float]:
    """What turns the text of a time column into seconds since whenever."""
    unit_s = columns.time_unit_s or 1.0
    begin: datetime | None = None

    def from_number(written: str, line: int) -> float:
        number = plain_number(written)
        if number is None:
            raise TraceError(path, line, f"{shown(written)} in column {columns.time!r} is not a number")
        return number * unit_s

    def from_date(written: str, line: int) -> float:
        nonlocal begin
        try:
            at = _date(written, columns.time_format)
        except ValueError:
            wanted = f"is not written as {columns.time_format!r}"
            raise TraceError(path, line, f"{shown(written)} in column {columns.time!r} {wanted}") from None
        begin = begin or at
        return (at - begin).total_seconds()

    return from_date if columns.time_format else from_number


def _date(written: str, time_format: str) -> datetime:
    at = datetime.strptime(written, time_format)  # noqa: DTZ007 - the zone follows
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _place(path: Path, head: Sequence[str], column: str) -> int:
    names = [name.strip() for name in head]
    if names.count(column) > 1:
        raise TraceError(path, 1, f"two columns are called {column!r}")
    if column not in names:
        there = did_you_mean(column, names) or f"; it has {', '.join(shown(name) for name in names[:12])}"
        raise TraceError(path, 1, f"no column {column!r}{there}")
    return names.index(column)


def _value(written: str, columns: Columns, scale: Scale, path: Path, line: int) -> float | None:
    if written not in MISSING:
        return scale.value(written, path, line)
    if not columns.hold_missing:
        message = f"no value in column {columns.value!r}; write 'missing: hold' to keep the one before"
        raise TraceError(path, line, message)
    return None


def _filled(path: Path, columns: Columns, values: Sequence[float | None]) -> list[float]:
    """Every missing value as the one before; those before the first as the first, so that columns stay in step."""
    last = next((value for value in values if value is not None), None)
    if last is None:
        raise TraceError(path, 0, f"no value at all in column {columns.value!r}")
    filled = []
    for value in values:
        last = last if value is None else value
        filled.append(last)
    return filled


def _check_order(path: Path, line: int, times_s: Sequence[float], at_s: float, written: str, remedy: str) -> None:
    if times_s and at_s < times_s[-1]:
        back = f"{shown(written)} is earlier than the line before: times must not decrease"
        raise TraceError(path, line, f"{back}; where a file holds several recordings, {remedy}")


def _steps(path: Path, times_s: Sequence[float], values: Sequence[float]) -> Steps:
    """``values[i]`` from ``times_s[i]`` to the next; what lasts no time is left out."""
    begin_s = times_s[0]
    lasting = [
        (end_s - begin_s, value)
        for start_s, end_s, value in zip(times_s[:-1], times_s[1:], values, strict=True)
        if end_s > start_s
    ]
    if not lasting:
        raise TraceError(path, 0, "all rows have the same time, so nothing lasts")
    if not SHORTEST_S <= lasting[-1][0] <= LONGEST_S:
        lasts = f"the trace lasts {lasting[-1][0]:g} s; from 1 ms to 366 days can be played"
        raise TraceError(path, 0, f"{lasts}; is the unit of its times right?")
    return Steps(name=path.name, ends_s=tuple(end_s for end_s, _ in lasting), values=tuple(v for _, v in lasting))
