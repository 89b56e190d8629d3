r"""Where TrimMoE keeps its copies: redundancy only for what depth decisions leave to be run.  [reconstruction]

    cut_le    = 1 for the experts that a budget buys off first, by what they save per loss                        (1)
    reach_l   = share of tokens that have not left before layer l, at the gate calibrated for that budget         (2)
    need_le   = called_le reach_l (1 - cut_le)        how many requests run the expert                            (3)
    B(c)      = Σ_h share_h (cost_h - min(cost_h, cost_h with chain c)) / bytes(c)          benefit of a chain    (4)

The first copies are EdgeShard's chain of whole layers, in full precision: everything can be run exactly.  Further
copies form chains too, because an expert is worth having only where the experts before and after it are near; they hold
what (3) needs, so they are shorter and fit where a whole chain does not.  Chains are added by (4) while the memory
budget allows it and (4) is positive.  An expert that only the first chain has is far from a pass on another one: then
it is fetched if it matters, and left out if it does not, which is what the online part decides.

The paper says that replicas are placed by a redundancy benefit that knows about skips and exits; (1) to (4) and the
chains are ours.  Without measured facts nothing is cut, and the need is the expected call.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from agents.cluster import Cluster
from agents.depth.base import skip_loss
from agents.depth.guarantee import calibrate
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

#: Needs below this get no further copy.
NEGLIGIBLE = 0.02
#: Further chains that are tried.
MOST_CHAINS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Copies of what is needed of every layer, whole layers on consecutive servers."""

    owners: tuple[int, ...]  # per layer, a server's position
    cost_s: Floats  # (servers,) by home


def needs(
    expected: Expected, calibration: Calibration, facts: ExpertFacts | None, exits: ExitHeads | None, budget: float
) -> Floats:
    """Equations (1) to (3), (layers, experts)."""
    need = expected.called.copy()
    if exits is not None and budget > 0.0:
        gate = calibrate(exits, risk=min(budget, 0.999), failure=0.1)
        if gate.threshold <= 1.0:
            place = int(np.argmin(np.abs(THRESHOLDS - gate.threshold)))
            gone = np.concatenate([[0.0], np.cumsum(exits.left[place].astype(np.float64))])
            need *= np.clip(1.0 - gone, 0.0, 1.0)[: len(need), None]
    if facts is None:
        return need
    usage = calibration.usage.mean(axis=0)
    loss = np.array([[usage[n, e] * skip_loss(facts, n, e) for e in range(need.shape[1])] for n in range(len(need))])
    order = np.argsort(-(need / loss), axis=None)
    taken = order[np.cumsum(loss.ravel()[order]) <= budget]
    need.ravel()[taken] = 0.0
    return need


def place(
    cluster: Cluster,
    profile: ModelProfile,
    calibration: Calibration,
    facts: ExpertFacts | None,
    exits: ExitHeads | None,
    *,
    budget: float,
) -> Placement:
    """The first chain, and further ones by (4).  FrameworkError where not even the first one fits."""
    first = EdgeShard().place(cluster, profile, calibration)
    expected = Expected(cluster, profile, calibration)
    need = needs(expected, calibration, facts, exits, budget)
    replicas, names = list(first.replicas), list(cluster.names)
    owners = [tuple(names.index(owner) for owner in first.notes["owners"])]
    size = profile.expert_bytes[FULL]
    left_bytes = budget_bytes(cluster, profile) - size * len(replicas)
    room = _room(cluster, replicas, size)
    best_s = _cost_s(owners[0], cluster, profile, expected, np.ones_like(need) * expected.called)
    wanted = need > NEGLIGIBLE
    for _ in range(MOST_CHAINS):
        if size * int(wanted.sum()) > left_bytes or len(names) > MOST_CANDIDATES:
            break
        found = _chain(cluster, profile, expected, need, wanted, room, best_s)
        if found is None or not (home_shares(cluster) @ np.maximum(best_s - found.cost_s, 0.0)) > 0.0:
            break
        for layer, expert in zip(*np.nonzero(wanted), strict=True):
            owner = found.owners[layer]
            replicas.append(
                Replica(layer=int(layer), expert=int(expert), server=names[owner], precision=FULL, fast=True)
            )
            room[owner] -= 1
        left_bytes -= size * int(wanted.sum())
        owners.append(found.owners)
        best_s = np.minimum(best_s, found.cost_s)
    return Placement(replicas=tuple(replicas), notes={"chains": [[names[owner] for owner in each] for each in owners]})


def _room(cluster: Cluster, replicas: list[Replica], size: int) -> list[int]:
    """Full-precision experts for which each fast memory still has room."""
    held = {server.name: 0 for server in cluster.servers}
    for replica in replicas:
        held[replica.server] += replica.fast
    return [int(FAST_SHARE * s.device.fast_bytes // size) - held[s.name] for s in cluster.servers]


def _chain(
    cluster: Cluster,
    profile: ModelProfile,
    expected: Expected,
    need: Floats,
    wanted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    room: list[int],
    best_s: Floats,
) -> Chain | None:
    """The chain that is quickest for the homes that are worst off now."""
    time_s = runs(_layer_s(cluster, profile, expected, need))
    count = np.concatenate([[0], np.cumsum(wanted.sum(axis=1))])
    held = count[None, :] - count[:, None]  # experts of layers i .. j - 1
    time_s = np.where(held[None] <= np.array(room)[:, None, None], time_s, np.inf)
    delay_s = delays(cluster)
    weight = home_shares(cluster) * best_s
    weight = weight / max(weight.sum(), 1e-12)
    head = np.array([head_s(server.device, profile, expected.tokens) for server in cluster.servers])
    shards = best_shards(time_s, move_s=expected.move_s(), enter_s=weight @ delay_s, leave_s=delay_s @ weight + head)
    if shards is None:
        return None
    return Chain(owners=shards.owners, cost_s=_cost_s(shards.owners, cluster, profile, expected, need))


def _layer_s(cluster: Cluster, profile: ModelProfile, expected: Expected, need: Floats) -> Floats:
    """Time of a layer's dense part and what is needed of its experts, (servers, layers)."""
    tokens = max(1, round(expected.tokens * profile.top_k / profile.experts))
    one_s = np.array([call_s(server.device, profile, FULL, tokens) for server in cluster.servers])
    time_s: Floats = one_s[:, None] * need.sum(axis=1)[None, :] + (expected.dense_s + expected.launch_s)[:, None]
    return time_s


def _cost_s(
    owners: tuple[int, ...], cluster: Cluster, profile: ModelProfile, expected: Expected, need: Floats
) -> Floats:
    """Time of a request along a chain, by home (servers,)."""
    time_s, move_s, delay_s = _layer_s(cluster, profile, expected, need), expected.move_s(), delays(cluster)
    inner = sum(float(time_s[owner, layer]) for layer, owner in enumerate(owners))
    inner += sum(float(move_s[a, b]) for a, b in itertools.pairwise(owners))
    inner += head_s(cluster.servers[owners[-1]].device, profile, expected.tokens)
    cost_s: Floats = delay_s[:, owners[0]] + inner + delay_s[owners[-1], :]
    return cost_s
