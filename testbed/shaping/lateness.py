"""A histogram of how late packets were released: cheap enough for every release, fine enough for a verdict."""

from __future__ import annotations

from testbed.shaping.base import Lateness

BUCKET_S = 20e-6
BUCKETS = 1001  # 0 to 20 ms, and a last one for everything later


class LatenessHistogram:
    """Counts latenesses in buckets of 20 µs.

    >>> histogram = LatenessHistogram()
    >>> for late_s in (10e-6, 30e-6, 50e-6, 1.0):
    ...     histogram.add(late_s)
    >>> histogram.summary().p50_s, histogram.summary().max_s
    (4e-05, 1.0)
    """

    __slots__ = ("_buckets", "_max_s")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self._max_s = 0.0

    def add(self, late_s: float) -> None:
        """Count one release; an early one counts as punctual."""
        bucket = int(late_s / BUCKET_S) if late_s > 0 else 0
        self._buckets[bucket if bucket < BUCKETS else BUCKETS - 1] += 1
        if late_s > self._max_s:
            self._max_s = late_s

    def summary(self) -> Lateness:
        """Counts and quantiles; a quantile is the upper edge of its bucket."""
        return Lateness(
            releases=sum(self._buckets),
            p50_s=self._quantile(0.5),
            p99_s=self._quantile(0.99),
            p999_s=self._quantile(0.999),
            max_s=self._max_s,
            bucket_s=BUCKET_S,
            buckets=tuple(self._buckets),
        )

    def _quantile(self, share: float) -> float:
        wanted = share * sum(self._buckets)
        seen = 0
        for number, count in enumerate(self._buckets):
            seen += count
            if seen >= wanted and seen:
                return self._max_s if number == BUCKETS - 1 else min((number + 1) * BUCKET_S, self._max_s)
        return 0.0
