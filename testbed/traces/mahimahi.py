"""Mahimahi's packet delivery files: each line is the millisecond of one chance to send a packet of 1500 bytes.

Several lines may hold the same millisecond.  The last one is also the period after which everything starts anew, so a
file with the single line ``1`` is a packet per millisecond, 12 Mbit/s.  A chance takes 1504 bytes, since mahimahi
counts 4 of its TUN header (``impairments.OPPORTUNITY_BYTES``).  Format: mm-link(1), Netravali et al. 2015.
"""

from __future__ import annotations

import re
from pathlib import Path

from testbed.impairments import Opportunities
from testbed.traces.lines import TraceError, lines_of, shown

MS_PER_S = 1000

_STAMP = re.compile("[0-9]{1,12}", re.ASCII)


def read_mahimahi(path: Path) -> Opportunities:
    """The chances to send in the file; TraceError where it is malformed."""
    at_s: list[float] = []
    last_ms = 0
    for line, text in lines_of(path):
        if not _STAMP.fullmatch(text):
            raise TraceError(path, line, f"expected a time in whole milliseconds, found {shown(text)}")
        at_ms = int(text)
        if at_ms < last_ms:
            raise TraceError(path, line, f"{at_ms} ms comes after {last_ms} ms: times must not decrease")
        at_s.append(at_ms / MS_PER_S)
        last_ms = at_ms
    if not at_s:
        raise TraceError(path, 0, "the file is empty; it needs one time in milliseconds a line")
    if not last_ms:
        raise TraceError(path, len(at_s), "the last time is 0 ms, but it is the period of the trace")
    return Opportunities(name=path.name, at_s=tuple(at_s))
