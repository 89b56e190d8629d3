"""How long a network takes to come up and go down, beside Mininet on the same graph in the same run.

    python benchmarks/bringup.py [--repeats 5] [--nodes 3 20] [--no-mininet]

Ours is everything that ``testbed up`` does: the relay process, every namespace, link, address and route, and a TCP
transfer both ways over every link.  Mininet's is ``Mininet(topo).start()`` and ``stop()``: hosts and shaped links
(``TCLink``).  Where the kernel has netem both shape rate and delay; elsewhere Mininet can only shape the rate, which
is less work for it.  Rounds take turns; medians, and the ratio Mininet : ours of each pair of rounds.  Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from itertools import combinations

from testbed import capabilities
from testbed.network import Network
from testbed.topology import Direction, Link, Node, Topology

NAME = f"bench-{os.getpid()}"
RATE_BPS, DELAY_S = 1e9, 0.005
#: The graphs on which both are measured: nodes, links.
GRAPHS = ((10, 45), (30, 435), (100, 200))


def graph(nodes: int, links: int) -> Topology:
    """A ring with chords drawn by chance, or every node linked to every other where so many links are wanted."""
    names = [f"s{number + 1}" for number in range(nodes)]
    every = list(combinations(names, 2))
    ring = [tuple(sorted((names[n - 1], names[n]), key=names.index)) for n in range(nodes)]
    others = [pair for pair in every if pair not in set(ring)]
    chosen = every if links == len(every) else [*ring, *random.Random(1).sample(others, links - nodes)]  # noqa: S311
    direction = Direction(rate_bps=RATE_BPS, delay_s=DELAY_S)
    cables = tuple(Link(a=a, b=b, forward=direction, backward=direction) for a, b in chosen)
    return Topology(name="graph", nodes=tuple(Node(name=name) for name in names), links=cables)


def ours(topology: Topology) -> tuple[float, float]:
    """Seconds to bring the topology up and to take it down."""
    start_s = time.monotonic()
    network = Network.up(topology, name=NAME)
    up_s = time.monotonic()
    network.down()
    return up_s - start_s, time.monotonic() - up_s


def theirs(topology: Topology) -> tuple[float, float]:
    """The same by Mininet."""
    from mininet.link import TCLink
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.topo import Topo

    setLogLevel("error")
    Mininet.inited = True  # or it would change limits of the whole machine
    options = {"bw": RATE_BPS / 1e6, "use_htb": True}
    if capabilities.netem().available:
        options["delay"] = f"{1e3 * DELAY_S:g}ms"
    topo = Topo()
    for node in topology.nodes:
        topo.addHost(node.name)
    for link in topology.links:
        topo.addLink(link.a, link.b, **options)
    start_s = time.monotonic()
    network = Mininet(topo=topo, link=TCLink, controller=None)
    network.start()
    up_s = time.monotonic()
    network.stop()
    return up_s - start_s, time.monotonic() - up_s


def compared(repeats: int) -> None:
    """Print both, on the graphs of the claim."""
    print("                       ours             Mininet          Mininet : ours")
    print("  nodes  links     up s   down s     up s   down s      up     down   (bound: 1 and 5)")
    for nodes, links in GRAPHS:
        topology = graph(nodes, links)
        rounds = [(*ours(topology), *theirs(topology)) for _ in range(repeats)]
        up, down, their_up, their_down = (statistics.median(column) for column in zip(*rounds, strict=True))
        up_ratio = statistics.median(their / our for our, _, their, _ in rounds)
        down_ratio = statistics.median(their / our for _, our, _, their in rounds)
        print(
            f"{nodes:7d} {links:6d} {up:8.2f} {down:8.2f} {their_up:8.2f} {their_down:8.2f}"
            f" {up_ratio:7.1f} {down_ratio:8.1f}"
        )


def alone(repeats: int, sizes: list[int]) -> None:
    """Print ours on full meshes."""
    print("  nodes  links     up s   down s   (bound: 10 nodes up in 2 s)")
    for size in sizes:
        topology = graph(size, size * (size - 1) // 2)
        times = [ours(topology) for _ in range(repeats)]
        up_s, down_s = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{size:7d} {len(topology.links):6d} {up_s:8.2f} {down_s:8.2f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 20])
    parser.add_argument("--no-mininet", action="store_true", help="only ours")
    arguments = parser.parse_args()
    alone(arguments.repeats, arguments.nodes)
    missing = capabilities.missing_for("mininet", "relay")
    if arguments.no_mininet or missing:
        print(f"without Mininet: {missing[0].detail if missing else 'not asked for'}")
    else:
        compared(arguments.repeats)


if __name__ == "__main__":
    main()
