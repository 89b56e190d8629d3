"""Placements that several frameworks share, and the checks that every placement must pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.quantize import FULL
from agents.protocol import Placement, Replica
from agents.store import FAST_SHARE


class Memory:
    """Free memory of every server while a placement is being made."""

    def __init__(self, cluster: Cluster) -> None:
        self.fast_bytes = {server.name: FAST_SHARE * server.device.fast_bytes for server in cluster.servers}
        self.slow_bytes = {server.name: float(server.device.slow_bytes) for server in cluster.servers}

    def take(self, server: str, size_bytes: int) -> bool | None:
        """Take room for one copy; True if it went to fast memory, False if to slow, None if there is no room."""
        if self.fast_bytes[server] >= size_bytes:
            self.fast_bytes[server] -= size_bytes
            return True
        if self.slow_bytes[server] >= size_bytes:
            self.slow_bytes[server] -= size_bytes
            return False
        return None


def budget_bytes(cluster: Cluster, profile: ModelProfile) -> float:
    """The memory that a placement may use: redundancy x all experts once in full precision."""
    return cluster.redundancy * profile.layers * profile.experts * profile.expert_bytes[FULL]


def apportion(weights: Sequence[float], total: int, most: Sequence[int]) -> list[int]:
    """``total`` whole units in proportion to ``weights``, none with more than its ``most``: largest remainders.

    What a full one cannot take goes to the others, again in proportion; less than ``total`` if all are full.  Where all
    weights are zero they count as equal.

    >>> apportion([3.0, 1.0, 1.0], 8, [4, 4, 4])
    [4, 2, 2]
    """
    given = [0] * len(weights)
    left = min(total, sum(most))
    places = list(range(len(weights)))
    while True:
        weight = sum(weights[place] for place in places)
        shares = {p: left * weights[p] / weight if weight > 0 else left / len(places) for p in places}
        full = [place for place in places if shares[place] >= most[place]]
        if not full:
            break
        for place in full:
            given[place] = most[place]
            left -= most[place]
        places = [place for place in places if place not in full]
    for place in places:
        given[place] = int(shares[place])
        left -= given[place]
    for place in sorted(places, key=lambda place: (given[place] - shares[place], place))[:left]:
        given[place] += 1
    return given


def known_precision(precision: str, profile: ModelProfile, *, framework: str) -> None:
    """FrameworkError if the model has no such precision."""
    if precision not in profile.expert_bytes:
        raise FrameworkError(
            f"{framework} cannot run in precision {precision!r}; {profile.name} has {', '.join(profile.expert_bytes)}"
        )


def copies_per_server(cluster: Cluster, profile: ModelProfile, precision: str, *, framework: str) -> list[int]:
    """How many copies each server takes when fast memory sets the size: as many as fit there, cut in proportion to the
    budget.  Slow memory is used only where all fast memory together cannot hold one copy of every expert.

    FrameworkError when budget or memory is too small for that.
    """
    size_bytes, every = profile.expert_bytes[precision], profile.layers * profile.experts
    allowed = int(budget_bytes(cluster, profile) // size_bytes)
    if allowed < every:
        raise FrameworkError(
            f"{framework} needs one copy of all experts; redundancy {cluster.redundancy:g} is too small"
        )
    fast = [min(every, int(FAST_SHARE * server.device.fast_bytes // size_bytes)) for server in cluster.servers]
    if sum(fast) >= every:
        return apportion(fast, min(allowed, sum(fast)), fast)
    slow = [
        min(every - held, server.device.slow_bytes // size_bytes)
        for held, server in zip(fast, cluster.servers, strict=True)
    ]
    if sum(fast) + sum(slow) < every:
        raise FrameworkError(
            f"the servers have no room for {profile.name} in precision {precision}, not even in slow memory"
        )
    more = apportion(slow, every - sum(fast), slow)
    return [held + added for held, added in zip(fast, more, strict=True)]


def spread(cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
    """Every expert once, then the most used ones again until the budget is spent; each copy goes to the server with the
    largest share of its fast memory free that does not hold this expert yet.
    """
    memory = Memory(cluster)
    size_bytes = profile.expert_bytes[FULL]
    held: dict[tuple[int, int], set[str]] = {}
    replicas: list[Replica] = []
    usage = calibration.usage.mean(axis=0)  # (layers, experts)
    every = [(layer, expert) for layer in range(profile.layers) for expert in range(profile.experts)]
    popular = sorted(every, key=lambda key: (-float(usage[key]), key))
    copies = int(budget_bytes(cluster, profile) // size_bytes)
    order = [*every, *(popular * len(cluster.servers))][:copies]
    for layer, expert in order:
        holders = held.setdefault((layer, expert), set())
        candidates = sorted(
            (server for server in cluster.servers if server.name not in holders),
            key=lambda server: -memory.fast_bytes[server.name] / server.device.fast_bytes,
        )
        for server in candidates:
            fast = memory.take(server.name, size_bytes)
            if fast is not None:
                replicas.append(Replica(layer=layer, expert=expert, server=server.name, precision=FULL, fast=fast))
                holders.add(server.name)
                break
        else:
            if not holders:
                raise FrameworkError(f"expert {expert} of layer {layer} fits on no server")
    return Placement(replicas=tuple(replicas))


def check_placement(placement: Placement, cluster: Cluster, profile: ModelProfile, *, framework: str) -> None:
    """FrameworkError if a placement leaves an expert out, repeats a copy, or takes more memory than it may."""
    memory = Memory(cluster)
    used_bytes = 0
    seen: set[tuple[int, int, str, str]] = set()
    for replica in placement.replicas:
        key = (replica.layer, replica.expert, replica.server, replica.precision)
        if key in seen:
            raise FrameworkError(f"{framework} places {_named(replica)} twice on {replica.server}")
        seen.add(key)
        if replica.server not in memory.fast_bytes:
            raise FrameworkError(f"{framework} places {_named(replica)} on {replica.server}, which is no server")
        size_bytes = profile.expert_bytes.get(replica.precision)
        if size_bytes is None:
            raise FrameworkError(f"{framework} places {_named(replica)} in the unknown precision {replica.precision}")
        used_bytes += size_bytes
        pool = memory.fast_bytes if replica.fast else memory.slow_bytes
        pool[replica.server] -= size_bytes
        if pool[replica.server] < 0:
            kind = "fast" if replica.fast else "slow"
            raise FrameworkError(f"{framework} overfills the {kind} memory of {replica.server}")
    missing = _missing(placement.replicas, profile)
    if missing:
        raise FrameworkError(f"{framework} has no copy of expert {missing[0][1]} of layer {missing[0][0]} anywhere")
    allowed_bytes = budget_bytes(cluster, profile)
    if used_bytes > allowed_bytes:
        raise FrameworkError(
            f"{framework} uses {used_bytes / 1e9:.1f} GB for experts; redundancy {cluster.redundancy:g} allows "
            f"{allowed_bytes / 1e9:.1f} GB"
        )


def _missing(replicas: Iterable[Replica], profile: ModelProfile) -> list[tuple[int, int]]:
    present = {(replica.layer, replica.expert) for replica in replicas}
    every = ((layer, expert) for layer in range(profile.layers) for expert in range(profile.experts))
    return [key for key in every if key not in present]


def _named(replica: Replica) -> str:
    return f"expert {replica.expert} of layer {replica.layer}"
