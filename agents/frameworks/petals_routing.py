r"""The client's way through the swarm.  Petals, arXiv 2209.01188, section 3.2, and its public client code
[reconstruction].

    V(d, l) = t_d + V(d, l + 1)                                          inside d's span                          (1)
    V(d, l) = t_d + min_{d'} [ w(d, d') + o + V(d', l + 1) ]             l ends d's span; d' has layer l + 1      (2)
    V(d, L - 1) = t_d + w(d, home)                                                                                (3)
    first server = argmin_{d has layer 0}  w(home, d) + o + V(d, 0)                                               (4)

    w   RTT / 2, ``UNKNOWN_S`` where it is not known        t_d  1 / throughput of d for one layer, as announced
    o   serialisation: what the client's authors measured per hop

A pass that has entered a span stays to its end, as in the paper: so the graph of (server, layer) has few edges.  It has
no cycles either; going through it backwards finds what the client's Dijkstra search finds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from agents.protocol import MAX_NOTES_BYTES

UNKNOWN_S = 0.15
SERIALISATION_S = 0.018
#: A server that failed is left alone for this long, then for twice as long, and so on.
BAN_S = 15.0
#: Age at which the client looks again who is there and how far away.
REFRESH_S = 60.0

Spans = Mapping[str, tuple[int, int]]  # server -> first layer, one past the last
Chain = tuple[tuple[str, int], ...]  # server, one past the last layer that it runs

_decoder = msgspec.msgpack.Decoder(Chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From one server and layer on."""

    cost_s: float
    following: str  # server of the next layer; the client's own after the last one


def ways(
    spans: Spans,
    *,
    layers: int,
    layer_s: Mapping[str, float],
    half_rtt_s: Callable[[str, str], float],
    home: str,
    serialisation_s: float = SERIALISATION_S,
) -> dict[tuple[str, int], Way]:
    """Equations (1) to (3) for every (server, layer); those that lead nowhere are left out.

    >>> found = ways({"a": (0, 2), "b": (1, 3)}, layers=3, layer_s={"a": 1.0, "b": 1.0},
    ...              half_rtt_s=lambda one, other: 0.25 if one != other else 0.0, home="a", serialisation_s=0.5)
    >>> found["a", 0]
    Way(cost_s=4.0, following='a')
    """
    found: dict[tuple[str, int], Way] = {}
    for layer in reversed(range(layers)):
        arriving = entries(spans, layer + 1, found)
        for server, (begin, end) in spans.items():
            if not begin <= layer < end:
                continue
            if layer + 1 == layers:
                rest = Way(cost_s=half_rtt_s(server, home), following=home)
            elif layer + 1 < end:
                if (server, layer + 1) not in found:
                    continue
                rest = Way(cost_s=found[server, layer + 1].cost_s, following=server)
            elif arriving:
                to_s = {other: half_rtt_s(server, other) + serialisation_s + cost for other, cost in arriving.items()}
                following = min(to_s, key=lambda other: (to_s[other], other))
                rest = Way(cost_s=to_s[following], following=following)
            else:
                continue
            found[server, layer] = Way(cost_s=layer_s[server] + rest.cost_s, following=rest.following)
    return found


def entries(spans: Spans, layer: int, found: Mapping[tuple[str, int], Way]) -> dict[str, float]:
    """Cost of going on from a layer, by server that has it."""
    return {server: found[server, layer].cost_s for server in spans if (server, layer) in found}


def chain(found: Mapping[tuple[str, int], Way], first: str, layer: int, layers: int) -> Chain:
    """The way that begins with a layer at one server: the servers in turn, each with the layer at which it ends.

    >>> stay, on = Way(cost_s=1.0, following="a"), Way(cost_s=1.0, following="b")
    >>> chain({("a", 0): stay, ("a", 1): on, ("b", 2): Way(cost_s=1.0, following="home")}, "a", 0, 3)
    (('a', 2), ('b', 3))
    """
    hops: list[tuple[str, int]] = []
    here = first
    while layer < layers:
        following = found[here, layer].following
        layer += 1
        if following != here or layer == layers:
            hops.append((here, layer))
        here = following
    return tuple(hops)


def follow(chain: Chain, here: str, layer: int, home: str, layers: int) -> str | None:
    """Who comes after ``here``, which runs a layer; None where the chain does not lead over it.

    >>> [follow((("a", 2), ("b", 3)), "a", layer, "home", 3) for layer in range(3)]
    ['a', 'b', None]
    """
    for hop, (server, end) in enumerate(chain):
        if layer < end:
            if server != here:
                return None
            if layer + 1 < end:
                return here
            return chain[hop + 1][0] if hop + 1 < len(chain) else home if end == layers else None
    return None


def written(chain: Chain) -> bytes:
    """A chain as it travels with a request; nothing if it is too long for that: then servers search for themselves.

    >>> read(written((("a", 2), ("b", 3)))), read(b"")
    ((('a', 2), ('b', 3)), ())
    """
    notes = msgspec.msgpack.encode(chain)
    return notes if len(notes) <= MAX_NOTES_BYTES else b""


def read(notes: bytes) -> Chain:
    """The chain that was written; DecodeError for anything else."""
    return _decoder.decode(notes) if notes else ()


def half_rtt_s(rtt_s: float | None) -> float:
    """One way, as the client takes it.

    >>> half_rtt_s(0.04), half_rtt_s(None)
    (0.02, 0.15)
    """
    return UNKNOWN_S if rtt_s is None else rtt_s / 2


def covering(spans: Spans, layers: int, *preferred: Collection[str]) -> Spans:
    """Spans of the first group of servers; a layer that they lack is looked for in the next group, and so on.

    >>> dict(covering({"a": (0, 2), "b": (0, 1), "c": (1, 2)}, 2, ["b"], ["b", "c"], ["a", "b", "c"]))
    {'b': (0, 1), 'c': (1, 2)}
    """
    chosen: set[str] = set(preferred[0])
    for group in preferred[1:]:
        for layer in range(layers):
            if not any(spans[server][0] <= layer < spans[server][1] for server in chosen):
                chosen.update(server for server in group if spans[server][0] <= layer < spans[server][1])
    return {server: span for server, span in spans.items() if server in chosen}


class Bans:
    """Servers that are left alone after a failure; time is an argument.

    >>> bans = Bans()
    >>> bans.failed("s1", now_s=0.0); bans.failed("s1", now_s=15.0)
    >>> bans.banned("s1", now_s=44.9), bans.banned("s1", now_s=45.0)
    (True, False)
    """

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self._streak: dict[str, int] = {}

    def failed(self, server: str, *, now_s: float) -> None:
        """Begin a ban, twice as long as the one before; nothing new while one is under way."""
        if self.banned(server, now_s=now_s):
            return
        self._until_s[server] = now_s + BAN_S * 2.0 ** self._streak.get(server, 0)
        self._streak[server] = self._streak.get(server, 0) + 1

    def succeeded(self, server: str) -> None:
        """The next ban is a first one again."""
        self._streak.pop(server, None)

    def banned(self, server: str, *, now_s: float) -> bool:
        """Whether a ban is under way."""
        return now_s < self._until_s.get(server, float("-inf"))
