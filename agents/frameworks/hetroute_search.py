r"""The cheapest team for one layer's problem.  HetRoute, online part [reconstruction].

    A*, a'*  =  argmin of (2) subject to (3) of ``hetroute_problem``                                              (1)
    r(a')    =  V(a') + price of leaving + middle over servers with copies of what (1) there takes without experts (2)

Everything on one server is tried first, on every server that can (``hetroute_alone``): in a good placement that is
mostly the answer, which ``certain`` knows from this server's copies alone, and it is an incumbent for the rest.  Then
way by way, in the order of (2), which nine times in ten begins with the way of the answer: a copy that even alone,
before anything else is known of its team, costs no less than the incumbent is out, which is exact and mostly leaves
very little, of the other ways nothing.  A team grown expert by expert is a better incumbent.  What remains is searched
to the end, depth first (``hetroute_branch``), unless more experts have a choice than that is good for, as in the merged
demand of a long prompt over sixty experts: then a beam on the most promising way (``hetroute_beam``), moves of
single experts on all (``hetroute_moves``), and never worse than every expert for itself.

Where we differ from the paper: it enumerates up to 64 combinations and beams beyond.  Bounds make thousands of
combinations cost less than those 64, so the beam is left for what the bounds do not cut down within ``EFFORT``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agents.frameworks.hetroute_alone import apart, slowest, together
from agents.frameworks.hetroute_beam import beam
from agents.frameworks.hetroute_branch import Copy, Place, Scene, branch, grown, started
from agents.frameworks.hetroute_moves import improved
from agents.frameworks.hetroute_problem import TIE_S, Option, Problem, Team, Way

#: An expert: how many rows less than none it has, number of its need, rows, gate share, copies.
Asked = tuple[int, int, int, float, Sequence[Option]]

#: ``Place`` without its call by name.
_new = tuple.__new__

#: Beyond so many experts with a choice a search to the end is not begun.
BRANCHING = 12
#: Up to so many experts the search hardly ever runs out of ``EFFORT``, so its order decides nothing.
RANKED = 8
#: Partial teams that searches to the end may look at, for all ways together.
EFFORT = 300


def best(problem: Problem) -> Team | None:
    """Equation (1), exact where ``EFFORT`` suffices; None if no team keeps to the allowance."""
    found, settled = together(problem)
    effort, cut = EFFORT, False
    asked: list[Asked] = []
    servers, ways = _ranked(problem)
    listed_first = problem.ways[0]
    for number, way in enumerate(ways):
        near = _near(problem, way, found, servers)
        if not near or _dearer(problem, way, ways[:number], near):
            continue
        if len(near) == 1 and near[0] in settled and slowest(problem, near[0], settled[near[0]], way):
            continue
        asked = asked or _asked(problem)
        scene = _scene(problem, asked, way, near, found)
        if scene is None:
            continue
        small = len(scene.places) - scene.free <= BRANCHING and effort > 0
        if found is None or not number or way is listed_first or not small:
            found = grown(problem, scene, found)  # else the incumbent of an earlier way is good enough
        if small:
            # Of equals, what was grown on the way listed first stays, and elsewhere the search decides: (2) saves
            # time, and which of several teams of one cost is taken is not for it to say.
            tie_s = TIE_S if number or way is listed_first else -TIE_S
            limit_s = float("inf") if found is None else found.cost_s - tie_s
            cheaper, looked = branch(problem, scene, limit_s, effort)
            found = cheaper or found
            effort -= looked
            if effort > 0:
                continue
        elif not number:
            found = beam(problem, scene, found)
        found = improved(problem, scene, found)
        cut = True
    return _no_worse_than_apart(problem, found) if cut else found


def _no_worse_than_apart(problem: Problem, found: Team | None) -> Team | None:
    """What a search that was cut off found, or the team of experts that are routed one by one, if that is cheaper."""
    alone = apart(problem)
    if problem.keeps(problem.loss(alone.options)) and (found is None or alone.cost_s < found.cost_s - TIE_S):
        return alone
    return found


def certain(problem: Problem) -> Team | None:
    """The team of this server alone, if whatever copies there are elsewhere it is the best; else None.

    That takes only this server's copies, so it can be asked before the others are priced.
    """
    found, settled = together(problem)
    here = problem.here
    if found is None or here not in settled:
        return None
    every = range(len(problem.queue_s))
    for way in problem.ways:
        near = _near(problem, way, found, every)
        if near and (near != [here] or not slowest(problem, here, settled[here], way)):
            return None
    return found


def _ranked(problem: Problem) -> tuple[Collection[int], Sequence[Way]]:
    """The servers with copies, and the ways in the order of (2).

    Of many experts it is all servers, and the ways as listed: where there is not enough of ``EFFORT``, and in a beam,
    what is left out depends on how tight the bounds are and on where one begins.
    """
    if len(problem.needs) > RANKED:
        return range(len(problem.queue_s)), problem.ways
    servers = {option[0] for need in problem.needs for option in need[3]}
    if len(problem.ways) == 1:
        return servers, problem.ways
    tokens, middle = problem.tokens, len(servers) // 2
    ranked = []
    for number, way in enumerate(problem.ways):
        fixed_s, token_s, price_s = problem.fixed_s(way), way.token_s, way.price_s
        times_s = [fixed_s[server] + tokens * (token_s[server] + price_s[server]) for server in servers]
        times_s.sort()
        ranked.append((way.ahead_s + tokens * way.leave_price_s + times_s[middle], number, way))
    ranked.sort()
    return servers, [way for _, _, way in ranked]


def _near(problem: Problem, way: Way, best: Team | None, servers: Collection[int]) -> list[int]:
    """Those of the servers that could be of a better team on this way; none if there can be no better team."""
    limit_s = float("inf") if best is None else best.cost_s - TIE_S - way.ahead_s - problem.tokens * way.leave_price_s
    if problem.leave_s(way) >= limit_s:
        return []
    fixed_s = problem.fixed_s(way)
    return [server for server in servers if fixed_s[server] < limit_s]


def _dearer(problem: Problem, way: Way, before: Sequence[Way], near: Sequence[int]) -> bool:
    """Whether there is a way ``before`` this one on which no team of ``near`` servers costs more."""
    if not before:
        return False
    tokens, leave_s = problem.tokens, problem.leave_s(way)
    fixed_s, token_s, price_s = problem.fixed_s(way), way.token_s, way.price_s
    for earlier in before:
        before_s, token_before_s, price_before_s = problem.fixed_s(earlier), earlier.token_s, earlier.price_s
        slower_s, traffic_s = leave_s - problem.leave_s(earlier), 0.0
        for server in near:
            time_s = fixed_s[server] - before_s[server]
            if token_s[server] < token_before_s[server]:
                time_s += tokens * (token_s[server] - token_before_s[server])
            if time_s < slower_s:
                slower_s = time_s
            dearer_s = price_s[server] - price_before_s[server]
            if dearer_s < traffic_s:  # of the next server only: its results stay there
                traffic_s = dearer_s
        traffic_s += way.leave_price_s - earlier.leave_price_s
        if slower_s + way.ahead_s - earlier.ahead_s + tokens * traffic_s >= 0:
            return True
    return False


def _asked(problem: Problem) -> list[Asked]:
    """The experts, those of most tokens first: what is impossible shows early."""
    asked: list[Asked] = [
        (-rows.bit_count(), number, rows, share, options)
        for number, (_, rows, share, options) in enumerate(problem.needs)
    ]
    asked.sort()
    return asked


def _scene(problem: Problem, asked: Sequence[Asked], way: Way, near: Sequence[int], best: Team | None) -> Scene | None:
    """What is left of a way without the copies that alone cost no less than ``best``; None if no team is better."""
    limit_s = float("inf") if best is None else best.cost_s - TIE_S - way.ahead_s
    traffic_s, price, here = problem.tokens * way.leave_price_s, problem.loss_price_s, problem.here
    below_s, slowest_s = limit_s - traffic_s, problem.leave_s(way)
    fixed_s, token_s = problem.fixed_s(way), way.token_s
    away, elsewhere = 0, here not in near  # tokens that leave here, whatever is chosen; whether all do
    forced: list[Place] = []
    free: list[Place] = []
    for order, (unsent, number, rows, share, options) in enumerate(asked):
        copies: list[Copy] = []
        least = float("inf")
        for option in options:
            server, _, compute_s, load_s, rate, _ = option
            alone_s = fixed_s[server] - unsent * token_s[server] + compute_s
            if load_s:
                alone_s += problem.loading_s(server, load_s)
            loss = share * rate
            if alone_s + price * loss < below_s:
                copies.append((alone_s, server, compute_s, load_s, loss, option))
                if loss < least:
                    least = loss
        if not copies:
            return None
        if len(copies) > 1:
            copies.sort()
            places = free
        else:
            places = forced
        alone_s, _, compute_s, _, _, _ = copies[0]
        if alone_s > slowest_s:
            slowest_s = alone_s
        if elsewhere or here not in [copy[1] for copy in copies]:
            away |= rows
        places.append(_new(Place, (-compute_s, order, number, rows, copies, least)))
    if away:
        traffic_s += away.bit_count() * min([way.price_s[server] for server in near if server != here])
        if slowest_s + traffic_s >= limit_s:
            return None
    forced.sort()
    start = started(problem, way, forced)
    if start.slowest_s + traffic_s >= limit_s:
        return None
    free.sort()
    return Scene(way, forced + free, len(forced), start, slowest_s, traffic_s)
