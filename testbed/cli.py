"""``testbed``: bring an emulated network up, look at it, measure it, change it, take it down.

    testbed up topologies/edge10.yaml
    testbed status
    testbed exec s1 -- ping s2
    testbed set s1-s2 rate=100Mbit/s delay=20ms
    testbed down

A mistake of the user ends in one message and exit code 2; nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from testbed import capabilities, describe, load, schema, units
from testbed import generate as generator
from testbed.commands import capturing, drawing, importing, looking, measuring, nodes, setting
from testbed.commands.common import BROKEN, Force, Name, console, new_file, say
from testbed.errors import FULL_DISK, TestbedError
from testbed.ledger import all_names
from testbed.network import Network, down, only_name
from testbed.setup import BackendName
from testbed.shaping.dealing import parse_relays
from testbed.shaping.engines import RELAY_CEILING_BPS, ShaperName, beyond_the_relay

app = typer.Typer(
    help="An emulated network of unequal edge servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A YAML file such as topologies/edge10.yaml.")]


@app.command()
def up(
    topology: TopologyFile,
    name: Annotated[str | None, typer.Option("--name", help="Name the testbed; default: the topology's name.")] = None,
    seed: Annotated[int, typer.Option(help="Decides which packets a lossy link loses.")] = 0,
    backend: Annotated[BackendName, typer.Option(help="What servers are: namespaces, containers, Mininet hosts.")] = (
        "netns"
    ),
    shaper: Annotated[
        ShaperName, typer.Option(help="What shapes links: the kernel where it can (auto), or always one of the two.")
    ] = "auto",
    relays: Annotated[
        str,
        typer.Option(metavar="N|auto", help="How many processes share the relay's links; auto: one for four cores."),
    ] = "auto",
    visible: Annotated[
        list[Path] | None, typer.Option(help="A path that programs in containers may read; repeatable.")
    ] = None,
) -> None:
    """Bring a topology up as servers and shaped links."""
    started_s = time.monotonic()
    wanted = parse_relays(relays)
    found = load.load_topology(topology)
    network = Network.up(
        found, name=name, seed=seed, backend=backend, shaper=shaper, relays=wanted, visible=visible or ()
    )
    network.close()
    servers, links, started = len(found.servers), len(found.links), len(network.setup.carried)
    named = {"relay": f"{started} relays"} if started > 1 else {}
    engines = " and ".join(named.get(each, each) for each in dict.fromkeys(network.setup.engines.values())) or "none"
    say(
        f"testbed {network.name} is up: {servers} servers ({backend}), {links} links ({engines}), TCP crosses "
        f"every link ({time.monotonic() - started_s:.1f} s)"
    )
    limited = [node.name for node in found.nodes if node.cpus is not None or node.ram_bytes is not None]
    if limited and backend != "docker":
        say(f"note: `cpus` and `ram` of {', '.join(limited)} act with --backend docker only")
    fast = beyond_the_relay(found, network.setup.engines)
    if fast:
        say(
            f"note: {', '.join(fast)} ask for more than one relay carries undilated "
            f"({units.format_rate(RELAY_CEILING_BPS)}); all links {'of a relay ' if started > 1 else ''}share that"
        )
    if wanted != "auto" and wanted > max(started, 1):
        say(f"note: no relay without a link: {started} of the {wanted} relays asked for run")


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
    nothing = "no testbed is up" if name is None else f"there is no testbed {name!r}"
    say(f"removed {', '.join(removed)}" if removed else f"nothing to remove: {nothing}")


app.command()(looking.status)
app.command("list")(looking.listed)
app.command()(measuring.verify)
app.command("set")(setting.set_link)
app.command("exec")(nodes.execute)
app.command()(nodes.shell)
app.command()(nodes.logs)
app.command()(nodes.restart)
app.command()(capturing.capture)
app.command()(drawing.graph)
app.command("import")(importing.import_file)


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
    force: Force = False,
) -> None:
    """Print a topology file of many unequal servers in metros, drawn by chance from a seed."""
    text = generator.generate(servers=servers, metros=metros, seed=seed)
    if output is None:
        sys.stdout.write(text)
        return
    with new_file(output, force=force) as file:
        file.write(text.encode())
    say(f"wrote {output}; look at it with `testbed check {output}`")


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
        say(_possible(missing))
    if missing:
        raise typer.Exit(BROKEN)


def _possible(missing: list[capabilities.Capability]) -> str:
    """What one can bring up here."""
    if missing:
        return "backend: sim (virtual time): packets cannot be emulated here"
    others = [each.name for each in (capabilities.docker(), capabilities.mininet()) if each.available]
    engines = "the kernel (netem) where it can, else the relay" if capabilities.netem().available else "the relay"
    return f"backend: netns (default){''.join(f', {name}' for name in others)}; links: {engines}"


def main() -> None:
    """Run the command line; what the user can mend is one message, not a traceback."""
    # Being asked to end is no reason to leave half a network behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except TestbedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try to write the rest once more, and complain
        sys.stderr.write(f"{error.filename or 'output'} cannot be written: {error.strerror}\n")
        sys.exit(TestbedError.exit_code)


if __name__ == "__main__":
    main()
