"""``testbed status``: what is there, what is broken, and every link as it is shaped now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

import typer
from rich.table import Table

from testbed import units, wording
from testbed.commands.common import BROKEN, AsJson, Name, console, print_json, say
from testbed.ledger import all_names
from testbed.network import Network
from testbed.shaping.base import DirectionReport, Lateness
from testbed.status import Status
from testbed.topology import Direction
from testbed.verify import expected_rtt_s

COLUMNS = ("link", "rate", "delay", "impairments", "RTT", "carried", "dropped", "queued", "engine", "")


def status(name: Name = None, as_json: AsJson = False) -> None:
    """Show what is there, what is broken, and every link as it is shaped now."""
    network = Network.attach(name)
    try:
        state = network.status()
        reports = network.counters() if state.relay_alive else ()
        lateness = network.lateness() if state.relay_alive else Lateness()
    finally:
        network.close()
    if as_json:
        directions = [asdict(report) for report in reports]
        print_json({**asdict(state), "lateness": asdict(lateness), "directions": directions})
    else:
        _print(state, reports, lateness)
    if not state.up:
        raise typer.Exit(BROKEN)


def listed() -> None:
    """List the testbeds that are up, one per line."""
    names = all_names()
    for each in names:
        say(each)
    if not names:
        say("no testbed is up")


def _print(state: Status, reports: Sequence[DirectionReport], lateness: Lateness) -> None:
    word = "[green]up[/green]" if state.up else "[red]broken[/red]"
    slower = f", {state.dilation:g} times slower than real time" if state.dilation != 1 else ""
    engines = ", ".join(f"{count} by {engine}" for engine, count in state.engines.items())
    console.print(
        f"testbed {state.name}: {word}, {state.sandboxes} sandboxes ({state.backend}), {state.links} links "
        f"({engines}), {state.processes} processes{slower}",
        highlight=False,
        soft_wrap=True,
    )
    for problem in state.broken:
        say(f"  {problem}")
    if not state.up:
        say(f"type `testbed restart --name {state.name}`, or `testbed down --name {state.name}` and bring it up again")
    if not reports:
        return
    shaping = {(report.link, report.source): report.applied for report in reports}
    rows = [_row(report, shaping, state.changed) for report in reports]
    used = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    table = Table(box=None, pad_edge=False)
    for number in used:  # most networks have no impairments or drops
        table.add_column(
            COLUMNS[number], justify="right" if number else "left", no_wrap=COLUMNS[number] != "impairments"
        )
    for row in rows:
        table.add_row(*(row[number] for number in used))
    console.print(table, highlight=False)
    if lateness.releases:
        say(
            f"the relay released {lateness.releases} times: late by {1e3 * lateness.p50_s:.2f} ms in the middle, "
            f"{1e3 * lateness.p99_s:.2f} ms at p99, {1e3 * lateness.max_s:.2f} ms at worst"
        )


def _row(
    report: DirectionReport, shaping: Mapping[tuple[str, str], Direction], changed: Collection[str]
) -> tuple[str, ...]:
    applied = report.applied
    return (
        f"{report.source} → {report.target}",
        units.format_rate(applied.rate_bps),
        units.format_seconds(applied.delay_s),
        wording.impairments(applied),
        units.format_seconds(expected_rtt_s(applied, shaping[report.link, report.target]), digits=4),
        units.format_size(report.bytes, digits=3),
        _dropped(report.dropped),
        units.format_size(report.queued_bytes, digits=3) if report.queued_bytes else "",
        report.engine,
        "changed" if f"{report.link} from {report.source}" in changed else "",
    )


def _dropped(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
