r"""The problem of one layer: a copy for each expert, priced as a team.  HetRoute, online part [reconstruction].

    T_d(n, a')   = x(a, d, n) + w_d + load_d + c_d + sum_{e on d} T_cmp(d, e) + x(d, a', n)                       (1)
    cost(A, a')  = max_{d used by A} T_d + price · bytes + λ sum_e g_e loss(e, precision) + V(l+1, a')              (2)
    subject to     sum_e g_e loss(e, precision) <= allowance                                                      (3)

    n  tokens of d's experts, each counted once     g_e  gate share of expert e     V  ``hetroute_outlook``
    c_d  launch of d's batch                        load_d  what loading adds to the wait for the device

The four terms of the unified cost are those of the slowest server of the team: transmission, loading, computation
with queueing, and the quality penalty of the whole team (``CostTerms``).

``Way`` holds what (1) and (2) need of the links, by server; it is made once per refresh of the beliefs.  Servers are
numbers.  ``hetroute_search`` solves the problem, ``hetroute_exact`` checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agents.frameworks.cost import CostTerms

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

    def with_ahead(self, ahead_s: float) -> Way:
        """The same way with another V."""
        return Way(self[0], ahead_s, *self[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """An assignment, one option per need, and where its results go."""

    options: tuple[Option, ...]
    following: int
    cost_s: float


class Problem:
    """Equations (1) to (3) for one layer."""

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
        self._leave_s: dict[int, float] = {}
        self._fixed_s: dict[int, list[float]] = {}
        own_s = queue_s[here] + launch_s[here]
        for way in ways:
            leave_s = self._leave_s[way.following] = way.leave_s + tokens * way.leave_token_s
            fixed_s = self._fixed_s[way.following] = list(way.fixed_s)
            fixed_s[here] = own_s + leave_s

    def fixed_s(self, way: Way) -> list[float]:
        """What (1) takes on each server whatever it runs."""
        return self._fixed_s[way.following]

    def leave_s(self, way: Way) -> float:
        """When the residual stream is at the next server."""
        return self._leave_s[way.following]

    def loading_s(self, server: int, load_s: float) -> float:
        """What loading adds to the wait for the device."""
        if not load_s:
            return 0.0
        return max(0.0, self.load_wait_s[server] + load_s - self.queue_s[server])

    def part_s(self, server: int, part: Part, way: Way, fixed_s: Floats) -> float:
        """Equation (1)."""
        rows, load_s, compute_s = part
        time_s = fixed_s[server] + rows.bit_count() * way.token_s[server] + compute_s
        return time_s + self.loading_s(server, load_s) if load_s else time_s

    def parts(self, options: Sequence[Option], needs: Sequence[Need]) -> Parts:
        """What each server gets."""
        parts: Parts = {}
        for (server, _, compute_s, load_s, _, _), need in zip(options, needs, strict=True):
            before = parts.get(server)
            if before is None:
                parts[server] = (need[1], load_s, compute_s)
            else:
                parts[server] = (before[0] | need[1], before[1] + load_s, before[2] + compute_s)
        return parts

    def price_s(self, parts: Parts, way: Way) -> float:
        """The price of the bytes on links."""
        price_s = self.tokens * way.leave_price_s
        for server, (rows, _, _) in parts.items():
            price_s += rows.bit_count() * way.price_s[server]
        return price_s

    def loss(self, options: Sequence[Option]) -> float:
        """Left side of (3)."""
        total = 0.0
        for need, option in zip(self.needs, options, strict=True):
            total += need[2] * option[4]
        return total

    def keeps(self, loss: float) -> bool:
        """Equation (3), with the rounding that a sum in another order may have."""
        return loss <= self.allowance + TIE

    def cost_s(self, options: Sequence[Option], way: Way, needs: Sequence[Need] | None = None) -> float:
        """Equation (2) of any team."""
        needs = self.needs if needs is None else needs
        loss = sum(need.share * option.rate for need, option in zip(needs, options, strict=True))
        return self.whole_s(self.parts(options, needs), loss, way)

    def alone_s(self, server: int, part: Part, loss: float, way: Way) -> float:
        """Equation (2) of a team on one server."""
        time_s = self.part_s(server, part, way, self._fixed_s[way.following])
        slowest_s = self._leave_s[way.following]
        if time_s > slowest_s:
            slowest_s = time_s
        price_s = self.tokens * way.leave_price_s + part[0].bit_count() * way.price_s[server]
        return slowest_s + way.ahead_s + self.loss_price_s * loss + price_s

    def whole_s(self, parts: Parts, loss: float, way: Way) -> float:
        """Equation (2)."""
        fixed_s = self._fixed_s[way.following]
        slowest_s = self._leave_s[way.following]
        for server, part in parts.items():
            time_s = self.part_s(server, part, way, fixed_s)
            if time_s > slowest_s:
                slowest_s = time_s
        return slowest_s + way.ahead_s + self.loss_price_s * loss + self.price_s(parts, way)

    def terms(self, team: Team) -> CostTerms:
        """The cost of a team, taken apart."""
        following = team.following
        (way,) = [way for way in self.ways if way[0] == following]
        parts = self.parts(team.options, self.needs)
        fixed_s, token_s = self._fixed_s[following], way.token_s
        slowest, whole_s = self.here, self._leave_s[following]
        for server in sorted(parts):
            rows, load_s, compute_s = parts[server]
            time_s = fixed_s[server] + rows.bit_count() * token_s[server] + compute_s
            if load_s:
                time_s += self.loading_s(server, load_s)
            if time_s > whole_s:
                slowest, whole_s = server, time_s
        computing_s = loading_s = 0.0
        if slowest in parts:
            _, load_s, compute_s = parts[slowest]
            loading_s = self.loading_s(slowest, load_s)
            computing_s = self.queue_s[slowest] + self.launch_s[slowest] + compute_s
        return CostTerms(
            transmission_s=whole_s - loading_s - computing_s,
            loading_s=loading_s,
            compute_s=computing_s,
            quality_s=self.loss_price_s * self.loss(team.options),
            traffic_s=self.price_s(parts, way),
            ahead_s=way.ahead_s,
        )
