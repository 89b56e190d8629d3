"""Clusters, models and a live state for tests of frameworks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agents.cluster import Cluster, cluster_of
from agents.frameworks.base import Demand, ExpertDemand, View
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import Placement
from testbed.load import load_topology

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
MIXTRAL = ModelProfile.load("mixtral-8x7b")


def cluster(name: str = "edge10", *, rate: float = 20.0, redundancy: float = 2.0) -> Cluster:
    return cluster_of(
        load_topology(TOPOLOGIES / f"{name}.yaml"),
        arrival_rate_per_s=rate,
        tokens_per_request=37,
        redundancy=redundancy,
    )


def calibration(
    profile: ModelProfile = MIXTRAL, *, int8: float = 3e-4, int4: float = 3e-3, seed: int = 0
) -> Calibration:
    usage = np.random.default_rng(seed).dirichlet(np.full(profile.experts, 8.0), size=(3, profile.layers))
    loss = {"full": 0.0, "int8": int8, "int4": int4}
    return Calibration(
        tokens=1000,
        domains=("a", "b", "c"),
        usage=usage,
        precision_loss={name: (total / profile.layers,) * profile.layers for name, total in loss.items()},
        precision_loss_total=loss,
    )


class Still:
    """A cluster at rest, except for what a test says."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lost: set[str] = set()
        self.backlog_s: dict[str, float] = {}
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def alive(self, server: str) -> bool:
        return server not in self.lost

    def load(self, server: str) -> tuple[float, float, float]:
        waiting = self.backlog_s.get(server, 0.0)
        return waiting, waiting, 0.0

    def path(self, source: str, target: str) -> tuple[float, float]:
        a, b = self.cluster.index(source), self.cluster.index(target)
        return self.cluster.delay_s[a][b], self.cluster.rate_bps[a][b]


def view(
    server: str, live: Still, placement: Placement, measured: Calibration, profile: ModelProfile = MIXTRAL
) -> View:
    return View(
        server=server, cluster=live.cluster, profile=profile, calibration=measured, placement=placement, live=live
    )


def demand(
    layer: int,
    *,
    home: str = "s1",
    tokens: int = 37,
    experts: int = 8,
    top_k: int = 2,
    seed: int = 0,
    spent: float = 0.0,
    budget: float = 0.02,
    next_server: str | None = None,
    request: int = 0,
    notes: bytes = b"",
) -> Demand:
    """What a gate that draws experts at random would ask for."""
    random = np.random.default_rng([seed, layer])
    chosen = np.array([random.choice(experts, size=top_k, replace=False) for _ in range(tokens)]).reshape(tokens, top_k)
    entries = []
    for expert in sorted({int(e) for e in chosen.ravel()}):
        rows = [token for token in range(tokens) if expert in chosen[token]]
        entries.append(
            ExpertDemand(
                expert=expert,
                rows=sum(1 << row for row in rows),
                tokens=len(rows),
                gate_share=len(rows) / (tokens * top_k),
            )
        )
    return Demand(
        request=request,
        kind="score",
        step=0,
        layer=layer,
        home=home,
        tokens=tokens,
        experts=tuple(entries),
        quality_spent=spent,
        quality_budget=budget,
        next_server=next_server,
        notes=notes,
    )
