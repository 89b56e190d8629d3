r"""A paper's grid as one table, a row per run, and estimates over seeds that are paired where they compare.

    latency_i   of request i; one that failed counts with its deadline, so that failing never makes quicker          (1)
    within      requests with latency <= SLO / all sent                                                             (2)
    goodput     within · sent / length of the arrival timeline                                                      (3)
    drained     0.6 n / (t_80 - t_20), t_q: when q % of the n answers were home; under overload what a framework    (4)
                gets done, without its beginning and its last stragglers
    change      mean over seeds s of x_s / y_s - 1, where x_s and y_s saw the same arrivals; Student's t            (5)

Where a run under one condition stands in several parts, that of the part first in the alphabet counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from analysis.bootstrap import Estimate
from analysis.load import Run, load
from analysis.paperlines import latencies_s, line
from analysis.quality import QUALITY
from analysis.seeds import over_seeds
from analysis.sweep import ValueOnly
from testbed.errors import TestbedError

PART_FILE = "part.json"
TERMS = ("transmission", "loading", "compute", "quality", "traffic", "ahead")
KINDS = ("local fast", "remote fast", "slow", "substitute", "fallback")


class PartFile(msgspec.Struct, frozen=True, kw_only=True):
    """What ``part.json`` says of a part's condition."""

    name: str
    model: str
    rate_per_s: float
    duration_s: float
    scenario: str
    budget: float
    redundancy: float
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a run was played under, but for framework and seed."""

    model: str
    rate_per_s: float
    budget: float
    redundancy: float
    scenario: str = "steady_load"
    backend: str = "sim"


@dataclass(frozen=True, slots=True)
class Grid:
    """All runs of a directory."""

    table: pl.DataFrame

    def values(self, framework: str, at: Condition, key: str) -> dict[int, float]:
        """A column by seed; empty where it was not played."""
        rows = self.table.filter(
            (pl.col("framework") == framework)
            & (pl.col("model") == at.model)
            & (pl.col("rate_per_s") == at.rate_per_s)
            & (pl.col("budget") == at.budget)
            & (pl.col("redundancy") == at.redundancy)
            & (pl.col("scenario") == at.scenario)
            & (pl.col("backend") == at.backend)
            & pl.col(key).is_not_null()
        ).unique("seed", keep="first", maintain_order=True)
        return dict(zip(rows["seed"].to_list(), rows[key].to_list(), strict=True))

    def mean(self, framework: str, at: Condition, key: str) -> Estimate:
        """Mean over seeds."""
        return over_seeds(list(self.values(framework, at, key).values()))

    def change(self, framework: str, base: str, at: Condition, key: str, *, under: Condition | None = None) -> Estimate:
        """Equation (5) of ``framework`` against ``base``, which may have been played ``under`` another condition."""
        ours, theirs = self.values(framework, at, key), self.values(base, under or at, key)
        return over_seeds([ours[seed] / theirs[seed] - 1.0 for seed in ours if theirs.get(seed)])

    def common(self, framework: str, base: str, at: Condition, key: str, *, under: Condition) -> tuple[float, float]:
        """Means of both over the seeds that they share; not numbers where there are none."""
        ours, theirs = self.values(framework, at, key), self.values(base, under, key)
        shared = [seed for seed in ours if seed in theirs]
        mine, other = (
            sum(values[seed] for seed in shared) / len(shared) if shared else math.nan for values in (ours, theirs)
        )
        return mine, other

    def less(self, framework: str, base: str, at: Condition, key: str, *, under: Condition) -> Estimate:
        """The same as a difference."""
        ours, theirs = self.values(framework, at, key), self.values(base, under, key)
        return over_seeds([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def read(directory: Path) -> Grid:
    """All finished parts of a grid; TestbedError when there is none."""
    rows = []
    for file in sorted(directory.glob(f"*/{PART_FILE}")):
        part = part_of(file)
        for run in load(file.parent).runs:
            rows.append(row(part, run))
    if not rows:
        raise TestbedError(f"'{directory}' holds no finished part of a grid")
    return Grid(pl.DataFrame(rows, infer_schema_length=None))


def part_of(file: Path) -> PartFile:
    """One part's condition."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=PartFile)
    except (OSError, msgspec.DecodeError) as error:
        raise TestbedError(f"{file}: {error}") from error


def row(part: PartFile, run: Run) -> dict[str, object]:
    """Everything that tables and figures ask of one run."""
    found = line(run)
    latency_s = latencies_s(run)
    within = float(np.mean(latency_s <= run.manifest.slo_s)) if len(latency_s) else 0.0
    quality = {metric.key: metric.measure([run], ValueOnly()).value for metric in QUALITY}
    layers = run.layers
    return {
        "part": part.name,
        "framework": run.manifest.framework,
        "model": part.model,
        "rate_per_s": part.rate_per_s,
        "duration_s": part.duration_s,
        "budget": part.budget,
        "redundancy": part.redundancy,
        "scenario": part.scenario,
        "backend": part.backend,
        "seed": run.manifest.seed,
        "sent": found.sent,
        "answered": found.answered,
        "mean_s": _mean(latency_s),
        "p99_s": float(np.quantile(latency_s, 0.99)) if len(latency_s) else None,
        "within": within,
        "goodput_per_s": within * found.sent / part.duration_s,
        "drained_per_s": drained_per_s(run),
        "bytes_per_token": found.bytes_per_token if found.answered else None,
        "elsewhere": found.elsewhere,
        "moves": _mean(run.completed["moves"].to_numpy()),
        "loss": found.loss,
        "rise": found.rise,
        **{key: quality.get(key) for key in ("nll_increase", "perplexity", "perplexity_reference", "top1_agreement")},
        **mix(run),
        "layer_s": _mean(layers["duration_s"].to_numpy()),
        **{f"predicted_{name}_s": _column_mean(layers, f"predicted_{name}_s") for name in TERMS},
        "verdict": run.manifest.fidelity.verdict,
        "complete": run.manifest.complete,
    }


def drained_per_s(run: Run) -> float | None:
    """Equation (4)."""
    home_s = run.completed["finished_s"].to_numpy()
    if len(home_s) < 10:
        return None
    early, late = np.quantile(home_s, [0.2, 0.8])
    return float(0.6 * len(home_s) / (late - early)) if late > early else None


def mix(run: Run) -> dict[str, float | None]:
    """Shares of expert calls by how they ran.

    A layer's substitutes and fallbacks are taken as spread evenly over its other kinds, and count once.
    """
    kinds = ("", "remote_", "slow_", "remote_slow_", "substitute_", "fallback_")
    table = run.layers.select(pl.col(f"{kind}experts").fill_null(0).cast(pl.Float64) for kind in kinds).to_numpy()
    experts, remote, slow, remote_slow, substitute, fallback = table.T
    calls = float(experts.sum())
    if not calls:
        return dict.fromkeys(KINDS)
    kept = np.clip(1.0 - (substitute + fallback) / np.maximum(experts, 1.0), 0.0, 1.0)
    shares = (
        ((experts - remote - slow + remote_slow) * kept).sum(),
        ((remote - remote_slow) * kept).sum(),
        (slow * kept).sum(),
        substitute.sum(),
        fallback.sum(),
    )
    return {kind: float(share) / calls for kind, share in zip(KINDS, shares, strict=True)}


def crossing(values: Mapping[float, float], most: float) -> float | None:
    """The load up to which something that grows with load stays at ``most``; None if that lies outside of the loads.

    Between two loads it is taken as linear in the logarithm of the load.

    >>> round(crossing({10.0: 0.1, 40.0: 0.2, 80.0: 0.4}, 0.3), 1)
    56.6
    >>> crossing({10.0: 0.1, 80.0: 0.2}, 0.3) is None
    True
    """
    for lower, upper in pairwise(sorted(values)):
        if values[lower] <= most < values[upper]:
            along = (most - values[lower]) / (values[upper] - values[lower])
            return float(lower * (upper / lower) ** along)
    return None


def by_seed(
    loads: Mapping[float, Mapping[int, float]], function: Callable[[Mapping[float, float]], float | None]
) -> dict[int, float]:
    """A function of the whole load axis, for every seed that was played at all loads."""
    seeds = set.intersection(*(set(values) for values in loads.values())) if loads else set()
    found = {seed: function({load: values[seed] for load, values in loads.items()}) for seed in sorted(seeds)}
    return {seed: value for seed, value in found.items() if value is not None}


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _column_mean(frame: pl.DataFrame, column: str) -> float | None:
    value = frame[column].mean()
    return float(value) if isinstance(value, int | float) else None
