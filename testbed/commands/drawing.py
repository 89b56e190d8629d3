"""``testbed graph``: a picture of a topology file, or of a testbed as it is shaped now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed import load
from testbed.commands.common import Force, Name, new_file, note, say
from testbed.drawing.mermaid import beyond_mermaid, mermaid
from testbed.drawing.view import View
from testbed.errors import TestbedError
from testbed.network import Network

PICTURES = (".svg", ".png")
TEXTS = (".mmd", ".mermaid")


def graph(
    topology: Annotated[
        Path | None, typer.Argument(metavar="TOPOLOGY", help="A YAML file; without, the testbed that is up, as it is.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.svg, .png, .mmd or .mermaid; default: Mermaid, printed.")
    ] = None,
    force: Force = False,
    name: Name = None,
) -> None:
    """Draw a topology: metros, rates, delays; of a testbed that is up, also what was changed and what is broken."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix not in ("", *PICTURES, *TEXTS) or (output is not None and not suffix):
        raise TestbedError(f"{output}: name a file that ends in {', '.join((*PICTURES, *TEXTS))}")
    if topology is not None and name is not None:
        raise TestbedError(f"a file and --name {name}: draw the one or the other")
    view = _running(name) if topology is None else View(topology=load.load_topology(topology))
    if output is None or suffix in TEXTS:
        _write_text(view, output, force)
    else:
        _write_picture(view, output, suffix.removeprefix("."), force)
    if output is not None:
        say(f"wrote {output}: {view.title}")


def _running(name: str | None) -> View:
    """The testbed of that name as it is now; where nothing tells what is in force, as its file says."""
    network = Network.attach(name)
    try:
        state = network.status()
        shaping = network.shaping(reachable=True)
    finally:
        network.close()
    for problem in state.broken:
        note(problem)
    return View(topology=network.topology, shaping=shaping, broken=frozenset(state.broken_nodes))


def _write_text(view: View, output: Path | None, force: bool) -> None:
    text = mermaid(view)
    if beyond := beyond_mermaid(view, text):
        note(beyond)
    if output is None:
        sys.stdout.write(text)
        return
    with new_file(output, force=force) as file:
        file.write(text.encode())


def _write_picture(view: View, output: Path, form: str, force: bool) -> None:
    from testbed.drawing.picture import picture, save  # matplotlib takes a second to load, which no other command needs

    figure = picture(view)  # refused before there is a file
    with new_file(output, force=force) as file:
        save(figure, file, form)
