"""Every key of a link has a measured effect, under every engine: one key at a time, beside an untouched direction."""

from __future__ import annotations

import itertools
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.backends.kernel import inside_netns
from testbed.errors import TestbedError
from testbed.impairments import CoDel, Distribution, GilbertElliott, Opportunities, Steps
from testbed.judging import PAYLOAD_SHARE
from testbed.network import Network
from testbed.probes import connect, goodputs_bps, note_arrivals, received, round_trips_s
from testbed.setup import BackendName
from testbed.shaping.base import DirectionReport
from testbed.shaping.engines import ShaperName
from testbed.topology import Direction
from tests.support.networks import (
    QUICK,
    Bring,
    bringing,
    eventually,
    link_way,
    mesh,
    skip_beyond_netem,
    soon,
    topology,
    transfer,
    way,
)

pytestmark = pytest.mark.root

ENGINES: dict[str, tuple[BackendName, ShaperName]] = {"relay": ("netns", "relay"), "netem": ("netns", "netem")}
PORT = 7100


@pytest.fixture(params=ENGINES)
def bring(request: pytest.FixtureRequest, run_root: Path) -> Iterator[Bring]:
    with bringing(*ENGINES[request.param]) as bring:
        yield bring


def shape(network: Network, direction: Direction) -> None:
    """Change s1 -> s2; skip where the engine says that it cannot."""
    if "netem" in network.setup.engines.values():
        skip_beyond_netem(direction)
    network.shape("s1-s2", "s1", direction)


def datagrams(network: Network, count: int, *, size: int = 400, every_s: float = 0.0) -> list[tuple[int, float]]:
    """(number, arrival after the first was sent, s) of so many numbered datagrams from s1 to s2, as they arrive.

    The kernel notes when they come, so that this process may be late.
    """
    pair = way(network, "s1", "s2")
    with inside_netns(pair.target_netns):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        note_arrivals(far, buffer_bytes=1 << 24)  # nothing is lost here
        far.bind((pair.target_address, PORT))
    with inside_netns(pair.source_netns):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    arrived: list[tuple[int, float]] = []
    with far, near:
        far.setblocking(False)

        def take() -> None:
            with suppress(BlockingIOError):
                while True:
                    packet, arrived_ns, _ = received(far, 1 << 16)
                    arrived.append((int.from_bytes(packet[:4], "big"), (arrived_ns - begun_ns) / 1e9))

        begun_s, begun_ns = time.monotonic(), time.time_ns()
        for number in range(count):
            near.sendto(number.to_bytes(4, "big") + bytes(size - 4), (pair.target_address, PORT))
            take()
            while time.monotonic() < begun_s + (number + 1) * every_s:
                time.sleep(0.0002)
                take()
        quiet_s = time.monotonic()
        while time.monotonic() < quiet_s + 0.4:
            before = len(arrived)
            time.sleep(0.01)
            take()
            quiet_s = quiet_s if len(arrived) == before else time.monotonic()
    return arrived


def counter(network: Network, source: str = "s1") -> DirectionReport:
    return next(report for report in network.counters() if report.source == source)


def test_without_impairments_everything_arrives_once_and_in_order(bring: Bring) -> None:
    network = bring(topology(QUICK))

    assert [number for number, _ in datagrams(network, 500)] == list(range(500))


def test_duplicates_arrive_twice(bring: Bring) -> None:
    network = bring(topology(QUICK))
    shape(network, replace(QUICK, duplicate=0.2))
    numbers = [number for number, _ in datagrams(network, 1000)]

    assert set(numbers) == set(range(1000))
    assert 150 <= len(numbers) - 1000 <= 250  # 4 deviations


def test_corrupt_packets_are_noticed_and_dropped_by_the_receiver(bring: Bring) -> None:
    network = bring(topology(QUICK))
    shape(network, replace(QUICK, corrupt=0.2))
    numbers = [number for number, _ in datagrams(network, 1000)]

    assert len(numbers) == len(set(numbers))
    assert 750 <= len(numbers) <= 850
    assert numbers == sorted(numbers)


def test_loss_takes_its_share_and_is_counted(bring: Bring) -> None:
    network = bring(topology(QUICK))
    shape(network, replace(QUICK, loss=0.1))
    before = counter(network)
    arrived = len(datagrams(network, 1000))

    assert 860 <= arrived <= 940
    assert counter(network).dropped["loss"] - before.dropped["loss"] == 1000 - arrived


def test_loss_in_bursts_has_its_mean_and_comes_in_runs(bring: Bring) -> None:
    network = bring(topology(QUICK))
    bursts = GilbertElliott(worsens=0.02, recovers=0.2)
    shape(network, replace(QUICK, burst_loss=bursts))
    arrived = {number for number, _ in datagrams(network, 3000)}
    runs, length = [], 0
    for number in range(3001):
        if number < 3000 and number not in arrived:
            length += 1
        elif length:
            runs.append(length)
            length = 0

    assert 1 - len(arrived) / 3000 == pytest.approx(bursts.mean_loss, abs=0.04)
    assert statistics.mean(runs) == pytest.approx(bursts.mean_burst_packets, rel=0.35)


def test_reordering_lets_packets_overtake_and_loses_none(bring: Bring) -> None:
    network = bring(topology(QUICK))
    slow = Direction(rate_bps=1e9, delay_s=0.020, jitter_s=0.005)
    shape(network, replace(slow, reorder=True))
    numbers = [number for number, _ in datagrams(network, 300, every_s=0.001)]

    assert sorted(numbers) == list(range(300))
    assert numbers != sorted(numbers)
    shape(network, slow)
    kept = [number for number, _ in datagrams(network, 300, every_s=0.001)]
    assert kept == list(range(300))


def test_jitter_follows_its_table(bring: Bring) -> None:
    network = bring(topology(QUICK))
    two_valued = Distribution(name="two", table=(-8192,) * 64 + (8192,) * 64)
    shape(network, Direction(rate_bps=1e9, delay_s=0.030, jitter_s=0.010, jitter_shape=two_valued))
    pair = way(network, "s1", "s2")
    # Far enough apart to be independent of each other.
    rtts_s = round_trips_s([pair], probes=40, interval_s=0.06, wait_s=0.3)[0]
    early = [rtt_s for rtt_s in rtts_s if rtt_s < 0.026]
    late = [rtt_s for rtt_s in rtts_s if rtt_s > 0.036]

    assert len(early) >= 6
    assert len(late) >= 6
    assert len(rtts_s) - len(early) - len(late) <= 8  # a tenth of the wander is on its way from one to the other
    assert statistics.median(early) == pytest.approx(0.021, abs=0.001)
    assert statistics.median(late) == pytest.approx(0.041, abs=0.001)


def test_a_queue_of_packets_takes_so_many_whatever_their_size(bring: Bring) -> None:
    network = bring(topology(QUICK))
    shape(network, Direction(rate_bps=1e6, delay_s=0.001, queue_packets=20))
    small = len(datagrams(network, 60, size=100))
    large = len(datagrams(network, 60, size=1200))

    assert 20 <= small <= 26  # what leaves meanwhile makes room
    assert 20 <= large <= 23


def test_codel_keeps_a_standing_queue_short(bring: Bring) -> None:
    network = bring(topology(QUICK))
    slow = Direction(rate_bps=4e6, delay_s=0.001, queue_bytes=100_000)

    def waits_s() -> list[float]:
        # 25 % more than the link carries, for as long as CoDel needs to find its pace.
        arrived = datagrams(network, 3000, size=972, every_s=0.0016)
        return [at_s - 0.0016 * number for number, at_s in arrived[-400:]]

    shape(network, slow)
    dropping_at_the_tail = statistics.median(waits_s())
    shape(network, replace(slow, codel=CoDel()))
    controlled = statistics.median(waits_s())

    assert dropping_at_the_tail > 0.15  # 100 kB at 4 Mbit/s: 200 ms
    assert controlled < 0.05
    assert counter(network).dropped["codel"] > 100


def test_a_recorded_rate_lets_through_what_it_recorded(bring: Bring) -> None:
    network = bring(topology(QUICK))
    steps = Steps(name="steps", ends_s=(0.2, 0.4), values=(8e6, 1.6e6))  # 240 kB in 400 ms
    shape(network, Direction(rate_bps=steps.mean, delay_s=0.001, rate_trace=steps, queue_bytes=10_000_000))

    def as_recorded() -> bool:
        network.rewind(1)
        arrived = datagrams(network, 700, size=972)  # 1000 bytes with headers
        assert [number for number, _ in arrived] == list(range(700))
        half = sum(at_s < 0.2 for _, at_s in arrived)
        whole = sum(at_s < 0.4 for _, at_s in arrived)
        # Two rounds, and 220 packets of the third.
        return abs(half - 200) <= 8 and abs(whole - 240) <= 4 and abs(arrived[-1][1] - 1.101) < 0.015

    assert soon(as_recorded)


def test_recorded_chances_carry_several_small_packets(bring: Bring) -> None:
    network = bring(topology(QUICK))
    chances = Opportunities(name="chances", at_s=tuple(0.05 * n for n in range(1, 11)))
    direction = Direction(rate_bps=chances.mean_bps, delay_s=0.001, opportunities=chances, queue_bytes=1_000_000)
    shape(network, direction)

    def in_fours() -> bool:
        network.rewind(1)
        arrived = datagrams(network, 12, size=348)  # 376 bytes: four to a chance
        assert [number for number, _ in arrived] == list(range(12))
        gaps_s = [b - a for (_, a), (_, b) in itertools.pairwise(arrived)]
        return [gap_s > 0.03 for gap_s in gaps_s] == [False, False, False, True] * 2 + [False] * 3

    assert soon(in_fours)


def test_a_recorded_delay_is_followed(bring: Bring) -> None:
    network = bring(topology(QUICK))
    steps = Steps(name="delays", ends_s=(0.5, 1.0), values=(0.010, 0.030))
    shape(network, Direction(rate_bps=1e9, delay_s=steps.mean, delay_trace=steps))
    network.rewind(1)
    rtts_s = round_trips_s([way(network, "s1", "s2")], probes=32, interval_s=0.03, wait_s=0.2)[0]
    short, long = [r for r in rtts_s if r < 0.016], [r for r in rtts_s if r > 0.026]

    assert len(short) == pytest.approx(16, abs=2)
    assert len(long) == pytest.approx(16, abs=2)
    assert statistics.median(short) == pytest.approx(0.011, abs=0.0005)
    assert statistics.median(long) == pytest.approx(0.031, abs=0.0005)


def test_rewinding_repeats_what_chance_did(bring: Bring) -> None:
    network = bring(topology(QUICK))
    if "netem" in network.setup.engines.values():
        pytest.skip(
            "netem: only kernels from 6.6 on take a seed, and they draw for packets of ours that are not counted"
        )
    shape(network, replace(QUICK, loss=0.3))
    rounds = []
    for seed in (5, 5, 6):
        network.rewind(seed)
        rounds.append([number for number, _ in datagrams(network, 300)])

    assert rounds[0] == rounds[1] != rounds[2]


def test_a_long_fat_link_drops_nothing_that_only_travels(bring: Bring) -> None:
    network = bring(topology(QUICK))
    shape(network, Direction(rate_bps=1e8, delay_s=0.4))
    before = counter(network)
    numbers = [number for number, _ in datagrams(network, 2500, size=1000, every_s=0.0001)]

    assert numbers == list(range(2500))  # more than a thousand of them were under way at once
    assert counter(network).dropped == before.dropped


def test_a_long_path_lets_tcp_have_its_whole_rate(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e8, delay_s=0.075)))
    # Slow start needs four round trips to fill it, and many small packets more memory than the probe assumes.
    there = replace(transfer(way(network, "s1", "s2"), 1.5e8, 0.150, measure_s=0.5), warm_up_s=1.2)

    assert soon(lambda: 0.97 <= goodputs_bps([[there]])[0][0] / (1e8 * PAYLOAD_SHARE) <= 1.02)


def test_jitter_makes_tcp_send_hardly_anything_twice(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e8, delay_s=0.005, jitter_s=0.001)))
    pair, size = link_way(network, "s1", "s2"), 4_000_000
    before = counter(network)
    with ExitStack() as stack:
        ends = connect([pair], stack, deadline_s=time.monotonic() + 5)[0]
        assert ends is not None
        near, far = ends
        sent = got = 0
        until_s = time.monotonic() + 20
        while got < size and time.monotonic() < until_s:
            with suppress(BlockingIOError):
                sent += near.send(bytes(min(1 << 16, size - sent))) if sent < size else 0
            with suppress(BlockingIOError):
                got += len(far.recv(1 << 18))
        assert got == size
    carried = counter(network).bytes - before.bytes

    assert carried < 1.08 * size / PAYLOAD_SHARE


def test_a_change_of_one_key_leaves_the_others_in_force(bring: Bring) -> None:
    network = bring(topology(QUICK))
    full = Direction(rate_bps=5e7, delay_s=0.005, jitter_s=0.0005, loss=0.01, duplicate=0.02, queue_bytes=90_000)
    shape(network, full)
    for change in ({"rate_bps": 6e7}, {"delay_s": 0.007}, {"loss": 0.0}, {"jitter_s": 0.0}, {"queue_bytes": 50_000}):
        full = replace(full, **change)
        shape(network, full)
        assert network.shaping()["s1-s2", "s1"] == full
    assert network.shaping()["s1-s2", "s2"] == QUICK


def test_a_restarted_node_has_its_links_addresses_and_shaping_back(bring: Bring) -> None:
    network = bring(mesh(3, Direction(rate_bps=2e8, delay_s=0.004)))
    changed = Direction(rate_bps=1e8, delay_s=0.010)
    network.shape("s1-s2", "s1", changed)
    before = network.shaping()
    network.restart("s2")

    assert network.status().up
    assert network.shaping() == before
    assert network.status().changed == ("s1-s2 from s1",)
    for source, target, expected_s in (("s1", "s2", 0.014), ("s3", "s2", 0.008), ("s2", "s3", 0.008)):
        for find in (way, link_way):
            rtts_s = round_trips_s([find(network, source, target)], probes=5, interval_s=0.01, wait_s=0.2)[0]
            assert statistics.median(rtts_s) == pytest.approx(expected_s, abs=0.001)


def test_an_impairment_that_the_engine_cannot_do_is_refused(bring: Bring) -> None:
    network = bring(topology(QUICK))
    if "netem" not in network.setup.engines.values():
        pytest.skip("the relay can do everything that a file says")
    with pytest.raises(TestbedError, match=r"s1-s2 is shaped by netem: .*--shaper relay"):
        network.shape("s1-s2", "s1", replace(QUICK, codel=CoDel()))
    assert eventually(lambda: network.shaping()["s1-s2", "s1"] == QUICK)
