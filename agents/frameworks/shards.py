r"""Whole layers on consecutive servers: a request's best path.  EdgeShard, algorithm 1 [reconstruction].

    f(S, d, j) = min_{i < j}  [ g(S \ d, d, i) + t(d, i, j) ]                                                     (1)
    g(S, d, i) = min_{d' in S}  [ f(S, d', i) + m(d', d) ]        g(∅, d, 0) = enter(d)                            (2)
    answer     = min_{S, d}  f(S, d, L) + leave(d)                                                                (3)

    f        least time until layers 0 .. j-1 are done, the last run of them on d, having used exactly the servers S
    t(d,i,j) time of layers i .. j-1 on d, infinite where d cannot hold or carry them
    m(d',d)  time to move the activations of a request from d' to d

A server is used for one run of consecutive layers at most; so t may be any function of the run (memory, stability,
queueing), which a programme that adds layer by layer could not express..  S grows by one server per round; a round
keeps the ``beam`` most promising sets, so up to 11 servers are exact and more are a beam search.

>>> import numpy as np
>>> t = runs(np.array([[1.0, 1.0], [3.0, 3.0]]))     # two servers, two layers
>>> t[0, 0, 2] = np.inf                              # the fast one has room for one layer only
>>> best_shards(t, move_s=np.full((2, 2), 0.5), enter_s=np.zeros(2), leave_s=np.array([0.2, 0.1]))
Shards(owners=(0, 1), cost_s=4.6)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BEAM = 512


@dataclass(frozen=True, slots=True)
class Shards:
    """Which server, by position, owns each layer, and what equation (3) says of it."""

    owners: tuple[int, ...]
    cost_s: float


@dataclass(frozen=True, slots=True)
class _Round:
    """Equation (1) for sets of one size, with what is needed to walk back."""

    sets: NDArray[np.int64]
    cost_s: Floats  # (sets, servers, layers + 1)
    parent: NDArray[np.int64]  # (sets, servers): the set without this server, by position in the round before
    start: NDArray[np.int64]  # (sets, servers, layers + 1): i of (1)
    before: NDArray[np.int64]  # (sets, servers, layers + 1): d' of (2)


def runs(service_s: Floats) -> Floats:
    """t(d, i, j) of unbounded servers: sums of ``service_s`` (servers, layers), infinite unless i < j."""
    total = np.concatenate([np.zeros((len(service_s), 1)), service_s.cumsum(axis=1)], axis=1)
    time_s: Floats = total[:, None, :] - total[:, :, None]
    layers = np.arange(total.shape[1])
    time_s[:, layers[:, None] >= layers[None, :]] = np.inf
    return time_s


def best_shards(run_s: Floats, *, move_s: Floats, enter_s: Floats, leave_s: Floats, beam: int = BEAM) -> Shards | None:
    """Equations (1) to (3); None if no path is feasible.  ``run_s``: (servers, layers + 1, layers + 1)."""
    servers, layers = run_s.shape[0], run_s.shape[1] - 1
    quickest_s = _quickest_rest(run_s)
    rounds = [_first(run_s, enter_s, quickest_s, beam)]
    for _ in range(servers - 1):
        following = _next(rounds[-1], run_s, move_s, quickest_s, beam)
        if following is None:
            break
        rounds.append(following)
    ends = [entry.cost_s[:, :, layers] + leave_s for entry in rounds]
    best = min(range(len(rounds)), key=lambda k: float(ends[k].min()))
    if not np.isfinite(ends[best].min()):
        return None
    position, server = (int(x) for x in np.unravel_index(int(ends[best].argmin()), ends[best].shape))
    return Shards(_walk_back(rounds[: best + 1], position, server, layers), float(ends[best].min()))


def _first(run_s: Floats, enter_s: Floats, quickest_s: Floats, beam: int) -> _Round:
    servers, ends = run_s.shape[0], run_s.shape[2]
    cost_s = np.full((servers, servers, ends), np.inf)
    each = np.arange(servers)
    cost_s[each, each] = enter_s[:, None] + run_s[:, 0, :]
    blank = np.zeros((servers, servers, ends), dtype=np.int64)
    return _kept(_Round(1 << each, cost_s, blank[:, :, 0], blank, blank), quickest_s, beam)


def _next(last: _Round, run_s: Floats, move_s: Floats, quickest_s: Floats, beam: int) -> _Round | None:
    servers, ends = run_s.shape[0], run_s.shape[2]
    grown = [np.flatnonzero((last.sets >> server & 1) == 0) for server in range(servers)]
    sets = np.unique(np.concatenate([last.sets[rows] | 1 << server for server, rows in enumerate(grown)]))
    if not len(sets):
        return None
    cost_s = np.full((len(sets), servers, ends), np.inf)
    parent = np.zeros((len(sets), servers), dtype=np.int64)
    start = np.zeros((len(sets), servers, ends), dtype=np.int64)
    before = np.zeros((len(sets), servers, ends), dtype=np.int64)
    for server, rows in enumerate(grown):
        arriving = last.cost_s[rows] + move_s[None, :, server, None]  # (rows, d', i)
        moved_s = arriving.min(axis=1)  # (2)
        origin = arriving.argmin(axis=1)
        through = moved_s[:, :, None] + run_s[server]  # (rows, i, j)
        begin = through.argmin(axis=1)
        target = np.searchsorted(sets, last.sets[rows] | 1 << server)
        cost_s[target, server] = np.take_along_axis(through, begin[:, None, :], axis=1)[:, 0]  # (1)
        parent[target, server] = rows
        start[target, server] = begin
        before[target, server] = np.take_along_axis(origin, begin, axis=1)
    return _kept(_Round(sets, cost_s, parent, start, before), quickest_s, beam)


def _quickest_rest(run_s: Floats) -> Floats:
    """A lower bound on layers i .. L-1, by i: every layer on the server that is quickest at it, moves free."""
    layers = run_s.shape[1] - 1
    # A run may be infeasible while its parts are not, never the reverse: single layers give the bound.
    single = np.array([run_s[:, layer, layer + 1].min() for layer in range(layers)])
    return np.concatenate([single[::-1].cumsum()[::-1], [0.0]])


def _kept(entry: _Round, quickest_s: Floats, beam: int) -> _Round:
    """The sets that promise most: least f plus the bound on what is left, and further along among equals."""
    if len(entry.sets) <= beam:
        return entry
    promise = (entry.cost_s + quickest_s).min(axis=(1, 2))
    best = np.sort(np.argsort(promise, kind="stable")[:beam])
    return _Round(entry.sets[best], entry.cost_s[best], entry.parent[best], entry.start[best], entry.before[best])


def _walk_back(rounds: list[_Round], position: int, server: int, layers: int) -> tuple[int, ...]:
    owners: list[int] = []
    end = layers
    for depth in range(len(rounds) - 1, -1, -1):
        entry = rounds[depth]
        begin = int(entry.start[position, server, end]) if depth else 0
        owners[:0] = [server] * (end - begin)
        position, server, end = int(entry.parent[position, server]), int(entry.before[position, server, end]), begin
    return tuple(owners)
