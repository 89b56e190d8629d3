r"""Each server keeps what its own users ask for most.  Prism, first called DanceMoE, arXiv 2508.12851 [reconstruction].

    f_n(l, e)   activation frequency at server n: how often its requests choose expert e of layer l               (1)
    H_n(l)      = - sum_e p log p,   p = f_n(l, e) / sum_e f_n(l, e)                                              (2)
    c_n(l)      ∝ H_n(l),   sum_l c_n(l) = copies that n has room for,   c_n(l) <= experts                        (3)
    repair      while sum_n c_n(l) < experts: a slot moves to l from a layer that has more than it needs          (4)
    assign      server n keeps the c_n(l) experts of layer l with the largest f_n                                 (5)
    cover       an expert that nobody keeps takes the place of the duplicate with the least λ_n f_n               (6)
    online      home's own copy, else the one with the smallest round trip; gathered at home                      (7)

    λ_n  share of the requests that arrive at n

Every five minutes the paper recomputes (1) to (6) from what was counted, and migrates where that pays:
``prism_migration``.  Our engine cannot move copies during a run, so nothing here does: the placement is made for the
frequencies of the whole run, which is what migration would reach under a steady load.  Under a load that drifts, a
deployed Prism would do better than this one.

Where we differ: f_n comes from calibration instead of a history (``domains``); room is fast memory, cut to the common
budget (``placements.copies_per_server``), and slow memory only where that cannot hold every expert; (4) takes from
the layer with most to spare, at the server that has most of it.  ``precision`` makes the same in int8 or int4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.frameworks.domains import server_usage
from agents.frameworks.expected import Floats, home_shares
from agents.frameworks.local_first import LocalFirst
from agents.frameworks.placements import Memory, apportion, copies_per_server, known_precision
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
        super().__init__(rest)

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Equations (1) to (6)."""
        known_precision(self.precision, profile, framework=self.name)
        rooms = copies_per_server(cluster, profile, self.precision, framework=self.name)
        usage = server_usage(cluster, calibration)
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
