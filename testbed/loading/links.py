"""From the links of a file to ``Link`` values: ends, values laid over each other, and keys that would do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.loading.directions import CONDITIONAL, Fields, fields_of, without_effect
from testbed.loading.fileformat import BETWEEN, DEFAULTS, LINK_DEFAULTS, LINKS, REVERSE
from testbed.loading.linkformat import DELAY, RATE
from testbed.loading.problems import MAX_SHOWN, Report
from testbed.loading.recordings import Recordings
from testbed.loading.sections import Entry, Section
from testbed.topology import Direction, Link, Node
from testbed.words import enumerate_words, similar


def read_links(root: Section, nodes: Mapping[str, Node], recordings: Recordings) -> tuple[Link, ...]:
    """The links that ``root`` describes; what is wrong with them has been reported."""
    report = recordings.report
    defaults = (root.get(DEFAULTS) or Section({})).get(LINK_DEFAULTS) or Section({})
    default_fields = fields_of(defaults, recordings)
    idle = _IdleKeys()
    links: list[Link] = []
    seen: dict[frozenset[str], Entry[Section]] = {}
    names: dict[str, Entry[Section]] = {}
    for entry in root.get(LINKS) or []:
        section = entry.value
        if section is None:
            continue
        reverse = section.get(REVERSE) or Section({})
        _check_complete(entry, section, defaults, report)
        forward_fields = default_fields | fields_of(section, recordings)
        backward_fields = forward_fields | fields_of(reverse, recordings)
        ends = _ends(section, nodes, report)
        if ends is None:
            continue
        a, b = ends
        earlier = seen.setdefault(frozenset(ends), entry)
        same_name = names.setdefault(f"{a}-{b}", entry)
        if earlier is not entry:
            message = f"a second link between {a} and {b}; the first is {earlier.path} on line {earlier.at.line}"
            report.add(entry.at, entry.path, f"{message}; parallel links are not supported")
        elif same_name is not entry:
            message = f"this link and {same_name.path} on line {same_name.at.line} would both be called '{a}-{b}'"
            report.add(entry.at, entry.path, f"{message}; rename a node")
        else:
            names.setdefault(f"{b}-{a}", entry)
            forward, backward = _direction(forward_fields), _direction(backward_fields)
            if forward and backward:
                idle.judge(forward, section, defaults)
                idle.judge(backward, reverse, section, defaults)
                links.append(Link(a=a, b=b, forward=forward, backward=backward))
    idle.tell(report)
    return tuple(links)


class _IdleKeys:
    """Keys that have no effect in any direction they hold for."""

    def __init__(self) -> None:
        self._idle: dict[str, tuple[Entry[Any], str]] = {}  # by path
        self._used: set[str] = set()

    def judge(self, direction: Direction, *sections: Section) -> None:
        """Look at a direction and at the sections that it was read from, the first one in force first."""
        idle = {key.name: message for key, message in without_effect(direction)}
        for key in CONDITIONAL:
            entry = next((section.entries[key.name] for section in sections if key in section), None)
            if entry is None:
                continue
            if key.name in idle:
                self._idle.setdefault(entry.path, (entry, idle[key.name]))
            else:
                self._used.add(entry.path)

    def tell(self, report: Report) -> None:
        """Report those that no direction needs."""
        for path, (entry, message) in self._idle.items():
            if path not in self._used:
                report.add(entry.key_at, path, message)


def unknown_name(name: str, known: Mapping[str, Any], what: str, where: str, report: Report) -> str:
    """What to say about a name that leads nowhere."""
    if not known:
        return f"unknown {what} '{name}'; there is nothing under {where}"
    # Comparing thousands of wrong names with thousands of right ones takes minutes, for messages that nobody is shown.
    near = similar(name, known) if len(report.problems) < MAX_SHOWN else ""
    hint = f"did you mean '{near}'?" if near else f"{where} has {enumerate_words(known)}"
    return f"unknown {what} '{name}'; {hint}"


def _check_complete(entry: Entry[Section], section: Section, defaults: Section, report: Report) -> None:
    missing = [f"'{key.name}'" for key in (RATE, DELAY) if key not in section and key not in defaults]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        where = "here or under 'defaults: link:'"
        report.add(entry.at, entry.path, f"{enumerate_words(missing)} {verb} missing; write it {where}")


def _ends(section: Section, nodes: Mapping[str, Node], report: Report) -> tuple[str, str] | None:
    pair = section.get(BETWEEN)
    if pair is None:
        return None
    known = True
    for end in pair:
        if end.value is not None and end.value not in nodes:
            report.add(end.at, end.path, unknown_name(end.value, nodes, "node", "'nodes'", report))
            known = False
    a, b = (end.value for end in pair)
    if not known or a is None or b is None:
        return None
    if a == b:
        report.add(pair[1].at, pair[1].path, f"a link from '{a}' to itself")
        return None
    return a, b


def _direction(fields: Fields) -> Direction | None:
    return Direction(**fields) if "rate_bps" in fields and "delay_s" in fields else None
