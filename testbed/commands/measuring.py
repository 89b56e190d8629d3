"""``testbed verify``: the emulated network against its file, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from testbed.commands.common import BROKEN, AsJson, Name, console, print_json, say
from testbed.errors import TestbedError
from testbed.network import Network
from testbed.topology import MTU_BYTES
from testbed.verify import LinkMeasurement, PairMeasurement, Verification
from testbed.verify import verify as measure

STORED = "verify.json"  # in the run directory
#: Pairs worth a line of their own; the others are summed up.
SHOWN_PAIRS = 12


def verify(
    name: Name = None,
    as_json: AsJson = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Keep the measurements here, too.")] = None,
) -> None:
    """Measure every link (round trip, one-way delay, jitter, loss, goodput, packet size) and every pair."""
    network = Network.attach(name)
    started_s = time.monotonic()
    try:
        with console.status("measuring"):
            found = measure(network)
        store = [network.directory / STORED, *([output] if output else [])]
    finally:
        network.close()
    for path in store:
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
        except OSError as error:
            raise TestbedError(f"{path} cannot be written: {error.strerror}") from error
    if as_json:
        print_json(found)
    else:
        _print_links(found.links)
        _print_pairs(found.pairs)
        _print_verdict(found, time.monotonic() - started_s)
    if not found.ok:
        raise typer.Exit(BROKEN)


def _print_links(links: Sequence[LinkMeasurement]) -> None:
    notes = dict(zip(dict.fromkeys(link.judged for link in links), ascii_lowercase, strict=False))
    columns: dict[str, Callable[[LinkMeasurement], str]] = {
        "link": lambda link: f"{link.source} → {link.target}",
        "RTT": lambda link: f"{1e3 * link.rtt_s:.3f} ms",
        "file's": lambda link: f"{1e3 * link.expected_rtt_s:.3f}",
        "one way": lambda link: f"{1e3 * link.oneway.delay_s:.3f} ms" if link.oneway else "",
        "file's ": lambda link: f"{1e3 * link.oneway.expected_delay_s:.3f}" if link.oneway else "",
        "goodput": lambda link: f"{link.goodput_bps / 1e6:.1f} Mbit/s",
        "file's  ": lambda link: f"{'≥ ' if link.goodput_at_least else ''}{link.expected_goodput_bps / 1e6:.1f}",
        "jitter (file's)": _jitter,
        "loss (file's)": _loss,
        "twice (file's)": _twice,
        "": lambda link: _mark(link.ok) + f" ({notes.get(link.judged, '-')})",
    }
    table = Table(box=None, pad_edge=False)
    rows = [[cell(link) for cell in columns.values()] for link in links]
    used = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    for number, title in enumerate(columns):
        if number in used:
            table.add_column(title, justify="left" if title in ("link", "") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[number] for number in used))
    console.print(table, highlight=False)
    for text, letter in notes.items():
        say(f"({letter}) {text}")


def _jitter(link: LinkMeasurement) -> str:
    found = link.oneway
    if found is None or not found.expected_jitter_s:
        return ""
    return f"{1e3 * found.jitter_s:.2f} ms ({1e3 * found.expected_jitter_s:.2f})"


def _loss(link: LinkMeasurement) -> str:
    found = link.oneway
    if found is None or not (found.expected_loss or found.loss):
        return ""
    return f"{found.loss:.1%} ({found.expected_loss:.1%})"


def _twice(link: LinkMeasurement) -> str:
    found = link.oneway
    if found is None or not (found.expected_duplicates or found.duplicates):
        return ""
    return f"{found.duplicates:.1%} ({found.expected_duplicates:.1%})"


def _print_pairs(pairs: Sequence[PairMeasurement]) -> None:
    """Those that are off, or all of a few, and how far off the worst is."""
    if not pairs:
        return
    shown = pairs if len(pairs) <= SHOWN_PAIRS else [pair for pair in pairs if not pair.ok][:SHOWN_PAIRS]
    for pair in shown:
        console.print(
            f"{pair.source} – {pair.target}: RTT {1e3 * pair.rtt_s:.3f} ms, expected {1e3 * pair.expected_rtt_s:.3f} "
            f"{_mark(pair.ok)}",
            highlight=False,
        )
    worst = max(pairs, key=lambda pair: abs(pair.rtt_s - pair.expected_rtt_s))
    error_s = worst.rtt_s - worst.expected_rtt_s
    say(f"round trips of all {len(pairs)} pairs: the worst is {worst.source} – {worst.target}, {1e3 * error_s:+.3f} ms")


def _print_verdict(found: Verification, took_s: float) -> None:
    links, pairs = found.links, found.pairs
    whole = sum(link.oneway is not None and link.oneway.mtu_bytes == MTU_BYTES for link in links)
    say(f"packets of {MTU_BYTES} bytes cross {whole} of {len(links)} directions whole")
    say(
        f"{sum(link.ok for link in links)} of {len(links)} directions and {sum(pair.ok for pair in pairs)} of "
        f"{len(pairs)} pairs are within their bounds ({took_s:.1f} s)"
    )


def _mark(ok: bool) -> str:
    return "[green]ok[/green]" if ok else "[red]off[/red]"
