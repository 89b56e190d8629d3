r"""The two teams that need no search: everything on one server, and every expert for itself.  HetRoute, online part.

    A_d  =  of each expert the copy on d of least  T_cmp + load + λ loss;  the least lossy if that loses too much    (1)
    A_1  =  of each expert the copy of least cost (2) of ``hetroute_problem``, as if no other expert were there      (2)

(1) is where every search begins: the times of one server add up, so its cheapest copies are its best team, unless the
allowance binds experts together, a load passes while the device is busy anyway, or the residual stream is slower than
the server, which makes computing free.  (2) is the ablation without set-level routing.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.frameworks.hetroute_problem import TIE, TIE_S, Option, Part, Problem, Team, Way


def together(problem: Problem) -> tuple[Team | None, dict[int, Part]]:
    """The best team of (1), and the parts of servers that have no better team on the ways on which they are slowest."""
    found: Team | None = None
    settled: dict[int, Part] = {}
    servers, rows = _common(problem)
    taken: Sequence[Option] = ()
    following, bound_s, least_s = -1, float("inf"), float("inf")
    for server in servers:
        ways = [way for way in problem.ways if problem.fixed_s(way)[server] + way.ahead_s < bound_s]
        if not ways:
            continue
        options = _cheapest(problem, server)
        loss, load_s, compute_s = _sums(problem, options)
        lossy = not problem.keeps(loss)
        if lossy:
            options = _least_lossy(problem, server)
            loss, load_s, compute_s = _sums(problem, options)
            if not problem.keeps(loss):
                continue
        part = (rows, load_s, compute_s)
        if not lossy and not _loads(problem, server):
            settled[server] = part
        for way in ways:
            cost_s = problem.alone_s(server, part, loss, way)
            if cost_s < least_s:
                taken, following, bound_s, least_s = options, way.following, cost_s, cost_s - TIE_S
    found = Team(options=tuple(taken), following=following, cost_s=bound_s) if following >= 0 else None
    return found, settled


def apart(problem: Problem) -> Team:
    """The team of (2); if that needs more than the allowance, with what is least lossy for the rest."""
    options: list[Option] = []
    needs = problem.needs
    least = [need.share * min([option.rate for option in need.options]) for need in needs]
    left, rest = problem.allowance, sum(least)
    ways = {way.following: way for way in problem.ways}
    home = ways.get(problem.here, problem.ways[0])
    for need, least_loss in zip(needs, least, strict=True):
        rest -= least_loss
        feasible = [option for option in need.options if need.share * option.rate <= left - rest + TIE]
        feasible = feasible or [min(need.options, key=_rate)]
        taken, least_s = feasible[0], float("inf")
        for option in feasible:
            part = (need.rows, option.load_s, option.compute_s)
            alone_s = problem.alone_s(option.server, part, need.share * option.rate, home)
            if (alone_s, option.server) < (least_s, taken.server):
                taken, least_s = option, alone_s
        options.append(taken)
        left -= need.share * taken.rate
    following = min(problem.ways, key=lambda way: problem.cost_s(options, way))
    return Team(options=tuple(options), following=following.following, cost_s=problem.cost_s(options, following))


def _common(problem: Problem) -> tuple[Sequence[int], int]:
    """Servers that have a copy of every expert, this one first; and the tokens of all experts."""
    every, rows = -1, 0
    for _, need_rows, _, options in problem.needs:
        rows |= need_rows
        mine = 0
        for option in options:
            mine |= 1 << option[0]
        every &= mine
        if not every:
            return (), 0
    servers = [server for server in range(every.bit_length()) if every >> server & 1]
    servers.sort(key=lambda server: server != problem.here)
    return servers, rows


def _loads(problem: Problem, server: int) -> bool:
    """Whether a copy there is in slow memory: its load may pass in the queue, so it may be cheaper than it looks."""
    for need in problem.needs:
        for option in need.options:
            if option.load_s and option.server == server:
                return True
    return False


def slowest(problem: Problem, server: int, part: Part, way: Way) -> bool:
    """Whether a server with this part answers later than the residual stream arrives."""
    return problem.part_s(server, part, way, problem.fixed_s(way)) >= problem.leave_s(way)


def _cheapest(problem: Problem, server: int) -> list[Option]:
    price, chosen = problem.loss_price_s, []
    for _, _, share, options in problem.needs:
        taken, taken_s = options[0], float("inf")
        for option in options:
            at, _, compute_s, load_s, rate, _ = option
            if at == server:
                alone_s = compute_s + load_s + price * share * rate
                if alone_s < taken_s:
                    taken, taken_s = option, alone_s
        chosen.append(taken)
    return chosen


def _sums(problem: Problem, options: Sequence[Option]) -> tuple[float, float, float]:
    """What a team loses, and how long it loads and computes."""
    loss = loading_s = computing_s = 0.0
    for (_, _, share, _), (_, _, compute_s, load_s, rate, _) in zip(problem.needs, options, strict=True):
        loss += share * rate
        loading_s += load_s
        computing_s += compute_s
    return loss, loading_s, computing_s


def _least_lossy(problem: Problem, server: int) -> list[Option]:
    return [min([option for option in need.options if option.server == server], key=_rate) for need in problem.needs]


def _rate(option: Option) -> float:
    return option.rate
