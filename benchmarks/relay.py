"""What the relay carries and how exactly it delays.

    python benchmarks/relay.py [--repeats 5]

TCP goodput of one flow against the ideal (rate x 1448/1500: a packet of 1500 bytes carries 1448), cubic, both ends in
one process apart from the relay; the ceiling of one link; round trips of ICMP echoes against twice the one-way delay.
Medians of the repeats.  Needs root; other work on the machine shows in the figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from testbed.backends.kernel import inside_netns
from testbed.network import Network
from testbed.probes import Way, round_trips_s
from testbed.topology import Direction, Link, Node, Topology
from testbed.verify import PAYLOAD_SHARE

NAME = f"bench-{os.getpid()}"
CHUNK_BYTES = 1 << 20


def pair(direction: Direction) -> Topology:
    """Two nodes and one link, the same both ways."""
    nodes = (Node(name="a"), Node(name="b"))
    return Topology(name="pair", nodes=nodes, links=(Link(a="a", b="b", forward=direction, backward=direction),))


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


def rtt_error_s(network: Network, delay_s: float) -> float:
    """How much longer than twice the delay a round trip takes."""
    end = network.wiring.cable("a-b").a
    way = Way(
        source_netns=network.netns("a"),
        source_address=end.address,
        target_netns=network.netns("b"),
        target_address=end.peer_address,
    )
    rtts = round_trips_s([way], probes=40, interval_s=0.01, wait_s=2 * delay_s + 0.1)[0]
    return statistics.median(rtts) - 2 * delay_s


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one goodput measurement")
    arguments = parser.parse_args()
    with Network.up(pair(Direction(rate_bps=1e9, delay_s=0.001)), name=NAME) as network:

        def shape(direction: Direction) -> None:
            for source in ("a", "b"):
                network.shape("a-b", source, direction)

        print("TCP goodput of one flow (bound: 97 to 100 % of ideal; at least 5 Gbit/s on the fast link)")
        print("   rate Mbit/s  delay ms  goodput Mbit/s   of ideal   lateness p99 ms")
        for rate_bps, delay_s in ((10e6, 0.005), (100e6, 0.005), (1e9, 0.005), (10e9, 0.0003)):
            shape(Direction(rate_bps=rate_bps, delay_s=delay_s))
            network.reset_lateness()
            found_bps = statistics.median(goodput_bps(network, arguments.seconds) for _ in range(arguments.repeats))
            share = found_bps / (rate_bps * PAYLOAD_SHARE)
            columns = (
                f"{rate_bps / 1e6:14.0f}",
                f"{delay_s * 1e3:9.1f}",
                f"{found_bps / 1e6:15.1f}",
                f"{share:10.1%}",
                f"{network.lateness().p99_s * 1e3:17.3f}",
            )
            print(*columns)
        print("Round trip of an ICMP echo (bound: 0.3 ms or 2 %, whichever is larger)")
        print("  one-way ms   expected ms   error ms")
        for delay_s in (0.0, 0.0003, 0.001, 0.005, 0.022):
            shape(Direction(rate_bps=1e9, delay_s=delay_s))
            error_s = statistics.median(rtt_error_s(network, delay_s) for _ in range(arguments.repeats))
            print(f"{delay_s * 1e3:12.1f} {2 * delay_s * 1e3:13.1f} {error_s * 1e3:10.3f}")


if __name__ == "__main__":
    main()
