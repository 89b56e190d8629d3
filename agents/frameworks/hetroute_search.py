r"""The best team of copies for one layer, priced as a team.  HetRoute, online part [reconstruction].

    T_d(n, a')   = x(a, d, n) + w_d + load_d + sum_{e on d} T_cmp(d, e) + x(d, a', n)                             (1)
    cost(A, a')  = max_{d used by A} T_d + price · bytes + λ sum_e g_e loss(e, precision) + V(l+1, a')              (2)
    subject to     sum_e g_e loss(e, precision) <= allowance                                                      (3)

    n  tokens of d's experts, each counted once     g_e  gate share of expert e     V  ``hetroute_outlook``

The four terms of the unified cost are those of the slowest server of the team: transmission, loading, computation
with queueing, and the quality penalty of the whole team (``CostTerms``).

Everything on one server is tried first, on every server that can..  A server on which even the quickest expert alone
takes longer than that incumbent is out, which is exact, and mostly leaves very little..  What remains is enumerated
while it has at most 64 combinations, else searched by a beam of 8, heaviest expert first, and improved by moving
single experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ENUMERATED = 64
BEAM = 8
#: A team must be better by this much to replace an earlier one, so that rounding decides nothing.
TIE_S = 1e-12

Part = tuple[int, float, float]  # of one server: rows, loading time, computing time
Parts = dict[int, Part]


class Option(NamedTuple):
    """One copy that may compute an expert."""

    server: int
    precision: str
    compute_s: float
    load_s: float  # 0 if it is in fast memory
    loss: float  # gate share x relative loss


class Need(NamedTuple):
    """One expert of the demand with its feasible copies."""

    expert: int
    rows: int
    options: tuple[Option, ...]


class Partial(NamedTuple):
    """A team for the first experts of a search."""

    options: tuple[Option, ...]
    loss: float
    slowest_s: float
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """The unified cost of a team, term by term (2)."""

    transmission_s: float
    loading_s: float
    compute_s: float  # with queueing
    quality_s: float
    traffic_s: float  # price of the bytes that it puts on links
    ahead_s: float  # V

    @property
    def layer_s(self) -> float:
        """What the layer itself takes: the slowest server of the team."""
        return self.transmission_s + self.loading_s + self.compute_s

    @property
    def total_s(self) -> float:
        """What is minimised."""
        return self.layer_s + self.quality_s + self.traffic_s + self.ahead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """An assignment, one option per need, and where its results go."""

    options: tuple[Option, ...]
    following: int
    cost_s: float


@dataclass(slots=True, kw_only=True)
class Search:
    """One layer's problem; indices are server positions."""

    here: int
    needs: Sequence[Need]
    tokens: int
    state_bytes: int  # of one token
    wait_s: Sequence[float]
    load_wait_s: Sequence[float]
    delay_s: Sequence[Sequence[float]]
    s_per_byte: Sequence[Sequence[float]]
    ahead: Sequence[tuple[int, float]]  # (a', V), the cheapest first
    price_s_per_byte: float
    loss_price_s: float  # λ
    allowance: float

    def best(self) -> Team | None:
        """The cheapest team and a' by (2); None if no team keeps to the allowance (3)."""
        best: Team | None = None
        teams = self._alone()
        for following, ahead_s in self.ahead:
            for options, loss, parts in teams:
                best = self._better(best, options, loss, parts, following, ahead_s)
        for following, ahead_s in self.ahead:
            limit_s = (best.cost_s if best is not None else float("inf")) - ahead_s
            left = self._promising(following, limit_s)
            if left is None:
                continue
            combinations = 1
            for need in left:
                combinations *= len(need.options)
            if combinations <= ENUMERATED:
                best = self._enumerated(best, left, following, ahead_s)
            else:
                best = self._improved(self._beam(best, left, following, ahead_s), left, following, ahead_s)
        return best

    def each_alone(self) -> Team:
        """Every expert for itself, as if no other were there: what (2) is held against."""
        options: list[Option] = []
        left = self.allowance
        for need in self.needs:
            least_rest = sum(min(o.loss for o in other.options) for other in self.needs[len(options) + 1 :])
            feasible = [o for o in need.options if o.loss <= left - least_rest + 1e-15] or [
                min(need.options, key=lambda o: o.loss)
            ]
            taken = min(feasible, key=lambda o: (self._cost_s([o], [need.rows], self.here, 0.0), o.server))
            options.append(taken)
            left -= taken.loss
        rows = [need.rows for need in self.needs]
        following, ahead_s = min(self.ahead, key=lambda pair: self._cost_s(options, rows, pair[0], pair[1]))
        return Team(options=tuple(options), following=following, cost_s=self._cost_s(options, rows, following, ahead_s))

    def terms(self, team: Team) -> CostTerms:
        """The cost of a team, taken apart."""
        rows = [need.rows for need in self.needs]
        parts = self._parts(team.options, rows)
        slowest = max(parts, key=lambda server: (self._part_s(server, parts[server], team.following), server))
        sent, load_s, compute_s = parts[slowest]
        queued_s = max(self.wait_s[slowest], self.load_wait_s[slowest] + load_s if load_s else 0.0) if sent else 0.0
        loading_s = max(0.0, queued_s - self.wait_s[slowest]) if sent else 0.0
        whole_s = self._part_s(slowest, parts[slowest], team.following)
        computing_s = (self.wait_s[slowest] if sent else 0.0) + compute_s
        ahead_s = dict(self.ahead)[team.following]
        return CostTerms(
            transmission_s=whole_s - loading_s - computing_s,
            loading_s=loading_s,
            compute_s=computing_s,
            quality_s=self.loss_price_s * sum(option.loss for option in team.options),
            traffic_s=self.price_s_per_byte * self._traffic(parts, team.following),
            ahead_s=ahead_s,
        )

    # --- equation (1) and (2) ---------------------------------------------------------------------------------------

    def _parts(self, options: Sequence[Option], rows: Sequence[int]) -> Parts:
        """What each server gets."""
        parts: Parts = {}
        for option, mask in zip(options, rows, strict=True):
            known, load_s, compute_s = parts.get(option.server, (0, 0.0, 0.0))
            parts[option.server] = (known | mask, load_s + option.load_s, compute_s + option.compute_s)
        if self.here not in parts:
            parts[self.here] = (0, 0.0, 0.0)  # the residual stream moves on at once
        return parts

    def _part_s(self, server: int, part: Part, following: int) -> float:
        """Equation (1)."""
        rows, load_s, compute_s = part
        if server == self.here:
            back_bytes = self.tokens * self.state_bytes
            time_s = 0.0 if not rows else self.wait_s[server]
        else:
            back_bytes = rows.bit_count() * self.state_bytes
            time_s = self.delay_s[self.here][server] + back_bytes * self.s_per_byte[self.here][server]
            time_s += self.wait_s[server]
        if load_s:
            time_s += max(0.0, self.load_wait_s[server] + load_s - self.wait_s[server])
        return time_s + compute_s + self.delay_s[server][following] + back_bytes * self.s_per_byte[server][following]

    def _traffic(self, parts: Parts, following: int) -> int:
        sent = 0
        for server, (rows, _, _) in parts.items():
            if server == self.here:
                sent += self.tokens * (server != following)
            else:
                sent += rows.bit_count() * (1 + (server != following))
        return sent * self.state_bytes

    def _whole_s(self, parts: Parts, loss: float, following: int, ahead_s: float) -> float:
        """Equation (2)."""
        slowest_s = max([self._part_s(server, part, following) for server, part in parts.items()])
        cost_s = slowest_s + ahead_s + self.loss_price_s * loss
        if len(parts) > 1 or following != self.here:
            cost_s += self.price_s_per_byte * self._traffic(parts, following)
        return cost_s

    def _cost_s(self, options: Sequence[Option], rows: Sequence[int], following: int, ahead_s: float) -> float:
        return self._whole_s(self._parts(options, rows), sum(option.loss for option in options), following, ahead_s)

    # --- search -----------------------------------------------------------------------------------------------------

    def _alone(self) -> list[tuple[tuple[Option, ...], float, Parts]]:
        """All experts on one server, in the cheapest copies there or, if those lose too much, the best ones."""
        teams = []
        rows = [need.rows for need in self.needs]
        for server in {option.server for option in self.needs[0].options}:
            mine = [[option for option in need.options if option.server == server] for need in self.needs]
            if not all(mine):
                continue
            options = tuple(min(copies, key=self._alone_s) if len(copies) > 1 else copies[0] for copies in mine)
            loss = sum(option.loss for option in options)
            if loss > self.allowance:
                options = tuple(min(copies, key=_loss) for copies in mine)
                loss = sum(option.loss for option in options)
            teams.append((options, loss, self._parts(options, rows)))
        return teams

    def _alone_s(self, option: Option) -> float:
        return option.compute_s + option.load_s + self.loss_price_s * option.loss

    def _better(
        self, best: Team | None, options: Sequence[Option], loss: float, parts: Parts, following: int, ahead_s: float
    ) -> Team | None:
        """The cheaper of ``best`` and this team, if it keeps to the allowance."""
        if loss > self.allowance:
            return best
        cost_s = self._whole_s(parts, loss, following, ahead_s)
        if best is None or cost_s < best.cost_s - TIE_S:
            return Team(options=tuple(options), following=following, cost_s=cost_s)
        return best

    def _promising(self, following: int, limit_s: float) -> list[Need] | None:
        """The needs, heaviest first, without the options that alone exceed ``limit_s``.

        None if a need has none left, or if all that is left is one server, whose team has been tried.
        """
        if limit_s <= 0:
            return None
        left = []
        servers: set[int] = set()
        nearest_s: dict[int, float] = {}
        for need in self.needs:
            options = []
            for option in need.options:
                server = option.server
                if server not in nearest_s:
                    nearest_s[server] = self._part_s(server, (1, 0.0, 0.0), following)
                if nearest_s[server] + option.compute_s >= limit_s:
                    continue
                part = (need.rows, option.load_s, option.compute_s)
                if self._part_s(server, part, following) + self.loss_price_s * option.loss < limit_s:
                    options.append(option)
                    servers.add(server)
            if not options:
                return None
            left.append(Need(need.expert, need.rows, tuple(options)))
        if len(servers) == 1 and all(len(need.options) == 1 for need in left):
            return None
        left.sort(key=lambda need: (-need.rows.bit_count(), need.expert))
        return left

    def _enumerated(self, best: Team | None, needs: Sequence[Need], following: int, ahead_s: float) -> Team | None:
        """Every combination, leaving out those whose beginning costs more than the best so far."""
        stack: list[Partial] = [self._nothing()]
        while stack:
            partial = stack.pop()
            if len(partial.options) == len(needs):
                team = self._in_order(partial.options, needs)
                best = self._better(best, team, partial.loss, partial.parts, following, ahead_s)
                continue
            need = needs[len(partial.options)]
            for option in need.options:
                grown = self._grown(partial, need, option, following)
                if grown.loss <= self.allowance and (best is None or self._bound_s(grown, ahead_s) < best.cost_s):
                    stack.append(grown)
        return best

    def _beam(self, best: Team | None, needs: Sequence[Need], following: int, ahead_s: float) -> Team | None:
        """The ``BEAM`` cheapest partial teams, expert by expert."""
        least = [min(option.loss for option in need.options) for need in needs]
        beam = [self._nothing()]
        for k, need in enumerate(needs):
            room = self.allowance - sum(least[k + 1 :])
            grown = []
            for partial in beam:
                for option in need.options:
                    if partial.loss + option.loss <= room:
                        entry = self._grown(partial, need, option, following)
                        bound_s = self._bound_s(entry, ahead_s)
                        if best is None or bound_s < best.cost_s:
                            grown.append((bound_s, entry))
            grown.sort(key=_rank)
            beam = [entry for _, entry in grown[:BEAM]]
        for partial in beam:
            team = self._in_order(partial.options, needs)
            best = self._better(best, team, partial.loss, partial.parts, following, ahead_s)
        return best

    def _improved(self, best: Team | None, needs: Sequence[Need], following: int, ahead_s: float) -> Team | None:
        """Move one expert at a time while that helps."""
        if best is None or best.following != following:
            return best
        rows = [need.rows for need in self.needs]
        promising = {need.expert: need.options for need in needs}
        changed = True
        while changed:
            before_s = best.cost_s
            for k, need in enumerate(self.needs):
                for option in promising[need.expert]:
                    if option != best.options[k]:
                        moved = (*best.options[:k], option, *best.options[k + 1 :])
                        loss = sum(entry.loss for entry in moved)
                        best = self._better(best, moved, loss, self._parts(moved, rows), following, ahead_s) or best
            changed = best.cost_s < before_s
        return best

    def _nothing(self) -> Partial:
        return Partial((), 0.0, 0.0, {self.here: (0, 0.0, 0.0)})

    def _grown(self, partial: Partial, need: Need, option: Option, following: int) -> Partial:
        rows, load_s, compute_s = partial.parts.get(option.server, (0, 0.0, 0.0))
        part = (rows | need.rows, load_s + option.load_s, compute_s + option.compute_s)
        slowest_s = max(partial.slowest_s, self._part_s(option.server, part, following))
        return Partial(
            (*partial.options, option), partial.loss + option.loss, slowest_s, {**partial.parts, option.server: part}
        )

    def _bound_s(self, partial: Partial, ahead_s: float) -> float:
        """No completion of a partial team costs less."""
        return partial.slowest_s + ahead_s + self.loss_price_s * partial.loss

    def _in_order(self, options: Sequence[Option], needs: Sequence[Need]) -> list[Option]:
        """Options of ``needs`` in the order of ``self.needs``."""
        by_expert = {need.expert: option for need, option in zip(needs, options, strict=True)}
        return [by_expert[need.expert] for need in self.needs]


def _loss(option: Option) -> float:
    return option.loss


def _rank(entry: tuple[float, Partial]) -> tuple[float, float]:
    """By bound; among equals, common where only the slowest server counts, by work in all."""
    return entry[0], sum([load_s + compute_s for _, load_s, compute_s in entry[1].parts.values()])
