r"""A larger topology than anyone would type: metros of unequal servers on a map, from two sizes and a seed.

    P(a server settles at metro k) ∝ 1/k, once every metro has one                                                  (1)
    delay(a, b) = 5 us/km · 1.3 · |ab|                                                                              (2)
    rate(a, b)  = least standard rate that is at least (A(a) + A(b)) / 10                                           (3)
    lines       = T ∪ T'    T   the shortest tree that joins all metros
                            T'  the shortest tree (or trees) of the pairs that are not in T                         (4)

    |ab|  distance between metros a and b, km      A(a)  rates of the access lines of metro a, summed

(1) is the rank-size rule of cities.  In (2), 5 us/km is light in fibre, and 1.3 how much longer than the straight line
fibre runs.  By (4) three metros or more stay joined when any one line fails, with less than two lines per metro.

Devices, users and the ranges of access lines are those of topologies/edge10.yaml, which says where they come from.  The
result is text, because a topology is a file that people read, change and keep.  Equal arguments give equal text.

>>> lines = generate(servers=20, seed=1).splitlines()
>>> print(*[line for line in lines if "r2}" in line or "r2:" in line or "[r1, r2]" in line], sep="\n")
  r2: {router: true, metro: m2}  # 971 km east, 591 km north
  - {between: [r1, r2], rate: 40 Gbit/s, delay: 10.53 ms}
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.errors import TestbedError

MIN_SERVERS, MAX_SERVERS = 2, 5000
MAX_METROS = 500  # the work on the backbone grows with the square
MAX_SEED = 999_999  # stands in the topology's name, which has 15 characters at most

#: From corner to corner 3000 km, the distance of edge10's farthest metros.
WIDTH_KM, HEIGHT_KM = 2700, 1300
PLACES_TRIED = 4
US_PER_KM = 5.0
ROUTE_FACTOR = 1.3
MIN_LINE_MS = 0.05
#: Rates of lines between metros.  Even the least is far above any access line, because many servers share it.
LINE_GBPS = (40, 100, 200, 400, 800, 1600)
#: How many times its rate the servers at both ends of a line could ask for.
CONTENTION = 10

#: As topologies/edge10.yaml has them; a test holds the two together.
DEVICES = """\
  l4:            {peak: 120 TFLOP/s, memory: 300 GB/s, fast: 24 GB, slow: 256 GB, load: 24 GB/s}
  rtx3090:       {peak: 71 TFLOP/s,  memory: 936 GB/s, fast: 24 GB, slow: 128 GB, load: 24 GB/s}
  a6000:         {peak: 77 TFLOP/s,  memory: 768 GB/s, fast: 48 GB, slow: 512 GB, load: 24 GB/s}
  orin:          {peak: 42 TFLOP/s,  memory: 205 GB/s, fast: 48 GB, slow: 96 GB,  load: 64 GB/s}
  workstation:   {peak: 98 TFLOP/s,  memory: 456 GB/s, fast: 24 GB, slow: 192 GB, load: 24 GB/s}
  desktop:       {peak: 40 TFLOP/s,  memory: 448 GB/s, fast: 12 GB, slow: 128 GB, load: 16 GB/s}
  desktop-small: {peak: 27 TFLOP/s,  memory: 448 GB/s, fast: 12 GB, slow: 96 GB,  load: 12 GB/s}
  gateway:       {peak: 18 TFLOP/s,  memory: 300 GB/s, fast: 12 GB, slow: 96 GB,  load: 12 GB/s}
"""


Place = tuple[int, int]  # km east and north of the corner of the map


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a server with a class of device is like."""

    device: str
    per_ten: int  # such servers among edge10's ten
    users: int  # of such a server in edge10
    gbps: tuple[float, float]  # access line: edge10's rates between metros and inside one
    ms: tuple[float, float]  # access line, one way: about edge10's for this class, and within its 0.15-0.75 ms


KINDS = (
    Kind(device="l4", per_ten=2, users=5, gbps=(4, 10), ms=(0.15, 0.3)),
    Kind(device="rtx3090", per_ten=2, users=10, gbps=(2, 8), ms=(0.3, 0.5)),
    Kind(device="a6000", per_ten=1, users=5, gbps=(4, 10), ms=(0.15, 0.3)),
    Kind(device="orin", per_ten=1, users=10, gbps=(2, 8), ms=(0.3, 0.5)),
    Kind(device="workstation", per_ten=1, users=5, gbps=(3, 10), ms=(0.15, 0.3)),
    Kind(device="desktop", per_ten=1, users=20, gbps=(1.2, 6), ms=(0.4, 0.6)),
    Kind(device="desktop-small", per_ten=1, users=15, gbps=(1, 5), ms=(0.6, 0.75)),
    Kind(device="gateway", per_ten=1, users=15, gbps=(0.8, 5), ms=(0.6, 0.75)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    device: str
    users: int
    gbps: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metro:
    at_km: Place
    servers: tuple[_Server, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    a: int  # metros, counted from 0
    b: int
    gbps: int
    ms: float


def generate(*, servers: int, metros: int | None = None, seed: int = 0) -> str:
    """The text of a topology file with so many servers; ``metros`` grows with them unless it is given.

    TestbedError where a number is out of range.
    """
    if not MIN_SERVERS <= servers <= MAX_SERVERS:
        raise TestbedError(f"{servers} servers: generate makes {MIN_SERVERS} to {MAX_SERVERS}")
    if metros is None:
        metros = default_metros(servers)
    elif not 1 <= metros <= min(servers, MAX_METROS):
        raise TestbedError(
            f"{metros} metros: write 1 to {min(servers, MAX_METROS)}; each of them has at least one of the {servers} "
            f"servers, and there are at most {MAX_METROS}"
        )
    if not 0 <= seed <= MAX_SEED:
        raise TestbedError(f"seed {seed}: write a whole number from 0 to {MAX_SEED}")
    # A text as seed is hashed the same way everywhere.
    chance = random.Random(f"topology {servers} {metros} {seed}")  # noqa: S311 - a map, not a secret
    drawn = _draw(servers, metros, chance)
    return "\n".join([*_header(drawn, servers, seed), *_nodes(drawn), *_links(drawn, _backbone(drawn)), ""])


def default_metros(servers: int) -> int:
    """Half the square root: 2 metros for 10 servers, 7 for 200, 35 for 5000.

    >>> default_metros(10), default_metros(200), default_metros(5000)
    (2, 7, 35)
    """
    return max(1, round(math.sqrt(servers) / 2))


def _draw(servers: int, metros: int, chance: random.Random) -> list[_Metro]:
    sizes = [1] * metros
    for metro in chance.choices(range(metros), weights=[1 / (k + 1) for k in range(metros)], k=servers - metros):  # (1)
        sizes[metro] += 1
    kinds = iter(_deal(servers, chance))
    return [
        _Metro(at_km=at_km, servers=tuple(_draw_server(kind, chance) for kind in itertools.islice(kinds, size)))
        for at_km, size in zip(_draw_places(metros, chance), sizes, strict=True)
    ]


def _draw_places(metros: int, chance: random.Random) -> list[Place]:
    """Each the farthest from those before among a few random ones: cities keep a distance, but no grid."""
    places: list[Place] = []
    for _ in range(metros):
        tried = [(round(chance.uniform(0, WIDTH_KM)), round(chance.uniform(0, HEIGHT_KM))) for _ in range(PLACES_TRIED)]
        places.append(max(tried, key=lambda place: min((math.dist(place, other) for other in places), default=0.0)))
    return places


def _deal(servers: int, chance: random.Random) -> list[Kind]:
    """The kinds of all servers: edge10's mix as often as it fits, the rest drawn from one more, and all shuffled.

    Metros differ, and still every seed gives the same memory to work with, in proportion to the servers.
    """
    ten = [kind for kind in KINDS for _ in range(kind.per_ten)]
    kinds = ten * (servers // len(ten)) + chance.sample(ten, servers % len(ten))
    chance.shuffle(kinds)
    return kinds


def _draw_server(kind: Kind, chance: random.Random) -> _Server:
    return _Server(
        device=kind.device,
        users=round(kind.users * 2 ** chance.uniform(-1, 1)),
        gbps=round(chance.uniform(*kind.gbps), 1),
        ms=round(chance.uniform(*kind.ms), 2),
    )


def _backbone(metros: Sequence[_Metro]) -> list[_Line]:
    """The lines between the routers of the metros."""
    count = range(len(metros))
    km = {(a, b): math.dist(metros[a].at_km, metros[b].at_km) for a, b in itertools.combinations(count, 2)}
    pairs = sorted(km, key=lambda pair: (km[pair], pair))
    tree = _shortest_tree(pairs)
    again = _shortest_tree(pair for pair in pairs if pair not in tree)
    access = [sum(server.gbps for server in metro.servers) for metro in metros]
    return [
        _Line(
            a=a,
            b=b,
            gbps=next((rate for rate in LINE_GBPS if rate * CONTENTION >= access[a] + access[b]), LINE_GBPS[-1]),  # (3)
            ms=max(MIN_LINE_MS, round(US_PER_KM * ROUTE_FACTOR * km[a, b] / 1e3, 2)),  # (2)
        )
        for a, b in sorted(tree | again)  # (4)
    ]


def _shortest_tree(pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of ``pairs``, which come shortest first, that join what no shorter ones have joined (Kruskal)."""
    leader: dict[int, int] = {}

    def group(metro: int) -> int:
        while (above := leader.get(metro, metro)) != metro:
            leader[metro] = leader.get(above, above)  # halves the way for those who ask later
            metro = above
        return metro

    chosen = set()
    for a, b in pairs:
        if group(a) != group(b):
            leader[group(a)] = group(b)
            chosen.add((a, b))
    return chosen


def _header(metros: Sequence[_Metro], servers: int, seed: int) -> Iterator[str]:
    count = f"{len(metros)} metro{'s' if len(metros) > 1 else ''}"
    yield f"""\
# {servers} unequal edge servers in {count}: a country that does not exist, drawn by chance.
#
# Made by
#   testbed generate --servers {servers} --metros {len(metros)} --seed {seed}
#
# Where each number comes from.  [edge10]: topologies/edge10.yaml, which names its sources.  [ours]: our choice.
#
# Devices [edge10].  As many of each class as there, in proportion, so that ten servers have 252 GB of fast memory (the
#   experts of Mixtral-8x7B are 45 GB in int8, 90 GB in fp16).  Chance decides which server is of which class.
# Users.  What a server of the class has in edge10, times a factor between 1/2 and 2 [ours].  So about half of all
#   requests arrive where the hardware is weak: desktop, desktop-small, gateway.
# Metros [ours].  Every metro has a server; the others settle at m1, m2, m3 ... with chances of 1 : 1/2 : 1/3 ..., which
#   is the rank-size rule of cities.
# Access lines, server to router.  Rate between what the class has to other metros and inside its own in edge10; delay
#   near the class's in edge10, within its 0.15-0.75 ms.
# Lines between routers [ours].  Delay: {US_PER_KM:g} us per km, {ROUTE_FACTOR:g} times the distance on a map of \
{WIDTH_KM} km by {HEIGHT_KM} km.
#   Rate: a tenth of the access lines of both ends together, rounded up to {", ".join(map(str, LINE_GBPS[:-1]))} or \
{LINE_GBPS[-1]} Gbit/s.
#   With three metros or more, no one line's failure parts the network.
# Jitter and loss are zero: scenarios bring them in, at a time that they record.

name: edge{servers}-{seed}
description: {servers} unequal servers behind the routers of {count}, generated with seed {seed}

devices:
{DEVICES}
nodes:"""


def _nodes(metros: Sequence[_Metro]) -> Iterator[str]:
    number = itertools.count(1)
    for k, metro in enumerate(metros, 1):
        yield "  r{}: {{router: true, metro: m{}}}  # {} km east, {} km north".format(k, k, *metro.at_km)
        for server in metro.servers:
            yield f"  s{next(number)}: {{device: {server.device}, users: {server.users}, metro: m{k}}}"


def _links(metros: Sequence[_Metro], lines: Sequence[_Line]) -> Iterator[str]:
    number = itertools.count(1)
    yield "\nlinks:"
    for line in lines:
        yield _link(f"r{line.a + 1}", f"r{line.b + 1}", line.gbps, line.ms)
    for k, metro in enumerate(metros, 1):
        for server in metro.servers:
            yield _link(f"s{next(number)}", f"r{k}", server.gbps, server.ms)


def _link(a: str, b: str, gbps: float, ms: float) -> str:
    return f"  - {{between: [{a}, {b}], rate: {gbps:g} Gbit/s, delay: {ms:g} ms}}"
