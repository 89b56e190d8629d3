r"""The cheapest team for one layer's problem.  HetRoute, online part [reconstruction].

    A*, a'*  =  argmin of (2) subject to (3) of ``hetroute_problem``                                              (1)

Everything on one server is tried first, on every server that can (``hetroute_alone``): in a good placement that is
mostly the answer, which ``certain`` knows from this server's copies alone, and it is an incumbent for the rest.  Then
way by way, the most promising first: a copy that even alone, before anything else is known of its team, costs no less
than the incumbent is out, which is exact and mostly leaves very little.  A team grown expert by expert is a better
incumbent.  What remains is searched to the end, depth first (``hetroute_branch``), unless more experts have a choice
than that is good for, as in the merged demand of a long prompt over sixty experts: then a beam on the most promising
way (``hetroute_beam``), and moves of single experts on all (``hetroute_moves``).

Where we differ from the paper: it enumerates up to 64 combinations and beams beyond.  Bounds make thousands of
combinations cost less than those 64, so the beam is left for what the bounds do not cut down within ``EFFORT``.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.frameworks.hetroute_alone import together
from agents.frameworks.hetroute_beam import beam
from agents.frameworks.hetroute_branch import Copy, Place, Scene, branch, grown
from agents.frameworks.hetroute_moves import improved
from agents.frameworks.hetroute_problem import TIE_S, Option, Problem, Team, Way

#: One copy of an expert on any way: server, compute_s, load_s, loss, price of the loss, itself.
Offer = tuple[int, float, float, float, float, Option]
#: An expert: number of its need, rows, how many these are, its copies.
Offers = tuple[int, int, int, Sequence[Offer]]

#: Beyond so many experts with a choice a search to the end is not begun.
BRANCHING = 12
#: Partial teams that searches to the end may look at, for all ways together.
EFFORT = 300


def best(problem: Problem) -> Team | None:
    """Equation (1), exact where ``EFFORT`` suffices; None if no team keeps to the allowance."""
    found, settled = together(problem)
    effort = EFFORT
    offers: list[Offers] = []
    for number, way in enumerate(problem.ways):
        near = _near(problem, way, found)
        if not near or (len(near) == 1 and near[0] in settled):
            continue
        if any(_dearer(problem, way, earlier, near) for earlier in problem.ways[:number]):
            continue
        offers = offers or _offers(problem)
        scene = _scene(problem, offers, way, near, found)
        if scene is None:
            continue
        small = sum([len(place.copies) > 1 for place in scene.places]) <= BRANCHING and effort > 0
        if found is None or not number or not small:  # else the incumbent of an earlier way is good enough
            found = grown(problem, scene, found)
        if small:
            found, looked = branch(problem, scene, found, effort)
            effort -= looked
            if effort > 0:
                continue
        elif not number:
            found = beam(problem, scene, found)
        found = improved(problem, scene, found)
    return found


def certain(problem: Problem) -> Team | None:
    """The team of this server alone, if whatever copies there are elsewhere it is the best; else None.

    That takes only this server's copies, so it can be asked before the others are priced.
    """
    found, settled = together(problem)
    here = [problem.here]
    if found is None or problem.here not in settled:
        return None
    return found if all(_near(problem, way, found) in ([], here) for way in problem.ways) else None


def _near(problem: Problem, way: Way, best: Team | None) -> list[int]:
    """Servers that could be of a better team on this way; none if there can be no better team."""
    limit_s = float("inf") if best is None else best.cost_s - TIE_S - way.ahead_s - problem.tokens * way.leave_price_s
    if problem.leave_s(way) >= limit_s:
        return []
    return [server for server, time_s in enumerate(problem.fixed_s(way)) if time_s < limit_s]


def _dearer(problem: Problem, way: Way, earlier: Way, near: Sequence[int]) -> bool:
    """Whether no team of ``near`` servers costs less on this way than the same team on an earlier one."""
    tokens = problem.tokens
    fixed_s, before_s = problem.fixed_s(way), problem.fixed_s(earlier)
    token_s, token_before_s = way.token_s, earlier.token_s
    slower_s, traffic_s = problem.leave_s(way) - problem.leave_s(earlier), 0.0
    for server in near:
        time_s = fixed_s[server] - before_s[server]
        if token_s[server] < token_before_s[server]:
            time_s += tokens * (token_s[server] - token_before_s[server])
        if time_s < slower_s:
            slower_s = time_s
        price_s = way.price_s[server] - earlier.price_s[server]
        if price_s < traffic_s:  # of the next server only: its results stay there
            traffic_s = price_s
    traffic_s += way.leave_price_s - earlier.leave_price_s
    return slower_s + way.ahead_s - earlier.ahead_s + tokens * traffic_s >= 0


def _offers(problem: Problem) -> list[Offers]:
    """All copies with what they cost on any way."""
    price = problem.loss_price_s
    found: list[Offers] = []
    for number, (_, rows, share, options) in enumerate(problem.needs):
        offers: list[Offer] = []
        for option in options:
            server, _, compute_s, load_s, rate, _ = option
            loss = share * rate
            offers.append((server, compute_s, load_s, loss, price * loss, option))
        found.append((number, rows, rows.bit_count(), offers))
    found.sort(key=_most_tokens)  # what is impossible shows early
    return found


def _scene(problem: Problem, every: Sequence[Offers], way: Way, near: Sequence[int], best: Team | None) -> Scene | None:
    """What is left of a way without the copies that alone cost no less than ``best``; None if an expert has none."""
    limit_s = float("inf") if best is None else best.cost_s - TIE_S - way.ahead_s
    traffic_s = problem.tokens * way.leave_price_s
    below_s, slowest_s, here = limit_s - traffic_s, problem.leave_s(way), problem.here
    fixed_s, token_s = problem.fixed_s(way), way.token_s
    away = 0  # tokens that leave here, whatever is chosen
    places: list[Place] = []
    for number, rows, sent, offers in every:
        copies: list[Copy] = []
        least, stays = float("inf"), False
        for server, compute_s, load_s, loss, priced_s, option in offers:
            alone_s = fixed_s[server] + sent * token_s[server] + compute_s
            if load_s:
                alone_s += problem.loading_s(server, load_s)
            if alone_s + priced_s < below_s:
                copies.append((alone_s, server, compute_s, load_s, loss, option))
                if loss < least:
                    least = loss
                if server == here:
                    stays = True
        if not copies:
            return None
        if len(copies) > 1:
            copies.sort()
        if copies[0][0] > slowest_s:
            slowest_s = copies[0][0]
        if not stays:
            away |= rows
        places.append(Place(number, rows, copies, least))
    if away:
        traffic_s += away.bit_count() * min([way.price_s[server] for server in near if server != here])
        if slowest_s + traffic_s >= limit_s:
            return None
    places.sort(key=_hardest)
    return Scene(way, places, slowest_s, traffic_s)


def _most_tokens(offers: Offers) -> tuple[int, int]:
    return -offers[2], offers[0]


def _hardest(place: Place) -> tuple[bool, float]:
    """Experts without a choice first, then those that take longest."""
    return len(place.copies) > 1, -place.copies[0][2]
