r"""All teams of one way, depth first, without those that cannot be better.  HetRoute, online part [reconstruction].

A beginning B of a team, the experts after it being R, is left out where a bound on all its completions is no better
than the best team so far:

    cost  >=  max( max_d T_d(B), max_{e in R} min_d T_d({e}) ) + V + λ (loss(B) + least loss(R))
                + price · max( bytes(B), bytes of the tokens whose experts have no copy here )                    (1)

    T_d, V, λ, price, loss  of ``hetroute_problem``

Adding experts never makes a server quicker or saves bytes, which is why (1) holds.  Experts without a choice come
first, so that the others are placed onto what is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agents.frameworks.hetroute_problem import TIE, TIE_S, Option, Problem, Team, Way

#: One copy that may be chosen: time of its server if it does nothing else, server, compute_s, load_s, loss, itself.
Copy = tuple[float, int, float, float, float, Option]


#: What a server has to do at first.
NOTHING = (0, 0, 0.0, 0.0)


class Place(NamedTuple):
    """One expert with the copies that are left to choose from, the quickest first."""

    number: int  # of the need
    rows: int
    copies: Sequence[Copy]
    least_loss: float


class Scene(NamedTuple):
    """What is left to search of one way."""

    way: Way
    places: Sequence[Place]
    slowest_s: float  # no team is quicker
    traffic_s: float  # the price of the bytes that every team sends


def grown(problem: Problem, scene: Scene, best: Team | None) -> Team | None:
    """One team, expert by expert where it costs least so far, if it is better than ``best``."""
    way, price = scene.way, problem.loss_price_s
    times_s, token_s = problem.fixed_s(way), way.token_s
    servers = len(times_s)
    rows_of, compute_of, load_of = [0] * servers, [0.0] * servers, [0.0] * servers
    slowest_s, total_loss = problem.leave_s(way), 0.0
    chosen: list[Option] = [scene.places[0].copies[0][5]] * len(scene.places)
    for number, rows, copies, _ in scene.places:
        taken = copies[0]
        taken_s = least_s = float("inf")
        for copy in copies:
            alone_s, server, compute_s, load_s, loss, _ = copy
            if alone_s >= least_s:
                break
            before = rows_of[server]
            if before:
                time_s = times_s[server] + (before | rows).bit_count() * token_s[server]
                time_s += compute_of[server] + compute_s
                if load_s or load_of[server]:
                    time_s += problem.loading_s(server, load_of[server] + load_s)
            else:
                time_s = alone_s
            if time_s < slowest_s:
                time_s = slowest_s
            cost_s = time_s + price * loss
            if cost_s < least_s:
                taken, taken_s, least_s = copy, time_s, cost_s
        _, server, compute_s, load_s, loss, option = taken
        rows_of[server] |= rows
        compute_of[server] += compute_s
        load_of[server] += load_s
        slowest_s = taken_s
        total_loss += loss
        chosen[number] = option
    if not problem.keeps(total_loss):
        return best
    cost_s = slowest_s + way.ahead_s + price * total_loss + problem.tokens * way.leave_price_s
    for server, sent in enumerate(rows_of):
        if sent:
            cost_s += sent.bit_count() * way.price_s[server]
    if best is None or cost_s < best.cost_s - TIE_S:
        return Team(options=tuple(chosen), following=way.following, cost_s=cost_s)
    return best


def branch(problem: Problem, scene: Scene, best: Team | None, effort: int) -> tuple[Team | None, int]:
    """The cheapest team of this way if it is better than ``best``, and how many beginnings were looked at.

    As many as ``effort`` mean that there was not enough of it, and the answer is the best team so far.
    """
    way, places, price = scene.way, scene.places, problem.loss_price_s
    fixed_s, token_s, price_s = problem.fixed_s(way), way.token_s, way.price_s
    #: What every server has so far: rows, how many these are, computing time, loading time.
    parts: list[tuple[int, int, float, float]] = [NOTHING] * len(fixed_s)
    chosen: list[Option] = [places[0].copies[0][5]] * len(places)
    last, rest = len(places) - 1, 0.0
    #: By place: what later ones cost at least, and what may be lost up to it.
    later: list[tuple[float, float]] = []
    for place in reversed(places):
        later.append((way.ahead_s + price * rest, problem.allowance - rest + TIE))
        rest += place.least_loss
    later.reverse()
    floor_s, loading_s = scene.traffic_s, problem.loading_s
    found: tuple[Option, ...] | None = None
    bound_s = best.cost_s - TIE_S if best is not None else float("inf")
    looked = 0

    def descend(depth: int, slowest_s: float, lost: float, traffic_s: float) -> None:
        nonlocal found, bound_s, looked
        looked += 1
        number, rows, copies, _ = places[depth]
        ahead_s, room = later[depth]
        least_s = bound_s - ahead_s - price * lost - (traffic_s if traffic_s > floor_s else floor_s)
        for alone_s, server, compute_s, load_s, loss, option in copies:
            if alone_s >= least_s:
                break
            now_lost = lost + loss
            if now_lost > room:
                continue
            before = parts[server]
            now_rows, before_sent, before_s, now_load_s = before
            if now_rows:
                now_rows |= rows
                sent = now_rows.bit_count()
                now_s = before_s + compute_s
                time_s = fixed_s[server] + sent * token_s[server] + now_s
                if load_s or now_load_s:
                    now_load_s += load_s
                    time_s += loading_s(server, now_load_s)
            else:
                now_rows, sent, now_s, now_load_s, time_s = rows, rows.bit_count(), compute_s, load_s, alone_s
            if time_s < slowest_s:
                time_s = slowest_s
            now_traffic_s = traffic_s + (sent - before_sent) * price_s[server]
            whole_s = time_s + ahead_s + price * now_lost
            if whole_s + (now_traffic_s if now_traffic_s > floor_s else floor_s) >= bound_s:
                continue
            chosen[number] = option
            if depth < last:
                parts[server] = (now_rows, sent, now_s, now_load_s)
                descend(depth + 1, time_s, now_lost, now_traffic_s)  # noqa: F821
                parts[server] = before
                if looked >= effort:
                    return
            else:  # within the allowance, since the room of the last place is all of it
                bound_s = whole_s + now_traffic_s - TIE_S
                found = tuple(chosen)
                least_s = bound_s - ahead_s - price * lost - (traffic_s if traffic_s > floor_s else floor_s)

    descend(0, scene.slowest_s, 0.0, problem.tokens * way.leave_price_s)
    del descend  # it refers to itself: left to the garbage collector it would cost more than the search
    if found is None:
        return best, looked
    return Team(options=found, following=way.following, cost_s=bound_s + TIE_S), looked
