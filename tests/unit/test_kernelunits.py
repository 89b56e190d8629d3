from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.impairments import CoDel, Distribution, GilbertElliott, Steps
from testbed.shaping.kernelunits import (
    FRAME_BYTES,
    HTB_RATE64,
    MAX_TABLE,
    MAX_U32,
    NETEM_DELAY_DIST,
    NETEM_HEAD,
    NETEM_PRNG_SEED,
    NETEM_RATE64,
    NO_LIMIT,
    Line,
    attribute,
    attributes,
    direction_of,
    line_of,
    packed_fifo,
    packed_line,
    packed_queue,
    queue_of,
    unpacked_line,
    unpacked_queue,
)
from testbed.shaping.netem import supports
from testbed.tcp import bundle_for
from testbed.topology import MTU_BYTES, Direction

PLAIN = Direction(rate_bps=1e8, delay_s=0.005)
PROBABILITY = st.floats(0.0, 1.0)

directions = st.builds(
    Direction,
    rate_bps=st.floats(1e3, 1e12),
    delay_s=st.floats(0.0, 100.0),
    jitter_s=st.just(0.0) | st.floats(1e-6, 2.0),
    loss=PROBABILITY,
    duplicate=PROBABILITY,
    corrupt=PROBABILITY,
    queue_bytes=st.none() | st.integers(3000, 10**9),
)


@given(directions)
def test_what_the_kernel_is_told_can_be_read_back(direction: Direction) -> None:
    bundle = bundle_for(direction)
    line, queue = line_of(direction, bundle=bundle), queue_of(direction, bundle=bundle)
    found_line = unpacked_line(packed_line(line))
    found_queue = unpacked_queue(packed_queue(queue), packed_fifo(queue.limit), in_packets=queue.in_packets)

    assert found_line == replace(line, table=())
    assert found_queue == queue


@given(directions)
def test_what_was_read_back_means_what_was_asked(direction: Direction) -> None:
    bundle = bundle_for(direction)
    line, queue = line_of(direction, bundle=bundle), queue_of(direction, bundle=bundle)
    found = direction_of(line, queue, None)

    # Rates are whole bytes per second, times whole nanoseconds, probabilities whole parts of 2^32.
    assert found.rate_bps == pytest.approx(direction.rate_bps, rel=0.006, abs=8)
    assert found.delay_s == pytest.approx(direction.delay_s, abs=1e-9)
    assert found.jitter_s == pytest.approx(direction.jitter_s, abs=1e-9)
    assert (found.loss, found.duplicate, found.corrupt) == pytest.approx(
        (direction.loss, direction.duplicate, direction.corrupt), abs=1e-9
    )
    if bundle * FRAME_BYTES < queue.limit < MAX_U32 and queue.burst_ticks > 100:
        assert found.queue_bytes == pytest.approx(direction.effective_queue_bytes, rel=0.01, abs=FRAME_BYTES)


def test_a_rate_beyond_32_bits_does_not_wrap() -> None:
    fast = replace(PLAIN, rate_bps=100e9)
    line, queue = line_of(fast, bundle=44), queue_of(fast, bundle=44)
    rate = attributes(packed_line(line)[NETEM_HEAD.size :])[NETEM_RATE64]

    assert line.rate_bytes_per_s == queue.rate_bytes_per_s > MAX_U32
    assert struct.unpack("=Q", rate)[0] == line.rate_bytes_per_s
    assert HTB_RATE64 in attributes(packed_queue(queue))


def test_rates_are_bytes_and_full_packets_meet_the_rate_of_the_file() -> None:
    single, bundled = line_of(PLAIN, bundle=1), line_of(PLAIN, bundle=8)

    def seconds(line: Line, frames: int) -> float:
        return (frames * FRAME_BYTES + line.overhead_bytes) / line.rate_bytes_per_s

    assert seconds(single, 1) == pytest.approx(8 * MTU_BYTES / 1e8)
    assert seconds(bundled, 8) == pytest.approx(8 * 8 * MTU_BYTES / 1e8)
    assert FRAME_BYTES / queue_of(PLAIN, bundle=1).rate_bytes_per_s == pytest.approx(8 * MTU_BYTES / 1e8)


@pytest.mark.parametrize("rate_bps", [1e6, 1e8, 1e9, 1e11])
def test_the_burst_follows_the_rate_and_never_exceeds_a_quarter_of_the_queue(rate_bps: float) -> None:
    roomy = queue_of(Direction(rate_bps=rate_bps, delay_s=0.150), bundle=1)
    tight = queue_of(Direction(rate_bps=rate_bps, delay_s=0.150, queue_bytes=int(rate_bps / 8 / 1000)), bundle=1)

    assert roomy.burst_ticks * 64e-9 == pytest.approx(0.004, rel=1e-4)
    assert tight.burst_ticks * 64e-9 == pytest.approx(0.001 / 4, rel=0.02)


def test_the_queue_is_the_limit_and_netem_has_none() -> None:
    queue = queue_of(replace(PLAIN, queue_bytes=600_000), bundle=8)
    burst_bytes = queue.rate_bytes_per_s * queue.burst_ticks * 64e-9
    limit = NETEM_HEAD.unpack_from(packed_line(line_of(PLAIN, bundle=8)))[1]

    assert queue.limit + burst_bytes == pytest.approx(600_000 * FRAME_BYTES / MTU_BYTES, abs=1)
    assert limit == NO_LIMIT
    assert NO_LIMIT * MTU_BYTES > 100e9 / 8 * 10  # ten seconds at 100 Gbit/s are on their way without a drop


def test_a_queue_in_packets_has_one_in_service() -> None:
    queue = queue_of(replace(PLAIN, queue_packets=20), bundle=1)

    assert (queue.limit, queue.in_packets) == (19, True)
    assert direction_of(line_of(PLAIN, bundle=1), queue, None).queue_packets == 20


def test_both_kinds_of_loss_are_folded_into_one_model() -> None:
    bursts = GilbertElliott(worsens=0.02, recovers=0.2, loss_bad=0.5)
    line = line_of(replace(PLAIN, loss=0.1, burst_loss=bursts), bundle=1)
    found = direction_of(line, queue_of(PLAIN, bundle=1), None)

    assert line.loss == 0
    assert found.burst_loss is not None
    assert found.mean_loss == pytest.approx(replace(PLAIN, loss=0.1, burst_loss=bursts).mean_loss, rel=1e-6)
    assert found.burst_loss.loss_bad == pytest.approx(1 - 0.9 * 0.5)
    assert found.burst_loss.loss_good == pytest.approx(0.1)


def test_jitter_is_normal_unless_a_table_says_otherwise() -> None:
    normal = line_of(replace(PLAIN, jitter_s=0.001), bundle=1).table
    shape = Distribution(name="two", table=(-8192, 8192))

    mean = sum(normal) / len(normal)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in normal) / len(normal))
    assert mean == pytest.approx(0, abs=1)
    assert deviation == pytest.approx(8192, rel=0.01)
    assert line_of(replace(PLAIN, jitter_s=0.001, jitter_shape=shape), bundle=1).table == (-8192, 8192)
    assert line_of(PLAIN, bundle=1).table == ()


def test_a_table_longer_than_the_kernel_takes_is_thinned() -> None:
    long = Distribution(name="long", table=tuple(range(-20000, 20000)))
    line = line_of(replace(PLAIN, jitter_s=0.001, jitter_shape=long), bundle=1)
    packed = attributes(packed_line(line)[NETEM_HEAD.size :])[NETEM_DELAY_DIST]

    assert len(line.table) <= MAX_TABLE
    assert line.table[0] == -20000
    assert line.table[-1] == pytest.approx(20000, abs=3)
    assert len(packed) == 2 * len(line.table)


def test_jitter_keeps_order_unless_it_may_reorder() -> None:
    jittery = replace(PLAIN, jitter_s=0.001)

    assert line_of(jittery, bundle=1).rate_bytes_per_s > 0  # netem with a rate is a line: nothing overtakes
    assert line_of(replace(jittery, reorder=True), bundle=1).rate_bytes_per_s == 0
    assert line_of(replace(PLAIN, reorder=True), bundle=1).rate_bytes_per_s > 0


def test_a_seed_is_sent_where_there_is_one() -> None:
    line = line_of(PLAIN, bundle=1)

    assert NETEM_PRNG_SEED not in attributes(packed_line(line)[NETEM_HEAD.size :])
    assert attributes(packed_line(line, seed=7)[NETEM_HEAD.size :])[NETEM_PRNG_SEED] == struct.pack("=Q", 7)


@pytest.mark.parametrize("cut", [b"\x08\0\x01\0abc", b"\x02\0\x01\0"])
def test_attributes_cut_short_are_refused(cut: bytes) -> None:
    assert attributes(attribute(1, b"abc")) == {1: b"abc"}
    with pytest.raises(ValueError, match="attribute"):
        attributes(cut)


def test_what_netem_cannot_do_is_said() -> None:
    steps = Steps(name="steps", ends_s=(1.0,), values=(1e6,))

    assert supports(replace(PLAIN, loss=0.1, jitter_s=0.001, reorder=True, corrupt=0.1, queue_packets=5)) == ""
    assert "CoDel" in supports(replace(PLAIN, codel=CoDel()))
    assert "recording" in supports(replace(PLAIN, rate_trace=steps))
    assert "recording" in supports(replace(PLAIN, delay_trace=steps))
