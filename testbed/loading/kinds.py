"""The kinds of single value in a topology file.  Each kind reads a YAML node and describes itself as JSON Schema.

Both come from one object, so the loader and the published schema cannot drift apart.  A kind that meets a mistake
reports it and returns None; the reader of a section goes on with the other keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import yaml

from testbed import units
from testbed.loading.document import position
from testbed.loading.problems import Position, Report
from testbed.words import enumerate_words, similar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")
Schema = dict[str, Any]

NAME = r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?"
RESERVED_NAMES = ("localhost",)
_TAG = "tag:yaml.org,2002:"


class Kind(Protocol[T_co]):
    """One kind of value."""

    def read(self, node: yaml.Node, path: str, report: Report) -> T_co | None:
        """The value of ``node``; None once a mistake has been reported."""

    def schema(self) -> Schema:
        """The same kind as JSON Schema."""


@dataclass(frozen=True, slots=True)
class Text:
    """A free text, shown to people and never interpreted."""

    most: int  # characters

    def read(self, node: yaml.Node, path: str, report: Report) -> str | None:
        """See ``Kind``."""
        text = read_text(node, path, report)
        if text is not None and len(text) > self.most:
            report.add(position(node), path, f"{len(text)} characters; at most {self.most}")
            return None
        return text

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "string", "maxLength": self.most}


@dataclass(frozen=True, slots=True)
class Name:
    """A name that becomes a host name and part of file names and of interface names."""

    def read(self, node: yaml.Node, path: str, report: Report) -> str | None:
        """See ``Kind``."""
        text = read_text(node, path, report)
        if text is None or is_name(text, position(node), path, report):
            return text
        return None

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "string", "pattern": f"^{NAME}$", "not": {"enum": list(RESERVED_NAMES)}}


@dataclass(frozen=True, slots=True)
class Flag:
    """``true`` or ``false``."""

    def read(self, node: yaml.Node, path: str, report: Report) -> bool | None:
        """See ``Kind``."""
        if isinstance(node, yaml.ScalarNode) and node.value in ("true", "false") and node.tag == f"{_TAG}bool":
            return bool(node.value == "true")
        report.add(position(node), path, f"expected true or false, found {found(node)}")
        return None

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Number:
    """A plain number without a unit."""

    least: float
    most: float

    def read(self, node: yaml.Node, path: str, report: Report) -> float | None:
        """See ``Kind``."""
        # Only what every YAML reader takes for the same number: 010 is eight to some of them, "1" is a text.
        plain = rf"[+-]?(?!0[0-9]){units.NUMBER}"
        if node.tag not in (f"{_TAG}int", f"{_TAG}float") or not re.fullmatch(plain, node.value, re.ASCII):
            report.add(position(node), path, f"expected a plain decimal number, found {found(node)}")
            return None
        value = float(node.value)
        if not self.least <= value <= self.most:
            report.add(position(node), path, f"{node.value} is out of range: {self.least:g} to {self.most:g}")
            return None
        return value

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Generic[T]):
    """A number with a unit, between two limits that are written as people would write them."""

    parse: Callable[[str], T]
    dimension: units.Dimension
    least: str
    most: str
    why: str = ""  # added to a message about a limit

    def read(self, node: yaml.Node, path: str, report: Report) -> T | None:
        """See ``Kind``."""
        if not isinstance(node, yaml.ScalarNode) or node.tag in (f"{_TAG}null", f"{_TAG}bool"):
            wanted = f"{self.dimension.name} such as {self.dimension.example}"
            report.add(position(node), path, f"expected {wanted}, found {found(node)}")
            return None
        try:
            exact, value = self.dimension.parse(node.value), self.parse(node.value)
        except units.UnitError as error:
            report.add(position(node), path, str(error))
            return None
        why = f" ({self.why})" if self.why else ""
        if exact < self.dimension.parse(self.least):
            report.add(position(node), path, f"'{node.value}' is too small: at least '{self.least}'{why}")
            return None
        if exact > self.dimension.parse(self.most):
            bare = self.dimension is units.SHARE and 1 < exact <= 100 and "%" not in node.value
            hint = f"; did you mean '{node.value} %'?" if bare else ""
            report.add(position(node), path, f"'{node.value}' is too large: at most '{self.most}'{why}{hint}")
            return None
        return value

    def schema(self) -> Schema:
        """See ``Kind``."""
        # The longest unit first: a regular expression takes the first alternative that fits.
        written = "|".join(re.escape(unit) for unit in sorted(self.dimension.units, key=len, reverse=True) if unit)
        optional = "?" if "" in self.dimension.units else ""
        pattern = rf"^\s*(\+?{units.NUMBER}\s*({written}){optional}|\+?(0+(\.0*)?|\.0+)([eE][+-]?[0-9]{{1,2}})?)\s*$"
        text = {"type": "string", "pattern": pattern, "maxLength": units.MAX_TEXT}
        number = {"type": "number", "minimum": 0} if optional else {"const": 0}
        return {"anyOf": [text, number], "examples": [self.least, self.most]}


@dataclass(frozen=True, slots=True)
class Word:
    """One of some words."""

    words: tuple[str, ...]
    what: str = "one of these words"

    def read(self, node: yaml.Node, path: str, report: Report) -> str | None:
        """See ``Kind``."""
        text = read_text(node, path, report)
        if text is None or text in self.words:
            return text
        near = similar(text, self.words)
        hint = f"did you mean '{near}'?" if near else f"known here: {enumerate_words(self.words)}"
        report.add(position(node), path, f"{_short(text)} is not {self.what}; {hint}")
        return None

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit alone: that of the numbers in a file."""

    dimension: units.Dimension

    def read(self, node: yaml.Node, path: str, report: Report) -> str | None:
        """See ``Kind``."""
        text = read_text(node, path, report)
        if text is None:
            return None
        try:
            self.dimension.parse(f"1 {text}")
        except units.UnitError as error:
            # What is said about a quantity holds for its unit.
            report.add(position(node), path, str(error).replace("'1 ", "'"))
            return None
        return text

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"enum": [unit for unit in self.dimension.units if unit]}


@dataclass(frozen=True, slots=True)
class Or(Generic[T]):
    """Something, or one plain word that says there shall be none: ``false``, ``auto``."""

    word: str
    kind: Kind[T]

    def read(self, node: yaml.Node, path: str, report: Report) -> T | Literal[False] | None:
        """See ``Kind``; False where the word stands."""
        plain = isinstance(node, yaml.ScalarNode) and node.value == self.word
        if plain and (node.tag == f"{_TAG}bool" or self.word != "false"):
            return False
        return self.kind.read(node, path, report)

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"anyOf": [{"const": False if self.word == "false" else self.word}, self.kind.schema()]}


@dataclass(frozen=True, slots=True)
class Either(Generic[T, S]):
    """A single value, or a section that says more."""

    single: Kind[T]
    section: Kind[S]

    def read(self, node: yaml.Node, path: str, report: Report) -> T | S | None:
        """See ``Kind``."""
        if isinstance(node, yaml.MappingNode):
            return self.section.read(node, path, report)
        return self.single.read(node, path, report)

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"anyOf": [self.single.schema(), self.section.schema()]}


def is_null(node: yaml.Node) -> bool:
    """Whether nothing was written."""
    return bool(node.tag == f"{_TAG}null")


def read_text(node: yaml.Node, path: str, report: Report) -> str | None:
    """The text of a scalar; None after reporting that it is something else to YAML."""
    if isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str":
        return str(node.value)
    # YAML 1.1 reads the plain words no, off, yes, on as booleans: other tools would see False where we see a name.
    if isinstance(node, yaml.ScalarNode) and node.value and node.tag != f"{_TAG}null":
        report.add(position(node), path, f'YAML reads {found(node)}, not a text; write it in quotes: "{node.value}"')
    else:
        report.add(position(node), path, f"expected a text, found {found(node)}")
    return None


def is_name(text: str, at: Position, path: str, report: Report) -> bool:
    """Whether ``text`` can name a node; reports why not."""
    if text in RESERVED_NAMES:
        report.add(at, path, f"'{text}' is reserved")
        return False
    if re.fullmatch(NAME, text, re.ASCII):
        return True
    better = re.sub(r"[^a-z0-9-]+", "-", text.lower())[:15].strip("-")
    hint = f"; for example '{better}'" if re.fullmatch(NAME, better, re.ASCII) else ""
    rule = "a lowercase letter, then lowercase letters, digits and '-', 15 characters at most"
    report.add(at, path, f"{_short(text)} cannot be a name: {rule}{hint}")
    return False


def found(node: yaml.Node) -> str:
    """What was written instead of the expected, in words."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    match node.tag.removeprefix(_TAG):
        case "null":
            return "nothing"
        case "bool":
            return f"the boolean {node.value}"
        case "int" | "float":
            return f"the number {node.value}"
        case "timestamp":
            return f"the date {node.value}"
    return f"the text {_short(node.value)}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
