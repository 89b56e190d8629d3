r"""Confidence intervals by resampling, with nothing assumed about the shape of latencies.

Requests that arrive together wait in the same queues, so their latencies are not independent and drawing single
requests would give intervals that are too narrow.  Therefore blocks of consecutive requests are drawn:

    b = round(√n)                      requests in a block, circular              (1)
    one run:   fill n requests with blocks that start anywhere                    (2)
    repeats:   draw runs with replacement, fill each as in (2)                    (3)
    [low, high] = the (1 - level)/2 and (1 + level)/2 quantiles of the statistic  (4)

A statistic sees whole rows of a sample, so columns that belong together (the same request under two frameworks)
stay together: that makes the bootstrap of a difference a paired one.

>>> Bootstrap(seed=1).estimate([np.array([[1.0], [3.0]])], mean).value
2.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: (resamples, rows, columns) -> (resamples,)
Statistic = Callable[[Array], Array]

_CHUNK_VALUES = 4_000_000  # bounds the memory of one batch of resamples to some 100 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number, how sure it is, and from how much data.  None where the data give no answer."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int  # rows (requests, unless the metric says otherwise)
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is supported: the whole interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How to resample.  The same seed and data give the same interval."""

    seed: int = 0
    resamples: int = 1000
    level: float = 0.95

    def estimate(self, samples: Sequence[Array], statistic: Statistic) -> Estimate:
        """The statistic over all rows of all runs, with its interval.  A sample is (rows, columns), in order."""
        runs = [sample for sample in samples if len(sample)]
        if not runs:
            return Estimate(value=None, n=0, method="no data")
        data = np.concatenate(runs)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(data[np.newaxis])[0])
            if not np.isfinite(value):
                return Estimate(value=None, n=len(data), method="undefined for these data")
            if len(data) == 1:
                return Estimate(value=value, n=1, method="a single value, no interval")
            replicates = self._replicates(data, [len(run) for run in runs], statistic)
        tail = (1 - self.level) / 2
        low, high = np.quantile(replicates[np.isfinite(replicates)], [tail, 1 - tail])
        return Estimate(value=value, low=float(low), high=float(high), n=len(data), method=_method(runs))

    def _replicates(self, data: Array, sizes: list[int], statistic: Statistic) -> Array:
        rng = np.random.default_rng(self.seed)
        batch = max(1, _CHUNK_VALUES // data.size)
        return np.concatenate(
            [
                statistic(data[_rows(rng, sizes, min(batch, self.resamples - done))])
                for done in range(0, self.resamples, batch)
            ]
        )


def mean(rows: Array) -> Array:
    """The mean of the first column."""
    return np.asarray(rows[..., 0].mean(axis=1))


def quantile(q: float) -> Statistic:
    """The ``q`` quantile of the first column, interpolated linearly between neighbours."""
    return lambda rows: np.asarray(np.quantile(rows[..., 0], q, axis=1))


def ratio(rows: Array) -> Array:
    """Sum of the first column over sum of the second."""
    return np.asarray(rows[..., 0].sum(axis=1) / rows[..., 1].sum(axis=1))


def change(statistic: Statistic) -> Statistic:
    """Relative change of a statistic from the second column to the first: -0.4 is 40 % less."""
    return lambda rows: np.asarray(statistic(rows[..., :1]) / statistic(rows[..., 1:2]) - 1)


def block_rows(n: int) -> int:
    """Equation (1)."""
    return max(1, round(float(np.sqrt(n))))


def _rows(rng: np.random.Generator, sizes: list[int], resamples: int) -> NDArray[np.int64]:
    """Row numbers of the resamples, (resamples, rows): equations (2) and (3)."""
    size = np.array(sizes)
    first = np.concatenate([[0], np.cumsum(size)[:-1]])  # row at which a run starts
    rows_per_run = int(size.sum()) // len(sizes)
    block = block_rows(rows_per_run)
    blocks = -(-rows_per_run // block)
    drawn = []
    for _ in sizes:
        run = rng.integers(len(sizes), size=(resamples, 1, 1))
        start = np.floor(rng.random((resamples, blocks, 1)) * size[run]).astype(np.int64)
        inside = (start + np.arange(block)) % size[run]  # (resamples, blocks, block)
        drawn.append((first[run] + inside).reshape(resamples, -1)[:, :rows_per_run])
    return np.concatenate(drawn, axis=1)


def _method(runs: Sequence[Array]) -> str:
    rows = sum(len(run) for run in runs) // len(runs)
    blocks = f"blocks of {block_rows(rows)} in order of arrival"
    return blocks if len(runs) == 1 else f"{len(runs)} runs, then {blocks} within each"
