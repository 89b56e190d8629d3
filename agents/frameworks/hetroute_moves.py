r"""Moves of single experts that make a team cheaper.  HetRoute, online part [reconstruction].

    d   = argmax_d T_d                                           the slowest server
    A  <- A with expert e of d at another copy,  if cost (2) of ``hetroute_problem`` falls                          (1)

Moving an expert of another server makes nothing quicker, and neither does moving one to a server that would become as
slow.  So a move is first held against the time of the server that it goes to, which needs no look at the other experts.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.frameworks.hetroute_branch import Copy, Scene
from agents.frameworks.hetroute_problem import TIE_S, Option, Problem, Team

#: So many moves per expert are the most.
MOVES = 2


def improved(problem: Problem, scene: Scene, best: Team | None) -> Team | None:
    """``best`` after all moves (1) that pay, if it goes the scene's way."""
    if best is None or best.following != scene.way.following:
        return best
    taken: list[Copy] = []
    for place in scene.places:
        option = best.options[place.number]
        share = problem.needs[place.number].share
        taken.append((0.0, option.server, option.compute_s, option.load_s, share * option.rate, option))
    work = Work(problem, scene, taken)
    for _ in range(MOVES * len(taken)):
        if not work.move():
            break
    after = work.team()
    return after if after.cost_s < best.cost_s - TIE_S and problem.keeps(problem.loss(after.options)) else best


class Work:
    """A team while it is changed; all by server, kept up to date by differences."""

    def __init__(self, problem: Problem, scene: Scene, taken: Sequence[Copy]) -> None:
        self._problem, self._scene, self._taken = problem, scene, list(taken)
        way = scene.way
        self._fixed_s, self._token_s, self._price_s = problem.fixed_s(way), way.token_s, way.price_s
        servers = len(self._fixed_s)
        self._members: list[list[int]] = [[] for _ in range(servers)]
        self._rows, self._compute_s, self._load_s = [0] * servers, [0.0] * servers, [0.0] * servers
        self.lost = 0.0
        for index, (place, copy) in enumerate(zip(scene.places, taken, strict=True)):
            _, server, compute_s, load_s, loss, _ = copy
            self._members[server].append(index)
            self._rows[server] |= place.rows
            self._compute_s[server] += compute_s
            self._load_s[server] += load_s
            self.lost += loss
        self._times_s = [problem.leave_s(way)] * servers
        for server, rows in enumerate(self._rows):
            if rows:
                self._times_s[server] = self._time_s(server, rows, self._compute_s[server], self._load_s[server])
        self.cost_s = max(self._times_s) + way.ahead_s + problem.loss_price_s * self.lost
        self.cost_s += problem.tokens * way.leave_price_s
        for rows, price_s in zip(self._rows, self._price_s, strict=True):
            self.cost_s += rows.bit_count() * price_s

    def team(self) -> Team:
        """As it is now; its cost is computed from scratch, since differences add rounding."""
        options: list[Option] = [self._taken[0][5]] * len(self._taken)
        for place, copy in zip(self._scene.places, self._taken, strict=True):
            options[place.number] = copy[5]
        way = self._scene.way
        return Team(options=tuple(options), following=way.following, cost_s=self._problem.cost_s(options, way))

    def move(self) -> bool:
        """Make the first move (1) that pays; False if there is none."""
        slowest = self._times_s.index(max(self._times_s))
        return any(self._moved(index, slowest) for index in self._members[slowest])

    def _moved(self, index: int, slowest: int) -> bool:
        """Whether an expert of the slowest server has found a better copy."""
        problem, current = self._problem, self._taken[index]
        place = self._scene.places[index]
        for copy in place.copies:
            _, server, compute_s, load_s, loss, option = copy
            lost = self.lost + loss - current[4]
            if option is current[5] or not problem.keeps(lost):
                continue
            if server == slowest:
                changes = [self._with(server, self._rows[server], compute_s - current[2], load_s - current[3])]
            else:
                there = self._with(server, self._rows[server] | place.rows, compute_s, load_s)
                if there[1] >= self._times_s[slowest]:
                    continue
                rows = 0
                for other in self._members[slowest]:
                    if other != index:
                        rows |= self._scene.places[other].rows
                changes = [there, self._with(slowest, rows, -current[2], -current[3])]
            if self._pays(changes, lost):
                self._members[slowest].remove(index)
                self._members[server].append(index)
                self._taken[index], self.lost = copy, lost
                return True
        return False

    def _with(self, server: int, rows: int, compute_s: float, load_s: float) -> tuple[int, float, int, float, float]:
        """A server with other rows and so much more to do: itself, its time, rows, computing and loading time."""
        compute_s, load_s = self._compute_s[server] + compute_s, self._load_s[server] + load_s
        if not rows:
            return server, self._problem.leave_s(self._scene.way), 0, 0.0, 0.0
        return server, self._time_s(server, rows, compute_s, load_s), rows, compute_s, load_s

    def _pays(self, changes: Sequence[tuple[int, float, int, float, float]], lost: float) -> bool:
        """Make these changes if the team gets cheaper by them."""
        times_s = self._times_s.copy()
        cost_s = self.cost_s - max(times_s) + self._problem.loss_price_s * (lost - self.lost)
        for server, time_s, rows, _, _ in changes:
            times_s[server] = time_s
            cost_s += (rows.bit_count() - self._rows[server].bit_count()) * self._price_s[server]
        cost_s += max(times_s)
        if cost_s >= self.cost_s - TIE_S:
            return False
        self.cost_s, self._times_s = cost_s, times_s
        for server, _, rows, compute_s, load_s in changes:
            self._rows[server], self._compute_s[server], self._load_s[server] = rows, compute_s, load_s
        return True

    def _time_s(self, server: int, rows: int, compute_s: float, load_s: float) -> float:
        time_s = self._fixed_s[server] + rows.bit_count() * self._token_s[server] + compute_s
        return time_s + self._problem.loading_s(server, load_s) if load_s else time_s
