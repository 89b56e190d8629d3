r"""Each server keeps what its own users ask for most.  Prism, first called DanceMoE, arXiv 2508.12851 [reconstruction].

    f_n(l, e)   activation frequency at server n: how often its requests choose expert e of layer l               (1)
    H_n(l)      = - sum_e p log p,   p = f_n(l, e) / sum_e f_n(l, e)                                              (2)
    c_n(l)      ∝ H_n(l),   sum_l c_n(l) = copies that n has room for,   c_n(l) <= experts                        (3)
    repair      while sum_n c_n(l) < experts: a slot moves to l from a layer that has more than it needs          (4)
    assign      server n keeps the c_n(l) experts of layer l with the largest f_n                                 (5)
    cover       an expert that nobody keeps takes the place of the duplicate with the least λ_n f_n               (6)
    online      home's own copy, else the one with the smallest round trip; gathered at home                      (7)

    λ_n  share of the requests that arrive at n

Every five minutes (``review_s``) servers tell what their users have asked for, (1) to (6) are computed anew from these
counts, and copies move where that pays: ``prism_migration``.  Until the first review, f_n is what calibration expects
of the users of n (``domains``), instead of a history.  Of a layer of a server where nothing was counted, that is kept.

Where we differ: room is fast memory, cut to the common budget (``placements.copies_per_server``), and slow memory only
where that cannot hold every expert; (4) takes from the layer with most to spare, at the server that has most of it; the
review runs in the orchestrator, so that counts and decisions cost no time on the links.  ``precision`` makes the same
in int8 or int4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.frameworks.base import Demand, Plan, Review, View
from agents.frameworks.domains import server_usage
from agents.frameworks.expected import Floats, home_shares
from agents.frameworks.local_first import LocalFirst
from agents.frameworks.placements import Memory, apportion, copies_per_server, known_precision
from agents.frameworks.prism_migration import INTERVAL_S, worth_migrating
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica

Counts = NDArray[np.int64]
Held = NDArray[np.bool_]  # (servers, layers, experts)


class Prism(LocalFirst):
    """Equations (1) to (7); online it is local-first on a placement that makes local likely."""

    name = "prism"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.precision = str(rest.pop("precision", FULL))
        self.interval_s = self.review_s = float(rest.pop("review_s", INTERVAL_S))
        super().__init__(rest)
        self._asked: Counts | None = None  # (layers, experts): tokens of this server's users since the last review

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Equations (1) to (6)."""
        known_precision(self.precision, profile, framework=self.name)
        return self._placed(cluster, profile, server_usage(cluster, calibration))

    def begin(self, view: View) -> None:
        """Count from the start."""
        self._asked = np.zeros((view.profile.layers, view.profile.experts), dtype=np.int64)

    def plan(self, demand: Demand, view: View) -> Plan:
        """Equation (7), counted for the next review: who plans here are this server's own users."""
        if self._asked is not None and not demand.again:
            for entry in demand.experts:
                self._asked[demand.layer, entry.expert] += entry.tokens
        return super().plan(demand, view)

    def counted(self) -> list[list[int]]:
        """Equation (1), since the last time."""
        if self._asked is None:
            return []
        asked: list[list[int]] = self._asked.tolist()
        self._asked[:] = 0
        return asked

    def review(self, review: Review) -> Placement | None:
        """Equations (1) to (6) for what was counted, if that is worth the move."""
        shape = (len(review.cluster.servers), review.profile.layers, review.profile.experts)
        counts = np.zeros(shape)
        for server, asked in review.counted.items():
            if asked:
                counts[review.cluster.index(server)] = asked
        if not counts.any():
            return None
        usage = usage_of(counts, server_usage(review.cluster, review.calibration))
        seen = as_counted(review.cluster, counts, review.elapsed_s, top_k=review.profile.top_k)
        wanted = self._placed(seen, review.profile, usage)
        worth = worth_migrating(
            review.placement, wanted, cluster=seen, profile=review.profile, usage=usage, interval_s=self.interval_s
        )
        return wanted if worth else None

    def _placed(self, cluster: Cluster, profile: ModelProfile, usage: Floats) -> Placement:
        rooms = copies_per_server(cluster, profile, self.precision, framework=self.name)
        slots = repaired(slots_per_layer(usage, rooms), experts=profile.experts)
        held = covered(assigned(usage, slots), home_shares(cluster)[:, None, None] * usage)
        memory, size_bytes = Memory(cluster), profile.expert_bytes[self.precision]
        replicas = []
        for server, name in enumerate(cluster.names):
            kept = [(int(layer), int(expert)) for layer, expert in np.argwhere(held[server])]
            # What is used most goes to fast memory, should there be too little of it.
            for layer, expert in sorted(kept, key=lambda key: (-usage[(server, *key)], key)):
                fast = memory.take(name, size_bytes) is True
                replicas.append(Replica(layer=layer, expert=expert, server=name, precision=self.precision, fast=fast))
        return Placement(replicas=tuple(sorted(replicas)))


def usage_of(counts: Floats, otherwise: Floats) -> Floats:
    """Equation (1) as shares of each layer, (servers, layers, experts); ``otherwise`` where nothing was counted.

    >>> usage_of(np.array([[[3.0, 1.0], [0.0, 0.0]]]), np.full((1, 2, 2), 0.5)).tolist()
    [[[0.75, 0.25], [0.5, 0.5]]]
    """
    total = counts.sum(axis=-1, keepdims=True)
    found: Floats = np.where(total > 0, counts / np.maximum(total, 1.0), otherwise)
    return found


def as_counted(cluster: Cluster, counts: Floats, elapsed_s: float, *, top_k: int) -> Cluster:
    """The cluster with the load and the home shares that were counted, in tokens of its first layer."""
    tokens = counts[:, 0].sum(axis=1) / top_k
    shares = tokens / max(1.0, tokens.sum())
    return structs.replace(
        cluster,
        servers=tuple(
            structs.replace(server, home_share=float(share))
            for server, share in zip(cluster.servers, shares, strict=True)
        ),
        arrival_rate_per_s=float(tokens.sum() / (max(1, cluster.tokens_per_request) * elapsed_s)),
    )


def entropy(usage: Floats) -> Floats:
    """Equation (2) over the last axis, in nats.

    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(3).tolist()
    [0.693, 0.0]
    """
    share = usage / np.maximum(usage.sum(axis=-1, keepdims=True), 1e-12)
    diversity: Floats = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=-1)
    return np.abs(diversity)


def slots_per_layer(usage: Floats, rooms: list[int]) -> Counts:
    """Equation (3), (servers, layers), from usage (servers, layers, experts)."""
    _, layers, experts = usage.shape
    diversity = entropy(usage)
    counts = [apportion(diversity[server].tolist(), room, [experts] * layers) for server, room in enumerate(rooms)]
    return np.array(counts, dtype=np.int64)


def repaired(slots: Counts, *, experts: int) -> Counts:
    """Equation (4): every layer has a slot for each expert somewhere, no server more or fewer slots than before.

    ValueError if there are not enough slots for that in all.

    >>> repaired(np.array([[1, 2], [0, 2]]), experts=2).tolist()
    [[2, 1], [0, 2]]
    """
    if slots.sum() < slots.shape[1] * experts:
        raise ValueError(f"{slots.sum()} slots are too few for {slots.shape[1]} layers of {experts} experts")
    slots = slots.copy()
    while (total := slots.sum(axis=0)).min() < experts:
        needy, donor = int(total.argmin()), int(total.argmax())
        server = int(slots[:, donor].argmax())
        slots[server, donor] -= 1
        slots[server, needy] += 1
    return slots


def assigned(usage: Floats, slots: Counts) -> Held:
    """Equation (5); of equally used experts the lowest."""
    rank = np.argsort(np.argsort(-usage, axis=2, kind="stable"), axis=2, kind="stable")
    held: Held = rank < slots[:, :, None]
    return held


def covered(held: Held, frequency: Floats) -> Held:
    """Equation (6): every expert of every layer is held; ``frequency`` is λ_n f_n."""
    held = held.copy()
    for layer in range(held.shape[1]):
        here, asked = held[:, layer], frequency[:, layer]
        for expert in np.flatnonzero(~here.any(axis=0)):
            spare = here & (here.sum(axis=0) > 1)
            server, duplicate = np.unravel_index(int(np.where(spare, asked, np.inf).argmin()), asked.shape)
            here[server, duplicate] = False
            here[server, expert] = True
    return held
