"""Whether messages in the simulator take as long as over the emulated links, with the kernel's TCP.

    python benchmarks/simulated_links.py [--only 'loss']

The same messages are sent over the same topology, once in namespaces through the relay, once in virtual time.  Every
connection carries a small message first, as an agent's does.

    in turn   one connection, message after message, each soon after the one before has arrived: mean of the first four
    1 % loss  a connection of its own for every message: median
    together  two connections that share a link at the same time: mean
    beside    small messages of one connection, while a long one of another fills the link: mean

Ratios are simulated to emulated; ``!`` marks those beyond the bound, which is 5 %, 15 % where packets are lost, or
0.5 ms for every link crossed, what handling a message may cost the emulation.  Chance moves two kinds: 24 messages at
1 % loss have a median of their own, and of 300 kB in turn over 100 Mbit/s the second burst overflows the queue by a
hair; what of its tail is lost, and with it the mean, varies from run to run in the kernel, and not in the simulator.

Needs root; takes under two minutes; other work on the machine shows in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from testbed.backends.kernel import inside_netns
from testbed.network import Network
from testbed.probes import preferred
from testbed.simulation.loop import VirtualLoop
from testbed.simulation.network import SimulatedNetwork
from testbed.topology import Direction, Link, Node, Topology

NAME = "physics"
PORT = 7000
WARM_BYTES, WARM_S = 100, 0.3
HANDLING_S = 0.0005  # what a message may cost the emulation per link
SPIN_S = 0.0005  # before a message is due, do not sleep any more
BUFFER_BYTES = 1 << 20

SLOW = Direction(rate_bps=1e8, delay_s=0.010)
FAST = Direction(rate_bps=1e9, delay_s=0.005)
SIZES_BYTES = (10_000, 300_000, 1_000_000, 5_000_000)
LOSS = 0.01
#: Loss is the same few packets for every repeat of a seed: repeats use links of their own.
PARALLEL, ROUNDS = 8, 3
SEEDS = 8  # of the simulator, where chance decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One message."""

    at_s: float
    flow: int  # index into the ends
    size_bytes: int
    counts: bool = True  # its time is part of the figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is sent, where, and what is made of the times."""

    name: str
    topology: Topology
    ends: tuple[tuple[str, str], ...]  # source and target of every connection
    sendings: tuple[Sending, ...]
    hops: int  # links that a message crosses at most
    pause_s: float | None = None  # every message is sent so long after the one before has arrived, whatever its time
    rounds: int = 1
    figure: Callable[[Sequence[float]], float] = statistics.mean
    bound: float = 0.05


@dataclass(slots=True, kw_only=True)
class Connection:
    """Both ends of one TCP connection, and what is under way on it."""

    out: socket.socket
    into: socket.socket
    unsent: deque[int] = field(default_factory=deque)  # bytes, by message
    expected: deque[list[int]] = field(default_factory=deque)  # [message, bytes still to come]


def direct(direction: Direction, hops: int, prefix: str = "s") -> tuple[tuple[Node, ...], tuple[Link, ...]]:
    """A chain of equal links with routers between."""
    nodes = tuple(
        Node(name=f"{prefix}{place}", kind="server" if place in (0, hops) else "router") for place in range(hops + 1)
    )
    links = tuple(
        Link(a=f"{prefix}{place}", b=f"{prefix}{place + 1}", forward=direction, backward=direction)
        for place in range(hops)
    )
    return nodes, links


def in_turn(label: str, direction: Direction, hops: int) -> Iterator[Case]:
    """One connection."""
    nodes, links = direct(direction, hops)
    for size_bytes in SIZES_BYTES:
        yield Case(
            name=f"{label}, {hops} hop{'s' * (hops > 1)}: {size_bytes / 1e3:g} kB in turn",
            topology=Topology(name="chain", nodes=nodes, links=links),
            ends=(("s0", f"s{hops}"),),
            sendings=(Sending(at_s=0.0, flow=0, size_bytes=size_bytes),) * 4,
            hops=hops,
            pause_s=0.1,
        )


def lossy(label: str, direction: Direction, hops: int) -> Iterator[Case]:
    """Several pairs side by side, joined by a hub that nothing crosses: a topology is one piece."""
    chains = [direct(replace(direction, loss=LOSS), hops, f"p{pair}n") for pair in range(PARALLEL)]
    topology = Topology(
        name="pairs",
        nodes=(Node(name="hub", kind="router"), *(node for nodes, _ in chains for node in nodes)),
        links=(
            *(link for _, links in chains for link in links),
            *(Link(a="hub", b=f"p{pair}n0", forward=FAST, backward=FAST) for pair in range(PARALLEL)),
        ),
    )
    for size_bytes in (10_000, 300_000, 1_000_000):
        yield Case(
            name=f"{label}, {hops} hop{'s' * (hops > 1)}: {size_bytes / 1e3:g} kB at 1 % loss",
            topology=topology,
            ends=tuple((f"p{pair}n0", f"p{pair}n{hops}") for pair in range(PARALLEL)),
            sendings=tuple(Sending(at_s=0.1 * pair, flow=pair, size_bytes=size_bytes) for pair in range(PARALLEL)),
            hops=hops,
            rounds=ROUNDS,
            figure=statistics.median,
            bound=0.15,
        )


def together(label: str, direction: Direction) -> Iterator[Case]:
    """A chain of servers: from the first and from the second to the third, meeting on the last link."""
    nodes, links = direct(direction, 2)
    topology = Topology(name="shared", nodes=tuple(replace(node, kind="server") for node in nodes), links=links)
    ends = (("s0", "s2"), ("s1", "s2"))
    second_bytes = int(direction.rate_bps / 8)
    for size_bytes in (50_000, 150_000):
        yield Case(
            name=f"{label}: 2 x {size_bytes / 1e3:g} kB together",
            topology=topology,
            ends=ends,
            sendings=tuple(
                Sending(at_s=0.4 * turn, flow=flow, size_bytes=size_bytes) for turn in range(4) for flow in (0, 1)
            ),
            hops=2,
        )
    yield Case(
        name=f"{label}: 2 x {second_bytes / 1e6:g} MB together",
        topology=topology,
        ends=ends,
        sendings=tuple(Sending(at_s=0.0, flow=flow, size_bytes=second_bytes) for flow in (0, 1)),
        hops=2,
    )
    yield Case(
        name=f"{label}: 2 kB beside {2 * second_bytes / 1e6:g} MB",
        topology=topology,
        ends=ends,
        sendings=(
            Sending(at_s=0.0, flow=1, size_bytes=2 * second_bytes, counts=False),
            *(Sending(at_s=0.5 + 0.02 * turn, flow=0, size_bytes=2000) for turn in range(50)),
        ),
        hops=2,
    )


def cases() -> Iterator[Case]:
    """All of them; those of one topology follow each other."""
    for label, direction in (("100 Mbit/s 10 ms", SLOW), ("1 Gbit/s 5 ms", FAST)):
        for hops in (1, 2):
            yield from in_turn(label, direction, hops)
        yield from lossy(label, direction, 1)
        yield from lossy(label, direction, 2)
        yield from together(label, direction)


def warmed(case: Case) -> list[Sending]:
    """The messages, each connection's first one before them."""
    warm = [Sending(at_s=0.0, flow=flow, size_bytes=WARM_BYTES, counts=False) for flow in range(len(case.ends))]
    return warm + [replace(sending, at_s=WARM_S + sending.at_s) for sending in case.sendings]


def simulated_s(case: Case, seed: int) -> list[float]:
    """What every message that counts takes in virtual time."""
    loop, sendings = VirtualLoop(), warmed(case)
    sent_s, took_s = [0.0] * len(sendings), [0.0] * len(sendings)

    def send(number: int) -> None:
        sent_s[number] = loop.time()
        network.send(*case.ends[sendings[number].flow], sendings[number].size_bytes, number)

    def deliver(_source: str, _target: str, number: int) -> None:
        took_s[number] = loop.time() - sent_s[number]
        if case.pause_s is not None and number + 1 < len(sendings):
            loop.call_later(case.pause_s, send, number + 1)

    network = SimulatedNetwork(case.topology, loop, deliver=deliver, seed=seed)
    for number, sending in enumerate(sendings if case.pause_s is None else sendings[:1]):
        loop.call_at(sending.at_s, send, number)
    loop.run_until_complete(asyncio.sleep(120.0))
    loop.close()
    return [took for took, sending in zip(took_s, sendings, strict=True) if sending.counts]


def emulated_s(case: Case, network: Network) -> list[float]:
    """What every message that counts takes over the emulated links."""
    sendings = warmed(case)
    sent_s, took_s = [0.0] * len(sendings), [0.0] * len(sendings)
    with ExitStack() as stack, selectors.DefaultSelector() as selector, preferred():
        connections = [connect(network, *ends, PORT + number, stack) for number, ends in enumerate(case.ends)]
        for connection in connections:
            selector.register(connection.into, selectors.EVENT_READ, connection)
        start_s = time.monotonic() + 0.05
        due = deque(sorted((start_s + sending.at_s, number) for number, sending in enumerate(sendings)))
        if case.pause_s is not None:
            due = deque([due[0]])
        missing = len(sendings)
        while missing:
            left_s = due[0][0] - time.monotonic() if due else 1.0
            if due and left_s <= 0:
                _, number = due.popleft()
                connection = connections[sendings[number].flow]
                connection.unsent.append(sendings[number].size_bytes)
                connection.expected.append([number, sendings[number].size_bytes])
                sent_s[number] = time.monotonic()
                push(connection, selector)
                continue
            for key, _ in selector.select(max(0.0, left_s - SPIN_S)):
                if key.fileobj is key.data.out:
                    push(key.data, selector)
                    continue
                for number in pull(key.data):
                    arrived_s = time.monotonic()
                    took_s[number] = arrived_s - sent_s[number]
                    missing -= 1
                    if case.pause_s is not None and missing:
                        due.append((arrived_s + case.pause_s, number + 1))
    return [took for took, sending in zip(took_s, sendings, strict=True) if sending.counts]


def connect(network: Network, source: str, target: str, port: int, stack: ExitStack) -> Connection:
    """A connection between two sandboxes."""
    here, there = network.wiring.node(source).address, network.wiring.node(target).address
    with inside_netns(network.netns(target)):
        listener = stack.enter_context(socket.create_server((there, port)))
    with inside_netns(network.netns(source)):
        out = stack.enter_context(socket.create_connection((there, port), source_address=(here, 0)))
    into = stack.enter_context(listener.accept()[0])
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out.setblocking(False)
    into.setblocking(False)
    return Connection(out=out, into=into)


def push(connection: Connection, selector: selectors.BaseSelector) -> None:
    """Give the kernel what it takes."""
    watched = connection.out.fileno() in selector.get_map()
    while connection.unsent:
        try:
            sent = connection.out.send(bytes(min(connection.unsent[0], BUFFER_BYTES)))
        except BlockingIOError:
            if not watched:
                selector.register(connection.out, selectors.EVENT_WRITE, connection)
            return
        connection.unsent[0] -= sent
        if not connection.unsent[0]:
            connection.unsent.popleft()
    if watched:
        selector.unregister(connection.out)


def pull(connection: Connection) -> Iterator[int]:
    """Read; the messages that are now complete."""
    got = len(connection.into.recv(BUFFER_BYTES))
    while got:
        message = connection.expected[0]
        taken = min(got, message[1])
        got -= taken
        message[1] -= taken
        if not message[1]:
            connection.expected.popleft()
            yield message[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    wanted = [case for case in cases() if parser.parse_args().only in case.name]
    print(f"{'':52} emulated ms  simulated ms   ratio")
    network: Network | None = None
    beyond = 0
    try:
        for case in wanted:
            if network is None or network.topology != case.topology:
                if network is not None:
                    network.down()
                network = Network.up(case.topology, name=NAME)
            emulated = case.figure([took for _ in range(case.rounds) for took in emulated_s(case, network)])
            seeds = SEEDS * case.rounds if case.bound > 0.05 else 1
            simulated = case.figure([took for seed in range(seeds) for took in simulated_s(case, seed)])
            bad = abs(simulated - emulated) > max(case.bound * emulated, HANDLING_S * case.hops)
            beyond += bad
            ratio = simulated / emulated
            print(f"{case.name:52} {emulated * 1e3:11.2f} {simulated * 1e3:13.2f} {ratio:7.2f} {'!' * bad}", flush=True)
    finally:
        if network is not None:
            network.down()
    print(f"{beyond} of {len(wanted)} beyond their bound")


if __name__ == "__main__":
    main()
