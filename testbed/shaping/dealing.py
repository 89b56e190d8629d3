r"""How many relay processes there are, and which of them carries which cable, so that none has much more to do.

A relay is one process and so carries what one processor can.  Where there are processors to spare, cables are dealt out
to several.  Both directions of a cable stay together: what one end sends is written into the other.

    w_i = rate_i(a -> b) + rate_i(b -> a)                                                                           (1)
    L_k = sum of w_i over the cables i of relay k                                                                   (2)

Cables are dealt from the heaviest to the lightest, each to the relay whose L_k is the smallest by then.  The largest
L_k is then at most 4/3 - 1/(3n) times what the best of all ways to deal them to n relays has (Graham 1969).  Ties go by
how many cables a relay has, then by its number, and cables of one weight go in the order of the file, so the same file
is always dealt the same way.

>>> deal({"a-b": 10e9, "a-c": 4e9, "b-c": 5e9, "c-d": 1e9}, 2)
{'a-b': 1, 'a-c': 2, 'b-c': 2, 'c-d': 2}
>>> [relay_count("auto", links=45, cores=cores) for cores in (2, 5, 6, 8, 16, 400)], relay_count(4, links=3, cores=1)
([1, 1, 2, 2, 4, 45], 3)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from testbed.errors import TestbedError
from testbed.topology import Link

Relays = int | Literal["auto"]
#: Servers, agents and the orchestrator want the others.
CORES_PER_RELAY = 4


def parse_relays(written: str) -> Relays:
    """What a person asked for; TestbedError if it is neither ``auto`` nor a count."""
    if written == "auto":
        return "auto"
    if not re.fullmatch(r"[1-9][0-9]{0,3}", written):
        raise TestbedError(f"--relays {written}: write auto, or how many relay processes there shall be, such as 2")
    return int(written)


def relay_count(wanted: Relays, *, links: int, cores: int) -> int:
    """How many relays to start for so many links of theirs: as ``wanted``, but none that would have no link.

    ``auto`` is a quarter of the ``cores``, rounded, and at least one: two from six cores on.  TestbedError for less
    than one.
    """
    share = max(1, (cores + CORES_PER_RELAY // 2) // CORES_PER_RELAY) if wanted == "auto" else wanted
    if share < 1:
        raise TestbedError(f"{share} relays carry nothing: ask for at least one, or for auto")
    return min(share, links)


def deal(weights: Mapping[str, float], relays: int) -> dict[str, int]:
    """The number of the relay, from 1, of every link, in the order given; ``weights`` in bit/s.

    Every relay has a link unless there are fewer links than relays.
    """
    loads = dict.fromkeys(range(1, relays + 1), (0.0, 0))  # (bit/s, cables)
    dealt = dict.fromkeys(weights, 0)
    for link in sorted(weights, key=lambda link: -weights[link]):
        number = min(loads, key=lambda number: (*loads[number], number))
        load_bps, cables = loads[number]
        loads[number] = load_bps + weights[link], cables + 1  # (2)
        dealt[link] = number
    return dealt


def weights_of(links: Iterable[Link]) -> dict[str, float]:
    """What each cable may have to carry, bit/s; of a recorded rate its mean."""
    return {link.name: link.forward.rate_bps + link.backward.rate_bps for link in links}  # (1)


def cores_here() -> int:
    """The processors that this process, and what it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
