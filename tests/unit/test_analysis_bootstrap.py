"""Intervals: right coverage, wider for dependent data, paired where asked, calm at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.bootstrap import Bootstrap, change, mean, quantile, ratio


def column(values: object) -> np.ndarray:
    return np.asarray(values, dtype=float).reshape(-1, 1)


def waves(rng: np.random.Generator, n: int, memory: float) -> np.ndarray:
    """Autoregressive values with mean 1: neighbours resemble each other as requests in one queue do."""
    values = np.empty(n)
    state = 0.0
    for i, shock in enumerate(rng.standard_normal(n)):
        state = memory * state + shock
        values[i] = 1 + state
    return values


def test_no_data_and_a_single_value_have_no_interval() -> None:
    none = Bootstrap().estimate([column([])], mean)
    one = Bootstrap().estimate([column([2.5])], mean)

    assert (none.value, none.low, none.n, none.method) == (None, None, 0, "no data")
    assert (one.value, one.low, one.high, one.n) == (2.5, None, None, 1)


def test_an_undefined_statistic_is_none_and_not_infinite() -> None:
    found = Bootstrap().estimate([np.array([[1.0, 0.0], [2.0, 0.0]])], ratio)

    assert (found.value, found.low, found.n) == (None, None, 2)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    sample = [column(np.random.default_rng(1).exponential(size=200))]

    assert Bootstrap(seed=3).estimate(sample, mean) == Bootstrap(seed=3).estimate(sample, mean)
    assert Bootstrap(seed=3).estimate(sample, mean) != Bootstrap(seed=4).estimate(sample, mean)


def test_intervals_of_independent_values_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(200):
        found = Bootstrap(seed=trial, resamples=300).estimate([column(rng.exponential(size=300))], mean)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.0 <= found.high

    assert 170 <= hits <= 199  # 95 % of 200 is 190; blocks of a finite sample cover a little less


def test_blocks_cover_dependent_values_far_better_than_single_draws_would() -> None:
    rng = np.random.default_rng(12)
    block_hits = single_hits = 0
    for trial in range(100):
        values = waves(rng, 400, memory=0.8)
        found = Bootstrap(seed=trial, resamples=300).estimate([column(values)], mean)
        assert found.low is not None
        assert found.high is not None
        half = 1.96 * values.std() / np.sqrt(len(values))  # what independent draws would give
        block_hits += found.low <= 1.0 <= found.high
        single_hits += abs(values.mean() - 1.0) <= half

    assert block_hits >= 80
    assert single_hits <= 65


def test_repeats_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(13)
    alike = [column(rng.normal(1.0, 0.1, 200)) for _ in range(3)]
    apart = [run + shift for run, shift in zip(alike, (-0.3, 0.0, 0.3), strict=True)]

    narrow, broad = Bootstrap().estimate(alike, mean), Bootstrap().estimate(apart, mean)

    assert narrow.high is not None
    assert narrow.low is not None
    assert broad.high is not None
    assert broad.low is not None
    assert broad.high - broad.low > 5 * (narrow.high - narrow.low)
    assert broad.method == "3 runs, then blocks of 14 in order of arrival within each"


def test_runs_of_different_length_are_drawn_only_from_their_own_rows() -> None:
    short, long = column([5.0] * 3), column([1.0] * 60)
    found = Bootstrap(resamples=200).estimate([short, long], quantile(1.0))

    assert found.value == 5.0
    assert (found.low, found.high) == (1.0, 5.0)  # resamples without the short run exist; nothing else appears


def test_pairing_cancels_what_both_sides_share() -> None:
    rng = np.random.default_rng(14)
    shared = rng.lognormal(0, 1, 200)
    rows = np.column_stack([0.9 * shared, shared])

    found = Bootstrap().estimate([rows], change(mean))

    assert found.value == pytest.approx(-0.1)
    assert found.low == pytest.approx(-0.1)
    assert found.high == pytest.approx(-0.1)
    assert found.excludes_zero


@given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=60), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_intervals_stay_within_the_data(values: list[float], q: float) -> None:
    found = Bootstrap(resamples=50).estimate([column(values)], quantile(q))

    assert found.low is not None
    assert found.high is not None
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


def test_many_rows_are_resampled_in_batches_of_bounded_memory() -> None:
    rows = column(np.arange(50_000))
    found = Bootstrap(resamples=100).estimate([rows], mean)

    assert found.value == pytest.approx(24_999.5)
    assert found.low is not None
    assert found.low < 24_999.5
