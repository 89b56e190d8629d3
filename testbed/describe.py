"""What a topology says, for the person who wrote it: every value as it will be applied, and what to expect of it.

``testbed check FILE`` prints this.  The tables show parsed values, not the text of the file, so a wrong reading of a
unit is seen here and not in a result; the round trips are what ``testbed verify`` will compare with ping.
"""

from __future__ import annotations

import io
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.paths import Paths
from testbed.topology import Device, Node, Topology
from testbed.units import format_bandwidth, format_flops, format_fraction, format_rate, format_seconds, format_size
from testbed.wording import DIRECTION_COLUMNS
from testbed.words import counted

#: Beyond this many servers a matrix is no longer looked at; its distribution is shown instead.
MAX_MATRIX_SERVERS = 40
MAX_LINKS_LISTED = 300
MAX_PATHS_LISTED = 20
#: Marks a pair whose packets cross other nodes.
MULTI_HOP = "*"

S_TO_MS = 1e3
BPS_TO_MBPS = 1e-6


_DEVICE_COLUMNS: dict[str, Callable[[Device], str]] = {
    "peak": lambda device: format_flops(device.peak_flops_per_s),
    "memory": lambda device: format_bandwidth(device.memory_bytes_per_s),
    "fast": lambda device: format_size(device.fast_bytes),
    "slow": lambda device: format_size(device.slow_bytes),
    "load": lambda device: format_bandwidth(device.load_bytes_per_s),
    "efficiency": lambda device: format_fraction(device.efficiency),
    "launch": lambda device: format_seconds(device.launch_s),
}
#: What a server's sandbox may use of this machine.
_SANDBOX_COLUMNS: dict[str, Callable[[Node], str]] = {
    "cpus": lambda node: "-" if node.cpus is None else f"{node.cpus:g}",
    "ram": lambda node: "-" if node.ram_bytes is None else format_size(node.ram_bytes, digits=4),
}


def print_topology(topology: Topology, console: Console) -> None:
    """Print the resolved topology, then round trip and bottleneck rate of every pair of servers."""
    for part in report(topology, width=console.width):
        console.print(part, highlight=False)


def check_report(topology: Topology, *, width: int = 120) -> str:
    """The same as plain text."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=False, color_system=None, legacy_windows=False)
    print_topology(topology, console)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def report(topology: Topology, *, width: int) -> Iterator[RenderableType]:
    """The parts of the report, to be printed one after the other on a console of that width."""
    paths = Paths(topology)
    servers = [node.name for node in topology.servers]
    routers = len(topology.nodes) - len(servers)
    counts = [counted(len(servers), "server"), *([counted(routers, "router")] if routers else [])]
    yield Text(f"{topology.name}: {', '.join([*counts, counted(len(topology.links), 'link')])}", style="bold")
    if topology.description:
        yield Text(topology.description)
    yield from _nodes(topology)
    if topology.links:
        yield "\nLinks (delay is one way; ↔ both directions alike)"
        yield _links_table(topology)
        if len(topology.links) > MAX_LINKS_LISTED:
            yield f"and {len(topology.links) - MAX_LINKS_LISTED} more links"
        yield from _recordings(topology)
    if len(servers) > MAX_MATRIX_SERVERS:
        yield f"\nAll {len(servers) * (len(servers) - 1) // 2} pairs of servers (too many for a matrix)"
        yield _distribution(paths, servers)
    elif len(servers) > 1:
        yield "\nExpected round trip, ms (there and back, without queueing)"
        yield from _matrix(servers, lambda a, b: _number(S_TO_MS * paths.expected_rtt_s(a, b), 2), paths, width)
        yield "\nSlowest link on the way, Mbit/s (from the row to the column)"
        yield from _matrix(servers, lambda a, b: _number(BPS_TO_MBPS * paths.bottleneck_bps(a, b), 0), paths, width)
        yield from _multi_hop_paths(paths, servers)


def _nodes(topology: Topology) -> Iterator[RenderableType]:
    devices = [node.device for node in topology.servers if node.device]
    columns = _DEVICE_COLUMNS
    yield "\nNodes (users: share of all requests that arrive here)"
    if len({(device.efficiency, device.launch_s) for device in devices}) == 1:
        # Columns that say the same everywhere are one line, so that the rest fits 80 characters.
        columns = {name: cell for name, cell in columns.items() if name not in ("efficiency", "launch")}
        one = devices[0]
        yield f"Every device: efficiency {format_fraction(one.efficiency)}, launch {format_seconds(one.launch_s)}"
    limits = {
        name: cell for name, cell in _SANDBOX_COLUMNS.items() if any(cell(node) != "-" for node in topology.nodes)
    }
    table = _table()
    table.add_column("node", no_wrap=True)
    for column in ("users", *columns, *limits):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("metro")
    users = sum(node.users for node in topology.servers)
    for node in topology.nodes:
        cells = [cell(node.device) if node.device else "-" for cell in columns.values()]
        cells += [cell(node) for cell in limits.values()]
        table.add_row(node.name, _users(node, users), *cells, Text(node.metro))
    yield table


def _users(node: Node, all_users: float) -> str:
    if node.kind == "router":
        return "router"
    return format_fraction(node.users / all_users, digits=3)


def _links_table(topology: Topology) -> Table:
    shown = topology.links[:MAX_LINKS_LISTED]
    directions = [direction for link in shown for direction in (link.forward, link.backward)]
    # A column that would say nothing is not shown, so that the rest fits 80 characters.
    cells = {name: cell for name, cell in DIRECTION_COLUMNS.items() if any(cell(each) != "-" for each in directions)}
    table = _table()
    table.add_column("from")
    table.add_column("")
    table.add_column("to")
    for column in cells:
        table.add_column(column, justify="right")
    for link in shown:
        if link.forward == link.backward:
            table.add_row(link.a, "↔", link.b, *(cell(link.forward) for cell in cells.values()))
        else:
            table.add_row(link.a, "→", link.b, *(cell(link.forward) for cell in cells.values()))
            table.add_row(link.b, "→", link.a, *(cell(link.backward) for cell in cells.values()))
    return table


def _recordings(topology: Topology) -> Iterator[RenderableType]:
    rows: dict[tuple[str, ...], None] = {}
    for link in topology.links:
        for each in (link.forward, link.backward):
            rate = each.recorded_rate
            if rate:
                kind = "rate" if each.rate_trace else "chances to send"
                rows[rate.name, kind, format_rate(each.rate_bps, digits=4), format_seconds(rate.period_s)] = None
            if each.delay_trace:
                delay = each.delay_trace
                rows[delay.name, "delay", format_seconds(each.delay_s, digits=4), format_seconds(delay.period_s)] = None
    if rows:
        yield "\nRecordings (~ above: what moves; after its period a recording starts anew)"
        table = _table()
        for column in ("file", "what", "mean", "period"):
            table.add_column(column, justify="left" if column in ("file", "what") else "right")
        for row in rows:
            table.add_row(*row)
        yield table


def _matrix(servers: Sequence[str], cell: Callable[[str, str], str], paths: Paths, width: int) -> Iterator[Table]:
    """One table, or several below each other where the console is too narrow for all columns."""
    marked = {
        (a, b): cell(a, b) + (MULTI_HOP if len(paths.path(a, b)) > 2 else "")
        for a in servers
        for b in servers
        if a != b
    }
    widest = max(len(text) for text in [*marked.values(), *servers])
    per_table = max(1, (width - widest - 4) // (widest + 2))
    for start in range(0, len(servers), per_table):
        columns = servers[start : start + per_table]
        table = _table()
        table.add_column("", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for a in servers:
            table.add_row(a, *(marked.get((a, b), "-") for b in columns))
        yield table


def _distribution(paths: Paths, servers: Sequence[str]) -> Table:
    pairs = list(itertools.combinations(servers, 2))
    rtts = [S_TO_MS * paths.expected_rtt_s(a, b) for a, b in pairs]
    rates = [BPS_TO_MBPS * rate for a, b in pairs for rate in (paths.bottleneck_bps(a, b), paths.bottleneck_bps(b, a))]
    table = _table()
    for column in ("", "least", "median", "most"):
        table.add_column(column, justify="right")
    for name, values, digits in (("round trip, ms", rtts, 2), ("slowest link, Mbit/s", rates, 0)):
        shown = (min(values), statistics.median(values), max(values))
        table.add_row(name, *(_number(value, digits) for value in shown))
    return table


def _multi_hop_paths(paths: Paths, servers: Sequence[str]) -> Iterator[str]:
    listed = []
    for a, b in itertools.combinations(servers, 2):
        there, back = paths.path(a, b), paths.path(b, a)
        alike = there == back[::-1]
        listed += [
            (path, " ↔ " if alike else " → ") for path in ((there,) if alike else (there, back)) if len(path) > 2
        ]
    if listed:
        yield f"\n{MULTI_HOP} crosses other nodes:"
        yield from (f"  {arrow.join(path)}" for path, arrow in listed[:MAX_PATHS_LISTED])
    if len(listed) > MAX_PATHS_LISTED:
        yield f"  and {len(listed) - MAX_PATHS_LISTED} more"


def _number(value: float, digits: int) -> str:
    """``value`` with so many decimals that columns can be compared, or three figures where that would hide it."""
    return f"{value:.{digits}f}" if value == 0 or value >= 10.0**-digits * 10 else f"{value:.3g}"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
