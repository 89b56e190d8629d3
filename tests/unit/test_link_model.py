"""The physics of one direction of a link, in virtual time."""

from __future__ import annotations

import itertools
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.impairments import CoDel, GilbertElliott, Opportunities, Steps
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


# --- limits in packets, CoDel -----------------------------------------------------------------------------------------


def test_a_limit_in_packets_counts_the_one_in_service_whatever_their_size() -> None:
    model = link(replace(EIGHT_MBIT, queue_bytes=None, queue_packets=4))

    assert [model.offer(0.0, 40 + number, number) for number in range(6)] == [None] * 4 + [Drop.QUEUE] * 2
    assert model.offer(41e-6, 1500, 9) is None  # one is out
    assert model.offer(41e-6, 40, 9) is Drop.QUEUE
    assert [number for _, number in arrivals(model)] == [0, 1, 2, 3, 9]


def test_a_limit_in_packets_changes_neither_times_nor_order_below_it() -> None:
    by_packets, by_bytes = link(replace(EIGHT_MBIT, queue_bytes=None, queue_packets=1000)), link()
    for number in range(10):
        for model in (by_packets, by_bytes):
            model.offer(number * 0.0005, 1000, number)

    expected = arrivals(by_bytes)
    assert arrivals(by_packets) == [(pytest.approx(at_s), number) for at_s, number in expected]


def waits_under_overload(direction: Direction, seconds: float) -> tuple[list[float], LinkModel[int]]:
    """How long each packet that arrives in the second half waited, if a twentieth more comes than the line takes."""
    model, sent_s, waits = link(direction), [], []
    number = 0
    while (now_s := number / 1050) < seconds:
        sent_s.append(now_s)
        model.offer(now_s, 1000, number)
        waits += [now_s - sent_s[packet] - direction.delay_s for packet in model.due(now_s) if now_s > seconds / 2]
        number += 1
    return waits, model


def test_codel_keeps_the_standing_queue_near_its_target_where_drop_tail_keeps_it_full() -> None:
    tail = replace(EIGHT_MBIT, queue_bytes=200_000)  # 200 ms
    full, _ = waits_under_overload(tail, 40.0)
    short, model = waits_under_overload(replace(tail, codel=CoDel()), 40.0)

    assert statistics.median(full) == pytest.approx(0.200, abs=0.003)
    assert statistics.median(short) < 0.012  # one of them in service
    dropped = model.counters(40.0).dropped
    # What does not fit on the line is dropped in both ways, by CoDel before the queue is full.
    assert dropped["codel"] == pytest.approx(2000, rel=0.05)
    assert dropped["queue"] == 0


def test_every_packet_that_codel_meets_arrives_or_is_counted_as_dropped() -> None:
    lost: list[int] = []

    class Followed(LinkModel[int]):
        def lost_later(self, packet: int, now_s: float) -> None:
            lost.append(packet)

    model = Followed(replace(EIGHT_MBIT, queue_bytes=50_000, codel=CoDel()), random.Random(1))  # noqa: S311
    refused = [number for number in range(20_000) if model.offer(number / 2000, 1000, number)]
    arrived = [number for _, number in arrivals(model)]

    assert sorted([*refused, *lost, *arrived]) == list(range(20_000))
    assert arrived == sorted(arrived)
    dropped = model.counters(20.0).dropped
    assert (dropped["queue"], dropped["codel"]) == (len(refused), len(lost))


def test_codel_drops_nothing_on_a_line_that_is_fast_enough() -> None:
    model = link(replace(EIGHT_MBIT, codel=CoDel()))
    for number in range(2000):
        assert model.offer(number * 0.0011, 1000, number) is None

    assert len(arrivals(model)) == 2000


# --- recordings -------------------------------------------------------------------------------------------------------

#: Chances at 2, 2, 5 and 10 ms, again and again.
CHANCES = Opportunities(name="t", at_s=(0.002, 0.002, 0.005, 0.010))
#: A second at 8 Mbit/s, a second of silence, a second at 16 Mbit/s.
STEPS = Steps(name="t", ends_s=(1.0, 2.0, 3.0), values=(8e6, 0.0, 16e6))


def recorded(trace: Steps | Opportunities, **more: Any) -> Direction:
    if isinstance(trace, Steps):
        return replace(EIGHT_MBIT, rate_bps=trace.mean, rate_trace=trace, queue_bytes=10**9, **more)
    return replace(EIGHT_MBIT, rate_bps=trace.mean_bps, opportunities=trace, queue_bytes=10**9, **more)


def test_a_saturated_mahimahi_trace_delivers_one_full_packet_at_each_of_its_chances() -> None:
    model = link(recorded(CHANCES))
    for number in range(400):
        model.offer(0.0, 1504, number)

    expected = [0.010 + 0.010 * rounds + at_s for rounds in range(100) for at_s in CHANCES.at_s]
    assert arrivals(model) == [(pytest.approx(at_s, abs=1e-7), number) for number, at_s in enumerate(expected)]


def test_a_mahimahi_trace_wastes_the_chances_at_which_nothing_waits() -> None:
    model = link(recorded(CHANCES))
    model.offer(0.0, 100, 0)
    model.offer(0.003, 1504, 1)
    model.offer(0.021, 100, 2)

    assert [at_s for at_s, _ in arrivals(model)] == pytest.approx([0.012, 0.015, 0.032])


def test_a_saturated_stepped_trace_delivers_the_area_under_it_and_nothing_in_its_silence() -> None:
    model = link(recorded(STEPS))
    for number in range(6000):  # two rounds carry 3 MB each
        model.offer(0.0, 1000, number)
    got = [at_s - 0.010 for at_s, _ in arrivals(model)]

    assert len(got) == 6000
    for from_s, to_s, packets in ((0, 1, 1000), (1, 2, 0), (2, 3, 2000), (3, 4, 1000), (4, 5, 0), (5, 6, 2000)):
        # A packet that ends with a second belongs to it; clocks may tell the two apart by a microsecond.
        assert sum(from_s + 1e-6 < at_s <= to_s + 1e-6 for at_s in got) == packets


def test_a_recorded_delay_is_that_of_the_moment_and_packets_keep_their_order() -> None:
    delays = Steps(name="t", ends_s=(1.0, 2.0), values=(0.100, 0.020))
    model = link(replace(EIGHT_MBIT, delay_s=0.060, delay_trace=delays))
    for number, now_s in enumerate((0.5, 0.95, 1.01, 1.5, 2.5)):
        model.offer(now_s, 1000, number)

    assert [at_s for at_s, _ in arrivals(model)] == pytest.approx([0.601, 1.051, 1.051, 1.521, 2.601])


def test_a_recording_begins_when_it_comes_into_force_and_goes_on_when_other_things_change() -> None:
    model = link()
    model.change(recorded(CHANCES), 100.0)
    model.change(recorded(CHANCES, loss=0.0, delay_s=0.020), 100.004)
    model.offer(100.0041, 100, 0)

    assert [at_s for at_s, _ in arrivals(model)] == pytest.approx([100.005 + 0.020])


def test_a_packet_in_service_is_rescaled_when_a_constant_rate_becomes_a_recording_and_back() -> None:
    slow = Steps(name="t", ends_s=(100.0,), values=(4e6,))
    model = link()
    for number in range(3):
        model.offer(0.0, 1000, number)
    model.change(recorded(slow), 0.0005)  # half of the first is out: the rest takes twice as long
    assert model.queued_bytes(0.0005) == 2500
    model.change(EIGHT_MBIT, 0.0025)  # half of the second is out
    assert model.queued_bytes(0.0025) == 1500

    assert [at_s for at_s, _ in arrivals(model)] == pytest.approx([0.0115, 0.0130, 0.0140])


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.floats(0, 0.004), st.integers(40, 1500)), min_size=1, max_size=80),
    st.lists(st.sampled_from(["constant", "steps", "chances", "packets", "codel"]), min_size=1, max_size=6),
)
def test_whatever_the_line_becomes_what_was_accepted_comes_out_once_and_in_order(
    seed: int, offers: list[tuple[float, int]], kinds: list[str]
) -> None:
    in_force = {
        "constant": EIGHT_MBIT,
        "steps": recorded(Steps(name="t", ends_s=(0.003, 0.005, 0.011), values=(8e6, 0.0, 3e6))),
        "chances": recorded(CHANCES),
        "packets": replace(EIGHT_MBIT, queue_bytes=None, queue_packets=7),
        "codel": replace(EIGHT_MBIT, codel=CoDel(target_s=0.001, interval_s=0.002)),
    }
    lost: list[int] = []

    class Followed(LinkModel[int]):
        def lost_later(self, packet: int, now_s: float) -> None:
            lost.append(packet)

    model = Followed(EIGHT_MBIT, random.Random(seed))  # noqa: S311 - physics, not secrets
    now_s, accepted, got, waiting_bytes = 0.0, [], [], 0
    for number, (gap_s, size) in enumerate(offers):
        now_s += gap_s
        if model.offer(now_s, size, number) is None:
            accepted.append(number)
            waiting_bytes += size
        if number % 5 == 2:
            model.change(in_force[kinds[number // 5 % len(kinds)]], now_s)
        got.extend(model.due(now_s))
        assert 0 <= model.queued_bytes(now_s) <= waiting_bytes + 2 * 1504
    got.extend(packet for _, packet in arrivals(model))

    assert got == [number for number in accepted if number not in lost]
    assert model.queued_bytes(now_s + 1e6) == 0
    assert model.counters(now_s).packets == len(got)


# --- what chance does -------------------------------------------------------------------------------------------------


def test_a_duplicated_packet_arrives_twice_and_takes_the_line_once() -> None:
    model = link(replace(EIGHT_MBIT, duplicate=1.0))
    model.offer(0.0, 1000, 0)
    model.offer(0.0, 1000, 1)

    assert arrivals(model) == [(pytest.approx(at_s), number) for at_s, number in ((0.011, 0),) * 2 + ((0.012, 1),) * 2]
    assert model.counters(1.0).packets == 2


def test_where_copies_are_not_wanted_a_duplicated_packet_arrives_once() -> None:
    model = LinkModel[int](replace(EIGHT_MBIT, duplicate=1.0), random.Random(1), copies=False)  # noqa: S311
    model.offer(0.0, 1000, 0)

    assert [number for _, number in arrivals(model)] == [0]


def test_a_corrupted_packet_arrives_spoiled_where_bits_can_be_flipped_and_is_dropped_where_they_cannot() -> None:
    corrupting = replace(EIGHT_MBIT, corrupt=0.25, queue_bytes=10**9)
    spoiling = LinkModel[int](corrupting, random.Random(1), spoil=lambda packet, _: -packet)  # noqa: S311
    dropping = link(corrupting)
    for number in range(1, 10_001):
        spoiling.offer(0.0, 1000, number)
        dropping.offer(0.0, 1000, number)
    spoiled = [number for _, number in arrivals(spoiling)]
    whole = [number for _, number in arrivals(dropping)]

    assert [abs(number) for number in spoiled] == list(range(1, 10_001))
    assert sum(number < 0 for number in spoiled) / 10_000 == pytest.approx(0.25, abs=0.02)
    assert whole == [number for number in spoiled if number > 0]
    assert dropping.counters(0.0).dropped["corrupt"] == 10_000 - len(whole)


def test_packets_overtake_each_other_only_where_that_is_asked_for() -> None:
    jittery = replace(EIGHT_MBIT, jitter_s=0.004, queue_bytes=10**9)
    orders = []
    for direction in (jittery, replace(jittery, reorder=True)):
        model = link(direction)
        for number in range(500):
            model.offer(0.0, 1000, number)
        got = arrivals(model)
        assert [at_s for at_s, _ in got] == sorted(at_s for at_s, _ in got)
        orders.append([number for _, number in got])

    kept, free = orders
    assert kept == list(range(500))
    assert free != kept
    assert sorted(free) == kept


def test_a_change_of_a_link_that_reorders_loses_nothing() -> None:
    model = link(replace(EIGHT_MBIT, jitter_s=0.004, reorder=True))
    for number in range(10):
        model.offer(0.0, 1000, number)
    model.change(replace(EIGHT_MBIT, rate_bps=4e6), 0.0035)
    got = arrivals(model)

    assert sorted(number for _, number in got) == list(range(10))
    # What was not on the cable yet follows in order, behind nothing that jitter had only planned for it.
    assert [number for _, number in got if number >= 4] == list(range(4, 10))


def test_rewinding_repeats_the_fates_of_the_packets_and_the_recording() -> None:
    direction = recorded(
        Steps(name="t", ends_s=(0.2, 0.5), values=(8e6, 2e6)),
        jitter_s=0.001,
        loss=0.1,
        burst_loss=GilbertElliott(worsens=0.05, recovers=0.3),
        duplicate=0.1,
    )
    model = link(direction)

    def fates(begin_s: float, seed: str) -> list[tuple[float, int]]:
        model.rewind(seed, begin_s)
        for number in range(300):
            model.offer(begin_s + number * 0.002, 1000, number)
        return [(round(at_s - begin_s, 6), number) for at_s, number in arrivals(model)]

    first = fates(0.0, "run 1")
    assert fates(64.0, "run 1") == first
    assert fates(128.0, "run 2") != first


def test_a_link_loses_in_bursts_of_the_configured_length() -> None:
    bursts = GilbertElliott(worsens=0.02, recovers=0.25)
    model = link(replace(EIGHT_MBIT, burst_loss=bursts, queue_bytes=10**9))
    lost = [model.offer(0.0, 100, number) is Drop.LOSS for number in range(50_000)]
    lengths = [sum(1 for _ in group) for is_lost, group in itertools.groupby(lost) if is_lost]

    assert statistics.mean(lost) == pytest.approx(bursts.mean_loss, rel=0.1)
    assert statistics.mean(lengths) == pytest.approx(4.0, rel=0.1)
    assert model.counters(0.0).dropped["loss"] == sum(lost)
