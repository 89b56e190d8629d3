"""Sections of a topology file: fixed keys, chosen names, lists.  Each reads itself and describes itself as JSON Schema.

Strict on purpose: an unknown or repeated key is a mistake, never ignored, because a setting without effect costs its
author days.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import yaml

from testbed.loading.document import position
from testbed.loading.kinds import Kind, Name, Schema, Word, found, is_name, is_null, read_text
from testbed.loading.problems import Position, Report
from testbed.words import enumerate_words, similar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """A value that was read, and where; ``value`` is None where a mistake has been reported instead."""

    value: T | None
    at: Position  # of the value
    key_at: Position  # of its key, the better place to point at when something is missing inside
    path: str


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """One key of a section: the row of the format table."""

    name: str
    kind: Kind[T]
    doc: str
    also_called: tuple[str, ...] = ()  # words of other tools, to suggest this key for


@dataclass(frozen=True, slots=True)
class Section:
    """The keys that a section of a file really held."""

    entries: Mapping[str, Entry[Any]]

    def entry(self, key: Key[T]) -> Entry[T] | None:
        """What was written under ``key``; None where the key is absent."""
        return self.entries.get(key.name)

    def get(self, key: Key[T]) -> T | None:
        """The value under ``key``; None where the key is absent or its value was wrong."""
        entry = self.entries.get(key.name)
        return None if entry is None else entry.value

    def __contains__(self, key: Key[Any]) -> bool:
        return key.name in self.entries


@dataclass(frozen=True, slots=True)
class Table:
    """A section with fixed keys."""

    keys: tuple[Key[Any], ...]
    #: The section must hold all keys of one of these groups; no group asks for nothing.
    needs: tuple[tuple[str, ...], ...] = field(default=())

    def read(self, node: yaml.Node, path: str, report: Report) -> Section | None:
        """See ``Kind``."""
        known = {key.name: key for key in self.keys}
        entries: dict[str, Entry[Any]] = {}
        guessed: dict[str, Entry[Any]] = {}
        pairs = _pairs(node, path, report)
        if pairs is None:
            return None
        for name, key_node, value_node in pairs:
            key_path = f"{path}.{name}" if path else name
            if name not in known:
                meant = self._meant(name)
                report.add(position(key_node), key_path, self._unknown(name, meant))
                # What the author meant to write is not missing as well: one mistake, one message.
                at = position(key_node)
                absent: Entry[Any] = Entry(value=None, at=at, key_at=at, path=key_path)
                guessed |= dict.fromkeys(
                    self.needs[-1] if name == "<<" and self.needs else [meant] if meant else [], absent
                )
                continue
            value = known[name].kind.read(value_node, key_path, report)
            at = position(value_node)
            entries[name] = Entry(value=value, at=at, key_at=position(key_node), path=key_path)
        entries = guessed | entries
        if not self.complete(entries):
            for message in self._missing(entries):
                report.add(position(node), path, message)
        return Section(entries)

    def schema(self) -> Schema:
        """See ``Kind``."""
        properties = {key.name: {"description": key.doc, **key.kind.schema()} for key in self.keys}
        result: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
        if len(self.needs) == 1:
            result["required"] = list(self.needs[0])
        elif self.needs:
            result["anyOf"] = [{"required": list(group)} for group in self.needs]
        return result

    def _meant(self, name: str) -> str:
        """The key that the author of an unknown key probably had in mind, or an empty string."""
        for key in self.keys:
            if name.casefold() in key.also_called:
                return key.name
        return similar(name, [key.name for key in self.keys])

    def _unknown(self, name: str, meant: str) -> str:
        if name == "<<":
            return "merge keys are not supported; put shared values under 'devices' or 'defaults'"
        for key in self.keys:
            if key.name == meant:
                doc = f" ({key.doc})" if name.casefold() in key.also_called else ""
                return f"unknown key; did you mean '{meant}'{doc}?"
        return f"unknown key; known here: {enumerate_words(key.name for key in self.keys)}"

    def complete(self, entries: Container[str]) -> bool:
        """Whether keys of these names are all that the section must hold."""
        return not self.needs or any(all(name in entries for name in group) for group in self.needs)

    def _missing(self, entries: Container[str]) -> Iterator[str]:
        always = [name for name in self.needs[-1] if all(name in group for group in self.needs)]
        missing = [f"'{name}'" for name in always if name not in entries]
        if missing:
            yield f"{enumerate_words(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        choices = [[name for name in group if name not in always] for group in self.needs]
        if any(all(name in entries for name in group) for group in choices):
            return
        *others, first = [[f"'{name}'" for name in group if name not in entries] for group in choices]
        either = f", or {enumerate_words(map(enumerate_words, others), last='or')} instead" if others else ""
        yield f"{enumerate_words(first)} {'is' if len(first) == 1 else 'are'} missing{either}"


@dataclass(frozen=True, slots=True)
class Variants:
    """A section where one key says which others there may be."""

    key: str
    tables: Mapping[str, Table]  # by the word under that key

    def read(self, node: yaml.Node, path: str, report: Report) -> Section | None:
        """See ``Kind``."""
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        chosen = next((value for key, value in pairs if key.value == self.key), None)
        if isinstance(chosen, yaml.ScalarNode) and chosen.value in self.tables:
            return self.tables[chosen.value].read(node, path, report)
        known = tuple(self.tables)
        if chosen is not None:
            Word(known, f"a {self.key} that is read here").read(chosen, f"{path}.{self.key}", report)
        else:
            words = enumerate_words((f"'{self.key}: {word}'" for word in known), last="or")
            report.add(position(node), path, f"'{self.key}' is missing; write {words}")
        return None

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"anyOf": [table.schema() for table in self.tables.values()]}


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """A section whose keys are names that the author chooses."""

    kind: Kind[T]

    def read(self, node: yaml.Node, path: str, report: Report) -> dict[str, Entry[T]] | None:
        """See ``Kind``."""
        pairs = _pairs(node, path, report)
        if pairs is None:
            return None
        entries: dict[str, Entry[T]] = {}
        for name, key_node, value_node in pairs:
            item_path = f"{path}.{name}"
            if read_text(key_node, item_path, report) is not None:
                is_name(name, position(key_node), item_path, report)
            value = self.kind.read(value_node, item_path, report)
            entries[name] = Entry(value=value, at=position(value_node), key_at=position(key_node), path=item_path)
        return entries

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "object", "propertyNames": Name().schema(), "additionalProperties": self.kind.schema()}


@dataclass(frozen=True, slots=True)
class Items(Generic[T]):
    """A list."""

    kind: Kind[T]

    def read(self, node: yaml.Node, path: str, report: Report) -> list[Entry[T]] | None:
        """See ``Kind``."""
        if not isinstance(node, yaml.SequenceNode):
            report.add(position(node), path, f"expected a list (lines starting with '- '), found {found(node)}")
            return None
        entries = []
        for number, item in enumerate(node.value):
            item_path = f"{path}[{number}]"
            value = self.kind.read(item, item_path, report)
            entries.append(Entry(value=value, at=position(item), key_at=position(item), path=item_path))
        return entries

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "array", "items": self.kind.schema()}


@dataclass(frozen=True, slots=True)
class Pair:
    """A list of two names."""

    def read(self, node: yaml.Node, path: str, report: Report) -> tuple[Entry[str], Entry[str]] | None:
        """See ``Kind``."""
        if not isinstance(node, yaml.SequenceNode) or len(node.value) != 2:
            instead = f"{len(node.value)} entries" if isinstance(node, yaml.SequenceNode) else found(node)
            report.add(position(node), path, f"expected the two ends of the link, such as [s1, s2], found {instead}")
            return None
        ends = []
        for number, item in enumerate(node.value):
            end_path = f"{path}[{number}]"
            name = read_text(item, end_path, report)
            ends.append(Entry(value=name, at=position(item), key_at=position(item), path=end_path))
        return ends[0], ends[1]

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}


@dataclass(frozen=True, slots=True)
class NameOr(Generic[T]):
    """A name of something defined elsewhere in the file, or the thing itself."""

    kind: Kind[T]

    def read(self, node: yaml.Node, path: str, report: Report) -> str | T | None:
        """See ``Kind``."""
        if isinstance(node, yaml.ScalarNode) and not is_null(node):
            return read_text(node, path, report)
        return self.kind.read(node, path, report)

    def schema(self) -> Schema:
        """See ``Kind``."""
        return {"anyOf": [{"type": "string"}, self.kind.schema()]}


def _pairs(node: yaml.Node, path: str, report: Report) -> Iterator[tuple[str, yaml.Node, yaml.Node]] | None:
    """The (name, key node, value node) of a mapping without repeated keys; None if ``node`` is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        report.add(position(node), path, f"expected keys and values ('key: value'), found {found(node)}")
        return None
    return _distinct(node, path, report)


def _distinct(node: yaml.MappingNode, path: str, report: Report) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    first: dict[str, Position] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            report.add(position(key_node), path, f"expected a key, found {found(key_node)}")
            continue
        name = str(key_node.value)
        if name in first:
            key_path = f"{path}.{name}" if path else name
            report.add(position(key_node), key_path, f"written twice; the first is on line {first[name].line}")
            continue
        first[name] = position(key_node)
        yield name, key_node, value_node
