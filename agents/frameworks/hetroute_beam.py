r"""Teams where there are too many to go through: a beam.  HetRoute, online part [reconstruction].

    S_0     = { nothing placed }
    S_{i+1} = the ``width`` teams of least (slowest server + λ loss) of S_i x copies of expert i                    (1)

The work grows with the number of experts and no faster: a partial team is a link to the shorter one that it grew from,
and the wider the set the narrower the beam.  ``hetroute_moves`` improves what comes out.
"""

from __future__ import annotations

from agents.frameworks.hetroute_branch import Copy, Scene
from agents.frameworks.hetroute_moves import Work
from agents.frameworks.hetroute_problem import TIE, TIE_S, Problem, Team

BEAM = 8
#: A beam times its experts is no wider than this: sets of fifty experts get a narrower beam.
BEAM_AND_EXPERTS = 128

#: What the experts placed so far come to, by server: rows, computing time, loading time.
State = tuple[list[int], list[float], list[float]]
#: The copies of a partial team: the shorter one, and the copy of the expert placed last.
Chain = tuple["Chain", Copy] | None


def beam(problem: Problem, scene: Scene, best: Team | None) -> Team | None:
    """The cheapest of ``best`` and the teams of (1)."""
    for chosen in _beam(problem, scene, best):
        work = Work(problem, scene, chosen)
        if problem.keeps(work.lost) and (best is None or work.cost_s < best.cost_s - TIE_S):
            best = work.team()
    return best


def _beam(problem: Problem, scene: Scene, best: Team | None) -> list[list[Copy]]:
    """Equation (1): a copy for every place, the cheapest teams first."""
    way, places, price = scene.way, scene.places, problem.loss_price_s
    fixed_s, token_s = problem.fixed_s(way), way.token_s
    servers = len(fixed_s)
    limit_s = (best.cost_s if best is not None else float("inf")) - way.ahead_s - scene.traffic_s
    rest = sum([place.least_loss for place in places])
    width = max(1, min(BEAM, BEAM_AND_EXPERTS // len(places)))
    nothing: State = ([0] * servers, [0.0] * servers, [0.0] * servers)
    #: bound, work in all, tie-breaker, slowest, loss, copies, state
    kept: list[tuple[float, float, int, float, float, Chain, State]]
    kept = [(0.0, 0.0, 0, problem.leave_s(way), 0.0, None, nothing)]
    for _, _, _, rows, copies, least_loss in places:
        rest -= least_loss
        room = problem.allowance - rest + TIE
        grown: list[tuple[float, float, int, float, float, Chain, State, Copy]] = []
        for _, work_s, _, slowest_s, loss, chain, state in kept:
            rows_of, compute_of, load_of = state
            for copy in copies:
                alone_s, server, compute_s, load_s, own_loss, _ = copy
                now_lost = loss + own_loss
                if now_lost > room:
                    continue
                # The lines of ``hetroute_branch`` again: these two loops are all that a call per copy would slow down.
                before = rows_of[server]
                if before:
                    time_s = fixed_s[server] + (before | rows).bit_count() * token_s[server]
                    time_s += compute_of[server] + compute_s
                    if load_s or load_of[server]:
                        time_s += problem.loading_s(server, load_of[server] + load_s)
                else:
                    time_s = alone_s
                if time_s < slowest_s:
                    time_s = slowest_s
                bound_s = time_s + price * now_lost
                if bound_s < limit_s:
                    work = work_s + load_s + compute_s
                    grown.append((bound_s, work, len(grown), time_s, now_lost, chain, state, copy))
        grown.sort()
        kept = []
        for bound_s, work_s, order, slowest_s, loss, chain, state, copy in grown[:width]:
            after: State = (state[0].copy(), state[1].copy(), state[2].copy())
            server = copy[1]
            after[0][server] |= rows
            after[1][server] += copy[2]
            after[2][server] += copy[3]
            kept.append((bound_s, work_s, order, slowest_s, loss, (chain, copy), after))
    return [_copies(chain) for _, _, _, _, _, chain, _ in kept]


def _copies(chain: Chain) -> list[Copy]:
    copies: list[Copy] = []
    while chain is not None:
        chain, copy = chain
        copies.append(copy)
    copies.reverse()
    return copies
