"""The shape of jitter as iproute2 keeps it (``/usr/lib/tc/*.dist``): quantiles at equal steps of probability.

An extra delay is ``entry / 8192 · jitter``, every entry equally likely, so a table of mean 0 and deviation 8192 makes
``jitter`` the standard deviation.  Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import re
from pathlib import Path

from testbed.impairments import Distribution
from testbed.traces.lines import TraceError, lines_of, shown

MAX_ENTRIES = 16_384
#: The kernel's tables have 16 bits an entry.
LEAST, MOST = -32_768, 32_767

_INTEGER = re.compile("[+-]?[0-9]{1,9}", re.ASCII)


def read_table(path: Path) -> Distribution:
    """The distribution in the file, ascending; TraceError where it is malformed."""
    table: list[int] = []
    for line, text in lines_of(path):
        for word in text.partition("#")[0].split():
            if not _INTEGER.fullmatch(word):
                hint = "; iproute2's maketable makes a table of measured delays" if _is_measured(word) else ""
                raise TraceError(
                    path, line, f"expected whole numbers (8192 is one deviation), found {shown(word)}{hint}"
                )
            entry = int(word)
            if not LEAST <= entry <= MOST:
                raise TraceError(path, line, f"{entry} is out of range: {LEAST} to {MOST}, 8192 is one deviation")
            if len(table) == MAX_ENTRIES:
                raise TraceError(path, line, f"more than {MAX_ENTRIES} entries")
            table.append(entry)
    if not any(table):
        raise TraceError(path, 0, "every entry is 0, so there is no jitter" if table else "no entry in this table")
    return Distribution(name=path.name.removesuffix(".dist"), table=tuple(sorted(table)))


def _is_measured(word: str) -> bool:
    return bool(re.fullmatch(r"[0-9]+\.[0-9]+", word, re.ASCII))
