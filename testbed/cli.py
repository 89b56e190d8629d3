"""``testbed``: bring an emulated network up, look at it, measure it, take it down.

    testbed up topologies/edge10.yaml
    testbed status
    testbed exec s1 -- ping s2
    testbed down

A mistake of the user ends in one message and exit code 2; nothing is left behind.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from testbed import capabilities, describe, load, schema, units
from testbed import generate as generator
from testbed.errors import TestbedError
from testbed.ledger import all_names
from testbed.network import RELAY_CEILING_BPS, Network, beyond_the_relay, down, only_name
from testbed.setup import BackendName
from testbed.shaping.engines import ShaperName
from testbed.status import Status
from testbed.shaping.base import DirectionReport
from testbed.topology import Direction
from testbed.verify import LinkMeasurement, calibrate, expected_rtt_s

BROKEN = 1  # exit code where everything was done but something is not as it should be

app = typer.Typer(
    help="An emulated network of unequal edge servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
if not console.is_terminal:
    console = Console(width=120)  # into files and pipes, tables are not squeezed into 80 columns
STATUS_COLUMNS = ("link", "rate", "delay", "jitter", "loss", "RTT", "carried", "dropped", "queued", "")

TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A YAML file such as topologies/edge10.yaml.")]
Name = Annotated[str | None, typer.Option("--name", help="Which testbed; unnecessary while there is only one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def up(
    topology: TopologyFile,
    name: Annotated[str | None, typer.Option("--name", help="Name the testbed; default: the topology's name.")] = None,
    seed: Annotated[int, typer.Option(help="Decides which packets a lossy link loses.")] = 0,
) -> None:
    """Bring a topology up as namespaces and shaped links."""
    started_s = time.monotonic()
    network = Network.up(load.load_topology(topology), name=name, seed=seed)
    network.close()
    servers, links = len(network.topology.servers), len(network.topology.links)
    console.print(
        f"testbed {network.name} is up: {servers} servers, {links} links, TCP crosses every link "
        f"({time.monotonic() - started_s:.1f} s)",
        highlight=False,
    )
    fast = beyond_the_relay(network.topology)
    if fast:
        console.print(
            f"note: {', '.join(fast)} ask for more than one relay carries undilated "
            f"({units.format_rate(RELAY_CEILING_BPS)}); all links share that",
            highlight=False,
        )


@app.command("down")
def take_down(
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Every testbed of this user.")] = False,
) -> None:
    """Remove a testbed in whatever state it is, and nothing else."""
    names = all_names()
    if name is not None:
        names = [name]
    elif not everything and len(names) > 1:
        only_name()
    removed = [each for each in names if down(each)]
    console.print(
        f"removed {', '.join(removed)}" if removed else "nothing to remove: no testbed is up", highlight=False
    )


@app.command()
def status(name: Name = None, as_json: AsJson = False) -> None:
    """Show what is there, what is broken, and every link as it is shaped now."""
    network = Network.attach(name)
    try:
        state = network.status()
        reports = network.counters() if state.relay_alive else ()
    finally:
        network.close()
    if as_json:
        document = {**asdict(state), "directions": [asdict(report) for report in reports]}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    else:
        _print_status(state, reports)
    if not state.up:
        raise typer.Exit(BROKEN)


@app.command()
def verify(name: Name = None, as_json: AsJson = False) -> None:
    """Measure round trip and goodput of every link and compare them with the file."""
    network = Network.attach(name)
    try:
        with console.status("measuring"):
            measured = calibrate(network)
    finally:
        network.close()
    if as_json:
        sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
    else:
        _print_measurements(measured)
    if not all(measurement.ok for measurement in measured):
        raise typer.Exit(BROKEN)


@app.command("exec")
def execute(
    node: Annotated[str, typer.Argument(help="A node of the topology.")],
    command: Annotated[list[str], typer.Argument(help="What to run there, after --.")],
    name: Name = None,
) -> None:
    """Run a program on a node, as an agent would run: without privileges, names leading over the emulated links."""
    network = Network.attach(name)
    try:
        argv = network.enter(node, command)
    finally:
        network.close()
    raise typer.Exit(subprocess.run(argv, check=False).returncode)


@app.command()
def check(topology: TopologyFile) -> None:
    """Validate a topology file and print it as resolved, with the expected round trip of every pair."""
    describe.print_topology(load.load_topology(topology), console)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of topology files, for editors."""
    sys.stdout.write(schema.schema_text())


@app.command()
def generate(
    servers: Annotated[int, typer.Option(help=f"{generator.MIN_SERVERS} to {generator.MAX_SERVERS}.")],
    metros: Annotated[int | None, typer.Option(help="Default: half the square root of the servers.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another network of the same size.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write this file instead of printing.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Print a topology file of many unequal servers in metros, drawn by chance from a seed."""
    text = generator.generate(servers=servers, metros=metros, seed=seed)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TestbedError(f"{output} exists: choose another name, or replace it with --force") from None
    except OSError as error:
        raise TestbedError(f"{output} cannot be written: {error.strerror}") from error
    console.print(f"wrote {output}; look at it with `testbed check {output}`", highlight=False, soft_wrap=True)


@app.command()
def doctor(
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing; the exit code tells.")] = False,
) -> None:
    """Show what this machine can do; exit code 1 where packets cannot be emulated."""
    missing = capabilities.missing_for_netns()
    for each in () if quiet else capabilities.probe():
        mark = "[green]yes[/green]" if each.available else "[red]no [/red]"
        console.print(f"{mark} {each.name}: {each.detail}; for {each.needed_for}", highlight=False, soft_wrap=True)
        if not each.available:
            console.print(f"    {each.remedy}", highlight=False, soft_wrap=True)
    if not quiet:
        found = "netns, links: relay" if not missing else "sim (virtual time): packets cannot be emulated here"
        console.print(f"backend: {found}", highlight=False)
    if missing:
        raise typer.Exit(BROKEN)


def main() -> None:
    """Run the command line; what the user can mend is one message, not a traceback."""
    # Being asked to end is no reason to leave half a network behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except TestbedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def _print_status(state: Status, reports: Sequence[DirectionReport]) -> None:
    word = "[green]up[/green]" if state.up else "[red]broken[/red]"
    slower = f", {state.dilation:g} times slower than real time" if state.dilation != 1 else ""
    console.print(
        f"testbed {state.name}: {word}, {state.sandboxes} sandboxes, {state.links} links, "
        f"{state.processes} processes{slower}",
        highlight=False,
    )
    for problem in state.broken:
        console.print(f"  {problem}", highlight=False)
    if not state.up:
        console.print(f"type `testbed down --name {state.name}`, then bring it up again", highlight=False)
    if not reports:
        return
    shaping = {(report.link, report.source): report.applied for report in reports}
    rows = [_status_row(report, shaping, state.changed) for report in reports]
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(STATUS_COLUMNS):
        if any(row[number] for row in rows):  # most networks have no jitter, loss or drops
            table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[n] for n in range(len(row)) if any(each[n] for each in rows)))
    console.print(table, highlight=False)


def _status_row(
    report: DirectionReport, shaping: Mapping[tuple[str, str], Direction], changed: Collection[str]
) -> tuple[str, ...]:
    applied = report.applied
    return (
        f"{report.source} → {report.target}",
        units.format_rate(applied.rate_bps),
        units.format_seconds(applied.delay_s),
        units.format_seconds(applied.jitter_s) if applied.jitter_s else "",
        f"{applied.loss:.3%}" if applied.loss else "",
        units.format_seconds(expected_rtt_s(applied, shaping[report.link, report.target]), digits=4),
        units.format_size(report.bytes, digits=3),
        str(sum(report.dropped.values()) or ""),
        units.format_size(report.queued_bytes, digits=3) if report.queued_bytes else "",
        "changed" if f"{report.link} from {report.source}" in changed else "",
    )


def _print_measurements(measured: Sequence[LinkMeasurement]) -> None:
    notes = dict(zip(dict.fromkeys(m.judged for m in measured), ascii_lowercase, strict=False))
    table = Table(box=None, pad_edge=False)
    for title in ("link", "RTT", "expected", "goodput", "expected", ""):
        table.add_column(title, justify="left" if title in ("link", "") else "right", no_wrap=True)
    for each in measured:
        table.add_row(
            f"{each.source} → {each.target}",
            f"{each.rtt_s * 1e3:.3f} ms",
            f"{each.expected_rtt_s * 1e3:.3f} ms",
            f"{each.goodput_bps / 1e6:.1f} Mbit/s",
            f"{'≥ ' if each.goodput_at_least else ''}{each.expected_goodput_bps / 1e6:.1f} Mbit/s",
            ("[green]ok[/green]" if each.ok else "[red]off[/red]") + f" ({notes.get(each.judged, '-')})",
        )
    console.print(table, highlight=False)
    for text, letter in notes.items():
        console.print(f"({letter}) {text}", highlight=False)
    good = sum(each.ok for each in measured)
    console.print(f"{good} of {len(measured)} directions are within their bounds", highlight=False)


if __name__ == "__main__":
    main()
