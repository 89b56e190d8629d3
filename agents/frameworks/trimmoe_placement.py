r"""Where TrimMoE keeps its copies: first what is left to be run, on few and quick servers.  [reconstruction]

    cut_le    = 1 for the experts that a budget buys off first, by what they save per loss                        (1)
    reach_l   = share of tokens that have not left before layer l, at the gate calibrated for that budget         (2)
    need_le   = called_le reach_l (1 - cut_le)        share of requests that run the expert                       (3)
    cost(c,f) = delay + Σ_l move + Σ_{d in c} S_d / (1 - λ f S_d)      a request along chain c, which carries (4)
                                                                       the share f of the requests
    B(c)      = cost(C, 1) - min_f [ f cost(C, f) + (1 - f) cost(c, 1 - f) ]          benefit of one more chain   (5)

A chain holds what (3) needs, whole layers on consecutive servers; without the experts of (1) it is shorter than a chain
of all experts, and fits on fewer or quicker servers.  Then every expert that no chain holds gets its one full-precision
copy: near the owner of its layer, or in that server's slow memory, whichever would serve a call sooner.  There it is
fetched if it matters and left out if it does not, which the online part decides.  Last, further chains are added while
the memory budget allows it and (5) is positive.

The paper says that replicas are placed by a redundancy benefit that knows about skips and exits; (1) to (5) and the
chains are ours.  Where nothing was measured, or for a budget of 0, nothing is cut, and the first chain holds all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.depth.base import skip_loss
from agents.depth.guarantee import calibrate
from agents.errors import FrameworkError
from agents.frameworks.cost import call_s, head_s
from agents.frameworks.edgeshard import MOST_CANDIDATES, EdgeShard
from agents.frameworks.expected import Expected, Floats, delays, home_shares
from agents.frameworks.placements import budget_bytes
from agents.frameworks.shards import best_shards, runs
from agents.models.calibrate import Calibration
from agents.models.exits import THRESHOLDS, ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.store import FAST_SHARE

#: Needs below this get no copy on a chain.
NEGLIGIBLE = 0.02
#: Further chains that are tried.
MOST_CHAINS = 4
#: A device beyond this load is priced as if it were loaded so much.
MOST_BUSY = 0.95
#: Bounds on a server's share of time that one chain may take, tightest first.
BUSY_LIMITS = (0.7, 0.9, float("inf"))
#: Share of layers in which the online part calls an expert of (1) after all, where there is one: about that of a run.
UNCUT = 0.6
SHARES = np.linspace(0.1, 0.9, 9)

Wanted = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the placement may know beside the cluster."""

    calibration: Calibration
    facts: ExpertFacts | None
    exits: ExitHeads | None
    budget: float  # relative NLL increase
    risk: float  # of the exit gate
    failure: float


def needs(expected: Expected, known: Known) -> Floats:
    """Equations (1) to (3), (layers, experts)."""
    need = expected.called.copy()
    if known.exits is not None and known.budget > 0.0:
        gate = calibrate(known.exits, risk=min(known.risk, 0.999), failure=known.failure)
        if gate.threshold <= 1.0:
            place = int(np.argmin(np.abs(THRESHOLDS - gate.threshold)))
            gone = np.concatenate([[0.0], np.cumsum(known.exits.left[place].astype(np.float64))])
            # One token of many relieves nobody; what is called by those that stay is what counts.
            stay = np.clip(1.0 - gone, 0.0, 1.0)[: len(need), None]
            need = 1.0 - (1.0 - expected.token_share) ** (expected.tokens * stay)
    if known.facts is None:
        return need
    usage = known.calibration.usage.mean(axis=0)
    layers, experts = need.shape
    loss = np.array([[usage[n, e] * skip_loss(known.facts, n, e) for e in range(experts)] for n in range(layers)])
    order = np.argsort(-(need / loss), axis=None, kind="stable")
    need.ravel()[order[np.cumsum(loss.ravel()[order]) <= known.budget]] = 0.0
    return need


def place(cluster: Cluster, profile: ModelProfile, known: Known) -> Placement:
    """Chains and guarantee.  FrameworkError where the experts do not fit."""
    return _Placer(cluster, profile, known).placement()


class _Placer:
    """The rooms that are left, while copies are laid out."""

    def __init__(self, cluster: Cluster, profile: ModelProfile, known: Known) -> None:
        self.cluster, self.profile, self.known = cluster, profile, known
        self.expected = Expected(cluster, profile, known.calibration)
        self.need = needs(self.expected, known)
        self.wanted: Wanted = self.need > NEGLIGIBLE
        self.size = profile.expert_bytes[FULL]
        self.left_bytes = budget_bytes(cluster, profile)
        self.fast = [int(FAST_SHARE * server.device.fast_bytes // self.size) for server in cluster.servers]
        self.slow = [int(server.device.slow_bytes // self.size) for server in cluster.servers]
        self.replicas: list[Replica] = []
        self._closed: set[int] = set()  # servers of chains: another one on the same devices would gain nothing
        self.move_s, self.delay_s = self.expected.move_s(), delays(cluster)
        tokens = max(1, round(self.expected.tokens * profile.top_k / profile.experts))
        self.one_s = np.array([call_s(server.device, profile, FULL, tokens) for server in cluster.servers])
        self.head_s = np.array([head_s(server.device, profile, self.expected.tokens) for server in cluster.servers])

    def placement(self) -> Placement:
        """The first chain, the guarantee, and further chains by (5)."""
        first = self._first()
        if first is None:  # not even what is needed fits into fast memory: whole layers wherever they go
            self.wanted = np.zeros_like(self.wanted)
            whole = EdgeShard().place(self.cluster, self.profile, self.known.calibration).notes["owners"]
            first = tuple(self.cluster.names.index(owner) for owner in whole)
        chains = [first]
        self._lay(first)
        self._guarantee(first)
        self._closed = set(first)
        for _ in range(MOST_CHAINS):
            if self.size * int(self.wanted.sum()) > self.left_bytes or not self.wanted.any():
                break
            found = self._chain()
            if found is None or self._benefit_s(chains[0], found) <= 0.0:
                break
            self._lay(found)
            chains.append(found)
            self._closed |= set(found)
        names = self.cluster.names
        return Placement(
            replicas=tuple(self.replicas), notes={"chains": [[names[owner] for owner in each] for each in chains]}
        )

    def _first(self) -> tuple[int, ...] | None:
        """A chain of what is needed, or of everything where that is as good."""
        needed, short = self.wanted, self._chain()
        self.wanted = np.ones_like(needed)
        whole = self._chain()
        if whole is not None and (
            short is None or self._cost_s(whole, 1.0) <= self._cost_s(short, 1.0) + self._risk_s(needed)
        ):
            return whole
        self.wanted = needed
        return short

    def _risk_s(self, needed: Wanted) -> float:
        """Expected time of calls to experts that a chain lacks, where the online part cannot do without them."""
        away_s = float(np.min(self.move_s[self.move_s > 0], initial=np.inf)) * 2
        missed = 1.0 - np.prod(np.where(needed, 1.0, 1.0 - self.expected.called), axis=1)
        return UNCUT * float(missed.sum()) * (away_s if np.isfinite(away_s) else 0.0)

    def _chain(self) -> tuple[int, ...] | None:
        """The quickest chain that has room, relaxed as little as necessary."""
        service_s = self._layer_s()
        time_s = runs(service_s)
        count = np.concatenate([[0], np.cumsum(self.wanted.sum(axis=1))])
        held = count[None, :] - count[:, None]  # experts of layers i .. j - 1
        room = np.array([0 if place in self._closed else free for place, free in enumerate(self.fast)])
        if len(room) > MOST_CANDIDATES:  # only those with the most room for their speed
            rank = np.argsort(service_s.mean(axis=1) / np.maximum(room, 1))
            room[rank[MOST_CANDIDATES:]] = 0
        fits = np.where(held[None] <= room[:, None, None], time_s, np.inf)
        share = home_shares(self.cluster)
        for limit in BUSY_LIMITS:
            found = best_shards(
                np.where(self.cluster.arrival_rate_per_s * time_s <= limit, fits, np.inf),
                move_s=self.move_s,
                enter_s=share @ self.delay_s,
                leave_s=self.delay_s @ share + self.head_s,
            )
            if found is not None:
                return found.owners
        return None

    def _lay(self, owners: tuple[int, ...]) -> None:
        held = {(copy.layer, copy.expert, copy.server) for copy in self.replicas}
        for layer, expert in zip(*np.nonzero(self.wanted), strict=True):
            if (layer, expert, self.cluster.names[owners[layer]]) not in held:
                self._add(int(layer), int(expert), owners[layer], fast=True)

    def _guarantee(self, owners: tuple[int, ...]) -> None:
        """One copy of every expert that the first chain lacks, where a call would be served soonest."""
        load_s = [self.size / server.device.load_bytes_per_s for server in self.cluster.servers]
        for layer, expert in zip(*np.nonzero(~self.wanted), strict=True):
            owner = owners[layer]
            options = [
                (self.move_s[owner, d] + self.move_s[d, owner] + self.one_s[d] + (0.0 if fast else load_s[d]), d, fast)
                for d in range(len(self.fast))
                for fast, room in ((True, self.fast[d]), (False, self.slow[d]))
                if room > 0
            ]
            if not options:
                raise FrameworkError(
                    f"trimmoe: the servers have no room for {self.profile.name}, not even in slow memory"
                )
            _, server, fast = min(options)
            self._add(int(layer), int(expert), server, fast=fast)

    def _add(self, layer: int, expert: int, owner: int, *, fast: bool) -> None:
        server = self.cluster.names[owner]
        self.replicas.append(Replica(layer=layer, expert=expert, server=server, precision=FULL, fast=fast))
        (self.fast if fast else self.slow)[owner] -= 1
        self.left_bytes -= self.size

    def _layer_s(self) -> Floats:
        """Time of a layer's dense part and what is needed of its experts, (servers, layers)."""
        dense_s = (self.expected.dense_s + self.expected.launch_s)[:, None]
        time_s: Floats = self.one_s[:, None] * self.need.sum(axis=1)[None, :] + dense_s
        return time_s

    def _benefit_s(self, first: tuple[int, ...], more: tuple[int, ...]) -> float:
        """Equation (5), against the first chain."""
        split = min(f * self._cost_s(first, f) + (1 - f) * self._cost_s(more, 1 - f) for f in SHARES)
        return self._cost_s(first, 1.0) - float(split)

    def _cost_s(self, owners: tuple[int, ...], share: float) -> float:
        """Equation (4)."""
        time_s, homes = self._layer_s(), home_shares(self.cluster)
        rate = self.cluster.arrival_rate_per_s * share
        total_s = float(homes @ self.delay_s[:, owners[0]] + self.delay_s[owners[-1]] @ homes)
        total_s += sum(float(self.move_s[a, b]) for a, b in itertools.pairwise(owners))
        for server in set(owners):
            work_s = sum(float(time_s[server, layer]) for layer, owner in enumerate(owners) if owner == server)
            work_s += float(self.head_s[server]) if server == owners[-1] else 0.0
            total_s += work_s / (1.0 - min(MOST_BUSY, rate * work_s))
        return total_s
