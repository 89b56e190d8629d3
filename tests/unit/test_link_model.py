"""The physics of one direction of a link, in virtual time."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.shaping.model import Drop, LinkModel
from testbed.topology import Direction

#: 1 byte takes 1 µs.
EIGHT_MBIT = Direction(rate_bps=8e6, delay_s=0.010, queue_bytes=10_000)


def link(direction: Direction = EIGHT_MBIT, seed: int = 1) -> LinkModel[int]:
    return LinkModel(direction, random.Random(seed))  # noqa: S311 - physics, not secrets


def arrivals(model: LinkModel[int]) -> list[tuple[float, int]]:
    """Every packet under way with its arrival time."""
    out = []
    while len(model):
        at_s = model.next_due_s
        out.extend((at_s, packet) for packet in model.due(at_s))
    return out


def test_a_packet_arrives_after_its_serialization_and_the_delay() -> None:
    model = link()
    model.offer(1.0, 1000, 7)

    assert model.next_due_s == pytest.approx(1.0 + 0.001 + 0.010)
    assert model.due(1.0109) == []
    assert model.due(1.0111) == [7]
    assert model.due(2.0) == []


def test_packets_offered_together_leave_one_serialization_apart() -> None:
    model = link()
    for number in range(5):
        model.offer(0.0, 1000, number)

    assert [at for at, _ in arrivals(model)] == pytest.approx([0.011, 0.012, 0.013, 0.014, 0.015])


def test_the_line_is_idle_between_packets_that_come_slower_than_the_rate() -> None:
    model = link()
    model.offer(0.0, 1000, 0)
    model.offer(0.5, 1000, 1)

    assert [at for at, _ in arrivals(model)] == pytest.approx([0.011, 0.511])


def test_a_late_caller_does_not_slow_the_link() -> None:
    punctual, late = link(), link()
    for model in (punctual, late):
        for number in range(5):
            model.offer(0.0, 1000, number)
    late.due(0.0131)  # after three packets were due
    late.offer(0.0131, 1000, 9)
    punctual.due(0.0131)
    punctual.offer(0.0131, 1000, 9)

    assert arrivals(late) == arrivals(punctual)


def test_the_queue_takes_its_bytes_and_drops_the_next_packet() -> None:
    model = link()

    assert [model.offer(0.0, 1000, n) for n in range(12)] == [None] * 10 + [Drop.QUEUE] * 2
    assert model.queued_bytes(0.0) == 10_000
    assert model.counters(0.0).dropped == {"queue": 2, "loss": 0, "codel": 0, "corrupt": 0}


def test_the_queue_drains_at_the_rate_and_bytes_on_the_cable_do_not_count() -> None:
    model = link()
    for number in range(10):
        model.offer(0.0, 1000, number)

    assert model.queued_bytes(0.0) == 10_000
    assert model.queued_bytes(0.004) == 6000
    assert model.queued_bytes(0.010) == 0
    assert len(model) == 10  # all still travel: the delay is 10 ms
    assert model.offer(0.004, 4000, 99) is None
    assert model.offer(0.004, 1, 99) is Drop.QUEUE


def test_a_packet_larger_than_the_queue_passes_an_idle_line() -> None:
    model = link(replace(EIGHT_MBIT, queue_bytes=100))

    assert model.offer(0.0, 1500, 0) is None
    assert model.offer(0.0, 1500, 1) is Drop.QUEUE


def test_a_dropped_packet_takes_no_time_on_the_line() -> None:
    model = link(replace(EIGHT_MBIT, queue_bytes=1000))
    model.offer(0.0, 1000, 0)
    model.offer(0.0, 1000, 1)
    model.offer(0.001, 1000, 2)

    assert arrivals(model) == [(pytest.approx(0.011), 0), (pytest.approx(0.012), 2)]


def test_loss_is_drawn_per_packet_and_lost_packets_still_used_the_line() -> None:
    model = link(replace(EIGHT_MBIT, loss=0.2, queue_bytes=10**9))
    for number in range(10_000):
        model.offer(0.0, 1000, number)
    got = arrivals(model)

    assert 1 - len(got) / 10_000 == pytest.approx(0.2, abs=0.015)
    assert all(at == pytest.approx(0.010 + 0.001 * (number + 1)) for at, number in got)
    counters = model.counters(20.0)
    assert counters.packets == len(got)
    assert counters.dropped["loss"] == 10_000 - len(got)


def test_the_same_seed_loses_the_same_packets() -> None:
    lossy = replace(EIGHT_MBIT, loss=0.5, queue_bytes=10**9)
    first, second, other = link(lossy, 1), link(lossy, 1), link(lossy, 2)
    for number in range(100):
        for model in (first, second, other):
            model.offer(0.0, 100, number)

    expected = arrivals(first)
    assert arrivals(second) == expected
    assert arrivals(other) != expected


def test_a_loss_of_one_delivers_nothing() -> None:
    model = link(replace(EIGHT_MBIT, loss=1.0))
    assert [model.offer(n * 1.0, 100, n) for n in range(50)] == [Drop.LOSS] * 50


@given(st.integers(0, 10_000), st.lists(st.floats(0, 0.005), min_size=2, max_size=80), st.floats(1e-6, 0.05))
def test_jitter_never_reorders_and_never_comes_before_serialization(
    seed: int, gaps: list[float], jitter_s: float
) -> None:
    model = link(replace(EIGHT_MBIT, jitter_s=jitter_s, queue_bytes=10**9), seed)
    now_s, floor_s = 0.0, []
    for number, gap in enumerate(gaps):
        now_s += gap
        model.offer(now_s, 100, number)
        floor_s.append(now_s + 100e-6)
    got = arrivals(model)

    assert [number for _, number in got] == list(range(len(gaps)))
    assert all(at >= floor_s[number] - 1e-12 for at, number in got)


def test_jitter_of_packets_far_apart_has_the_configured_mean_and_deviation() -> None:
    model = link(replace(EIGHT_MBIT, jitter_s=0.002))
    extra_s = []
    for number in range(4000):
        model.offer(float(number), 1000, number)
        extra_s.append(model.next_due_s - number - 0.011)
        model.due(number + 0.5)

    assert statistics.mean(extra_s) == pytest.approx(0.0, abs=0.00015)
    assert statistics.stdev(extra_s) == pytest.approx(0.002, rel=0.05)


def test_jitter_does_not_add_delay_to_a_stream_of_close_packets() -> None:
    """Independent draws with order kept would hold every packet about three deviations back."""
    model = link(Direction(rate_bps=1e9, delay_s=0.010, jitter_s=0.001))
    extra_s = []
    for number in range(40_000):
        now_s = number * 25e-6
        model.offer(now_s, 1500, number)
        extra_s.append(model._line[-1][0] - now_s - 0.010)
        model.due(now_s)

    assert abs(statistics.mean(extra_s)) < 0.0005


def test_a_slower_rate_stretches_what_is_not_yet_serialized_only() -> None:
    model = link()
    for number in range(4):
        model.offer(0.0, 1000, number)
    model.change(replace(EIGHT_MBIT, rate_bps=4e6), 0.0015)  # one packet is out, the second is half out

    assert [at for at, _ in arrivals(model)] == pytest.approx([0.011, 0.0125, 0.0145, 0.0165])


def test_a_change_keeps_the_queue_and_its_bytes() -> None:
    model = link()
    for number in range(8):
        model.offer(0.0, 1000, number)
    model.change(replace(EIGHT_MBIT, rate_bps=1e6, queue_bytes=2000), 0.002)

    assert model.queued_bytes(0.002) == 6000
    assert model.offer(0.002, 1000, 99) is Drop.QUEUE
    assert [packet for _, packet in arrivals(model)] == list(range(8))


def test_a_shorter_delay_does_not_overtake_what_is_on_the_cable() -> None:
    model = link()
    model.offer(0.0, 1000, 0)
    model.offer(0.0, 1000, 1)
    model.change(replace(EIGHT_MBIT, delay_s=0.0), 0.0015)
    model.offer(0.0015, 1000, 2)

    assert arrivals(model) == [(pytest.approx(0.011), 0), (pytest.approx(0.011), 1), (pytest.approx(0.011), 2)]


def test_a_longer_delay_does_not_hold_back_what_is_on_the_cable() -> None:
    model = link()
    model.offer(0.0, 1000, 0)
    model.offer(0.0, 1000, 1)
    model.change(replace(EIGHT_MBIT, delay_s=1.0), 0.0015)

    assert arrivals(model) == [(pytest.approx(0.011), 0), (pytest.approx(1.002), 1)]


def test_changing_loss_leaves_the_timing_alone() -> None:
    model, untouched = link(), link()
    for number in range(5):
        model.offer(0.0, 1000, number)
        untouched.offer(0.0, 1000, number)
    model.change(replace(EIGHT_MBIT, loss=1.0), 0.0022)

    assert model.offer(0.0022, 1000, 9) is Drop.LOSS
    assert arrivals(model) == [(pytest.approx(at), packet) for at, packet in arrivals(untouched)]


@given(
    st.lists(st.tuples(st.floats(0, 0.003), st.integers(40, 1500)), min_size=1, max_size=60),
    st.lists(st.tuples(st.floats(1e5, 1e9), st.floats(0, 0.05)), min_size=1, max_size=5),
)
def test_whatever_changes_every_accepted_packet_comes_out_once_in_order(
    offers: list[tuple[float, int]], changes: list[tuple[float, float]]
) -> None:
    model, now_s, accepted, got = link(), 0.0, [], []
    for number, (gap_s, size) in enumerate(offers):
        now_s += gap_s
        if model.offer(now_s, size, number) is None:
            accepted.append(number)
        if number % 7 == 3:
            rate_bps, delay_s = changes[number % len(changes)]
            model.change(replace(EIGHT_MBIT, rate_bps=rate_bps, delay_s=delay_s), now_s)
        got.extend(model.due(now_s))
    got.extend(packet for _, packet in arrivals(model))

    assert got == accepted


def test_a_bundle_counts_as_the_packets_it_carries() -> None:
    model = link(replace(EIGHT_MBIT, queue_bytes=4000))
    model.offer(0.0, 3000, 0, count=2)
    model.offer(0.0, 3000, 1, count=2)

    counters = model.counters(0.0)
    assert (counters.packets, counters.bytes, counters.dropped["queue"]) == (2, 3000, 2)


def test_a_saturated_link_carries_its_rate() -> None:
    model = link(Direction(rate_bps=1e8, delay_s=0.005))
    carried, now_s = 0, 0.0
    while now_s < 1.0:
        model.offer(now_s, 1500, 1500)
        carried += sum(model.due(now_s))
        now_s += 100e-6  # 120 Mbit/s offered

    assert carried * 8 == pytest.approx(1e8 * (1.0 - 0.005), rel=0.002)


def test_a_jittery_link_with_a_queue_may_become_faster() -> None:
    """The next packet is then on the cable before the last one would have been."""
    slow = Direction(rate_bps=1e6, delay_s=0.010, jitter_s=0.002)
    link: LinkModel[int] = LinkModel(slow, random.Random(0))  # noqa: S311 - physics, not secrets
    for number in range(10):
        link.offer(0.0, 1000, number)
    link.change(Direction(rate_bps=1e9, delay_s=0.010, jitter_s=0.002), 0.001)
    link.offer(0.001, 1000, 10)

    assert link.due(1.0) == list(range(11))
