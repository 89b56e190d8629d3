"""``testbed verify``: the emulated network, measured, beside what is in force."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from testbed.commands.common import BROKEN, AsJson, Columns, Name, console, looked_at, print_json, print_table, say
from testbed.errors import TestbedError
from testbed.judging import LinkMeasurement
from testbed.network import Network
from testbed.topology import MTU_BYTES
from testbed.verify import PairMeasurement, Verification
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
        with console.status("measuring"), looked_at(network):
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
    columns: Columns[LinkMeasurement] = (
        ("link", lambda link: f"{link.source} → {link.target}"),
        ("RTT", lambda link: f"{1e3 * link.rtt_s:.3f} ms"),
        ("expected", lambda link: f"{1e3 * link.expected_rtt_s:.3f}"),
        ("one way", lambda link: f"{1e3 * link.oneway.delay_s:.3f} ms" if link.oneway else ""),
        ("expected", lambda link: f"{1e3 * link.oneway.expected_delay_s:.3f}" if link.oneway else ""),
        ("goodput", lambda link: f"{link.goodput_bps / 1e6:.1f} Mbit/s"),
        ("expected", lambda link: f"{'≥ ' if link.goodput_at_least else ''}{link.expected_goodput_bps / 1e6:.1f}"),
        ("jitter (expected)", _jitter),
        ("loss (expected)", _loss),
        ("duplicates (expected)", _duplicates),
        ("", lambda link: _mark(link.ok) + f" ({notes.get(link.judged, '-')})"),
    )
    print_table(columns, links)
    for text, letter in notes.items():
        say(f"({letter}) {text}")


def _jitter(link: LinkMeasurement) -> str:
    found = link.oneway
    if found is None or not found.expected_jitter_s:
        return ""
    return f"{1e3 * found.jitter_s:.2f} ms ({1e3 * found.expected_jitter_s:.2f})"


def _loss(link: LinkMeasurement) -> str:
    return "" if link.oneway is None else _share(link.oneway.loss, link.oneway.expected_loss)


def _duplicates(link: LinkMeasurement) -> str:
    return "" if link.oneway is None else _share(link.oneway.duplicates, link.oneway.expected_duplicates)


def _share(found: float, expected: float) -> str:
    return f"{found:.1%} ({expected:.1%})" if found or expected else ""


def _print_pairs(pairs: Sequence[PairMeasurement]) -> None:
    """Those that are off, or all of a few, and how far off the worst is."""
    if not pairs:
        return
    shown = pairs if len(pairs) <= SHOWN_PAIRS else [pair for pair in pairs if not pair.ok][:SHOWN_PAIRS]
    for pair in shown:
        rtt = f"RTT {1e3 * pair.rtt_s:.3f} ms, expected {1e3 * pair.expected_rtt_s:.3f} "
        console.print(f"{pair.source} – {pair.target}: {rtt}", end="", highlight=False)
        console.print(_mark(pair.ok))
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


def _mark(ok: bool) -> Text:
    return Text("ok", style="green") if ok else Text("off", style="red")
