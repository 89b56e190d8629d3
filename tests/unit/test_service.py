"""How fast a line takes bytes: conservation, boundaries of recordings, and many rounds."""

from __future__ import annotations

import doctest
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.impairments import Opportunities, Steps
from testbed.shaping import service
from testbed.shaping.service import Chances, Constant, Service, Stepped, service_of, value_at
from testbed.topology import Direction

#: 1.5 MB/s for a second, then nothing for a second.
ON_OFF = Steps(name="on-off", ends_s=(1.0, 2.0), values=(12e6, 0.0))


def back_to_back(line: Service, sizes: list[int], start_s: float = 0.0) -> list[float]:
    """When each of these packets is on the cable if all wait from the beginning."""
    finishes, free_s = [], start_s
    for size in sizes:
        free_s = line.finish_s(free_s, size)
        finishes.append(free_s)
    return finishes


def test_a_constant_line_takes_its_rate() -> None:
    line = Constant(8e6)

    assert line.finish_s(2.0, 1000) == pytest.approx(2.001)
    assert line.carried_bytes(2.0, 2.5) == pytest.approx(500_000)
    assert line.carried_bytes(2.5, 2.0) == 0


def test_a_packet_across_a_step_takes_the_rest_at_the_new_rate() -> None:
    line = Stepped(Steps(name="t", ends_s=(1.0, 3.0), values=(8000.0, 4000.0)), origin_s=0.0)

    assert line.finish_s(0.5, 1000) == pytest.approx(1.0 + 500 / 500)
    assert line.carried_bytes(0.5, 2.0) == pytest.approx(500 + 500)


def test_a_packet_waits_through_a_silence_and_may_take_many_rounds() -> None:
    line = Stepped(ON_OFF, origin_s=0.0)

    assert line.finish_s(1.2, 1500) == pytest.approx(2.001)
    assert line.finish_s(0.999, 3000) == pytest.approx(2.001)
    assert line.finish_s(0.0, 15_000_000) == pytest.approx(19.0)  # ten seconds of service: nine silences before


@pytest.mark.parametrize("origin_s", [0.0, 0.3, 12_345.678])
def test_no_packet_is_pushed_over_a_silence_by_rounding(origin_s: float) -> None:
    """1000 packets of 1500 bytes are exactly what each round carries; the last must not wait for the next round."""
    finishes = back_to_back(Stepped(ON_OFF, origin_s), [1500] * 3000, origin_s)

    for number, finish_s in enumerate(finishes):
        rounds, place = divmod(number, 1000)
        assert finish_s == pytest.approx(origin_s + 2 * rounds + (place + 1) * 0.001, abs=1e-6)


def test_a_round_that_begins_in_silence_ends_with_its_last_packet() -> None:
    line = Stepped(Steps(name="t", ends_s=(1.0, 2.0), values=(0.0, 12e6)), origin_s=7.7)

    assert back_to_back(line, [1500] * 2000, 7.7)[999::1000] == pytest.approx([9.7, 11.7], abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.0, 1e8)), min_size=1, max_size=8).filter(
        lambda steps: any(value >= 1e4 for _, value in steps)
    ),
    st.lists(st.integers(40, 9000), min_size=1, max_size=60),
    st.floats(0, 1e5),
    st.floats(0, 30),
)
def test_a_stepped_line_carries_exactly_the_area_under_its_steps(
    spans: list[tuple[float, float]], sizes: list[int], origin_s: float, later_s: float
) -> None:
    ends_s = tuple(itertools.accumulate(span_s for span_s, _ in spans))
    line = Stepped(Steps(name="t", ends_s=ends_s, values=tuple(value for _, value in spans)), origin_s)
    start_s = origin_s + later_s
    finishes = back_to_back(line, sizes, start_s)

    assert finishes == sorted(finishes)
    # Half a byte of grace at every step's end, and what a float of this size can tell of a fast line.
    slack = 0.5 * len(sizes) + 1 + 1e8 / 8 * 1e-9
    assert line.carried_bytes(start_s, finishes[-1]) == pytest.approx(sum(sizes), abs=slack)


def test_time_before_the_beginning_belongs_to_the_round_before() -> None:
    line = Stepped(ON_OFF, origin_s=10.0)

    assert line.finish_s(8.5, 1500) == pytest.approx(8.501)
    assert value_at(ON_OFF, -1.5) == 12e6


def test_a_value_holds_until_its_end_and_starts_anew() -> None:
    assert [value_at(ON_OFF, since_s) for since_s in (0.0, 0.999, 1.0, 1.999, 2.0, 3.5)] == [12e6, 12e6, 0, 0, 12e6, 0]


# --- chances to send --------------------------------------------------------------------------------------------------


def chances(*at_ms: int, origin_s: float = 0.0) -> Chances:
    return Chances(Opportunities(name="t", at_s=tuple(at / 1000 for at in at_ms)), origin_s)


def test_each_chance_takes_one_full_packet() -> None:
    assert back_to_back(chances(2, 5, 10), [1504] * 6) == pytest.approx([0.002, 0.005, 0.010, 0.012, 0.015, 0.020])


def test_small_packets_share_a_chance_and_large_ones_take_several() -> None:
    assert back_to_back(chances(2, 5, 10), [500, 500, 500, 3008]) == pytest.approx([0.002, 0.002, 0.002, 0.010])
    assert back_to_back(chances(2, 5, 10), [1600, 1408, 1]) == pytest.approx([0.005, 0.005, 0.010])


def test_a_chance_that_comes_while_nothing_waits_is_gone() -> None:
    line = chances(2, 5, 10)

    assert line.finish_s(0.0, 100) == pytest.approx(0.002)
    assert line.finish_s(0.0021, 100) == pytest.approx(0.005)  # 1404 bytes were left at 2 ms
    assert line.finish_s(0.0101, 100) == pytest.approx(0.012)


def test_chances_at_one_moment_add_up() -> None:
    assert back_to_back(chances(5, 5, 5, 10), [1504] * 5) == pytest.approx([0.005, 0.005, 0.005, 0.010, 0.015])


def test_a_chance_at_zero_follows_the_last_one_of_the_round_before() -> None:
    assert back_to_back(chances(0, 10), [1504] * 5) == pytest.approx([0.0, 0.010, 0.010, 0.020, 0.020])


@pytest.mark.parametrize("origin_s", [0.0, 0.1, 98_765.4321])
def test_a_saturated_recording_uses_every_chance_once_over_many_rounds(origin_s: float) -> None:
    at_ms = (0, 3, 3, 7, 20, 21, 33)
    line = chances(*at_ms, origin_s=origin_s)
    finishes = back_to_back(line, [1504] * (7 * 500), origin_s)

    expected = [origin_s + 0.033 * rounds + at / 1000 for rounds in range(500) for at in at_ms]
    assert finishes == pytest.approx(expected, abs=1e-6)
    assert line.carried_bytes(origin_s + 0.001, origin_s + 0.001 + 0.033 * 100) == 7 * 100 * 1504


def test_a_direction_chooses_its_kind_of_line() -> None:
    opportunities = Opportunities(name="t", at_s=(0.001,))

    assert isinstance(service_of(Direction(rate_bps=1e6, delay_s=0), 0.0), Constant)
    assert isinstance(service_of(Direction(rate_bps=1e6, delay_s=0, rate_trace=ON_OFF), 0.0), Stepped)
    assert isinstance(service_of(Direction(rate_bps=1e6, delay_s=0, opportunities=opportunities), 0.0), Chances)


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(service).failed == 0
