"""What one does with single nodes: run programs on them, read what their agents printed, start them anew."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from testbed.commands.common import Name, Node, say
from testbed.errors import TestbedError
from testbed.network import Network

#: How often a followed log is looked at.
FOLLOW_S = 0.2
CHUNK_BYTES = 1 << 16
#: What shells return for a program that a signal ended is this plus the signal's number.
SIGNALLED = 128


def execute(
    node: Node,
    command: Annotated[list[str], typer.Argument(help="What to run there, after --.")],
    name: Name = None,
) -> None:
    """Run a program on a node, as an agent would run: without privileges, names leading over the emulated links."""
    code = subprocess.run(_entered(node, command, name), check=False).returncode
    raise typer.Exit(code if code >= 0 else SIGNALLED - code)


def shell(node: Node, name: Name = None) -> None:
    """Open a shell on a node, as an agent would run: without privileges, names leading over the emulated links."""
    program = os.environ.get("SHELL") or "/bin/sh"
    argv = _entered(node, ["/bin/sh", "-c", f'command -v "{program}" >/dev/null && exec "{program}" || exec sh'], name)
    say(f"on {node}; leave with `exit`")
    environment = {**os.environ, "PS1": f"{node}$ "}
    code = subprocess.run(argv, check=False, env=environment).returncode
    raise typer.Exit(code if code >= 0 else SIGNALLED - code)


def logs(
    node: Annotated[str | None, typer.Argument(help="A node; without it, every agent and every relay.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is printed, until Ctrl-C.")] = False,
    name: Name = None,
) -> None:
    """Print what agents (and relays) have printed."""
    network = Network.attach(name)
    network.close()
    files = _log_files(network, node)
    if not files:
        say("nothing has been printed yet")
    for number, (title, path) in enumerate(files.items()):
        if len(files) > 1:
            say(f"{'' if not number else chr(10)}==> {title} <==")
        for line in _last_lines(path, lines):
            sys.stdout.write(line + "\n")
    if follow:
        _follow(files)


def restart(
    node: Annotated[str | None, typer.Argument(help="A node; without it, whatever is broken.")] = None,
    name: Name = None,
) -> None:
    """Make a node's sandbox anew, with its links, addresses and what is in force; programs on it end."""
    network = Network.attach(name)
    try:
        started_s = time.monotonic()
        before = network.status()
        nodes = before.broken_nodes if node is None else (node,)
        if not nodes and before.up:
            say("nothing is broken")
            return
        network.restart(*nodes)
        parts = [*before.gone_relays, *nodes] or ["the links"]
        say(f"restarted {', '.join(parts)} ({time.monotonic() - started_s:.1f} s)")
        remaining = network.status().broken
    finally:
        network.close()
    if remaining:
        raise TestbedError(f"still broken: {'; '.join(remaining)}; type `testbed down`, then up again")


def _entered(node: str, command: list[str], name: str | None) -> list[str]:
    network = Network.attach(name)
    try:
        return network.enter(node, command)
    finally:
        network.close()


def _log_files(network: Network, node: str | None) -> dict[str, Path]:
    if node is not None:
        network.netns(node)  # TestbedError with the names if there is no such node
        path = network.log_of(node)
        if not path.exists():
            raise TestbedError(f"nothing has been started on {node} yet: {path} does not exist")
        return {node: path}
    files = {each.name: network.log_of(each.name) for each in network.wiring.nodes}
    files |= {path.name: path for path in sorted(network.directory.glob("*.log"))}
    return {title: path for title, path in files.items() if path.exists()}


def _last_lines(path: Path, count: int) -> list[str]:
    """The last lines, read from the end: a log may be large."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and tail.count(b"\n") <= count:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    lines = tail.decode(errors="replace").splitlines()
    return lines[len(lines) - count :] if count < len(lines) else lines


def _follow(files: dict[str, Path]) -> None:
    opened = {title: path.open("rb") for title, path in files.items()}
    try:
        for file in opened.values():
            file.seek(0, os.SEEK_END)
        while True:
            for title, file in opened.items():
                for line in _whole_lines(file):
                    sys.stdout.write(f"{title}: {line}" if len(opened) > 1 else line)
            sys.stdout.flush()
            time.sleep(FOLLOW_S)
    except KeyboardInterrupt:
        pass
    finally:
        for file in opened.values():
            file.close()


def _whole_lines(file: BinaryIO) -> Iterator[str]:
    """The lines that have come since the last time; one that is still being written waits for the next."""
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line.decode(errors="replace")
