"""``testbed set``: change a link while packets cross it, by the keys of topology files.

    testbed set s1-s2 delay=20ms loss=1%
    testbed set s1-s2 --from s1 rate=trace:lte.down,format:mahimahi bursts=worsens:1%,recovers:20%
    testbed set s1-s2 codel=true queue=100packets 'delay={trace: rtt.csv, format: csv, every: 1 s, value: ms, unit: ms}'

Only what is named changes; nothing queued is lost.  ``bursts=false``, ``codel=false``, ``jitter_table=false`` and
``queue=auto`` take back what was asked for before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from testbed.errors import TestbedError
from testbed.loading.changes import changed
from testbed.loading.problems import enumerate_words
from testbed.network import Network
from testbed.topology import Direction, Link
from testbed.wording import DIRECTION_COLUMNS, impairments


def set_link(
    link: Annotated[str, typer.Argument(help="A link such as s1-s2.")],
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys of docs/topology-files.md.")],
    source: Annotated[str | None, typer.Option("--from", metavar="NODE", help="Only packets that leave there.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Which testbed; unnecessary if there is only one.")] = None,
) -> None:
    """Change a running link: only what is named, at once, without losing what is queued."""
    network = Network.attach(name)
    try:
        found = _link(network, link)
        sources = _sources(found, source)
        in_force = network.shaping()
        # Everything is understood before anything is changed.
        wanted = {each: changed(in_force[found.name, each], changes, Path()) for each in sources}
        for each, direction in wanted.items():
            network.shape(found.name, each, direction)
        now = network.shaping()
    finally:
        network.close()
    _print(found, {each: now[found.name, each] for each in (found.a, found.b)})


def _link(network: Network, name: str) -> Link:
    try:
        return network.topology.link(name)
    except KeyError:
        names = enumerate_words(each.name for each in network.topology.links)
        raise TestbedError(f"testbed {network.name!r} has no link {name!r}; it has {names}") from None


def _sources(link: Link, source: str | None) -> tuple[str, ...]:
    if source is None:
        return link.a, link.b
    if source not in (link.a, link.b):
        raise TestbedError(f"{source!r} is no end of {link.name}; it joins {link.a} and {link.b}")
    return (source,)


def _print(link: Link, in_force: Mapping[str, Direction]) -> None:
    grid = Grid(box=None, pad_edge=False)
    for title in ("link", "rate", "delay", ""):
        grid.add_column(title, justify="left" if title in ("link", "") else "right", no_wrap=bool(title))
    for source, target in ((link.a, link.b), (link.b, link.a)):
        direction = in_force[source]
        cells = [DIRECTION_COLUMNS[name](direction) for name in ("rate", "delay")]
        grid.add_row(f"{source} → {target}", *cells, Text(impairments(direction)))
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # into files and pipes, tables are not squeezed into 80 columns
    console.print(grid, highlight=False)
