"""A histogram of how late packets were released: cheap enough for every release, fine enough for a verdict.

Several relays each keep one.  Quantiles cannot be added, so what is sent and merged are the buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        return _summary(self._buckets, self._max_s)


def merged(parts: Sequence[Lateness]) -> Lateness:
    """The lateness of all releases of several relays, as if one histogram had counted them.

    >>> early, late = LatenessHistogram(), LatenessHistogram()
    >>> for _ in range(3):
    ...     early.add(30e-6)
    >>> late.add(1.0)
    >>> both = merged([early.summary(), late.summary()])
    >>> both.releases, both.p50_s, both.p99_s
    (4, 4e-05, 1.0)
    """
    counted = [part.buckets for part in parts if part.buckets]
    if not counted:
        return Lateness()
    return _summary([sum(same) for same in zip(*counted, strict=True)], max(part.max_s for part in parts))


def _summary(buckets: Sequence[int], max_s: float) -> Lateness:
    return Lateness(
        releases=sum(buckets),
        p50_s=_quantile(buckets, max_s, 0.5),
        p99_s=_quantile(buckets, max_s, 0.99),
        p999_s=_quantile(buckets, max_s, 0.999),
        max_s=max_s,
        bucket_s=BUCKET_S,
        buckets=tuple(buckets),
    )


def _quantile(buckets: Sequence[int], max_s: float, share: float) -> float:
    wanted = share * sum(buckets)
    seen = 0
    for number, count in enumerate(buckets):
        seen += count
        if seen >= wanted and seen:
            return max_s if number == BUCKETS - 1 else min((number + 1) * BUCKET_S, max_s)
    return 0.0
