"""CoDel's rule: when it begins to drop, how often it goes on, and when it stops.  RFC 8289."""

from __future__ import annotations

import doctest
import itertools
import math

import pytest

from testbed.impairments import CoDel
from testbed.shaping import codel
from testbed.shaping.codel import ControlledDelay

TARGET_S, INTERVAL_S = 0.005, 0.100
MANY = 100_000  # bytes that stay behind


def queue() -> ControlledDelay:
    return ControlledDelay(CoDel(target_s=TARGET_S, interval_s=INTERVAL_S))


def drops(
    control: ControlledDelay, from_s: float, to_s: float, *, waited_s: float = 0.020, left_bytes: int = MANY
) -> list[float]:
    """When packets are dropped if one leaves the queue every millisecond and each has waited so long."""
    times_s = [from_s + 0.001 * number for number in range(round((to_s - from_s) / 0.001))]
    return [at for at in times_s if control.drops(waited_s=waited_s, now_s=at, left_bytes=left_bytes)]


def test_nothing_is_dropped_while_packets_wait_less_than_the_target() -> None:
    assert drops(queue(), 0.0, 10.0, waited_s=0.0049) == []


def test_a_wait_of_less_than_an_interval_is_a_burst_and_not_punished() -> None:
    control = queue()

    assert drops(control, 0.0, 0.099) == []
    assert not control.drops(waited_s=0.001, now_s=0.099, left_bytes=MANY)
    assert drops(control, 0.100, 0.199) == []


def test_the_first_drop_comes_one_interval_after_waits_exceeded_the_target() -> None:
    assert drops(queue(), 5.0, 5.15)[0] == pytest.approx(5.0 + INTERVAL_S, abs=0.0011)


def test_drops_come_closer_together_with_the_square_root_of_their_number() -> None:
    times_s = drops(queue(), 0.0, 2.0)
    gaps_s = [b - a for a, b in itertools.pairwise(times_s)]

    for number, gap_s in enumerate(gaps_s[:20], 1):
        assert gap_s == pytest.approx(INTERVAL_S / math.sqrt(number), abs=0.0021)


def test_one_short_wait_ends_the_drops_and_another_interval_must_pass() -> None:
    control = queue()
    drops(control, 0.0, 1.0)
    assert not control.drops(waited_s=0.004, now_s=1.0, left_bytes=MANY)

    assert drops(control, 1.001, 1.5)[0] == pytest.approx(1.001 + INTERVAL_S, abs=0.0011)


def test_a_spell_soon_after_another_goes_on_about_as_fast() -> None:
    def second_gap_s(pause_s: float) -> float:
        control = queue()
        drops(control, 0.0, 2.0)
        control.drops(waited_s=0.0, now_s=2.0, left_bytes=MANY)
        first, second, *_ = drops(control, 2.0 + pause_s, 2.6 + pause_s)
        return second - first

    assert second_gap_s(0.01) < 0.03
    assert second_gap_s(10.0) == pytest.approx(INTERVAL_S, abs=0.0011)


@pytest.mark.parametrize("left_bytes", [0, 1500])
def test_the_last_packet_of_a_queue_is_never_dropped(left_bytes: int) -> None:
    assert drops(queue(), 0.0, 5.0, waited_s=1.0, left_bytes=left_bytes) == []


def test_after_a_drop_the_next_packet_at_the_same_moment_may_leave() -> None:
    control = queue()
    at_s = drops(control, 0.0, 0.102)[-1]

    assert not control.drops(waited_s=0.020, now_s=at_s, left_bytes=MANY)


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(codel).failed == 0
