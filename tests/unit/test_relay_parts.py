"""The parts of the relay that need no network: sizes on the wire, bundles, lateness, messages."""

from __future__ import annotations

import struct

import pytest

from testbed.shaping import protocol as wire
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport
from testbed.shaping.dilation import dilated
from testbed.shaping.lateness import BUCKET_S, BUCKETS, LatenessHistogram
from testbed.shaping.tun import wire_size
from testbed.tcp import BUNDLE_S, bundle_for
from testbed.topology import Direction

GIGABIT = Direction(rate_bps=1e9, delay_s=0.001)
IP, TCP = 20, 32  # header lengths; TCP carries a time stamp


def bundle(payload: int, segment: int) -> bytes:
    """A read from a TUN device: virtio header, IP and TCP headers, and more payload than one packet holds."""
    virtio = struct.pack("=BBHHHH", 1, 1, 1400, segment, IP, 16)  # the header length in it is only a hint
    return (
        virtio + bytes([0x45]) + bytes(IP - 1) + bytes(12) + bytes([(TCP // 4) << 4]) + bytes(TCP - 13) + bytes(payload)
    )


def test_a_single_packet_is_as_large_as_it_is() -> None:
    assert wire_size(bytes(10) + bytes(1500)) == (1500, 1)


@pytest.mark.parametrize(
    ("payload", "packets"), [(1448, 1), (1449, 2), (2 * 1448, 2), (44 * 1448, 44), (44 * 1448 + 1, 45)]
)
def test_every_packet_of_a_bundle_has_headers_of_its_own(payload: int, packets: int) -> None:
    assert wire_size(bundle(payload, 1448)) == (payload + packets * (IP + TCP), packets)


@pytest.mark.parametrize("rate_bps", [1e6, 1e7, 5e7, 1e8, 1e9, 1e10])
def test_a_bundle_is_one_packet_or_short_on_the_link(rate_bps: float) -> None:
    direction = Direction(rate_bps=rate_bps, delay_s=0.001)
    packets = bundle_for(direction)

    assert 1 <= packets <= 44
    assert packets == 1 or packets * 1500 * 8 / rate_bps <= BUNDLE_S


@pytest.mark.parametrize(
    "direction",
    [
        Direction(rate_bps=1e10, delay_s=0.001, loss=1e-6),
        Direction(rate_bps=1e10, delay_s=0.001, jitter_s=1e-6),
        Direction(rate_bps=1e10, delay_s=0.001, queue_bytes=6000),
    ],
    ids=["loss", "jitter", "short queue"],
)
def test_packets_travel_alone_where_physics_acts_on_each(direction: Direction) -> None:
    assert bundle_for(direction) == 1


def test_lateness_quantiles_are_upper_edges_of_their_buckets() -> None:
    histogram = LatenessHistogram()
    for number in range(100):
        histogram.add(number * 1e-5 + 1e-6)  # 1 µs to 991 µs, two per bucket

    summary = histogram.summary()
    assert summary.releases == 100
    assert summary.p50_s == pytest.approx(500e-6)
    assert summary.p99_s == pytest.approx(991e-6)  # never more than the largest
    assert summary.max_s == pytest.approx(991e-6)
    assert summary.buckets[:3] == (2, 2, 2)


def test_an_early_release_is_punctual_and_a_very_late_one_is_counted() -> None:
    histogram = LatenessHistogram()
    histogram.add(-0.001)
    histogram.add(5.0)

    summary = histogram.summary()
    assert (summary.buckets[0], summary.buckets[-1]) == (1, 1)
    assert summary.p999_s == summary.max_s == 5.0
    assert len(summary.buckets) == BUCKETS
    assert summary.bucket_s == BUCKET_S


def test_nothing_released_is_not_late() -> None:
    summary = LatenessHistogram().summary()
    assert (summary.releases, summary.p50_s, summary.p99_s, summary.max_s) == (0, 0, 0, 0)


def test_dilation_slows_everything_and_keeps_the_packets_of_the_queue() -> None:
    slow = dilated(Direction(rate_bps=1e9, delay_s=0.010, jitter_s=0.001, loss=0.1), 5)

    assert slow == Direction(rate_bps=2e8, delay_s=0.050, jitter_s=0.005, loss=0.1, queue_bytes=2_500_000)
    assert dilated(GIGABIT, 1).effective_queue_bytes == GIGABIT.effective_queue_bytes


@pytest.mark.parametrize(
    "request_",
    [
        wire.Plug(
            cables=(
                CablePlan(
                    link="a-b",
                    a=CableEnd(node="a", netns="/n/a", interface="to-b"),
                    b=CableEnd(node="b", netns="/n/b", interface="to-a"),
                    forward=GIGABIT,
                    backward=Direction(rate_bps=1e6, delay_s=0.0, queue_bytes=9),
                ),
            )
        ),
        wire.Shape(link="a-b", source="a", direction=GIGABIT),
        wire.Report(),
        wire.TellLateness(reset=True),
        wire.Dilate(dilation=2.5),
        wire.Stop(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_requests_survive_the_wire(request_: wire.Request) -> None:
    assert wire.decode_request(wire.encode(request_)) == request_


def test_replies_survive_the_wire() -> None:
    report = DirectionReport(
        link="a-b",
        source="a",
        target="b",
        applied=GIGABIT,
        packets=1,
        bytes=2,
        dropped={"queue": 3, "loss": 4},
        queued_bytes=5,
    )
    for reply in (wire.Done(), wire.Reported(directions=(report,), dilation=1.0), wire.Failed(reason="no")):
        assert wire.decode_reply(wire.encode(reply)) == reply
