"""Lists, numbers and near misses in the sentences that people read.

>>> enumerate_words(["s1", "s2", "s3"]), counted(1, "link"), counted(0, "link"), similar("Delya", ["delay", "rate"])
('s1, s2 and s3', '1 link', '0 links', 'delay')
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def enumerate_words(words: Iterable[str], *, last: str = "and", most: int = 12) -> str:
    """``a, b and c``, shortened when long; nothing where there are none."""
    listed = list(words)
    if len(listed) > most:
        listed = [*listed[: most - 1], f"{len(listed) - most + 1} more"]
    return "".join(listed) if len(listed) < 2 else f"{', '.join(listed[:-1])} {last} {listed[-1]}"


def counted(count: int, what: str) -> str:
    """``what`` with its number."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def similar(wrong: str, known: Iterable[str]) -> str:
    """The known word that ``wrong`` looks like, or an empty string."""
    words = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(wrong.casefold(), words, n=1, cutoff=0.6)
    return words[near[0]] if near else ""
