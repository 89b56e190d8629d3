"""Changes of a direction at run time, written as ``KEY=VALUE`` with the keys and values of topology files.

A value is a quantity or a word; several values of one key are ``a:1,b:2``, or YAML in braces.  Only what is named
changes: everything else of the direction stays as it is.

>>> before = Direction(rate_bps=1e9, delay_s=0.002, loss=0.01)
>>> after = changed(before, ["delay=20ms", "bursts=worsens:1%,recovers:20%"], Path())
>>> after.delay_s, after.burst_loss.mean_burst_packets, after.loss
(0.02, 5.0, 0.01)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.errors import TestbedError
from testbed.loading.directions import fields_of, without_effect
from testbed.loading.document import compose
from testbed.loading.linkformat import BURSTS, CODEL, DELAY, DIRECTION_KEYS, RATE
from testbed.loading.problems import Report
from testbed.loading.recordings import Recordings
from testbed.loading.sections import Section, Table
from testbed.topology import Direction

#: Keys whose value may be several.
SECTIONS = frozenset(key.name for key in (RATE, DELAY, BURSTS, CODEL))
#: ``name:value`` or ``name=value``, as several of them stand in one argument.
_PART = re.compile(r"(\w+)[:=](.*)", re.DOTALL)


def changed(direction: Direction, texts: Sequence[str], directory: Path) -> Direction:
    """``direction`` after changes such as ``rate=100Mbit/s``; files that they name are looked for in ``directory``.

    TestbedError lists everything that is wrong with them.
    """
    report = Report()
    section = _section(texts, report)
    fields = fields_of(section, Recordings(directory, report))
    if not report.problems:
        result = replace(direction, **fields)
        for key, message in without_effect(result):
            if key in section and section.get(key) is not False:
                report.add(section.entries[key.name].at, key.name, message)
    if report.problems:
        whole = " ".join(texts)
        raise TestbedError(
            "\n".join(f"{each.path or whole}: {each.message}" for each in dict.fromkeys(report.problems))
        )
    return result


def _section(texts: Sequence[str], report: Report) -> Section:
    """What the texts say, read by the table that topology files are read by."""
    written: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or not value.strip():
            raise TestbedError(f"{text!r} is no change; write KEY=VALUE, such as 'delay=20ms'")
        if key in written:
            raise TestbedError(f"{key!r} is given twice")
        written[key] = _as_yaml(key, value.strip())
    node = compose("{" + ", ".join(f"{_quoted(key)}: {value}" for key, value in written.items()) + "}", report)
    return (Table(DIRECTION_KEYS).read(node, "", report) if node is not None else None) or Section({})


def _as_yaml(key: str, value: str) -> str:
    """A value as YAML: braces are YAML already, ``a:1,b:2`` may be keys and values, everything else is one value."""
    if value.startswith("{"):
        return value
    parts = [_PART.fullmatch(part.strip()) for part in value.split(",")]
    if key not in SECTIONS or not all(parts):
        return _scalar(value)
    return "{" + ", ".join(f"{_quoted(part[1])}: {_scalar(part[2].strip())}" for part in parts if part) + "}"


def _scalar(text: str) -> str:
    return text if text in ("true", "false") else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
