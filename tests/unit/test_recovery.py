"""Time to recover: from made-up latencies with known answers."""

from __future__ import annotations

import numpy as np

from analysis.recovery import recovery_s

ARRIVED_S = np.arange(0.025, 12.0, 0.05)


def latency(*slow: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """100 ms, and a second within the given spells."""
    values = np.full(len(ARRIVED_S), 0.1)
    for from_s, to_s in slow:
        values[(from_s <= ARRIVED_S) & (to_s > ARRIVED_S)] = 1.0
    return values


def after(*slow: tuple[float, float], to_s: float = 8.0) -> float:
    return recovery_s(ARRIVED_S, latency(*slow), from_s=4.0, to_s=to_s, base_s=0.1)


def test_who_never_leaves_the_band_recovers_at_once() -> None:
    assert after() == 0.0


def test_recovery_counts_from_the_change_to_the_last_slow_window() -> None:
    assert after((4.0, 5.0)) == 1.0
    assert after((4.0, 5.0), (6.0, 7.0)) == 3.0


def test_who_is_still_slow_at_the_next_change_has_not_recovered() -> None:
    assert after((4.0, 9.0)) == np.inf


def test_failed_requests_are_slow_for_ever() -> None:
    values = latency()
    values[(ARRIVED_S >= 4.0) & (ARRIVED_S < 5.0)] = np.inf

    assert recovery_s(ARRIVED_S, values, from_s=4.0, to_s=8.0, base_s=0.1) == 1.0


def test_without_arrivals_nothing_is_known_to_have_recovered() -> None:
    assert recovery_s(ARRIVED_S, latency(), from_s=20.0, to_s=30.0, base_s=0.1) == np.inf
