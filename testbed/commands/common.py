"""What the commands share: where they print, how they name testbeds, how they end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from rich.console import Console

from testbed.errors import TestbedError

BROKEN = 1  # exit code where everything was done but something is not as it should be

console = Console()
if not console.is_terminal:
    console = Console(width=120)  # into files and pipes, tables are not squeezed into 80 columns

Name = Annotated[str | None, typer.Option("--name", help="Which testbed; unnecessary while there is only one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Node = Annotated[str, typer.Argument(help="A node of the topology.")]


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write; TestbedError if there is one already (unless ``force``) or there cannot be one."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("wb" if force else "xb"))
        except FileExistsError:
            raise TestbedError(f"{path} exists: choose another name, or replace it with --force") from None
        except OSError as error:
            raise TestbedError(f"{path} cannot be written: {error.strerror}") from error
        yield file


def say(text: str) -> None:
    """Print a line for a person, with nothing in it interpreted or coloured."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def print_json(value: object) -> None:
    """Print a value for a program."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
