"""How a measured link is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.judging import CEILING_BPS, PAYLOAD_SHARE, LinkMeasurement, expected_rtt_s, judge
from testbed.topology import Direction

LINK = Direction(rate_bps=1e9, delay_s=0.005)
GOOD = LinkMeasurement(
    link="a-b",
    source="a",
    target="b",
    rtt_s=0.0101,
    expected_rtt_s=0.010,
    goodput_bps=0.96e9,
    expected_goodput_bps=1e9 * PAYLOAD_SHARE,
    ok=False,
    judged="",
)


def ok(there: Direction = LINK, back: Direction = LINK, **measured: float) -> bool:
    return judge(replace(GOOD, **measured), there, back).ok


def test_the_expected_round_trip_is_both_delays_and_both_serializations() -> None:
    slow = Direction(rate_bps=84 * 8 / 0.001, delay_s=0.010)  # an echo takes 1 ms
    assert expected_rtt_s(slow, replace(slow, delay_s=0.020)) == pytest.approx(0.032)


def test_a_measurement_within_its_bounds_is_ok_and_says_which() -> None:
    judged = judge(GOOD, LINK, LINK)
    assert judged.ok
    assert judged.judged == "RTT within 0.3 ms or 2 %; goodput within 10 %"


@pytest.mark.parametrize("error_s", [-0.00031, 0.00031])
def test_a_round_trip_off_by_more_than_the_bound_fails(error_s: float) -> None:
    assert not ok(rtt_s=0.010 + error_s)
    assert ok(rtt_s=0.010 + 0.9 * error_s)


def test_a_long_round_trip_may_be_off_by_two_percent() -> None:
    assert ok(rtt_s=0.1019, expected_rtt_s=0.100)
    assert not ok(rtt_s=0.1021, expected_rtt_s=0.100)


def test_an_echo_that_never_came_back_fails() -> None:
    assert not ok(rtt_s=float("inf"))


def test_goodput_off_by_more_than_a_tenth_fails_both_ways() -> None:
    assert not ok(goodput_bps=0.85e9)
    assert not ok(goodput_bps=1.08e9)


def test_a_link_faster_than_the_probe_is_held_to_the_probes_bound() -> None:
    fast = replace(LINK, rate_bps=10e9)
    expected_bps = CEILING_BPS * PAYLOAD_SHARE
    assert ok(fast, fast, goodput_bps=3e9, expected_goodput_bps=expected_bps)
    assert not ok(fast, fast, goodput_bps=1.5e9, expected_goodput_bps=expected_bps)
    assert "faster than a short probe can tell" in judge(GOOD, fast, fast).judged


def test_where_something_else_limits_tcp_goodput_is_not_judged_and_the_verdict_says_so() -> None:
    assert ok(replace(LINK, loss=0.01), goodput_bps=1e6)
    assert ok(back=replace(LINK, rate_bps=1e6), goodput_bps=1e6)
    assert "loss limits TCP" in judge(GOOD, LINK, replace(LINK, loss=0.01)).judged
    assert "acknowledgements" in judge(GOOD, LINK, replace(LINK, rate_bps=1e6)).judged


def test_jitter_widens_the_bound_of_the_round_trip() -> None:
    assert ok(replace(LINK, jitter_s=0.001), rtt_s=0.012)
    assert not ok(replace(LINK, jitter_s=0.001), rtt_s=0.0124)
