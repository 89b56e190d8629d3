"""How long bringing a full mesh up and taking it down takes.

    python benchmarks/bringup.py [--repeats 5] [--nodes 3 10 20]

``up`` includes the relay process, every namespace, link, address and route, and a TCP transfer both ways over every
link.  Medians of the repeats.  Needs root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from itertools import combinations

from testbed.network import Network
from testbed.topology import Direction, Link, Node, Topology

NAME = f"bench-{os.getpid()}"


def mesh(size: int) -> Topology:
    """Every server linked to every other."""
    direction = Direction(rate_bps=1e9, delay_s=0.005)
    names = [f"s{number + 1}" for number in range(size)]
    links = tuple(Link(a=a, b=b, forward=direction, backward=direction) for a, b in combinations(names, 2))
    return Topology(name="mesh", nodes=tuple(Node(name=name) for name in names), links=links)


def once(topology: Topology) -> tuple[float, float]:
    """Seconds to bring the topology up and to take it down."""
    start_s = time.monotonic()
    network = Network.up(topology, name=NAME)
    up_s = time.monotonic()
    network.down()
    return up_s - start_s, time.monotonic() - up_s


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 20])
    arguments = parser.parse_args()
    print("  nodes  links     up s   down s   (bound: 10 nodes up in 2 s)")
    for size in arguments.nodes:
        topology = mesh(size)
        times = [once(topology) for _ in range(arguments.repeats)]
        up_s, down_s = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{size:7d} {len(topology.links):6d} {up_s:8.2f} {down_s:8.2f}")


if __name__ == "__main__":
    main()
