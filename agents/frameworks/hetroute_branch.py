r"""All teams of one way, depth first, without those that cannot be better.  HetRoute, online part [reconstruction].

A beginning B of a team, the experts after it being R, is left out where a bound on all its completions is no better
than the best team so far:

    cost  >=  max( max_d T_d(B), max_{e in R} min_d T_d({e}) ) + V + λ (loss(B) + least loss(R))
                + price · max( bytes(B), bytes of the tokens whose experts have no copy here )                    (1)

    T_d, V, λ, price, loss  of ``hetroute_problem``

Adding experts never makes a server quicker or saves bytes, which is why (1) holds.  Experts without a choice come
first, so that the others are placed onto what is there already; ``Start`` is what they come to, which every team of
the way has in common, so it is added up once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agents.frameworks.hetroute_problem import TIE, TIE_S, Option, Problem, Team, Way

#: One copy that may be chosen: time of its server if it does nothing else, server, compute_s, load_s, loss, itself.
Copy = tuple[float, int, float, float, float, Option]
#: What a server has to do so far: rows, how many these are, when it is done but for the way of their states and for
#: loading, loading time.
Load = tuple[int, int, float, float]


class Place(NamedTuple):
    """One expert with the copies that are left to choose from, the quickest first; places are sorted as they are."""

    easy_s: float  # less than 0: those that compute longest come first
    order: int  # among all experts
    number: int  # of the need
    rows: int
    copies: Sequence[Copy]
    least_loss: float


class Start(NamedTuple):
    """A team of the experts that have no choice."""

    loads: Sequence[Load]  # by server
    slowest_s: float
    loss: float
    traffic_s: float  # the price of what it sends


class Scene(NamedTuple):
    """What is left to search of one way."""

    way: Way
    places: Sequence[Place]  # those without a choice first
    free: int  # number of the first place with a choice
    start: Start
    slowest_s: float  # no team is quicker
    traffic_s: float  # the price of the bytes that every team sends


def started(problem: Problem, way: Way, forced: Sequence[Place]) -> Start:
    """All that have no choice, where they must be."""
    fixed_s, token_s, price_s = problem.fixed_s(way), way.token_s, way.price_s
    loads: list[Load] = [(0, 0, time_s, 0.0) for time_s in fixed_s]
    slowest_s, lost, traffic_s = problem.leave_s(way), 0.0, problem.tokens * way.leave_price_s
    for _, _, _, rows, ((_, server, compute_s, load_s, loss, _),), _ in forced:
        now_rows, before_sent, done_s, now_load_s = loads[server]
        now_rows |= rows
        sent = now_rows.bit_count()
        done_s += compute_s
        now_load_s += load_s
        loads[server] = (now_rows, sent, done_s, now_load_s)
        time_s = done_s + sent * token_s[server]
        if now_load_s:
            time_s += problem.loading_s(server, now_load_s)
        if time_s > slowest_s:
            slowest_s = time_s
        lost += loss
        traffic_s += (sent - before_sent) * price_s[server]
    return Start(loads, slowest_s, lost, traffic_s)


def grown(problem: Problem, scene: Scene, best: Team | None) -> Team | None:
    """One team, expert by expert where it costs least so far, if it is better than ``best``."""
    way, places, price = scene.way, scene.places, problem.loss_price_s
    token_s, loading_s = way.token_s, problem.loading_s
    slowest_s, total_loss = scene.start.slowest_s, scene.start.loss
    loads = list(scene.start.loads)
    chosen = _begun(scene)
    for _, _, number, rows, copies, _ in places[scene.free :]:
        taken = copies[0]
        taken_s = least_s = float("inf")
        for copy in copies:
            time_s, server, compute_s, load_s, loss, _ = copy
            if time_s >= least_s:
                break
            before, _, done_s, now_load_s = loads[server]
            if before:
                time_s = done_s + compute_s + (before | rows).bit_count() * token_s[server]
                if load_s or now_load_s:
                    time_s += loading_s(server, now_load_s + load_s)
            if time_s < slowest_s:
                time_s = slowest_s
            cost_s = time_s + price * loss
            if cost_s < least_s:
                taken, taken_s, least_s = copy, time_s, cost_s
        _, server, compute_s, load_s, loss, option = taken
        before, _, done_s, now_load_s = loads[server]
        loads[server] = (before | rows, 0, done_s + compute_s, now_load_s + load_s)
        slowest_s = taken_s
        total_loss += loss
        chosen[number] = option
    if not problem.keeps(total_loss):
        return best
    cost_s = slowest_s + way.ahead_s + price * total_loss + problem.tokens * way.leave_price_s
    for (rows, _, _, _), price_s in zip(loads, way.price_s, strict=True):
        if rows:
            cost_s += rows.bit_count() * price_s
    if best is None or cost_s < best.cost_s - TIE_S:
        return Team(options=tuple(chosen), following=way.following, cost_s=cost_s)
    return best


def branch(problem: Problem, scene: Scene, bound_s: float, effort: int) -> tuple[Team | None, int]:
    """The cheapest team of this way if it costs less than the bound, and how many beginnings were looked at.

    As many as ``effort`` mean that there was not enough of it, and the answer is the best team so far.
    """
    way, places, free, start, slowest_s, floor_s = scene
    price, loading_s = problem.loss_price_s, problem.loading_s
    token_s, price_s = way.token_s, way.price_s
    loads = list(start.loads)
    chosen = _begun(scene)
    #: Of every place with a choice: itself, what later ones cost at least, and what may be lost up to it.
    steps: list[tuple[int, int, Sequence[Copy], float, float]] = []
    ahead_s, allowance, rest = way.ahead_s, problem.allowance + TIE, 0.0
    for _, _, number, rows, copies, least_loss in reversed(places[free:]):
        steps.append((number, rows, copies, ahead_s + price * rest, allowance - rest))
        rest += least_loss
    steps.reverse()
    last, looked = len(steps) - 1, free
    found: tuple[Option, ...] | None = None

    def descend(depth: int, slowest_s: float, lost: float, traffic_s: float) -> None:
        nonlocal found, bound_s, looked
        looked += 1
        number, rows, copies, ahead_s, room = steps[depth]
        least_s = bound_s - ahead_s - price * lost - (traffic_s if traffic_s > floor_s else floor_s)
        for alone_s, server, compute_s, load_s, loss, option in copies:
            if alone_s >= least_s:
                break
            before = loads[server]
            now_rows, before_sent, done_s, now_load_s = before
            now_rows |= rows
            sent = now_rows.bit_count()
            done_s += compute_s
            time_s = done_s + sent * token_s[server]
            now_load_s += load_s
            if now_load_s:
                time_s += loading_s(server, now_load_s)
            if time_s >= least_s:
                continue
            now_lost = lost + loss
            if now_lost > room:
                continue
            if time_s < slowest_s:
                time_s = slowest_s
            now_traffic_s = traffic_s + (sent - before_sent) * price_s[server]
            whole_s = time_s + ahead_s + price * now_lost
            if whole_s + (now_traffic_s if now_traffic_s > floor_s else floor_s) >= bound_s:
                continue
            chosen[number] = option
            if depth < last:
                loads[server] = (now_rows, sent, done_s, now_load_s)
                descend(depth + 1, time_s, now_lost, now_traffic_s)  # noqa: F821
                loads[server] = before
                if looked >= effort:
                    return
            else:  # within the allowance, since the room of the last place is all of it
                bound_s = whole_s + now_traffic_s - TIE_S
                found = tuple(chosen)
                least_s = bound_s - ahead_s - price * lost - (traffic_s if traffic_s > floor_s else floor_s)

    if start.slowest_s > slowest_s:
        slowest_s = start.slowest_s
    if steps:
        descend(0, slowest_s, start.loss, start.traffic_s)
    elif start.loss <= allowance:
        whole_s = slowest_s + ahead_s + price * start.loss + start.traffic_s
        if whole_s < bound_s:
            found, bound_s = tuple(chosen), whole_s - TIE_S
    del descend  # it refers to itself: left to the garbage collector it would cost more than the search
    if found is None:
        return None, looked
    return Team(options=found, following=way.following, cost_s=bound_s + TIE_S), looked


def _begun(scene: Scene) -> list[Option]:
    """By need: the only copy of those that have no choice; of the others any."""
    places = scene.places
    chosen: list[Option] = [places[0][4][0][5]] * len(places)
    for _, _, number, _, copies, _ in places[: scene.free]:
        chosen[number] = copies[0][5]
    return chosen
