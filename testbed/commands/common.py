"""What the commands share: where they print, how they name testbeds, how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.errors import FULL_DISK, TestbedError
from testbed.network import Network
from testbed.units import UnitError

BROKEN = 1  # exit code where everything was done but something is not as it should be

console = Console()
if not console.is_terminal:
    console = Console(width=120)  # into files and pipes, tables are not squeezed into 80 columns

Name = Annotated[str | None, typer.Option("--name", help="Which testbed; unnecessary while there is only one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]
Node = Annotated[str, typer.Argument(help="A node of the topology.")]

Row = TypeVar("Row")
#: Heading and cell of each column; a cell that is a ``str`` is printed as it stands, without markup.
Columns = Sequence[tuple[str, Callable[[Row], str | Text]]]


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write; TestbedError if there is one already (unless ``force``) or there cannot be one."""
    try:
        file = path.open("wb" if force else "xb")
    except FileExistsError:
        raise TestbedError(f"{path} exists: choose another name, or replace it with --force") from None
    except OSError as error:
        raise TestbedError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise TestbedError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def looked_at(network: Network) -> Iterator[None]:
    """A block that sends or reads packets; TestbedError where the testbed is broken or taken down meanwhile."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in FULL_DISK:
            raise
        raise TestbedError(
            f"testbed {network.name!r} is broken or was changed meanwhile ({error.strerror}): "
            f"type `testbed status --name {network.name}`"
        ) from error


def quantity(option: str, written: str, parse: Callable[[str], float]) -> float:
    """The value of an option that is a quantity; TestbedError names the option."""
    try:
        return parse(written)
    except UnitError as error:
        raise TestbedError(f"{option}: {error}") from None


def say(text: str) -> None:
    """Print a line for a person, with nothing in it interpreted or coloured."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def note(text: str) -> None:
    """Print a line for a person on standard error, where standard output is for a program."""
    sys.stderr.write(f"{text}\n")


def print_table(columns: Columns[Row], rows: Sequence[Row], *, wrapped: str = "") -> None:
    """Print a line for each of ``rows``; columns that say nothing in any of them are left out.

    Only the column ``wrapped`` is broken where the console is too narrow.
    """
    cells = [[cell(row) for _, cell in columns] for row in rows]
    used = [number for number in range(len(columns)) if any(line[number] for line in cells)]
    table = Table(box=None, pad_edge=False)
    for number in used:
        heading = columns[number][0]
        left = number == 0 or heading in ("", wrapped)
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != wrapped or not wrapped)
    for line in cells:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in (line[number] for number in used)))
    console.print(table, highlight=False)


def print_json(value: object) -> None:
    """Print a value for a program."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
