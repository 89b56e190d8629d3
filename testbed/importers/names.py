"""Names that nodes can have, made from labels that people gave.

>>> derive(["New York", "Zürich", "None", "None", "4711", "Hradec Kralove (CZ)"])
['new-york', 'zurich', 'none', 'none-2', 'n4711', 'hradec-kralove']
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from testbed.loading.kinds import NAME, RESERVED_NAMES

MAX_LENGTH = 15
#: Names that YAML reads as something other than a text (y and n: other readers than ours).
_NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def words(label: str) -> str:
    """``label`` in small letters, with hyphens between its words; of any length."""
    letters = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")


def plain(label: str) -> str:
    """The readable name nearest to ``label``; several labels may have the same."""
    name = words(label) or "node"
    if not name[0].isalpha():
        name = f"n{name}"
    return name[:MAX_LENGTH].strip("-")


def derive(labels: Iterable[str]) -> list[str]:
    """A name for each label, each name once: a second ``Springfield`` becomes ``springfield-2``."""
    taken: set[str] = set(RESERVED_NAMES)
    following: dict[str, int] = {}  # the number to try next, or thousands of equal labels would take for ever
    names = []
    for label in labels:
        base = plain(label)
        name = base
        while name in taken:
            following[base] = following.get(base, 1) + 1
            suffix = f"-{following[base]}"
            name = base[: MAX_LENGTH - len(suffix)].strip("-") + suffix
        taken.add(name)
        names.append(name)
    return names


def without_clashes(names: Sequence[str], pairs: Iterable[tuple[int, int]]) -> list[str]:
    """``names`` changed where two links would get one name, as a-b to c and a to b-c would.

    Two names without a hyphen in them can be read out of a link's name in one way only, so this comes to an end.

    >>> without_clashes(["a-b", "c", "a", "b-c"], [(0, 1), (2, 3)])
    ['a-b', 'c', 'a', 'bc']
    """
    changed, links = list(names), list(pairs)
    taken = {*names, *RESERVED_NAMES}
    while clashing := _clashing(changed, links):
        for place in clashing:
            name = changed[place]
            if "-" in name:
                changed[place] = _joined(name, taken)
                taken.add(changed[place])
    return changed


def is_usable(name: str) -> bool:
    """Whether ``name`` is one that the loader takes."""
    return re.fullmatch(NAME, name, re.ASCII) is not None and name not in RESERVED_NAMES


def in_yaml(name: str) -> str:
    """``name`` as it must be written to stay a text: Norway's ``no`` in quotes."""
    return f'"{name}"' if name in _NOT_TEXT else name


def _clashing(names: Sequence[str], links: Iterable[tuple[int, int]]) -> list[int]:
    """The ends of links whose name another pair has already."""
    owner: dict[str, frozenset[int]] = {}
    ends: dict[int, None] = {}
    for a, b in links:
        pair = frozenset((a, b))
        for name in (f"{names[a]}-{names[b]}", f"{names[b]}-{names[a]}"):
            if owner.setdefault(name, pair) != pair:
                ends |= {a: None, b: None}
    return list(ends)


def _joined(name: str, taken: set[str]) -> str:
    base = name.replace("-", "")
    joined, number = base, 1
    while joined in taken:
        number += 1
        joined = f"{base[: MAX_LENGTH - len(str(number))]}{number}"
    return joined
