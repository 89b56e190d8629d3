"""``testbed set``: change a link while packets cross it, by the keys of topology files.

    testbed set s1-s2 delay=20ms loss=1%
    testbed set s1-s2 --from s1 rate=trace:lte.down,format:mahimahi bursts=worsens:1%,recovers:20%
    testbed set s1-s2 codel=true queue=100packets 'delay={trace: rtt.csv, format: csv, every: 1 s, value: ms, unit: ms}'

Only what is named changes; nothing queued is lost.  ``bursts=false``, ``codel=false``, ``jitter_table=false`` and
``queue=auto`` take back what was asked for before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.commands.common import Columns, Name, print_table
from testbed.loading.changes import changed
from testbed.network import Network
from testbed.wording import DIRECTION_COLUMNS, impairments


def set_link(
    link: Annotated[str, typer.Argument(help="A link such as s1-s2.")],
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys of docs/topology-files.md.")],
    source: Annotated[str | None, typer.Option("--from", metavar="NODE", help="Only packets that leave there.")] = None,
    name: Name = None,
) -> None:
    """Change a running link: only what is named, at once, without losing what is queued."""
    network = Network.attach(name)
    try:
        first = network.end_of(link)
        ends = (first.node, first.peer)
        changing = ends if source is None else (network.end_of(link, source).node,)
        with network.alone():  # two at once would each put back what the other changed
            in_force = network.shaping()
            # Everything is understood before anything is changed.
            wanted = {end: changed(in_force[first.link, end], changes, Path()) for end in changing}
            for end, direction in wanted.items():
                network.shape(first.link, end, direction)
            now = network.shaping()
    finally:
        network.close()
    columns: Columns[str] = (
        ("link", lambda end: f"{end} → {ends[1] if end == ends[0] else ends[0]}"),
        ("rate", lambda end: DIRECTION_COLUMNS["rate"](now[first.link, end])),
        ("delay", lambda end: DIRECTION_COLUMNS["delay"](now[first.link, end])),
        ("impairments", lambda end: impairments(now[first.link, end])),
    )
    print_table(columns, ends, wrapped="impairments")
