"""The files that a topology names: recorded rates and delays, and the shapes of jitter.  Each is read once.

What is wrong inside such a file is reported where the topology names it, with the line of the file in the message.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from testbed import units
from testbed.impairments import Distribution, Opportunities, Steps
from testbed.loading.kinds import Quantity
from testbed.loading.linkformat import (
    COLUMN,
    DELAY_TRACES,
    DELAY_VALUE,
    EVERY,
    FORMAT,
    MAHIMAHI,
    MISSING,
    RATE_TRACES,
    RATE_UNIT,
    RATE_VALUE,
    ROUND_TRIP,
    STEPS,
    STEPS_UNIT,
    TIME,
    TIME_FORMAT,
    TIME_UNIT,
    TRACE,
)
from testbed.loading.problems import Report
from testbed.loading.sections import Entry, Key, Section, Variants
from testbed.traces.lines import Scale, TraceError
from testbed.traces.mahimahi import read_mahimahi
from testbed.traces.series import Columns, date_problem, read_csv, read_steps
from testbed.traces.tables import read_table

T = TypeVar("T")


class Recordings:
    """Reads files relative to a directory and reports what is wrong with them."""

    def __init__(self, directory: Path, report: Report) -> None:
        self._directory, self.report = directory, report
        self._read: dict[tuple[Any, ...], Any] = {}  # what is in a file, or the TraceError that it raised

    def rate(self, section: Section) -> tuple[float, Steps | Opportunities] | None:
        """(mean in bit/s, recording) of a recorded rate; None once a mistake has been reported."""
        found: Steps | Opportunities | None
        if section.entries[FORMAT].value == MAHIMAHI:
            found = self._file(section, TRACE, read_mahimahi)
        else:
            found = self._steps(section, RATE_TRACES, RATE_VALUE)
        if found is None:
            return None
        mean_bps = found.mean_bps if isinstance(found, Opportunities) else found.mean
        return (mean_bps, found) if self._mean_fits(section, mean_bps, RATE_VALUE, units.format_rate) else None

    def delay(self, section: Section) -> tuple[float, Steps] | None:
        """(mean in s, recording) of a recorded delay; None once a mistake has been reported."""
        found = self._steps(section, DELAY_TRACES, DELAY_VALUE)
        if found is None:
            return None
        if not found.mean:
            self._complain(section, TRACE, f"{found.name}: every delay is 0; write 'delay: 0', or name another column")
            return None
        return found.mean, found

    def shape(self, entry: Entry[Any]) -> Distribution | None:
        """The distribution in the file that ``entry`` names; None once a mistake has been reported."""
        return self._once(entry, (read_table, entry.value), read_table)

    def _steps(self, section: Section, formats: Variants, limits: Quantity[float]) -> Steps | None:
        form = str(section.entries[FORMAT].value)
        # Reading a file by half of what must be known about it would end in a second message about the same mistake.
        wrong = any(entry.value is None for entry in section.entries.values())
        if wrong or not formats.tables[form].complete(section.entries) or self._contradicts_itself(section):
            return None
        scale = Scale(
            dimension=limits.dimension,
            unit=section.get(RATE_UNIT) or STEPS_UNIT,
            most=limits.most,
            halved=section.get(ROUND_TRIP) is True,
        )
        if form == STEPS:
            return self._file(section, TRACE, lambda path: read_steps(path, scale))
        time_unit = section.get(TIME_UNIT)
        columns = Columns(
            value=section.get(COLUMN) or "",
            time=section.get(TIME) or "",
            time_unit_s=float(units.TIME.units[time_unit]) if time_unit else None,
            time_format=section.get(TIME_FORMAT) or "",
            every_s=section.get(EVERY),
            hold_missing=MISSING in section,
        )
        return self._file(section, TRACE, lambda path: read_csv(path, columns, scale))

    def _contradicts_itself(self, section: Section) -> bool:
        for key, other in ((TIME, EVERY), (TIME_UNIT, EVERY), (TIME_FORMAT, EVERY), (TIME_UNIT, TIME_FORMAT)):
            if key in section and other in section:
                self._complain(section, key, f"no effect beside '{other.name}'; leave one of them out", at_key=True)
                return True
        problem = date_problem(section.get(TIME_FORMAT) or "") if TIME_FORMAT in section else ""
        if problem:
            self._complain(section, TIME_FORMAT, problem)
        return bool(problem)

    def _file(self, section: Section, key: Key[str], read: Callable[[Path], T]) -> T | None:
        entry = section.entry(key)
        if entry is None or entry.value is None:
            return None  # reported where it is missing
        options = tuple(sorted((name, entry.value) for name, entry in section.entries.items()))
        return self._once(entry, options, read)

    def _once(self, entry: Entry[str], options: tuple[Any, ...], read: Callable[[Path], T]) -> T | None:
        if options not in self._read:
            try:
                self._read[options] = read(self._directory / (entry.value or ""))
            except TraceError as error:
                self._read[options] = error
        found = self._read[options]
        if isinstance(found, TraceError):
            self.report.add(entry.at, entry.path, str(found))
            return None
        return found  # type: ignore[no-any-return]

    def _mean_fits(
        self, section: Section, mean: float, limits: Quantity[float], written: Callable[[float], str]
    ) -> bool:
        if limits.parse(limits.least) <= mean <= limits.parse(limits.most):
            return True
        where = f"{section.entries[TRACE.name].value}: its mean of {written(mean)} is out of range"
        self._complain(section, TRACE, f"{where}: {limits.least} to {limits.most}")
        return False

    def _complain(self, section: Section, key: Key[Any], message: str, *, at_key: bool = False) -> None:
        entry = section.entries[key.name]
        self.report.add(entry.key_at if at_key else entry.at, entry.path, message)
