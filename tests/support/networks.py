"""Small networks for tests, and what to run in them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations, count
from pathlib import Path

import pytest

from testbed import capabilities
from testbed.network import Network
from testbed.probes import Bounds, Transfer, Way
from testbed.setup import BackendName
from testbed.shaping.engines import ShaperName
from testbed.topology import Direction, Link, Node, Topology

Bring = Callable[[Topology], Network]

QUICK = Direction(rate_bps=1e9, delay_s=0.001)
#: Other work on the machine may hold measurements up, and passes.
PAUSES_S = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)


def topology(*directions: Direction, name: str = "t", back: Direction | None = None) -> Topology:
    """A chain s1 - s2 - s3 ..., one link per direction, each the same both ways unless ``back`` is given."""
    nodes = tuple(Node(name=f"s{n + 1}") for n in range(len(directions) + 1))
    links = tuple(
        Link(a=f"s{n + 1}", b=f"s{n + 2}", forward=there, backward=back or there) for n, there in enumerate(directions)
    )
    return Topology(name=name, nodes=nodes, links=links)


def mesh(size: int, direction: Direction = QUICK, name: str = "t") -> Topology:
    """Every node linked to every other."""
    names = [f"s{n + 1}" for n in range(size)]
    links = tuple(Link(a=a, b=b, forward=direction, backward=direction) for a, b in combinations(names, 2))
    return Topology(name=name, nodes=tuple(Node(name=each) for each in names), links=links)


def way(network: Network, source: str, target: str) -> Way:
    """From one node to another by the addresses that programs use."""
    return Way(
        source_netns=network.netns(source),
        source_address=network.wiring.node(source).address,
        target_netns=network.netns(target),
        target_address=network.wiring.node(target).address,
    )


def link_way(network: Network, source: str, target: str) -> Way:
    """From one node to its neighbour by the addresses of their link."""
    end = network.wiring.node(source).interface_to(target)
    return Way(
        source_netns=network.netns(source),
        source_address=end.address,
        target_netns=network.netns(target),
        target_address=end.peer_address,
    )


def transfer(there: Way, rate_bps: float, rtt_s: float, measure_s: float = 0.4) -> Transfer:
    """A transfer that keeps a link of that rate full without overflowing its queue."""
    window = int(rate_bps * (rtt_s + 0.010) / 8 + 15_000)  # half of the default queue
    bounds = Bounds(window_bytes=window, pace_bytes_per_s=int(1.25 * rate_bps / 8))
    return Transfer(way=there, bounds=bounds, warm_up_s=2 * rtt_s + 0.05, measure_s=measure_s)


def run_in(network: Network, node: str, code: str, log: Path, *arguments: str) -> str:
    """What a Python program prints on a node; it must end well."""
    process = network.popen(node, [sys.executable, "-c", code, *arguments], log=log)
    try:
        status = process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    printed = log.read_text()
    assert status == 0, printed
    return printed


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether the condition comes true in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def soon(check: Callable[[], bool]) -> bool:
    """Whether a measurement comes out right, at once or when other work on the machine has passed."""
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        if check():
            return True
    return False


def settle(network: Network) -> None:
    """Wait until nothing moves any more: what proved the links says good-bye after ``up`` has returned."""

    def still() -> bool:
        before = [report.packets for report in network.counters()]
        time.sleep(0.05)
        return before == [report.packets for report in network.counters()]

    assert eventually(still)


@contextmanager
def bringing(backend: BackendName, shaper: ShaperName) -> Iterator[Bring]:
    """What brings topologies up, each taken down afterwards; skips what this machine or netem cannot do."""
    if missing := capabilities.missing_for(backend, shaper):
        pytest.skip("; ".join(f"{each.name}: {each.detail}" for each in missing))
    numbers = count()
    with ExitStack() as ups:

        def bring(wanted: Topology) -> Network:
            for link in wanted.links if shaper == "netem" else ():
                skip_beyond_netem(link.forward)
                skip_beyond_netem(link.backward)
            network = Network.up(wanted, name=f"contract{next(numbers)}", backend=backend, shaper=shaper)
            ups.callback(network.down)
            settle(network)
            return network

        yield bring


def skip_beyond_netem(direction: Direction) -> None:
    """Skip the test where netem cannot shape the direction."""
    from testbed.shaping import netem

    if reason := netem.supports(direction):
        pytest.skip(f"netem: {reason}")
