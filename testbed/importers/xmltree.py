"""XML as a plain tree with line numbers, without any of XML's own programming.

A document type can define entities that grow into billions of characters or name other files, so a file that has one
is refused before anything is expanded; none of the formats here needs it.

>>> root = parse(b"<a x='1'><b/>text</a>", "small.xml")
>>> root.tag, root.attributes, root.text, [(child.tag, child.line) for child in root.children]
('a', {'x': '1'}, 'text', [('b', 1)])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from testbed.importers.reading import MAX_DEPTH, MAX_ITEMS, ImportRefusedError


@dataclass(slots=True)
class Element:
    """One element: its name without namespace prefix, and what is in it."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def named(self, tag: str) -> Iterator[Element]:
        """The children with that name."""
        return (child for child in self.children if child.tag == tag)


def parse(data: bytes, filename: str) -> Element:
    """The root element of ``data``, with all that is in it."""
    return _built(data, filename, only_root=False)


def root_tag(data: bytes, filename: str) -> str:
    """The name of the root element; what is in it is not read."""
    return _built(data, filename, only_root=True).tag


def _built(data: bytes, filename: str, *, only_root: bool) -> Element:
    builder = _Builder(filename, only_root)
    try:
        builder.parser.Parse(data, True)
    except _RootReadError:
        pass
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ImportRefusedError(f"{filename}:{error.lineno}: not valid XML: {reason}") from None
    except (LookupError, ValueError) as error:  # an encoding that nobody knows
        raise ImportRefusedError(f"{filename}: {error}; save the file as UTF-8") from None
    return builder.roots[0]


class _RootReadError(Exception):
    """Ends the parsing early; nobody outside sees it."""


class _Builder:
    """Builds the tree from the parser's events, and counts."""

    def __init__(self, filename: str, only_root: bool) -> None:
        self.roots: list[Element] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self._filename = filename
        self._only_root = only_root
        self._open: list[Element] = []
        self._count = 0

    def _doctype(self, name: str, *_: object) -> None:
        raise ImportRefusedError(
            f"{self._filename}:{self.parser.CurrentLineNumber}: the file defines a document type "
            f"(<!DOCTYPE {name[:40]} ...>), which is not read for safety; delete that declaration"
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        self._count += 1
        if self._count > MAX_ITEMS:
            raise ImportRefusedError(f"{self._filename}:{line}: more than {MAX_ITEMS} elements")
        if len(self._open) >= MAX_DEPTH:
            raise ImportRefusedError(f"{self._filename}:{line}: nested more than {MAX_DEPTH} levels deep")
        element = Element(
            tag=_local(name), attributes={_local(key): text for key, text in attributes.items()}, line=line
        )
        (self._open[-1].children if self._open else self.roots).append(element)
        self._open.append(element)
        if self._only_root:
            raise _RootReadError

    def _end(self, _: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            self._open[-1].text += text


def _local(name: str) -> str:
    return name.rpartition(":")[2]
