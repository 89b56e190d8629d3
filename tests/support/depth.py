"""Exit heads and facts of experts for tests: made up, but with the shapes and the spread of real ones."""

from __future__ import annotations

import numpy as np

from agents.models.exits import BINS, THRESHOLDS, ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.quantize import FORMATS


def heads(
    layers: int,
    width: int,
    *,
    domains: int = 2,
    rows: int = 400,
    safe_from: float = 0.6,
    seed: int = 0,
    scale: float = 2.0,
) -> ExitHeads:
    """Gauges that say anything; on the calibration rows nothing is wrong from the threshold ``safe_from`` on."""
    draw = np.random.default_rng(seed)
    exits = layers - 1
    wrong = np.where(THRESHOLDS[:, None] >= safe_from, 0.0, 1.0) * np.ones((1, rows))
    bins = np.ones((exits, BINS))
    return ExitHeads(
        maps=draw.normal(0, 0.02, (exits, width, width)).astype(np.float32),
        shifts=draw.normal(0, 0.02, (exits, width)).astype(np.float32),
        gauge_in=draw.normal(0, width**-0.5, (exits, width, 8)).astype(np.float32),
        gauge_bias=np.zeros((exits, 8), np.float32),
        gauge_out=draw.normal(0, scale, (exits, 8)).astype(np.float32),
        gauge_shift=np.zeros(exits, np.float32),
        wrong=wrong.astype(np.float32),
        left=np.full((len(THRESHOLDS), exits), 1.0 / layers, np.float32),
        domains=(np.arange(rows) % domains).astype(np.int16),
        count=bins.astype(np.float32),
        confidence=(0.5 * bins).astype(np.float32),
        agreement=(0.5 * bins).astype(np.float32),
        rise=np.zeros(exits, np.float32),
    )


def facts(layers: int, experts: int, *, importance: float = 0.002, likeness: float = 1.2, seed: int = 0) -> ExpertFacts:
    """Experts that matter by ``importance``, give or take, and differ from each other by ``likeness``, give or take."""
    draw = np.random.default_rng(seed)
    shape = (layers, experts)
    transition = draw.dirichlet(np.ones(experts), (layers - 1, experts))
    difference = likeness * draw.uniform(0.2, 1.8, (*shape, experts))
    difference[:, np.arange(experts), np.arange(experts)] = 0.0
    return ExpertFacts(
        coactivation=np.full((2, *shape, experts), 0.1, np.float32),
        transition=transition.astype(np.float32),
        loss={precision: np.full(shape, 1e-4, np.float32) for precision in FORMATS},
        importance=(importance * draw.uniform(0.1, 1.9, shape)).astype(np.float32),
        similarity=np.zeros((*shape, experts), np.float32),
        difference=difference.astype(np.float32),
    )
