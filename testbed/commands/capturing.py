"""``testbed capture``: what crosses a link, as a file for Wireshark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from testbed import pcap, units
from testbed.commands.common import Force, Name, looked_at, new_file, note, quantity
from testbed.network import Network


def capture(
    link: Annotated[str, typer.Argument(help="A link, written from either end: s1-s2.")],
    output: Annotated[str, typer.Option("--output", "-o", help="A .pcap file; - for standard output.")],
    at: Annotated[
        str | None, typer.Option("--at", help="Which end to look at; default: the first of the link.")
    ] = None,
    packets: Annotated[int | None, typer.Option("--packets", "-c", min=1, help="End after so many.")] = None,
    duration: Annotated[str | None, typer.Option("--duration", help="End after this time, such as 10s.")] = None,
    force: Force = False,
    name: Name = None,
) -> None:
    """Write the packets that one end of a link sends and receives; until Ctrl-C, without --packets or --duration."""
    duration_s = None if duration is None else quantity("--duration", duration, units.seconds)
    network = Network.attach(name)
    network.close()
    end = network.end_of(link, at)
    with _opened(output, force) as file:
        try:
            note(f"capturing {end.link} at {end.node} ({end.name}); Ctrl-C ends it")
            netns = network.netns(end.node)
            with looked_at(network):
                count = pcap.capture(netns, end.name, file, most_packets=packets, duration_s=duration_s)
        except KeyboardInterrupt:
            file.flush()
            note("")
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read it has seen enough
        else:
            note(f"{count} packets")


@contextmanager
def _opened(output: str, force: bool) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
        return
    with new_file(Path(output), force=force) as file:
        yield file
