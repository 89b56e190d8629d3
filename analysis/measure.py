"""What a metric is, and how columns of completed requests become the rows that are resampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from analysis.bootstrap import Array, Bootstrap, Estimate, Statistic
from analysis.load import Run

Runs = Sequence[Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number with its definition."""

    key: str  # in code and in summary.csv; ends with the SI unit where it has one
    title: str
    unit: str  # as shown
    scale: float = 1.0  # shown = SI value x scale
    definition: str
    measure: Callable[[Runs, Bootstrap], Estimate]


def matrix(frame: pl.DataFrame, *columns: str) -> Array:
    """Rows without a missing value, (rows, columns)."""
    chosen = frame.select(pl.col(column).cast(pl.Float64).alias(str(i)) for i, column in enumerate(columns))
    return chosen.drop_nulls().to_numpy()


def over_completed(column: str, statistic: Statistic) -> Callable[[Runs, Bootstrap], Estimate]:
    """A statistic of one column of completed requests."""
    return lambda runs, bootstrap: bootstrap.estimate([matrix(run.completed, column) for run in runs], statistic)
