"""What datagrams measured of a direction, judged by what is in force and by what chance may do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.impairments import CoDel, GilbertElliott, Steps
from testbed.oneway import Measured, judge
from testbed.topology import MTU_BYTES, Direction

PLAIN = Direction(rate_bps=1e9, delay_s=0.010)
SENT = 500


def measured(direction: Direction, **found: float) -> Measured:
    """A measurement that found exactly what is expected, but for ``found``."""
    exact = Measured(
        sent=SENT,
        delay_s=direction.delay_s,
        expected_delay_s=direction.delay_s,
        jitter_s=direction.jitter_s,
        expected_jitter_s=direction.jitter_s,
        loss=direction.undelivered,
        expected_loss=direction.undelivered,
        duplicates=direction.duplicate,
        expected_duplicates=direction.duplicate,
        mtu_bytes=MTU_BYTES,
    )
    return replace(exact, **found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("direction", "near", "far"),
    [
        (PLAIN, {"delay_s": 0.0102}, {"delay_s": 0.0104}),  # 0.3 ms
        (replace(PLAIN, delay_s=0.1), {"delay_s": 0.1019}, {"delay_s": 0.1021}),  # 2 %
        (PLAIN, {"loss": 0.0}, {"loss": 0.003}),  # one of 500 says nothing yet
        (replace(PLAIN, loss=0.1), {"loss": 0.15}, {"loss": 0.16}),  # 4 sqrt(0.1 * 0.9 / 500) + 1 / 500 = 0.0557
        (replace(PLAIN, corrupt=0.1), {"loss": 0.05}, {"loss": 0.04}),
        (replace(PLAIN, duplicate=0.1), {"duplicates": 0.15}, {"duplicates": 0.16}),
        (PLAIN, {}, {"mtu_bytes": 1400}),
    ],
)
def test_a_direction_is_right_within_its_bound_and_wrong_beyond(
    direction: Direction, near: dict[str, float], far: dict[str, float]
) -> None:
    assert judge(measured(direction, **near), direction)[0]
    assert not judge(measured(direction, **far), direction)[0]


def test_jitter_is_judged_by_the_few_samples_that_are_independent() -> None:
    direction = replace(PLAIN, jitter_s=0.001)
    # 1.5 s hold 75 of them: 4 / sqrt(2 * 0.37 * 75) = 54 %, and 0.3 ms.
    assert judge(measured(direction, jitter_s=0.0018), direction) == (True, ["jitter within 54%"])
    assert not judge(measured(direction, jitter_s=0.0019), direction)[0]


def test_loss_in_runs_may_be_further_off_than_single_losses() -> None:
    single = replace(PLAIN, loss=0.05)
    bursts = replace(PLAIN, burst_loss=GilbertElliott(worsens=0.01, recovers=0.19))

    assert bursts.undelivered == pytest.approx(single.undelivered)
    assert not judge(measured(single, loss=0.12), single)[0]
    assert judge(measured(bursts, loss=0.12), bursts)[0]


def test_what_codel_drops_or_a_recording_moves_is_not_held_against_a_link() -> None:
    codel = replace(PLAIN, codel=CoDel())
    recorded = replace(PLAIN, delay_trace=Steps(name="moves", ends_s=(1.0, 2.0), values=(0.005, 0.015)))

    assert judge(measured(codel, loss=0.2), codel)[0]
    assert judge(measured(recorded, delay_s=0.015), recorded)[0]


def test_a_direction_that_loses_everything_is_right_if_it_should() -> None:
    dead = replace(PLAIN, loss=1.0)

    assert judge(measured(dead, delay_s=float("inf"), mtu_bytes=0), dead)[0]
    assert not judge(measured(dead, loss=0.5), dead)[0]
