"""What the relay carries and how exactly it delays.

    python benchmarks/relay.py [--repeats 5] [--only goodput rtt spacing together] [--relays N]

goodput    TCP of one flow against the ideal (rate x 1448/1500: a packet of 1500 bytes carries 1448), cubic, sender and
           receiver in processes of their own; the last line is the ceiling of one link
rtt        ICMP echoes against twice the one-way delay: middle and 99th percentile of what they take longer
together   45 links of a full mesh, each with a flow at its rate, all at once
spacing    gaps between packets of a saturated link against 8 x 1500 / rate: as they are released one by one (a link
           with a little loss lets no bundles through), over one packet and over ten

``--relays`` spreads the links of ``together`` over so many processes; the others have one link, which one carries.
Medians of the repeats.  Needs root; other work on the machine shows in the figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import combinations, pairwise
from multiprocessing.connection import Connection
from pathlib import Path

from testbed.backends.kernel import inside_netns
from testbed.judging import PAYLOAD_SHARE
from testbed.network import Network
from testbed.probes import Way, connect, note_arrivals, preferred, received, round_trips_s, way_over
from testbed.shaping.base import Lateness
from testbed.shaping.dealing import Relays, parse_relays
from testbed.topology import Direction, Link, Node, Topology

NAME = f"bench-{os.getpid()}"
CHUNK_BYTES = 1 << 20
MESH = 10
PACKET_BYTES = 1500


def pair(direction: Direction) -> Topology:
    """Two nodes and one link, the same both ways."""
    nodes = (Node(name="a"), Node(name="b"))
    return Topology(name="pair", nodes=nodes, links=(Link(a="a", b="b", forward=direction, backward=direction),))


def mesh(size: int, direction: Direction) -> Topology:
    """Every node linked to every other."""
    names = [f"s{number + 1}" for number in range(size)]
    links = tuple(Link(a=a, b=b, forward=direction, backward=direction) for a, b in combinations(names, 2))
    return Topology(name="mesh", nodes=tuple(Node(name=name) for name in names), links=links)


def serve(netns: Path, address: str, seconds: float, answer: Connection) -> None:
    """Receive one connection and tell how many bytes came per second after the first second."""
    with inside_netns(netns):
        listener = socket.create_server((address, 7000))
    answer.send("ready")
    stream, _ = listener.accept()
    buffer, size, first_s, last_s = bytearray(CHUNK_BYTES), 0, 0.0, 0.0
    started_s = time.monotonic()
    with listener, stream:
        while got := stream.recv_into(buffer):
            last_s = time.monotonic()
            if last_s < started_s + 1.0:
                continue
            if first_s:
                size += got
            else:
                first_s = last_s
            if last_s > started_s + 1.0 + seconds:
                break
        answer.send(8 * size / (last_s - first_s))


def goodput_bps(network: Network, seconds: float) -> float:
    """TCP goodput from a to b; sender and receiver are processes of their own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    a, b = network.wiring.node("a"), network.wiring.node("b")
    receiver = context.Process(target=serve, args=(network.netns("b"), b.address, seconds, theirs))
    receiver.start()
    ours.recv()
    with inside_netns(network.netns("a")):
        sender = socket.create_connection((b.address, 7000), source_address=(a.address, 0))
    chunk = bytes(CHUNK_BYTES)
    with sender:
        try:
            while not ours.poll(0):
                sender.sendall(chunk)
        except (ConnectionResetError, BrokenPipeError):
            pass  # the receiver has seen enough
    result = float(ours.recv())
    receiver.join()
    return result


def errors_s(network: Network, delay_s: float, probes: int) -> list[float]:
    """How much longer than twice the delay round trips take."""
    way = way_over(network.wiring.cable("a-b").a, network.netns)
    with preferred():
        rtts_s = round_trips_s([way], probes=probes, interval_s=0.01, wait_s=2 * delay_s + 0.1)[0]
    return [rtt_s - 2 * delay_s for rtt_s in rtts_s]


def together_bps(network: Network, seconds: float) -> list[float]:
    """TCP goodput of one flow over every link at once, all ends in this process."""
    # By the addresses of programs: between those of a cable, TCP would begin with far more than the queue takes.
    ways = [
        Way(
            source_netns=network.netns(cable.a.node),
            source_address=network.wiring.node(cable.a.node).address,
            target_netns=network.netns(cable.b.node),
            target_address=network.wiring.node(cable.b.node).address,
        )
        for cable in network.wiring.cables
    ]
    got = [0] * len(ways)
    chunk, buffer = bytes(1 << 16), bytearray(CHUNK_BYTES)
    with ExitStack() as stack, selectors.EpollSelector() as selector:
        pairs = connect(ways, stack, deadline_s=time.monotonic() + 10)
        for number, ends in enumerate(pairs):
            if ends is None:
                raise RuntimeError("no connection")
            selector.register(ends[0], selectors.EVENT_WRITE, (number, True))
            selector.register(ends[1], selectors.EVENT_READ, (number, False))
        start_s = time.monotonic()
        measured_s = start_s + 2.0
        while time.monotonic() < measured_s + seconds:
            counting = time.monotonic() >= measured_s
            for key, _ in selector.select(0.1):
                number, sends = key.data
                with suppress(BlockingIOError):
                    if sends:
                        key.fileobj.send(chunk)  # type: ignore[union-attr]
                    else:
                        size = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                        got[number] += size if counting else 0
    return [8 * size / seconds for size in got]


def gaps_s(network: Network, rate_bps: float, seconds: float) -> list[float]:
    """Gaps between packets that wait for the link from a to b, by the kernel's note of their arrival."""
    b = network.wiring.node("b")
    with inside_netns(network.netns("b")):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        note_arrivals(far, buffer_bytes=1 << 25)  # read afterwards, nothing is lost
        far.bind((b.address, 7001))
        far.setblocking(False)
    with inside_netns(network.netns("a")):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    count = int(rate_bps * seconds / (8 * PACKET_BYTES))
    times_ns = []
    with far, near:
        for number in range(count):
            near.sendto(number.to_bytes(4, "big") + bytes(PACKET_BYTES - 32), (b.address, 7001))
            if number % 50 == 49:
                time.sleep(40 * 8 * PACKET_BYTES / rate_bps)  # a little faster than the link: the queue fills
        time.sleep(0.5)
        with suppress(BlockingIOError):
            while True:
                times_ns.append(received(far, 2048)[1])
    settled = times_ns[len(times_ns) // 5 :]
    return [(after - before) / 1e9 for before, after in pairwise(settled)]


def goodput(network: Network, repeats: int, seconds: float, shape: Callable[[Direction], None]) -> None:
    """Print goodput."""
    print("TCP goodput of one flow (bound: 97 to 100 % of ideal; at least 5 Gbit/s on the fast link)")
    print("   rate Mbit/s  delay ms  goodput Mbit/s   of ideal   lateness p99 ms")
    for rate_bps, delay_s in ((10e6, 0.005), (100e6, 0.005), (1e9, 0.005), (10e9, 0.0003), (100e9, 0.0003)):
        shape(Direction(rate_bps=rate_bps, delay_s=delay_s))
        network.reset_lateness()
        found_bps = statistics.median(goodput_bps(network, seconds) for _ in range(repeats))
        columns = (
            f"{rate_bps / 1e6:14.0f}",
            f"{delay_s * 1e3:9.1f}",
            f"{found_bps / 1e6:15.1f}",
            f"{found_bps / (rate_bps * PAYLOAD_SHARE):10.1%}",
            f"{network.lateness().p99_s * 1e3:17.3f}",
        )
        print(*columns)


def round_trips(network: Network, repeats: int, shape: Callable[[Direction], None]) -> None:
    """Print errors of round trips."""
    print("Round trip of an ICMP echo (aim: error p50 under 0.1 ms, p99 under 1 ms)")
    print("  one-way ms   expected ms   p50 ms   p99 ms")
    for delay_s in (0.0, 0.0003, 0.001, 0.005, 0.022, 0.1, 0.5):
        shape(Direction(rate_bps=1e9, delay_s=delay_s))
        network.reset_lateness()
        rounds = [sorted(errors_s(network, delay_s, 100)) for _ in range(repeats)]
        middle, late = (statistics.median(errors[n * len(errors) // 100] for errors in rounds) for n in (50, 99))
        print(f"{delay_s * 1e3:12.1f} {2 * delay_s * 1e3:13.1f} {middle * 1e3:8.3f} {late * 1e3:8.3f}")
    print_histogram(network.lateness())


def print_histogram(lateness: Lateness) -> None:
    """Print how late packets were released."""
    print(f"late releases of the last delay ({lateness.releases} of them)")
    edges_s = (0.00002, 0.0001, 0.0003, 0.001, 0.003, 0.01, float("inf"))
    counted, below_s = 0, 0.0
    for edge_s in edges_s:
        upto = len(lateness.buckets) if edge_s == float("inf") else round(edge_s / lateness.bucket_s)
        count = sum(lateness.buckets[counted:upto])
        print(f"  {1e3 * below_s:6.2f} to {1e3 * edge_s:6.2f} ms {count:8d}")
        counted, below_s = upto, edge_s


def spacing(network: Network, repeats: int, shape: Callable[[Direction], None]) -> None:
    """Print errors of gaps."""
    rate_bps = 100e6
    ideal_s = 8 * PACKET_BYTES / rate_bps
    shape(Direction(rate_bps=rate_bps, delay_s=0.005, loss=1e-9))
    print("Gaps between packets of a saturated 100 Mbit/s (aim: error p50 under 1 %, p99 under 6 %)")
    print("  packets    p50      p99")
    rounds = [gaps_s(network, rate_bps, 2.0) for _ in range(repeats)]
    for packets in (1, 10, 100):
        quantiles = []
        for gaps in rounds:
            sums = [sum(gaps[n : n + packets]) for n in range(0, len(gaps) - packets, packets)]
            errors = sorted(abs(gap / (packets * ideal_s) - 1) for gap in sums)
            quantiles.append((errors[len(errors) // 2], errors[99 * len(errors) // 100]))
        middle, late = (statistics.median(column) for column in zip(*quantiles, strict=True))
        print(f"{packets:9d} {middle:6.1%} {late:8.1%}")


def together(repeats: int, seconds: float, relays: Relays) -> None:
    """Print goodput of all links of a mesh at once."""
    print(f"45 links at once, relays: {relays} (aim: 100 Mbit/s on each)")
    print("  Mbit/s each    of ideal, all    of ideal, worst link    lateness p99 ms")
    for rate_bps in (20e6, 50e6, 100e6):
        wanted = mesh(MESH, Direction(rate_bps=rate_bps, delay_s=0.005))
        with Network.up(wanted, name=NAME, shaper="relay", relays=relays) as network:
            network.reset_lateness()
            rounds = [together_bps(network, seconds) for _ in range(repeats)]
            ideal_bps = rate_bps * PAYLOAD_SHARE
            mean = statistics.median(statistics.mean(found) for found in rounds) / ideal_bps
            worst = statistics.median(min(found) for found in rounds) / ideal_bps
            print(f"{rate_bps / 1e6:13.0f} {mean:16.1%} {worst:23.1%} {1e3 * network.lateness().p99_s:18.3f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one goodput measurement")
    parts = ("goodput", "rtt", "spacing", "together")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--relays", type=parse_relays, default=1, help="processes that share the links, or auto")
    arguments = parser.parse_args()
    repeats, seconds = arguments.repeats, arguments.seconds
    with Network.up(pair(Direction(rate_bps=1e9, delay_s=0.001)), name=NAME, shaper="relay") as network:

        def shape(direction: Direction) -> None:
            for source in ("a", "b"):
                network.shape("a-b", source, direction)

        if "goodput" in arguments.only:
            goodput(network, repeats, seconds, shape)
        if "rtt" in arguments.only:
            round_trips(network, repeats, shape)
        if "spacing" in arguments.only:
            spacing(network, repeats, shape)
    if "together" in arguments.only:
        together(repeats, seconds, arguments.relays)


if __name__ == "__main__":
    main()
