"""Mistakes in a file, worded for the person who made them, all of them at once.

    lab.yaml:4:11: links[0].rate: '100 mbps' is ambiguous: write '100 Mbit/s' or '100 MB/s'
        4 |   - rate: 100 mbps
          |           ^

A person who must fix a file wants the whole list, in the order of the file, each entry with the place to put the
cursor.  So reading never stops at a mistake: it reports it here and goes on with what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rich.cells import cell_len

from testbed.errors import TestbedError

#: A file with more mistakes than this is the wrong file.
MAX_SHOWN = 50
#: Longer lines are cut around the mistake.
MAX_EXCERPT = 100

# The line breaks of YAML 1.1, so that our line numbers are PyYAML's.
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a file, counted from 1; line 0 is the file as a whole."""

    line: int
    column: int


WHOLE_FILE = Position(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake."""

    at: Position
    path: str  # where in the structure, such as ``links[0].rate``; empty for the file as a whole
    message: str


class TopologyError(TestbedError):
    """A topology file that cannot be used; the message lists every problem with its line."""

    def __init__(self, filename: str, text: str, problems: Iterable[Problem]) -> None:
        # Two checks may trip over one value in one way; a person needs to read that once.
        distinct = dict.fromkeys(problems)
        self.filename = filename
        self.problems = tuple(sorted(distinct, key=lambda problem: problem.at))
        super().__init__(render(filename, text, self.problems))


class Report:
    """Collects the problems of one file while it is read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, at: Position, path: str, message: str) -> None:
        """Record one mistake and go on."""
        self.problems.append(Problem(at=at, path=path, message=message))


def render(filename: str, text: str, problems: Iterable[Problem]) -> str:
    """All problems as a person sees them, with their lines of ``text``."""
    lines, problems = _LINE_BREAK.split(text), tuple(problems)
    shown = [_entry(filename, lines, problem) for problem in problems[:MAX_SHOWN]]
    if len(problems) > MAX_SHOWN:
        shown.append(f"{filename}: and {len(problems) - MAX_SHOWN} more mistakes")
    return "\n".join(shown)


def _entry(filename: str, lines: list[str], problem: Problem) -> str:
    path = f"{problem.path}: " if problem.path else ""
    at = problem.at
    if at == WHOLE_FILE:
        return f"{filename}: {path}{problem.message}"
    head = f"{filename}:{at.line}:{at.column}: {path}{problem.message}"
    line = _printable(lines[at.line - 1]) if at.line <= len(lines) else ""
    start = max(0, at.column - MAX_EXCERPT // 2) if len(line) > MAX_EXCERPT else 0
    before, excerpt = line[start : at.column - 1], line[start : start + MAX_EXCERPT]
    # A wide character takes two cells of a terminal; the caret has to step over both.
    return f"{head}\n{at.line:5} | {excerpt.rstrip()}".rstrip() + f"\n      | {' ' * cell_len(before)}^"


def _printable(line: str) -> str:
    # A tab moves the caret and a control character could move anything; both are shown as one visible character.
    return "".join("→" if char == "\t" else char if char.isprintable() else "?" for char in line)
