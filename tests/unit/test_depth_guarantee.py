"""The exit gate keeps its promise: seldom does a calibrated threshold break the risk on fresh text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from agents.depth.guarantee import calibrate, p_value
from agents.errors import FrameworkError
from agents.models.exits import BINS, THRESHOLDS, ExitHeads


def heads(wrong: np.ndarray, domains: np.ndarray) -> ExitHeads:
    none = np.zeros((1, BINS), np.float32)
    left = np.linspace(1.0, 0.0, len(THRESHOLDS), dtype=np.float32)[:, None]
    return ExitHeads(
        maps=np.zeros((1, 2, 2), np.float32),
        shifts=np.zeros((1, 2), np.float32),
        gauge_in=np.zeros((1, 2, 3), np.float32),
        gauge_bias=np.zeros((1, 3), np.float32),
        gauge_out=np.zeros((1, 3), np.float32),
        gauge_shift=np.zeros(1, np.float32),
        wrong=wrong.astype(np.float32),
        left=left,
        domains=domains.astype(np.int16),
        count=none + 1,
        confidence=none,
        agreement=none,
        rise=np.zeros(1, np.float32),
    )


def sample(draw: np.random.Generator, rows: int, level: float = 0.1) -> ExitHeads:
    """Rows whose expected loss falls in a line from ``level`` at threshold 0 to nothing at 1."""
    each = draw.binomial(40, level, rows)  # wrong tokens of 40 in every row, each with a confidence of its own
    wrong = np.zeros((len(THRESHOLDS), rows))
    for row, tokens in enumerate(each):
        wrong[:, row] = (draw.random(tokens)[:, None] >= THRESHOLDS).mean(axis=0) * tokens / 40 if tokens else 0.0
    return heads(wrong, np.arange(rows) % 2)


def test_the_promise_is_broken_no_more_often_than_it_says() -> None:
    draw, broken = np.random.default_rng(0), 0
    for _ in range(200):
        gate = calibrate(sample(draw, 300), risk=0.03, failure=0.1)
        true_risk = 0.1 * max(0.0, 1.0 - gate.threshold)
        broken += true_risk > 0.03
    assert broken <= 0.1 * 200


def test_it_uses_most_of_the_risk_that_it_may_take() -> None:
    gate = calibrate(sample(np.random.default_rng(1), 2000), risk=0.03, failure=0.1)

    assert 0.02 < 0.1 * (1.0 - gate.threshold) < 0.03
    assert gate.measured < 0.03
    assert gate.fewest_rows == 1000
    assert gate.expected_depth < 1.0


def test_the_worst_domain_decides() -> None:
    draw = np.random.default_rng(2)
    good, bad = sample(draw, 600, level=0.01), sample(draw, 600, level=0.2)
    mixed = heads(np.concatenate([good.wrong, bad.wrong], axis=1), np.repeat([0, 1], 600))

    assert calibrate(mixed, risk=0.03, failure=0.1).threshold >= 0.84
    assert calibrate(good, risk=0.03, failure=0.1).threshold == 0.0


def test_without_risk_or_with_too_few_rows_nothing_leaves() -> None:
    plenty, few = sample(np.random.default_rng(3), 500), sample(np.random.default_rng(3), 20)

    assert calibrate(plenty, risk=0.0, failure=0.1).threshold > 1.0
    assert calibrate(few, risk=0.01, failure=0.1).threshold > 1.0
    assert calibrate(few, risk=0.01, failure=0.1).expected_depth == 1.0


def test_p_values_are_valid_at_the_border_of_the_hypothesis() -> None:
    draw = np.random.default_rng(4)
    rejected = [p_value(draw.binomial(40, 0.02, 300) / 40, 0.02, 0.1) <= 0.1 for _ in range(400)]

    assert np.mean(rejected) <= 0.1


def test_a_less_likely_sample_has_a_smaller_p_value() -> None:
    values = [p_value(np.full(200, loss), 0.05, 0.1) for loss in (0.0, 0.02, 0.04, 0.06)]

    assert values == sorted(values)
    assert values[-1] == 1.0


@pytest.mark.parametrize("levels", [{"risk": 1.0, "failure": 0.1}, {"risk": 0.1, "failure": 0.0}])
def test_levels_that_cannot_be_are_refused(levels: dict[str, float]) -> None:
    with pytest.raises(FrameworkError, match="must be at least 0 and below 1"):
        calibrate(dataclasses.replace(sample(np.random.default_rng(0), 4)), **levels)
