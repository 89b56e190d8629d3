"""``testbed import FILE``: a network that somebody recorded, as a topology file.

Messages go where the file does not: beside ``-o`` to the screen, without it to standard error, so that the printed
file can be piped.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from testbed import units
from testbed.commands.common import Force, new_file, note, quantity, say
from testbed.errors import TestbedError
from testbed.importers.detect import Form
from testbed.importers.links import LinkChoices, Parallel
from testbed.importers.pipeline import import_topology
from testbed.importers.resolve import DEVICE_CLASSES, Choices
from testbed.importers.rtt import Repeated, RttOptions
from testbed.words import counted

MAX_ROUTE_FACTOR = 100.0


def import_file(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="GraphML, GML, JSON, XML, YAML or CSV; .gz and .xz too.  A Mininet script (FILE.py, FILE.py:NAME) is "
            "run, with your rights, to read its Topo.",
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write this file instead of printing.")] = None,
    force: Force = False,
    form: Annotated[Form | None, typer.Option("--format", help="Default: found out from the file.")] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the topology; default: from the file's name.")] = "",
    servers: Annotated[
        str, typer.Option(help="Which nodes are servers: all, leaves (one link), or NAME,NAME,...; others are routers.")
    ] = "",
    device: Annotated[
        str,
        typer.Option(metavar="CLASS[,CLASS...]", help=f"Dealt to the servers in turn: {', '.join(DEVICE_CLASSES)}."),
    ] = "",
    rate: Annotated[str, typer.Option(help="For links without one, such as '10 Gbit/s'.")] = "",
    delay: Annotated[str, typer.Option(help="One way, for links without one or without coordinates: '5 ms'.")] = "",
    delay_per_km: Annotated[
        str, typer.Option(help="Of links between coordinates; default: light in fibre, 5.0035 us.")
    ] = "",
    route_factor: Annotated[
        float | None, typer.Option(help="How much longer than the great circle cables run; default: 1.")
    ] = None,
    parallel: Annotated[Parallel | None, typer.Option(help="What to keep of several links between two nodes.")] = None,
    largest: Annotated[bool, typer.Option("--largest", help="Of a network in pieces, keep the largest.")] = False,
    only: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Keep these nodes and the links between them.")
    ] = "",
    columns: Annotated[
        str, typer.Option(metavar="FROM,TO,RTT", help="Of a table of round trips: which columns to read.")
    ] = "",
    repeated: Annotated[Repeated | None, typer.Option(help="Of several round trips of one pair.")] = None,
) -> None:
    """Turn another tool's network (Topology Zoo, containerlab, Kollaps, Shadow, Mininet, RTTs) into a topology file."""
    choices = Choices(
        servers=servers,
        device=device,
        only=only,
        largest=largest,
        links=LinkChoices(
            rate_bps=_given("--rate", rate, units.bits_per_second),
            delay_s=_given("--delay", delay, units.seconds),
            per_km_s=_positive("--delay-per-km", _given("--delay-per-km", delay_per_km, units.seconds)),
            route_factor=_factor(route_factor),
            parallel=parallel,
        ),
    )
    given: Mapping[str, str | bool | None] = {
        "--format": form,
        "--name": name,
        "--servers": servers,
        "--device": device,
        "--rate": rate,
        "--delay": delay,
        "--delay-per-km": delay_per_km,
        "--route-factor": None if route_factor is None else f"{route_factor:g}",
        "--parallel": parallel,
        "--largest": largest,
        "--only": only,
        "--columns": columns,
        "--repeated": repeated,
    }
    imported = import_topology(
        file,
        choices,
        form=form,
        name=name,
        table=RttOptions(columns=_columns(columns), repeated=repeated),
        command=_command(file, given),
    )
    for remark in imported.notes:
        (note if output is None else say)(f"note: {remark}")
    if output is None:
        sys.stdout.write(imported.text)
        return
    with new_file(output, force=force) as opened:
        opened.write(imported.text.encode())
    net = imported.topology
    made = (
        counted(len(net.servers), "server"),
        counted(len(net.nodes) - len(net.servers), "router"),
        counted(len(net.links), "link"),
    )
    say(f"wrote {output}: {', '.join(made)} from {imported.form}; look at it with `testbed check {output}`")


def _given(option: str, written: str, parse: Callable[[str], float]) -> float | None:
    return quantity(option, written, parse) if written else None


def _positive(option: str, value: float | None) -> float | None:
    if value == 0:
        raise TestbedError(f"{option}: zero; for links without delay write --delay 0")
    return value


def _factor(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and 1 <= value <= MAX_ROUTE_FACTOR):
        raise TestbedError(
            f"--route-factor {value:g}: write 1 (the great circle, which no cable undercuts) to {MAX_ROUTE_FACTOR:g}"
        )
    return value


def _columns(written: str) -> tuple[str, str, str] | None:
    if not written:
        return None
    names = [name.strip() for name in written.split(",")]
    if len(names) != 3 or not all(names):
        raise TestbedError(f"--columns {written}: write three names of columns, FROM,TO,RTT")
    return names[0], names[1], names[2]


def _command(file: Path, given: Mapping[str, str | bool | None]) -> str:
    """The command without the directories of this machine and without where the result went."""
    words = ["testbed", "import", file.name]
    for option, value in given.items():
        if value:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
