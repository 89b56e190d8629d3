"""``testbed list``, and ``testbed status``: what is there, what is broken, every link as it is shaped now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import typer

from testbed import units
from testbed.commands.common import BROKEN, AsJson, Columns, Name, console, note, print_json, print_table, say
from testbed.judging import expected_rtt_s
from testbed.ledger import all_names
from testbed.network import Network
from testbed.shaping.base import DirectionReport, Lateness
from testbed.status import Status, named
from testbed.topology import Engine
from testbed.wording import DIRECTION_COLUMNS, impairments


def status(name: Name = None, as_json: AsJson = False) -> None:
    """Show what is there, what is broken, and every link as it is shaped now."""
    network = Network.attach(name)
    try:
        state = network.status()
        reports = network.counters(reachable=True)
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
    """List the testbeds that are up, one a line."""
    names = all_names()
    for each in names:
        say(each)
    if not names:
        note("no testbed is up")


def _print(state: Status, reports: Sequence[DirectionReport], lateness: Lateness) -> None:
    word = "[green]up[/green]" if state.up else "[red]broken[/red]"
    slower = f", {state.dilation:g} times slower than real time" if state.dilation != 1 else ""
    engines = ", ".join(f"{count} by {_shapers(engine, state.relays)}" for engine, count in state.engines.items())
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
    print_table(_columns(reports, state), reports, wrapped="impairments")
    if lateness.releases:
        say(
            f"the {_shapers('relay', state.relays)} released {lateness.releases} times: "
            f"late by {1e3 * lateness.p50_s:.2f} ms in the middle, "
            f"{1e3 * lateness.p99_s:.2f} ms at p99, {1e3 * lateness.max_s:.2f} ms at worst"
        )


def _shapers(engine: Engine, relays: int) -> str:
    """``netem``, ``relay``, or how many relays share the links."""
    return f"{relays} relays" if engine == "relay" and relays > 1 else engine


def _columns(reports: Sequence[DirectionReport], state: Status) -> Columns[DirectionReport]:
    shaping = {(report.link, report.source): report.applied for report in reports}

    def rtt(report: DirectionReport) -> str:
        back = shaping[report.link, report.target]
        return units.format_seconds(expected_rtt_s(report.applied, back), digits=4)

    return (
        ("link", lambda report: f"{report.source} → {report.target}"),
        ("rate", lambda report: DIRECTION_COLUMNS["rate"](report.applied)),
        ("delay", lambda report: DIRECTION_COLUMNS["delay"](report.applied)),
        ("impairments", lambda report: impairments(report.applied)),
        ("RTT", rtt),
        ("carried", lambda report: units.format_size(report.bytes, digits=3)),
        ("dropped", lambda report: _dropped(report.dropped)),
        ("queued", lambda report: units.format_size(report.queued_bytes, digits=3) if report.queued_bytes else ""),
        ("engine", lambda report: report.engine),
        ("", lambda report: "changed" if named(report.link, report.source) in state.changed else ""),
    )


def _dropped(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
