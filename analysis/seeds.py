r"""Means over the seeds of a sweep, with their intervals, and the summary that is made of them.

Seeds are independent repeats of the same cell, so a mean over n seeds has Student's interval:

    x̄ ± t(n - 1) · s / √n          s: standard deviation of the n values, over n - 1                             (1)
    t(ν) = z + 2.372/ν + 2.82/ν² + 2.56/ν³    for ν > 10, z = 1.960 (Cornish and Fisher's expansion), else a table  (2)

>>> round(student(1), 2), round(student(4), 3), round(student(30), 3)
(12.71, 2.776, 2.042)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from analysis import text
from analysis.bootstrap import Estimate
from analysis.metrics import metric
from analysis.sweep import FINISHED, METRICS, OFFERED, TRAFFIC, Sweep

#: Of these a mean over seeds is shown.
SHOWN = (
    ("latency_mean_s", "Mean (ms)"),
    ("latency_p99_s", "P99 (ms)"),
    ("throughput_requests_per_s", "Done/s"),
    ("failed_share", "Failed (%)"),
)
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One framework on one network at one load: means over seeds with their intervals."""

    topology: str
    framework: str
    rate_per_s: float
    seeds: int
    estimates: Mapping[str, Estimate]


def points(table: pl.DataFrame) -> tuple[Point, ...]:
    """Means over seeds, by topology, framework and load, in the order of the table; loads ascend."""
    found = []
    finished = table.filter(pl.col("state") == FINISHED)
    for topology, framework in _in_order(finished, "topology", "framework"):
        rows = finished.filter((pl.col("topology") == topology) & (pl.col("framework") == framework))
        for rate_per_s in rows["rate_per_s"].unique().sort():
            cells = rows.filter(pl.col("rate_per_s") == rate_per_s)
            estimates = {key: over_seeds(cells[key].drop_nulls().to_list()) for key in (*METRICS, TRAFFIC, OFFERED)}
            found.append(
                Point(
                    topology=str(topology),
                    framework=str(framework),
                    rate_per_s=rate_per_s,
                    seeds=cells.height,
                    estimates=estimates,
                )
            )
    return tuple(found)


def over_seeds(values: Sequence[float]) -> Estimate:
    """Equation (1); no interval from a single value."""
    n = len(values)
    if not n:
        return Estimate(value=None, n=0, method="no data")
    mean = sum(values) / n
    if n == 1:
        return Estimate(value=mean, n=1, method="one seed, no interval")
    s = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = student(n - 1) * s / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n, method=f"Student's t over {n} seeds")


def student(freedom: int) -> float:
    """Equation (2): the 97.5 % quantile of Student's t."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    return 1.960 + 2.372 / freedom + 2.82 / freedom**2 + 2.56 / freedom**3


def header() -> list[str]:
    """Column titles of ``cells_of``."""
    return ["Topology", "Framework", "Load/s", "Seeds", *(title for _, title in SHOWN)]


def cells_of(found: Iterable[Point]) -> list[list[str]]:
    """The summary as text, a row per point."""
    table = []
    for point in found:
        numbers = [_plus_minus(point.estimates[key], metric(key).scale) for key, _ in SHOWN]
        table.append([point.topology, point.framework, f"{point.rate_per_s:g}", str(point.seeds), *numbers])
    return table


def markdown(sweep: Sweep, found: Sequence[Point]) -> str:
    """``sweep.md``: title, notes, table, how to read it."""
    titles = header()
    lines = [f"# {sweep.scenario}", "", *(f"Note: {note}" for note in sweep.notes), ""]
    lines += ["| " + " | ".join(titles) + " |", "|---|---|" + "---:|" * (len(titles) - 2)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells_of(found)]
    lines += [
        "",
        "Means over seeds ± half of their 95 % interval (Student's t). Definitions: docs/metrics.md, docs/sweeps.md.",
    ]
    return "\n".join(lines) + "\n"


def _plus_minus(estimate: Estimate, scale: float) -> str:
    """``204±17``: Student's interval has its mean in the middle."""
    if estimate.value is None or estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text.number(None if estimate.value is None else scale * estimate.value)
    return f"{text.number(scale * estimate.value)}±{text.number(scale * (estimate.high - estimate.low) / 2, digits=2)}"


def _in_order(table: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return table.select(columns).unique(maintain_order=True).rows()
