"""YAML text as nodes that know their line and column, within limits that a hostile or broken file cannot pass.

Only ``yaml.compose`` runs: text becomes scalars, lists and mappings, never Python objects.  Depth and size are
bounded while composing, because a file of ten lines can nest aliases into billions of values.
"""

from __future__ import annotations

import yaml
from yaml.reader import ReaderError

from testbed.loading.problems import WHOLE_FILE, Position, Report

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 12  # the format itself needs 6
MAX_VALUES = 500_000  # with every alias counted as often as it is used

_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
_KNOWN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in _PLAIN_TAGS)


def compose(text: str, report: Report) -> yaml.Node | None:
    """The root node of ``text``, or None after reporting why there is none."""
    loader = None
    try:
        loader = _BoundedLoader(text)
        root = loader.get_single_node()
    except ReaderError as error:
        before = text[: error.position]
        at = Position(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        report.add(at, "", f"the character {chr(error.character)!r} is not allowed in YAML")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(mark.line + 1, mark.column + 1) if mark else WHOLE_FILE
        report.add(at, "", _explain(error))
    else:
        if root is None:
            report.add(WHOLE_FILE, "", "the file is empty; docs/topology-files.md shows a small one to start from")
        return root
    finally:
        if loader is not None:
            loader.dispose()
    return None


def position(node: yaml.Node) -> Position:
    """Where ``node`` starts."""
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that we do not take; ``problem`` is already worded for people."""

    def __init__(self, problem: str, event: yaml.Event) -> None:
        super().__init__(problem=problem)
        self.problem_mark = event.start_mark  # type: ignore[assignment]


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes and counts them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._open: list[str] = []  # anchors whose value is being composed
        self._sizes: dict[str, int] = {}  # values below each finished anchor

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor: str | None = getattr(event, "anchor", None)
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and anchor in self._open:
            raise _Refused(f"'*{anchor}' is used inside its own value", event)
        before = self._values
        self._values += self._sizes.get(anchor, 1) if is_alias and anchor else 1
        if self._values > MAX_VALUES:
            raise _Refused(f"more than {MAX_VALUES} values, counting those that aliases repeat", event)
        if self._depth >= MAX_DEPTH:
            raise _Refused(f"nested more than {MAX_DEPTH} levels deep", event)
        self._depth += 1
        self._open.append("" if is_alias else anchor or "")
        node = super().compose_node(parent, index)
        self._open.pop()
        self._depth -= 1
        if anchor and not is_alias:
            self._sizes[anchor] = self._values - before
        if node is not None and node.tag not in _KNOWN_TAGS:
            raise _Refused(f"the tag '{node.tag.replace('tag:yaml.org,2002:', '!!')}' has no meaning here", event)
        return node


def _explain(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "cannot be read"
    if isinstance(error, _Refused):
        return problem
    if "'\\t'" in problem:
        return "a tab: YAML takes only spaces here"
    if "but found another document" in problem:
        return "a second document ('---') starts here; write one topology per file"
    if "undefined alias" in problem:
        return f"{problem.removeprefix('found ')}: an alias (*name) needs an anchor (&name) before it"
    context = f" {error.context}" if error.context else ""
    return f"not valid YAML: {problem}{context}"
