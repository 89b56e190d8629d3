r"""The best team of copies for one layer, priced as a team.  HetRoute, online part [reconstruction].

    T_d(n, a')   = x(a, d, n) + w_d + load_d + c_d + sum_{e on d} T_cmp(d, e) + x(d, a', n)                       (1)
    cost(A, a')  = max_{d used by A} T_d + price · bytes + λ sum_e g_e loss(e, precision) + V(l+1, a')              (2)
    subject to     sum_e g_e loss(e, precision) <= allowance                                                      (3)

    n  tokens of d's experts, each counted once     g_e  gate share of expert e     V  ``hetroute_outlook``
    c_d  launch of d's batch                        load_d  what loading adds to the wait for the device

The four terms of the unified cost are those of the slowest server of the team: transmission, loading, computation
with queueing, and the quality penalty of the whole team (``CostTerms``).

Everything on one server is tried first, on every server that can.  A server on which even the quickest expert alone
takes longer than that incumbent is out, which is exact, and mostly leaves very little.  What remains is enumerated
while it has at most 64 combinations, else searched by a beam of 8, heaviest expert first, and improved by moving
single experts.  Of several precisions of an expert on one server the beam sees the
cheapest, and the least lossy where the allowance is tight; the moves see all.

``Way`` holds what (1) and (2) need of the links, by server; it is made once per refresh of the beliefs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agents.frameworks.cost import CostTerms

ENUMERATED = 64
BEAM = 8
#: A beam times its experts is no wider than this: sets of fifty experts get a narrower beam.
BEAM_AND_EXPERTS = 128
#: A team must be better by this much to replace an earlier one, so that rounding decides nothing.
TIE_S = 1e-12
#: Rounding of sums of losses.
TIE = 1e-15

Part = tuple[int, float, float]  # of one server: rows, loading time, computing time without the launch
Parts = dict[int, Part]
Floats = Sequence[float]


class Option(NamedTuple):
    """One copy that may compute an expert."""

    server: int
    precision: str
    compute_s: float  # without the launch
    load_s: float  # 0 if it is in fast memory
    rate: float  # relative loss per gate share
    substitute: int = -1  # another expert than the one that the gate chose


class Need(NamedTuple):
    """One expert of the demand with its feasible copies."""

    expert: int
    rows: int
    share: float  # of the layer's gate weight
    options: tuple[Option, ...]


class Way(NamedTuple):
    """From here to every server and on to one next server: (1) and (2) as far as they do not depend on the experts."""

    following: int
    ahead_s: float  # V
    fixed_s: Floats  # delays both ways, wait and launch; here: wait and launch
    token_s: Floats  # per token, both ways; here: 0
    price_s: Floats  # of a token's bytes, both ways; here: 0
    leave_s: float  # of the residual stream: delay
    leave_token_s: float
    leave_price_s: float

    @classmethod
    def of(
        cls,
        *,
        here: int,
        following: int,
        ahead_s: float,
        state_bytes: int,
        delay_s: Sequence[Floats],
        s_per_byte: Sequence[Floats],
        busy_s: Floats,  # wait and launch
        price_s_per_byte: float,
    ) -> Way:
        """What matrices over pairs of servers say about one way."""
        price_s = price_s_per_byte * state_bytes
        servers = range(len(busy_s))
        there_s, there_byte_s = delay_s[here], s_per_byte[here]
        fixed_s = [there_s[d] + delay_s[d][following] + busy_s[d] for d in servers]
        token_s = [state_bytes * (there_byte_s[d] + s_per_byte[d][following]) for d in servers]
        prices = [price_s * (1 + (d != following)) for d in servers]
        fixed_s[here], token_s[here], prices[here] = busy_s[here], 0.0, 0.0
        return cls(
            following=following,
            ahead_s=ahead_s,
            fixed_s=fixed_s,
            token_s=token_s,
            price_s=prices,
            leave_s=there_s[following] if following != here else 0.0,
            leave_token_s=state_bytes * there_byte_s[following] if following != here else 0.0,
            leave_price_s=price_s if following != here else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """An assignment, one option per need, and where its results go."""

    options: tuple[Option, ...]
    following: int
    cost_s: float


class Search:
    """One layer's problem; servers are numbers."""

    __slots__ = (
        "_fixed_s",
        "_leave_s",
        "allowance",
        "here",
        "launch_s",
        "load_wait_s",
        "loss_price_s",
        "needs",
        "queue_s",
        "tokens",
        "ways",
    )

    def __init__(
        self,
        *,
        here: int,
        needs: Sequence[Need],
        tokens: int,
        ways: Sequence[Way],  # one per next server, the most promising first
        queue_s: Floats,  # in front of every device, as the ways have it; here: as of this moment
        launch_s: Floats,
        load_wait_s: Floats,
        loss_price_s: float,  # λ
        allowance: float,
    ) -> None:
        self.here, self.needs, self.tokens, self.ways = here, needs, tokens, ways
        self.queue_s, self.launch_s, self.load_wait_s = queue_s, launch_s, load_wait_s
        self.loss_price_s, self.allowance = loss_price_s, allowance
        self._leave_s = {way.following: way.leave_s + tokens * way.leave_token_s for way in ways}
        self._fixed_s: dict[int, list[float]] = {}
        for way in ways:
            fixed_s = list(way.fixed_s)
            fixed_s[here] = queue_s[here] + launch_s[here] + self._leave_s[way.following]
            self._fixed_s[way.following] = fixed_s

    def best(self) -> Team | None:
        """The cheapest team and a' by (2); None if no team keeps to the allowance (3)."""
        best = self._best_alone()
        for way in self.ways:
            limit_s = (best.cost_s if best is not None else float("inf")) - way.ahead_s
            left = self._promising(way, limit_s, best)
            if left is None:
                continue
            if _combinations(left) > ENUMERATED:
                grown = self._grown(best, left, way)
                if grown is not best and grown is not None:
                    best = grown
                    left = self._promising(way, best.cost_s - way.ahead_s, best)
                    if left is None:
                        continue
                few = self._fewer(left)
                if _combinations(few) > ENUMERATED:
                    best = self._beam(best, few, way)
                else:
                    best = self._enumerated(best, few, way)
                best = self._improved(best, left, way)
            else:
                best = self._enumerated(self._grown(best, left, way), left, way)
        return best

    def each_alone(self) -> Team:
        """Every expert for itself, as if no other were there: what (2) is held against."""
        options: list[Option] = []
        left = self.allowance
        least = [need.share * min(option.rate for option in need.options) for need in self.needs]
        ways = {way.following: way for way in self.ways}
        home = ways.get(self.here, self.ways[0])
        for place, need in enumerate(self.needs):
            room = left - sum(least[place + 1 :]) + TIE
            feasible = [option for option in need.options if need.share * option.rate <= room]
            feasible = feasible or [min(need.options, key=_rate)]
            alone = [need]
            taken = min(feasible, key=lambda option: (self.cost_s([option], home, alone), option.server))
            options.append(taken)
            left -= need.share * taken.rate
        following = min(self.ways, key=lambda way: self.cost_s(options, way))
        return Team(options=tuple(options), following=following.following, cost_s=self.cost_s(options, following))

    def fixed_s(self, way: Way) -> Floats:
        """What (1) takes on each server whatever it runs."""
        return self._fixed_s[way.following]

    def leave_s(self, way: Way) -> float:
        """When the residual stream is at the next server."""
        return self._leave_s[way.following]

    def loss(self, options: Sequence[Option]) -> float:
        """Left side of (3)."""
        total = 0.0
        for need, option in zip(self.needs, options, strict=True):
            total += need.share * option.rate
        return total

    def terms(self, team: Team) -> CostTerms:
        """The cost of a team, taken apart."""
        (way,) = (way for way in self.ways if way.following == team.following)
        parts = self._parts(team.options, self.needs)
        fixed_s = self._fixed_s[way.following]
        slowest, whole_s = self.here, self._leave_s[way.following]
        for server, part in sorted(parts.items()):
            time_s = self.part_s(server, part, way, fixed_s)
            if time_s > whole_s:
                slowest, whole_s = server, time_s
        computing_s = loading_s = 0.0
        if slowest in parts:
            _, load_s, compute_s = parts[slowest]
            loading_s = self._loading_s(slowest, load_s)
            computing_s = self.queue_s[slowest] + self.launch_s[slowest] + compute_s
        return CostTerms(
            transmission_s=whole_s - loading_s - computing_s,
            loading_s=loading_s,
            compute_s=computing_s,
            quality_s=self.loss_price_s * self.loss(team.options),
            traffic_s=self._price_s(parts, way),
            ahead_s=way.ahead_s,
        )

    # --- equations (1) and (2) --------------------------------------------------------------------------------------

    def _loading_s(self, server: int, load_s: float) -> float:
        """What loading adds to the wait for the device."""
        if not load_s:
            return 0.0
        return max(0.0, self.load_wait_s[server] + load_s - self.queue_s[server])

    def part_s(self, server: int, part: Part, way: Way, fixed_s: Floats) -> float:
        """Equation (1)."""
        rows, load_s, compute_s = part
        time_s = fixed_s[server] + rows.bit_count() * way.token_s[server] + compute_s
        return time_s + self._loading_s(server, load_s) if load_s else time_s

    def _parts(self, options: Sequence[Option], needs: Sequence[Need]) -> Parts:
        """What each server gets."""
        parts: Parts = {}
        for option, need in zip(options, needs, strict=True):
            rows, load_s, compute_s = parts.get(option.server, (0, 0.0, 0.0))
            parts[option.server] = (rows | need.rows, load_s + option.load_s, compute_s + option.compute_s)
        return parts

    def _price_s(self, parts: Parts, way: Way) -> float:
        price_s = self.tokens * way.leave_price_s
        for server, (rows, _, _) in parts.items():
            price_s += rows.bit_count() * way.price_s[server]
        return price_s

    def _whole_s(self, parts: Parts, loss: float, way: Way) -> float:
        """Equation (2)."""
        fixed_s = self._fixed_s[way.following]
        slowest_s = self._leave_s[way.following]
        for server, part in parts.items():
            time_s = self.part_s(server, part, way, fixed_s)
            if time_s > slowest_s:
                slowest_s = time_s
        return slowest_s + way.ahead_s + self.loss_price_s * loss + self._price_s(parts, way)

    def cost_s(self, options: Sequence[Option], way: Way, needs: Sequence[Need] | None = None) -> float:
        """Equation (2) of any team."""
        needs = self.needs if needs is None else needs
        loss = sum(need.share * option.rate for need, option in zip(needs, options, strict=True))
        return self._whole_s(self._parts(options, needs), loss, way)

    # --- search -----------------------------------------------------------------------------------------------------

    def _alone_s(self, option: Option, share: float) -> float:
        return option.compute_s + option.load_s + self.loss_price_s * share * option.rate

    def _by_server(self, need: Need) -> dict[int, Option]:
        """The cheapest copy of an expert on each server that has one."""
        found: dict[int, Option] = {}
        share = need.share
        for option in need.options:
            known = found.get(option.server)
            if known is None or self._alone_s(option, share) < self._alone_s(known, share):
                found[option.server] = option
        return found

    def _fewer(self, needs: Sequence[Need]) -> list[Need]:
        """One copy per expert and server, the cheapest; where these might lose too much, the least lossy besides."""
        cheapest = [list(self._by_server(need).values()) for need in needs]
        worst = sum(need.share * max(map(_rate, mine)) for need, mine in zip(needs, cheapest, strict=True))
        if worst > self.allowance:
            for need, mine in zip(needs, cheapest, strict=True):
                for server in {option.server for option in mine}:
                    least = min((option for option in need.options if option.server == server), key=_rate)
                    if least not in mine:
                        mine.append(least)
        return [need._replace(options=tuple(mine)) for need, mine in zip(needs, cheapest, strict=True)]

    def _best_alone(self) -> Team | None:
        """All experts on one server, in the cheapest copies there or, if those lose too much, the best ones."""
        best: Team | None = None
        servers = {option.server for option in self.needs[0].options}
        for server in sorted(servers, key=lambda server: (server != self.here, server)):
            if best is not None and all(
                self._fixed_s[way.following][server] + way.ahead_s >= best.cost_s for way in self.ways
            ):
                continue
            options = self._alone_on(server)
            if options is None:
                continue
            parts, loss = self._parts(options, self.needs), self.loss(options)
            for way in self.ways:
                cost_s = self._whole_s(parts, loss, way)
                if best is None or cost_s < best.cost_s - TIE_S:
                    best = Team(options=tuple(options), following=way.following, cost_s=cost_s)
        return best

    def _alone_on(self, server: int) -> list[Option] | None:
        options, loss, price = [], 0.0, self.loss_price_s
        for need in self.needs:
            taken, taken_s, share = None, float("inf"), need.share
            for option in need.options:
                if option.server == server:
                    alone_s = option.compute_s + option.load_s + price * share * option.rate
                    if alone_s < taken_s:
                        taken, taken_s = option, alone_s
            if taken is None:
                return None
            options.append(taken)
            loss += share * taken.rate
        if loss <= self.allowance:
            return options
        copies = [[option for option in need.options if option.server == server] for need in self.needs]
        options = [min(mine, key=_rate) for mine in copies]
        return options if self.loss(options) <= self.allowance else None

    def _better(self, best: Team | None, options: Sequence[Option], loss: float, parts: Parts, way: Way) -> Team | None:
        """The cheaper of ``best`` and this team, if it keeps to the allowance."""
        if loss > self.allowance:
            return best
        cost_s = self._whole_s(parts, loss, way)
        if best is None or cost_s < best.cost_s - TIE_S:
            return Team(options=tuple(options), following=way.following, cost_s=cost_s)
        return best

    def _promising(self, way: Way, limit_s: float, best: Team | None) -> list[Need] | None:
        """The needs, heaviest first, without the options that alone exceed ``limit_s``.

        None if a need has none left, or if all that is left is one server, whose team has been tried.  The times of one
        server add up, so its team is the best of its copies, unless the allowance or loads bind experts together.
        """
        if limit_s <= self._leave_s[way.following]:
            return None
        fixed_s, token_s, price = self._fixed_s[way.following], way.token_s, self.loss_price_s
        near = [time_s < limit_s for time_s in fixed_s]
        if near.count(True) == 1 and best is not None and self._separable(best, near.index(True)):
            return None
        left: list[Need] = []
        used: set[int] = set()
        several = False
        for need in self.needs:
            tokens, options = need.rows.bit_count(), []
            for option in need.options:
                server = option.server
                if not near[server]:
                    continue
                alone_s = fixed_s[server] + tokens * token_s[server] + option.compute_s
                if alone_s + price * need.share * option.rate >= limit_s:
                    continue
                if option.load_s and alone_s + self._loading_s(server, option.load_s) >= limit_s:
                    continue
                options.append(option)
                used.add(server)
            if not options:
                return None
            several = several or len(options) > 1
            left.append(need if len(options) == len(need.options) else need._replace(options=tuple(options)))
        if len(used) == 1 and (not several or (best is not None and self._separable(best, min(used)))):
            return None
        left.sort(key=_heaviest)
        return left

    def _grown(self, best: Team | None, needs: Sequence[Need], way: Way) -> Team | None:
        """One team, expert by expert where it costs least so far: a bound for the enumeration."""
        fixed_s, price = self._fixed_s[way.following], self.loss_price_s
        slowest_s, loss, options = self._leave_s[way.following], 0.0, []
        parts: Parts = {}
        for need in needs:
            taken: tuple[float, float, Option, Part] | None = None
            for option in need.options:
                rows, load_s, compute_s = parts.get(option.server, (0, 0.0, 0.0))
                part = (rows | need.rows, load_s + option.load_s, compute_s + option.compute_s)
                time_s = max(slowest_s, self.part_s(option.server, part, way, fixed_s))
                cost_s = time_s + price * need.share * option.rate
                if taken is None or cost_s < taken[0]:
                    taken = cost_s, time_s, option, part
            if taken is None:
                return best
            _, slowest_s, option, part = taken
            parts[option.server] = part
            options.append(option)
            loss += need.share * option.rate
        if loss > self.allowance:
            return best
        cost_s = slowest_s + way.ahead_s + price * loss + self._price_s(parts, way)
        if best is None or cost_s < best.cost_s - TIE_S:
            return Team(options=self._in_order(options, needs), following=way.following, cost_s=cost_s)
        return best

    def _separable(self, best: Team, server: int) -> bool:
        """Whether the best team stands on this server in its cheapest copies, without loads."""
        for need, taken in zip(self.needs, best.options, strict=True):
            if taken.server != server or taken.load_s:
                return False
            alone_s = self._alone_s(taken, need.share)
            for option in need.options:
                if option.server == server and self._alone_s(option, need.share) < alone_s:
                    return False
        return True

    def _enumerated(self, best: Team | None, needs: Sequence[Need], way: Way) -> Team | None:
        """Every combination, leaving out those whose beginning costs more than the best so far."""
        fixed_s, price = self._fixed_s[way.following], self.loss_price_s
        last, allowance = len(needs) - 1, self.allowance
        parts: Parts = {}
        chosen: list[Option] = [needs[0].options[0]] * len(needs)
        found = best
        bound_s = best.cost_s if best is not None else float("inf")

        token_s, ahead_s, loading_s = way.token_s, way.ahead_s, self._loading_s
        #: Traffic so far is no less than the residual stream's.
        floor_s = ahead_s + self.tokens * way.leave_price_s

        def descend(place: int, slowest_s: float, loss: float) -> None:
            nonlocal found, bound_s
            need = needs[place]
            need_rows, share = need.rows, need.share
            for option in need.options:
                server, _, option_s, option_load_s, rate, _ = option
                grown_loss = loss + share * rate
                if grown_loss > allowance:
                    continue
                before = parts.get(server)
                if before is None:
                    rows, load_s, compute_s = need_rows, option_load_s, option_s
                else:
                    rows, load_s, compute_s = before[0] | need_rows, before[1] + option_load_s, before[2] + option_s
                grown_s = fixed_s[server] + rows.bit_count() * token_s[server] + compute_s
                if load_s:
                    grown_s += loading_s(server, load_s)
                if grown_s < slowest_s:
                    grown_s = slowest_s
                if grown_s + floor_s + price * grown_loss >= bound_s:
                    continue
                chosen[place] = option
                parts[server] = (rows, load_s, compute_s)
                if place == last:
                    cost_s = grown_s + ahead_s + price * grown_loss + self._price_s(parts, way)
                    if cost_s < bound_s - TIE_S:
                        bound_s = cost_s
                        found = Team(options=self._in_order(chosen, needs), following=way.following, cost_s=cost_s)
                else:
                    descend(place + 1, grown_s, grown_loss)
                if before is None:
                    del parts[server]
                else:
                    parts[server] = before

        descend(0, self._leave_s[way.following], 0.0)
        return found

    def _beam(self, best: Team | None, needs: Sequence[Need], way: Way) -> Team | None:
        """The ``BEAM`` cheapest partial teams, expert by expert."""
        fixed_s, price = self._fixed_s[way.following], self.loss_price_s
        limit_s = best.cost_s if best is not None else float("inf")
        least = [need.share * min(option.rate for option in need.options) for need in needs]
        rest = sum(least)
        width = max(1, min(BEAM, BEAM_AND_EXPERTS // len(needs)))
        #: bound, work in all, tie-breaker, slowest, loss, options, parts
        beam: list[tuple[float, float, int, float, float, tuple[Option, ...], Parts]]
        beam = [(0.0, 0.0, 0, self._leave_s[way.following], 0.0, (), {})]
        for place, need in enumerate(needs):
            rest -= least[place]
            room = self.allowance - rest + TIE
            grown: list[tuple[float, float, int, float, float, tuple[Option, ...], Option, Parts, Part]] = []
            for _, work_s, _, slowest_s, loss, options, parts in beam:
                for option in need.options:
                    grown_loss = loss + need.share * option.rate
                    if grown_loss > room:
                        continue
                    rows, load_s, compute_s = parts.get(option.server, (0, 0.0, 0.0))
                    part = (rows | need.rows, load_s + option.load_s, compute_s + option.compute_s)
                    time_s = self.part_s(option.server, part, way, fixed_s)
                    grown_s = time_s if time_s > slowest_s else slowest_s
                    bound_s = grown_s + way.ahead_s + price * grown_loss
                    if bound_s < limit_s:
                        work = work_s + option.load_s + option.compute_s
                        grown.append((bound_s, work, len(grown), grown_s, grown_loss, options, option, parts, part))
            grown.sort()
            beam = [
                (bound_s, work, order, slowest_s, loss, (*options, option), {**parts, option.server: part})
                for bound_s, work, order, slowest_s, loss, options, option, parts, part in grown[:width]
            ]
        for _, _, _, _, loss, options, parts in beam:
            best = self._better(best, self._in_order(options, needs), loss, parts, way)
        return best

    def _improved(self, best: Team | None, needs: Sequence[Need], way: Way) -> Team | None:
        """Move one expert at a time while that helps: any of few, of many only those of the slowest server."""
        if best is None or best.following != way.following:
            return best
        promising = {need.expert: need.options for need in needs}
        every = len(needs) * BEAM <= BEAM_AND_EXPERTS
        options, loss, cost_s = list(best.options), self.loss(best.options), best.cost_s
        parts, fixed_s = self._parts(options, self.needs), self._fixed_s[way.following]
        before_s = float("inf")
        while cost_s < before_s:
            before_s = cost_s
            slowest = max(parts, key=lambda server: self.part_s(server, parts[server], way, fixed_s))
            for place, need in enumerate(self.needs):
                for option in promising[need.expert]:
                    current = options[place]
                    moved_loss = loss + need.share * (option.rate - current.rate)
                    if option == current or moved_loss > self.allowance:
                        continue
                    if option.server == current.server:
                        rows, load_s, compute_s = parts[option.server]
                        load_s += option.load_s - current.load_s
                        moved = {
                            **parts,
                            option.server: (rows, load_s, compute_s + option.compute_s - current.compute_s),
                        }
                    elif every or current.server == slowest:
                        moved = self._parts([*options[:place], option, *options[place + 1 :]], self.needs)
                    else:
                        continue
                    moved_s = self._whole_s(moved, moved_loss, way)
                    if moved_s < cost_s - TIE_S:
                        options[place], parts, loss, cost_s = option, moved, moved_loss, moved_s
        # Differences add rounding: what is said of the team is computed from scratch.
        if cost_s < best.cost_s - TIE_S and self.loss(options) <= self.allowance:
            return Team(options=tuple(options), following=way.following, cost_s=self.cost_s(options, way))
        return best

    def _in_order(self, options: Sequence[Option], needs: Sequence[Need]) -> tuple[Option, ...]:
        """Options of ``needs`` in the order of ``self.needs``."""
        by_expert = {need.expert: option for need, option in zip(needs, options, strict=True)}
        return tuple([by_expert[need.expert] for need in self.needs])


def _combinations(needs: Sequence[Need]) -> int:
    combinations = 1
    for need in needs:
        combinations *= len(need.options)
        if combinations > ENUMERATED:
            break
    return combinations


def _rate(option: Option) -> float:
    return option.rate


def _heaviest(need: Need) -> tuple[int, int]:
    return -need.rows.bit_count(), need.expert
