r"""Where HetRoute keeps which copies, in which precision and which memory.  HetRoute, offline part [reconstruction].

A *pipeline* is one copy of every expert, whole layers on consecutive servers, in the precisions of its recipe
(``hetroute_blend``).  The placement is one full-precision pipeline (the guarantee) and as many lower ones as pay:

    1. near(δ): servers within δ of each other, for every δ at which such a group grows.  Metros come out of the delays.
    2. A pipeline in group G minimises, by ``shards.best_shards``,  moves + sum_d S_d / (1 - ρ_d - λ S_d),           (1)
       S_d its time on d, λ the requests/s that it serves, ρ_d the load that the other pipelines put on d.
    3. Requests split over pipelines as the router would split them: each home takes what is quickest under (1).   (2)
    4. Add the pipeline (group, recipe) that lowers the mean of (2) most, and move all pipelines to where they are
       best given the others, while redundancy allows it and (2) falls at all.
    5. The full-precision pipeline takes what fast memory is left, by the same programme, and slow memory beyond it.
       Steps 2 to 4 again with this pipeline first, carrying its share.
    6. The online router is rehearsed on calibration traffic over the placements of every step of 4, smallest first
       (``hetroute_rehearsal``), but for those that (2) expects to be far behind.  The last one is taken whose unified
       cost is lower than that of the one before by more than the price of its memory.
    7. Residency: per server, copies by  P(selected by the online router) x load time / bytes, as rehearsed.         (3)

Ours: pipelines.  The paper places copy by copy; with links of milliseconds a copy is worth having only where its
neighbours in depth are near, and a whole layer at one server costs no traffic at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.cost import head_s
from agents.frameworks.edgeshard import spill_s, within
from agents.frameworks.expected import Expected, delays, home_shares
from agents.frameworks.hetroute_blend import Recipe
from agents.frameworks.hetroute_outlook import Flow, Outlook, flow
from agents.frameworks.hetroute_rehearsal import Rehearse
from agents.frameworks.placements import budget_bytes
from agents.frameworks.shards import best_shards, runs
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.store import FAST_SHARE

Floats = NDArray[np.float64]
Selected = Mapping[tuple[int, int, str, str], float]  # P(selected) by layer, expert, server, precision

#: A device beyond this load is priced along the tangent, so that an overloaded cluster still has a best placement.
STEEP = 0.9
#: What a further pipeline must lower the rehearsed cost by, as a share (the memory price of step 6).
WORTHWHILE = 0.01
#: A placement whose (2) is this much above the best one's is not rehearsed.
FAR_BEHIND = 1.25
#: Alternating rounds of steps 2 and 3 after each new pipeline.
ROUNDS = 3
#: Candidates of step 4 for which that is done.
SETTLED = 4
#: Share of the traffic for which the guarantee is laid out when faster pipelines carry the rest.
GUARANTEE_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One copy of every expert."""

    recipe: Recipe
    group: tuple[int, ...]  # servers that it may use
    owners: tuple[int, ...]  # by layer
    fast: tuple[bool, ...]  # by layer
    work_s: Floats  # (servers,): time of one request on each device
    fixed_s: Floats  # (homes,): everything that does not queue
    traffic_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which requests take which pipeline (2)."""

    share: Floats  # (homes, pipelines); all entries add up to 1
    mean_s: float


def near_groups(cluster: Cluster) -> list[tuple[int, ...]]:
    """Complete-linkage clusters of servers at every threshold of one-way delay, smallest first.

    Two clusters join at the largest delay between their members, so no member of a group is further from another than
    that threshold.
    """
    delay_s = delays(cluster)
    distance = np.maximum(delay_s, delay_s.T)
    clusters: list[tuple[int, ...]] = [(position,) for position in range(len(cluster.servers))]
    groups = list(clusters)
    while len(clusters) > 1:
        pairs = [(a, b) for k, a in enumerate(clusters) for b in clusters[k + 1 :]]
        one, other = min(pairs, key=lambda pair: (float(distance[np.ix_(pair[0], pair[1])].max()), pair))
        joined = tuple(sorted(one + other))
        clusters = [*(entry for entry in clusters if entry not in (one, other)), joined]
        groups.append(joined)
    return groups


def queueing_s(work_s: Floats, busy: Floats) -> Floats:
    """S / (1 - ρ), continued along its tangent beyond ``STEEP``."""
    under = np.minimum(busy, STEEP)
    slope = 1.0 / (1.0 - STEEP) ** 2
    result: Floats = work_s * (1.0 / (1.0 - under) + slope * np.maximum(busy - STEEP, 0.0))
    return result


class PipelinePlanner:
    """Steps 1 to 5 for one cluster and model."""

    def __init__(
        self,
        cluster: Cluster,
        profile: ModelProfile,
        calibration: Calibration,
        *,
        price_s_per_byte: float,
        penalty_s: Mapping[str, Floats],
    ) -> None:
        self.cluster, self.profile = cluster, profile
        self._penalty_s = penalty_s
        self.expected = Expected(cluster, profile, calibration)
        self._price_s_per_byte = price_s_per_byte
        self._homes = home_shares(cluster)
        self._delay_s = delays(cluster)
        self._move_s = self.expected.move_s() + price_s_per_byte * self.expected.state_bytes * (self._delay_s > 0)
        self._head_s = np.array([head_s(s.device, profile, self.expected.tokens) for s in cluster.servers])
        self._fast_bytes = np.array([FAST_SHARE * server.device.fast_bytes for server in cluster.servers])
        self._slow_bytes = np.array([float(server.device.slow_bytes) for server in cluster.servers])
        self._groups = near_groups(cluster)

    def stages(
        self, recipes: Sequence[Recipe], progress: Callable[[str], None] = lambda text: None
    ) -> list[tuple[list[Pipeline], Split]]:
        """Steps 2 to 5, a placement for every step of 4, smallest first; the guarantee is the last pipeline of each.

        Twice: lower pipelines first, which carry everything, and the guarantee where they leave room; and the guarantee
        first, with others beside it, which is better where a whole model fits a quick server.
        """
        found = [*self._solved(recipes, progress, beside=False), *self._solved(recipes, progress, beside=True)[1:]]
        return sorted(found, key=lambda stage: sum(pipeline.recipe.total_bytes(self.profile) for pipeline in stage[0]))

    def _solved(
        self, recipes: Sequence[Recipe], progress: Callable[[str], None], *, beside: bool
    ) -> list[tuple[list[Pipeline], Split]]:
        """One of them; ``beside``: the guarantee is first, and stays."""
        chosen: list[Pipeline] = []
        guarantee = self.guarantee(chosen)
        fixed = [guarantee] if beside else []
        split = self.split([guarantee])
        spare_bytes = budget_bytes(self.cluster, self.profile) - guarantee.recipe.total_bytes(self.profile)
        if spare_bytes < 0:
            raise FrameworkError(
                "hetroute keeps a full-precision copy of every expert; "
                f"redundancy {self.cluster.redundancy:g} is below 1"
            )
        stages = [([guarantee], split)]
        while True:
            progress(_said(chosen, split, beside=beside))
            left_bytes = spare_bytes - sum(pipeline.recipe.total_bytes(self.profile) for pipeline in chosen)
            affordable = [recipe for recipe in recipes if recipe.total_bytes(self.profile) <= left_bytes]
            grown = self._with_one_more(chosen, affordable, fixed)
            if grown is None or self.split([*grown, *fixed]).mean_s >= split.mean_s:
                return stages
            chosen, split = grown, self.split([*grown, *fixed])
            pipelines = [*chosen, *(fixed or [self.guarantee(chosen)])]
            stages.append((pipelines, self.split(pipelines)))

    def _with_one_more(
        self, chosen: Sequence[Pipeline], recipes: Sequence[Recipe], fixed: Sequence[Pipeline]
    ) -> list[Pipeline] | None:
        """Step 4: the best addition, None if nothing fits; only the ``SETTLED`` most promising are settled."""
        others = [*chosen, *fixed]
        serves = self._homes / (len(others) + 1)
        looks: list[tuple[float, int, list[Pipeline]]] = []
        for recipe in recipes:
            for group in self._groups:
                first = self.lay(recipe, group, others=others, split=None, serves=serves, spill=False)
                if first is not None:
                    looks.append((self.split([*chosen, first, *fixed]).mean_s, len(looks), [*chosen, first]))
        settled = [self._settled(pipelines, fixed) for _, _, pipelines in sorted(looks)[:SETTLED]]
        return min(settled, key=lambda pipelines: self.split([*pipelines, *fixed]).mean_s, default=None)

    def _settled(self, pipelines: list[Pipeline], fixed: Sequence[Pipeline]) -> list[Pipeline]:
        """Steps 2 and 3 in turn: each pipeline is laid out anew given the others, the best of all rounds is kept."""
        best, best_s = list(pipelines), self.split([*pipelines, *fixed]).mean_s
        for _ in range(ROUNDS):
            for k, pipeline in enumerate(pipelines):
                share = self.split([*pipelines, *fixed]).share
                laid = self.lay(
                    pipeline.recipe,
                    pipeline.group,
                    others=[*pipelines[:k], *pipelines[k + 1 :], *fixed],
                    split=np.delete(share, k, axis=1),
                    serves=np.maximum(share[:, k], GUARANTEE_SHARE * self._homes),
                    spill=False,
                )
                if laid is not None:
                    pipelines[k] = laid
            mean_s = self.split([*pipelines, *fixed]).mean_s
            if mean_s < best_s:
                best, best_s = list(pipelines), mean_s
        return best

    def guarantee(self, chosen: Sequence[Pipeline]) -> Pipeline:
        """Step 5: alone it carries everything, beside others what they cannot."""
        share = self.split(chosen).share if chosen else None
        serves = self._homes * (GUARANTEE_SHARE if chosen else 1.0)
        everywhere, full = tuple(range(len(self.cluster.servers))), Recipe.uniform(FULL, self.profile.layers)
        for spill in (False, True):
            laid = self.lay(full, everywhere, others=chosen, split=share, serves=serves, spill=spill)
            if laid is not None:
                return laid
        raise FrameworkError(f"the servers have no room for a full-precision copy of {self.profile.name}")

    def lay(
        self,
        recipe: Recipe,
        group: tuple[int, ...],
        *,
        others: Sequence[Pipeline],
        split: Floats | None,
        serves: Floats,
        spill: bool,
    ) -> Pipeline | None:
        """Equation (1): the best pipeline in a group, given who else is where and whom it serves (homes,).

        Into fast memory a run of layers fits by its bytes.  With ``spill`` layers are counted, at the size of the
        largest, which wastes some memory of a blend; only the guarantee spills, and its layers have one size.
        """
        members = np.array(group)
        layer_bytes = recipe.layer_bytes(self.profile)
        fast_bytes, slow_bytes = self._fast_bytes.copy(), self._slow_bytes.copy()
        for other in others:
            taken_bytes = other.recipe.layer_bytes(self.profile)
            for owner, fast, size_bytes in zip(other.owners, other.fast, taken_bytes, strict=True):
                (fast_bytes if fast else slow_bytes)[owner] -= size_bytes
        counted_bytes = layer_bytes.max() if spill else layer_bytes.min()
        fits = np.maximum(fast_bytes // counted_bytes, 0).astype(np.int64)[members]
        holds = fits + (np.maximum(slow_bytes // counted_bytes, 0).astype(np.int64)[members] if spill else 0)
        if holds.sum() < self.profile.layers:
            return None
        background = self._busy(others, split)[members]
        rate = self.cluster.arrival_rate_per_s * float(serves.sum())
        service_s = runs(recipe.pick(self.expected.layer_s)[members])
        fitting = runs(layer_bytes[None]) <= fast_bytes[members, None, None]
        feasible = within(service_s, holds) if spill else np.where(fitting, service_s, np.inf)
        finite = np.where(np.isfinite(feasible), feasible, 0.0)
        time_s = queueing_s(finite, background[:, None, None] + rate * finite)
        if spill:
            time_s = time_s + spill_s(recipe.pick(self.expected.layer_load_s)[members], fits)
        weight = serves / serves.sum()
        shards = best_shards(
            np.where(np.isfinite(feasible), time_s, np.inf),
            move_s=self._move_s[np.ix_(members, members)],
            enter_s=(weight @ self._delay_s)[members],
            leave_s=(self._delay_s @ weight + self._head_s)[members],
        )
        if shards is None:
            return None
        owners = tuple(int(members[owner]) for owner in shards.owners)
        return self._pipeline(recipe, group, owners, fast_bytes)

    def split(self, pipelines: Sequence[Pipeline], rounds: int = 60) -> Split:
        """Equation (2): homes choose the quickest pipeline, in equilibrium (successive averages)."""
        work_s = np.array([pipeline.work_s for pipeline in pipelines])  # (pipelines, servers)
        fixed_s = np.array([pipeline.fixed_s for pipeline in pipelines]).T  # (homes, pipelines)
        share = np.zeros(fixed_s.shape)
        cost_s = fixed_s
        for step in range(1, rounds + 1):
            busy = self.cluster.arrival_rate_per_s * share.sum(axis=0) @ work_s
            cost_s = fixed_s + queueing_s(work_s, busy[None]).sum(axis=1)[None]
            quickest = np.zeros(share.shape)
            quickest[np.arange(len(share)), cost_s.argmin(axis=1)] = self._homes
            share += (quickest - share) / step
        return Split(share=share, mean_s=float((share * cost_s).sum()))

    def _busy(self, pipelines: Sequence[Pipeline], share: Floats | None) -> Floats:
        if not pipelines:
            return np.zeros(len(self.cluster.servers))
        if share is None:
            share = self.split(pipelines).share * len(pipelines) / (len(pipelines) + 1)
        busy: Floats = self.cluster.arrival_rate_per_s * share.sum(axis=0) @ np.array([p.work_s for p in pipelines])
        return busy

    def _pipeline(self, recipe: Recipe, group: tuple[int, ...], owners: tuple[int, ...], room: Floats) -> Pipeline:
        """``room``: bytes of fast memory left on every server; this takes its part of them."""
        layer_s, load_s = recipe.pick(self.expected.layer_s), recipe.pick(self.expected.layer_load_s)
        layer_bytes = recipe.layer_bytes(self.profile)
        work_s = np.zeros(len(self.cluster.servers))
        fast, fixed_s, moves = [], float(recipe.pick(self._penalty_s.__getitem__).sum()), 0
        for layer, owner in enumerate(owners):
            work_s[owner] += layer_s[owner, layer]
            room[owner] -= layer_bytes[layer]
            fast.append(bool(room[owner] >= 0))
            fixed_s += 0.0 if fast[-1] else float(load_s[owner, layer])
            if layer and owners[layer - 1] != owner:
                fixed_s += float(self._move_s[owners[layer - 1], owner])
                moves += 1
        work_s[owners[-1]] += self._head_s[owners[-1]]
        return Pipeline(
            recipe=recipe,
            group=group,
            owners=owners,
            fast=tuple(fast),
            work_s=work_s,
            fixed_s=fixed_s + self._delay_s[:, owners[0]] + self._delay_s[owners[-1], :],
            traffic_bytes=float(moves * self.expected.state_bytes),
        )


def place(
    cluster: Cluster,
    profile: ModelProfile,
    calibration: Calibration,
    *,
    recipes: Sequence[Recipe],
    price_s_per_byte: float,
    penalty_s: Mapping[str, Floats],
    loss_price_s: float,
    residency: bool = True,
    rehearse: Rehearse | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Placement:
    """Steps 1 to 7.  ``penalty_s``: price of each layer's loss, for every precision that may be used.

    Without ``rehearse`` the fluid model of ``hetroute_outlook`` stands in for the router in steps 6 and 7.
    """
    planner = PipelinePlanner(cluster, profile, calibration, price_s_per_byte=price_s_per_byte, penalty_s=penalty_s)
    stages = [
        (_placement(pipelines, split, cluster, profile), split)
        for pipelines, split in planner.stages(recipes, progress)
    ]
    best: tuple[Placement, Selected] | None = None
    best_s = float("inf")
    hopeful_s = FAR_BEHIND * min(split.mean_s for _, split in stages)
    for placement, split in stages:
        if split.mean_s > hopeful_s:
            continue
        if rehearse is None:
            outlook = Outlook(
                cluster,
                profile,
                planner.expected,
                placement.replicas,
                price_s_per_byte=price_s_per_byte,
                penalty_s=penalty_s,
            )
            fluid = flow(outlook, cluster, planner.expected)
            found: Selected = fluid_selected(fluid, outlook, cluster)
            waits: Mapping[str, float] = dict(zip(cluster.names, map(float, fluid.wait_s), strict=True))
            cost_s = split.mean_s
        else:
            seen = rehearse(placement, cluster, profile, calibration)
            found, waits, cost_s = seen.selected, seen.wait_s, seen.cost_s(loss_price_s)
            progress(f"rehearsed {len(placement.notes['pipelines'])} pipelines: {1e3 * seen.mean_s:.1f} ms")
        placement.notes.update(wait_s=dict(waits), rehearsed_s=cost_s)
        if cost_s <= (1.0 - WORTHWHILE) * best_s:
            best, best_s = (placement, found), cost_s
    if best is None:
        raise FrameworkError("hetroute found no placement")
    placement, found = best
    if residency:
        replicas = resident(placement.replicas, cluster, profile, found)
        placement = Placement(replicas=tuple(replicas), notes=placement.notes)
    return placement


def _said(chosen: Sequence[Pipeline], split: Split, *, beside: bool) -> str:
    lower = ", ".join(pipeline.recipe.name for pipeline in chosen) or "none"
    where = " beside the guarantee" if beside else ""
    return f"lower pipelines{where}: {lower}; {1e3 * split.mean_s:.1f} ms expected"


def _placement(pipelines: Sequence[Pipeline], split: Split, cluster: Cluster, profile: ModelProfile) -> Placement:
    """The copies of some pipelines; of two that share a copy the one in fast memory counts."""
    replicas: dict[tuple[int, int, str, str], Replica] = {}
    for pipeline in pipelines:
        where = zip(pipeline.owners, pipeline.recipe.precisions, pipeline.fast, strict=True)
        for layer, (owner, precision, fast) in enumerate(where):
            for expert in range(profile.experts):
                key = (layer, expert, cluster.names[owner], precision)
                known = replicas.get(key)
                if known is None or (fast and not known.fast):
                    replicas[key] = Replica(layer=layer, expert=expert, server=key[2], precision=precision, fast=fast)
    notes = {
        "pipelines": [
            {
                "precision": pipeline.recipe.name,
                "owners": [cluster.names[owner] for owner in pipeline.owners],
                "share": float(split.share[:, k].sum()),
            }
            for k, pipeline in enumerate(pipelines)
        ],
        "expected_s": split.mean_s,
    }
    return Placement(replicas=tuple(replicas.values()), notes=notes)


def fluid_selected(expectation: Flow, outlook: Outlook, cluster: Cluster) -> dict[tuple[int, int, str, str], float]:
    """P(selected) of every copy that the fluid model uses."""
    return {
        (layer, expert, cluster.names[server], replica.precision): float(expectation.selected[layer, expert, server])
        for (layer, expert, server), replica in outlook.best.items()
    }


def resident(replicas: Sequence[Replica], cluster: Cluster, profile: ModelProfile, selected: Selected) -> list[Replica]:
    """Step 7: which copies of each server are in fast memory, by equation (3); a copy that stays put breaks ties."""
    if all(replica.fast for replica in replicas):
        return list(replicas)

    def benefit(replica: Replica) -> tuple[float, bool, Replica]:
        # Load time / bytes is the same for all copies of one server, so P(selected) alone orders them.
        share = selected.get((replica.layer, replica.expert, replica.server, replica.precision), 0.0)
        return -share, not replica.fast, replica

    result = []
    for server in cluster.servers:
        room_bytes = FAST_SHARE * server.device.fast_bytes
        for replica in sorted((entry for entry in replicas if entry.server == server.name), key=benefit):
            size_bytes = profile.expert_bytes[replica.precision]
            fast = size_bytes <= room_bytes
            room_bytes -= size_bytes if fast else 0
            result.append(msgspec.structs.replace(replica, fast=fast))
    return sorted(result)
