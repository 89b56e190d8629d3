"""One direction of a link by itself: delay, jitter, loss, duplicates and packet size, by numbered datagrams.

What is met within chance is met within four standard errors:

    jitter    s = IQR(delays) / IQR(shape of jitter 1)                             robust against a busy host      (1)
    error     4 s / sqrt(2 · 0.37 n'),   n' = time of the samples / (2 · 10 s)     jitter wanders (shaping.chance)  (2)
    share p   4 sqrt(p (1 - p) f / n) + f / n                                                                       (3)
              f = (1 + λ) / (1 - λ), λ = 1 - worsens - recovers, for loss in runs; else f = 1

    0.37   efficiency of the interquartile range of a normal distribution, beside its standard deviation
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.datagrams import HEADERS_BYTES, LARGE_COUNT, SMALL_BYTES, Probe, cuts_at_mtu, one_ways
from testbed.impairments import TABLE_SIGMA, Distribution
from testbed.probes import Way
from testbed.shaping.chance import JITTER_MEMORY
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction

#: A clean direction is looked at briefly, one that draws by chance for longer.
QUICK_COUNT, QUICK_S = 40, 0.8
LONG_COUNT, LONG_S, LONGEST_S = 500, 1.5, 4.0
LEAST_COUNT = 5
#: Probes take at most this share of the rate.
RATE_SHARE = 0.2
DELAY_TOLERANCE_S = 0.0003
DELAY_TOLERANCE = 0.02
#: Of a normal distribution with deviation 1.
NORMAL_IQR = 1.349
IQR_EFFICIENCY = 0.37
STANDARD_ERRORS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One direction, as datagrams met it."""

    sent: int
    delay_s: float  # median, with serialization; infinity if nothing came
    expected_delay_s: float
    jitter_s: float
    expected_jitter_s: float
    loss: float
    expected_loss: float
    duplicates: float
    expected_duplicates: float
    mtu_bytes: int  # largest packet that crossed whole, and none larger left


def measure(ways: Sequence[tuple[Way, Direction]]) -> list[Measured]:
    """Send datagrams over all ways at once; each way is one direction of a link, as it is in force."""
    probes = [_probe(way, direction) for way, direction in ways]
    slowest_s = max(
        (direction.delay_s + 5 * direction.jitter_s + _worst_s(direction) for _, direction in ways), default=0.0
    )
    samples = one_ways(probes, wait_s=slowest_s + 0.1)
    found = []
    for (way, direction), sample in zip(ways, samples, strict=True):
        small_s = [delay_s for number, delay_s in sample.delays_s.items() if number < sample.sent]
        arrived = len(small_s)
        found.append(
            Measured(
                sent=sample.sent,
                delay_s=statistics.median(small_s) if small_s else math.inf,
                expected_delay_s=direction.transfer_s(SMALL_BYTES + HEADERS_BYTES),
                jitter_s=_jitter_s(small_s, direction.jitter_shape),
                expected_jitter_s=direction.jitter_s,
                loss=sample.loss,
                expected_loss=direction.undelivered,
                duplicates=sample.duplicates / arrived if arrived else 0.0,
                expected_duplicates=direction.duplicate,
                mtu_bytes=sample.mtu_bytes if cuts_at_mtu(way) else 0,
            )
        )
    return found


def judge(measured: Measured, direction: Direction) -> tuple[bool, list[str]]:
    """Whether the direction is as it should be, and by what bounds, in words (those that everybody has go unsaid)."""
    words = []
    ok = True
    if direction.jitter_s and not direction.traced:
        share = _jitter_error(measured, direction)
        words.append(f"jitter within {share:.0%}")
        ok &= abs(measured.jitter_s - direction.jitter_s) <= share * direction.jitter_s + DELAY_TOLERANCE_S
    loss_error = _loss_error(measured, direction)
    if measured.expected_loss:
        words.append(f"loss within {loss_error:.1%}")
    if not direction.codel:
        ok &= abs(measured.loss - measured.expected_loss) <= loss_error
    if direction.duplicate:
        duplicate_error = _share_error(direction.duplicate, measured.sent)
        words.append(f"duplicates within {duplicate_error:.1%}")
        ok &= abs(measured.duplicates - direction.duplicate) <= duplicate_error
    if not (direction.jitter_s or direction.traced or measured.loss > 0.5):
        bound_s = max(DELAY_TOLERANCE_S, DELAY_TOLERANCE * measured.expected_delay_s)
        ok &= abs(measured.delay_s - measured.expected_delay_s) <= bound_s
    if measured.expected_loss < 0.5:
        ok &= measured.mtu_bytes == MTU_BYTES
    return bool(ok), words


def _probe(way: Way, direction: Direction) -> Probe:
    by_chance = direction.jitter_s or direction.undelivered or direction.duplicate
    lasts_s, count = (_long_s(direction), LONG_COUNT) if by_chance else (QUICK_S, QUICK_COUNT)
    affordable = RATE_SHARE * direction.rate_bps * lasts_s / (BITS_PER_BYTE * (SMALL_BYTES + HEADERS_BYTES))
    count = max(LEAST_COUNT, min(count, int(affordable)))
    return Probe(way=way, count=count, interval_s=lasts_s / count)


def _long_s(direction: Direction) -> float:
    """How long to look at a direction that draws by chance: jitter must have time to wander."""
    return min(max(LONG_S, 40 * JITTER_MEMORY * direction.jitter_s), LONGEST_S)


def _worst_s(direction: Direction) -> float:
    """What the last datagram may take besides delay and jitter."""
    queue_s = BITS_PER_BYTE * MTU_BYTES * LARGE_COUNT / direction.rate_bps  # they leave one behind the other
    return queue_s + (max(direction.delay_trace.values) if direction.delay_trace else 0.0)


def _jitter_s(delays_s: Sequence[float], shape: Distribution | None) -> float:
    """The jitter (1) that spreads delays so."""
    if len(delays_s) < 4:
        return 0.0
    low, _, high = statistics.quantiles(delays_s, n=4)
    unit = NORMAL_IQR
    if shape is not None:
        first, _, third = statistics.quantiles(shape.table, n=4)
        unit = (third - first) / TABLE_SIGMA
    return (high - low) / unit if unit > 0 else 0.0


def _jitter_error(measured: Measured, direction: Direction) -> float:
    """What chance may do to measured jitter, as a share of it (2)."""
    independent = _long_s(direction) / (2 * JITTER_MEMORY * direction.jitter_s)
    samples = max(1.0, min(independent, measured.sent * (1 - measured.loss)))
    return STANDARD_ERRORS / math.sqrt(2 * IQR_EFFICIENCY * samples)


def _loss_error(measured: Measured, direction: Direction) -> float:
    bursts = direction.burst_loss
    stays = max(0.0, 1 - bursts.worsens - bursts.recovers) if bursts else 0.0
    runs = (1 + stays) / max(1 - stays, 1e-6)
    return _share_error(measured.expected_loss, measured.sent / runs)


def _share_error(share: float, count: float) -> float:
    """What chance may do to a share of so many (3)."""
    count = max(count, 1.0)
    return STANDARD_ERRORS * math.sqrt(share * (1 - share) / count) + 1 / count
