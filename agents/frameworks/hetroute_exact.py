r"""The exact optimum of HetRoute's problem, to see what its search leaves on the table.

    min over a', A of (2) subject to (3) of ``hetroute_problem``                                                    (1)

All teams and next servers are gone through depth first.  A beginning is left out only where a lower bound on all its
completions is no better than the best team so far: its slowest server (adding experts never makes one quicker), V, the
price of what is lost so far and of the least that the rest must lose.  With the true state in the view (``--view
oracle``) the same search is the oracle that knows everything (option ``exact`` of hetroute).
"""

from __future__ import annotations

from agents.frameworks.hetroute_problem import TIE, Option, Parts, Problem, Team, Way


def exact(problem: Problem) -> Team | None:
    """Equation (1); None if no team keeps to the allowance."""
    best: Team | None = None
    for way in problem.ways:
        best = _cheapest(problem, way, best)
    return best


def _cheapest(problem: Problem, way: Way, best: Team | None) -> Team | None:
    needs = sorted(problem.needs, key=lambda need: (len(need.options), -need.rows.bit_count()))
    least = [need.share * min(option.rate for option in need.options) for need in needs]
    rest = [sum(least[place + 1 :]) for place in range(len(needs))]
    bound_s = best.cost_s if best is not None else float("inf")
    fixed_s, price = problem.fixed_s(way), problem.loss_price_s
    parts: Parts = {}
    chosen: dict[int, Option] = {}

    def descend(place: int, slowest_s: float, loss: float) -> None:
        nonlocal best, bound_s
        if place == len(needs):
            options = tuple(chosen[need.expert] for need in problem.needs)
            cost_s = problem.cost_s(options, way)
            if problem.keeps(problem.loss(options)) and cost_s < bound_s:
                bound_s = cost_s
                best = Team(options=options, following=way.following, cost_s=cost_s)
            return
        need = needs[place]
        for option in need.options:
            grown = loss + need.share * option.rate
            if grown + rest[place] > problem.allowance + TIE:
                continue
            before = parts.get(option.server)
            rows, load_s, compute_s = before or (0, 0.0, 0.0)
            part = (rows | need.rows, load_s + option.load_s, compute_s + option.compute_s)
            time_s = max(slowest_s, problem.part_s(option.server, part, way, fixed_s))
            if time_s + way.ahead_s + price * (grown + rest[place]) < bound_s:
                parts[option.server] = part
                chosen[need.expert] = option
                descend(place + 1, time_s, grown)
                if before is None:
                    del parts[option.server]
                else:
                    parts[option.server] = before

    descend(0, problem.leave_s(way), 0.0)
    return best
