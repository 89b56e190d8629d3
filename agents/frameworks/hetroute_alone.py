r"""The two teams that need no search: everything on one server, and every expert for itself.  HetRoute, online part.

    A_d  =  of each expert the copy on d of least  T_cmp + load + λ loss;  the least lossy if that loses too much    (1)
    A_1  =  of each expert the copy of least cost (2) of ``hetroute_problem``, as if no other expert were there      (2)

(1) is where every search begins: the times of one server add up, so its cheapest copies are its best team, unless loads
or the allowance bind experts together.  (2) is the ablation without set-level routing.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.frameworks.hetroute_problem import TIE, TIE_S, Option, Problem, Team


def together(problem: Problem) -> tuple[Team | None, set[int]]:
    """The best team of (1), and the servers that have no better one than theirs of (1)."""
    found: Team | None = None
    settled: set[int] = set()
    servers, rows = _common(problem)
    for server in servers:
        bound_s = found.cost_s if found is not None else float("inf")
        ways = [way for way in problem.ways if problem.fixed_s(way)[server] + way.ahead_s < bound_s]
        if not ways:
            continue
        options = _cheapest(problem, server)
        loss, load_s = problem.loss(options), sum([option.load_s for option in options])
        if not problem.keeps(loss):
            options = _least_lossy(problem, server)
            loss, load_s = problem.loss(options), sum([option.load_s for option in options])
            if not problem.keeps(loss):
                continue
        elif not load_s:
            settled.add(server)
        parts = {server: (rows, load_s, sum([option.compute_s for option in options]))}
        for way in ways:
            cost_s = problem.whole_s(parts, loss, way)
            if found is None or cost_s < found.cost_s - TIE_S:
                found = Team(options=tuple(options), following=way.following, cost_s=cost_s)
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
        alone = [need]
        taken = min(feasible, key=lambda option: (problem.cost_s([option], home, alone), option.server))
        options.append(taken)
        left -= need.share * taken.rate
    following = min(problem.ways, key=lambda way: problem.cost_s(options, way))
    return Team(options=tuple(options), following=following.following, cost_s=problem.cost_s(options, following))


def _common(problem: Problem) -> tuple[Sequence[int], int]:
    """Servers that have a copy of every expert, this one first; and the tokens of all experts."""
    every, rows = -1, 0
    for need in problem.needs:
        rows |= need.rows
        mine = 0
        for option in need.options:
            mine |= 1 << option.server
        every &= mine
        if not every:
            return (), 0
    servers = [server for server in range(every.bit_length()) if every >> server & 1]
    servers.sort(key=lambda server: server != problem.here)
    return servers, rows


def _cheapest(problem: Problem, server: int) -> list[Option]:
    price, options = problem.loss_price_s, []
    for need in problem.needs:
        taken_s, share = float("inf"), need.share
        taken = need.options[0]
        for option in need.options:
            if option.server == server:
                alone_s = option.compute_s + option.load_s + price * share * option.rate
                if alone_s < taken_s:
                    taken, taken_s = option, alone_s
        options.append(taken)
    return options


def _least_lossy(problem: Problem, server: int) -> list[Option]:
    return [min([option for option in need.options if option.server == server], key=_rate) for need in problem.needs]


def _rate(option: Option) -> float:
    return option.rate
