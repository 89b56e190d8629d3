r"""Who tells whom how it is: everybody everybody in a small cluster, a few at a time in a large one.

In a cluster of more than ``FULL_MESH`` servers a message of gossip also carries what its sender has heard of all
others, and in round r server i talks to

    i + m · (k + 1)^(r mod c)   for m = 1 .. k,      k = FANOUT,   c = ceil(log_{k+1} n)                       (1)

counted round the cluster.  After any c rounds each server's news has reached every other (every number below n has at
most c digits to the base k + 1), with k messages per server and round instead of n - 1.  The scheme is the
dissemination pattern of Hensgen, Finkel and Manber (1988) with a larger base; merging by time stamp is ours.

>>> peers_of(0, servers=4, round_number=7), peers_of(0, servers=100, round_number=1)
([1, 2, 3], [5, 10, 15, 20])
"""

from __future__ import annotations

from agents.protocol import DEAD_AFTER_S, GOSSIP_INTERVAL_S

#: Up to so many servers all talk to all: the cost of n messages per server is small, and news is at most a round old.
FULL_MESH = 32
FANOUT = 4


def peers_of(place: int, *, servers: int, round_number: int) -> list[int]:
    """To whom the server at ``place`` speaks in a round: (1), or everybody."""
    if servers <= FULL_MESH:
        return [other for other in range(servers) if other != place]
    step = (FANOUT + 1) ** (round_number % _rounds(servers))
    told = {(place + m * step) % servers for m in range(1, FANOUT + 1)}
    return sorted(told - {place})


def relays(servers: int) -> bool:
    """Whether gossip carries what was heard of others."""
    return servers > FULL_MESH


def dead_after_s(servers: int) -> float:
    """Emulated seconds of silence after which a server is taken for lost.

    Where news travels over others, it may just have missed its turn in every round: two cycles more.
    """
    if not relays(servers):
        return DEAD_AFTER_S
    return DEAD_AFTER_S + 2 * _rounds(servers) * GOSSIP_INTERVAL_S


def _rounds(servers: int) -> int:
    """c of (1), in whole numbers: a quotient of logarithms makes 4 of log_5 125."""
    rounds, reached = 1, FANOUT + 1
    while reached < servers:
        rounds, reached = rounds + 1, reached * (FANOUT + 1)
    return rounds
