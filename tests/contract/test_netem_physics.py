"""What links shaped by the kernel must do besides the suites that every engine passes: where netem's ways are traps."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed import capabilities
from testbed.backends.kernel import inside_netns
from testbed.network import Network
from testbed.probes import ECHO_BYTES, SO_RCVBUFFORCE, SO_TIMESTAMPNS, TIMESPEC, middle, round_trips_s
from testbed.shaping.base import DirectionReport
from testbed.shaping.kernellinks import queue_device
from testbed.topology import Direction, Link, Node, Topology
from tests.support.networks import QUICK, eventually, settle, soon, topology, way

pytestmark = pytest.mark.root

Bring = Callable[[Topology], Network]
PORT = 7200
HEADERS_BYTES = 28  # IP and UDP

needs_iproute = pytest.mark.skipif(not shutil.which("tc"), reason="iproute2 is not installed: no tc, no ip")


@pytest.fixture
def bring(run_root: Path) -> Iterator[Bring]:
    if missing := capabilities.missing_for("netns", "netem"):
        pytest.skip("; ".join(f"{each.name}: {each.detail}" for each in missing))
    up: list[Network] = []

    def build(wanted: Topology) -> Network:
        up.append(Network.up(wanted, name=f"netem{len(up)}", shaper="netem"))
        settle(up[-1])
        return up[-1]

    yield build
    for network in up:
        network.down()


class Stream:
    """Numbered datagrams from one node to another; the kernel notes when they come."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        pair = way(network, source, target)
        self._to = (pair.target_address, PORT)
        with inside_netns(pair.target_netns):
            self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)  # nothing is lost here
        self._far.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._far.bind(self._to)
        with inside_netns(pair.source_netns):
            self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._near.close()
        self._far.close()

    def send(self, count: int, packet_bytes: int) -> int:
        """Send so many packets of so many bytes at once; when, ns."""
        begun_ns = time.time_ns()
        for number in range(count):
            self._near.sendto(number.to_bytes(packet_bytes - HEADERS_BYTES, "big"), self._to)
        return begun_ns

    def arrivals(self, count: int, begun_ns: int, wait_s: float = 3.0) -> list[tuple[int, float]]:
        """(number, time after ``begun_ns``, s) of what arrives, up to ``count``."""
        self._far.settimeout(wait_s)
        found: list[tuple[int, float]] = []
        with contextlib.suppress(TimeoutError):
            while len(found) < count:
                packet, ancillary, _, _ = self._far.recvmsg(1 << 16, 128)
                seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                at_s = (seconds * 1_000_000_000 + nanoseconds - begun_ns) / 1e9
                found.append((int.from_bytes(packet, "big"), at_s))
        return found


def counter(network: Network, link: str, source: str) -> DirectionReport:
    return next(each for each in network.counters() if (each.link, each.source) == (link, source))


@pytest.mark.parametrize("rate_bps", [2e5, 1e6, 1e7])
def test_a_small_packet_on_a_slow_idle_link_takes_its_size_over_the_rate(bring: Bring, rate_bps: float) -> None:
    network = bring(topology(Direction(rate_bps=rate_bps, delay_s=0.004)))
    expected_s = 2 * (0.004 + 8 * ECHO_BYTES / rate_bps)

    def good() -> bool:
        rtts_s = round_trips_s([way(network, "s1", "s2")], probes=9, interval_s=0.03, wait_s=0.3)[0]
        return abs(middle(rtts_s) - expected_s) < 0.0003

    assert soon(good)


@pytest.mark.parametrize(("rate_bps", "count"), [(1e6, 10), (1e7, 40), (1e8, 200)])
def test_every_packet_of_a_burst_arrives_when_its_last_bit_has(bring: Bring, rate_bps: float, count: int) -> None:
    direction = Direction(rate_bps=rate_bps, delay_s=0.010)
    network = bring(topology(direction))

    def good() -> bool:
        with Stream(network, "s1", "s2") as stream:
            arrived = stream.arrivals(count, stream.send(count, 1500))
        late_s = [at_s - 0.010 - (number + 1) * 8 * 1500 / rate_bps for number, at_s in arrived]
        # Never early, whatever the burst; sending them all takes a moment.
        return [n for n, _ in arrived] == list(range(count)) and min(late_s) > -2e-5 and max(late_s) < 0.002

    assert soon(good)


def test_jitter_costs_no_throughput(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=5e7, delay_s=0.005, jitter_s=0.001)))
    with Stream(network, "s1", "s2") as stream:
        arrived = stream.arrivals(150, stream.send(150, 1500))

    assert [number for number, _ in arrived] == list(range(150))
    # The line takes 36 ms; then delay and jitter, of which 6 deviations are more than netem's table has.
    assert 0.036 < arrived[-1][1] < 0.036 + 0.005 + 0.006


def test_propagation_does_not_use_up_the_queue(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=8e6, delay_s=0.300, queue_bytes=20_000)))
    before = counter(network, "s1-s2", "s1")
    with Stream(network, "s1", "s2") as stream:
        begun_ns = 0
        for _ in range(10):  # 100 kB under way, never more than ten packets waiting
            begun_ns = stream.send(10, 1000)
            time.sleep(0.012)
        arrived = stream.arrivals(100, begun_ns)

    assert len(arrived) == 100
    assert counter(network, "s1-s2", "s1").dropped == before.dropped


def test_what_is_queued_leaves_at_the_new_rate_and_into_the_new_delay(bring: Bring) -> None:
    slow = Direction(rate_bps=1e6, delay_s=0.005, queue_bytes=200_000)
    network = bring(topology(slow))
    with Stream(network, "s1", "s2") as stream:
        begun_ns = stream.send(60, 1000)  # half a second at this rate
        network.shape("s1-s2", "s1", replace(slow, rate_bps=1e7, delay_s=0.050))
        changed_s = (time.time_ns() - begun_ns) / 1e9
        arrived = stream.arrivals(60, begun_ns)

    assert [number for number, _ in arrived] == list(range(60))
    # 50 ms for 60 kB, 50 ms of delay; what was on the line already finishes as it began.
    assert 0.08 < arrived[-1][1] - changed_s < 0.150


def test_a_slower_link_slows_what_is_queued(bring: Bring) -> None:
    fast = Direction(rate_bps=1e7, delay_s=0.005, queue_bytes=200_000)
    network = bring(topology(fast))
    network.shape("s1-s2", "s1", replace(fast, rate_bps=1e6))
    with Stream(network, "s1", "s2") as stream:
        begun_ns = stream.send(50, 1000)
        network.shape("s1-s2", "s1", replace(fast, rate_bps=5e5))
        arrived = stream.arrivals(50, begun_ns)

    assert [number for number, _ in arrived] == list(range(50))
    assert 0.7 < arrived[-1][1] < 0.9  # 0.8 s


def test_a_shorter_delay_lets_nothing_overtake(bring: Bring) -> None:
    far = Direction(rate_bps=1e8, delay_s=0.200)
    network = bring(topology(far))
    with Stream(network, "s1", "s2") as stream:
        begun_ns = stream.send(20, 500)
        network.shape("s1-s2", "s1", replace(far, delay_s=0.001))
        stream.send(20, 500)
        arrived = stream.arrivals(40, begun_ns)

    assert [number for number, _ in arrived] == 2 * list(range(20))


def test_a_forwarded_bundle_meets_loss_packet_by_packet(bring: Bring) -> None:
    nodes = (Node(name="s1"), Node(name="r", kind="router"), Node(name="s2"))
    lossy = replace(QUICK, loss=0.05)
    links = (
        Link(a="s1", b="r", forward=QUICK, backward=QUICK),
        Link(a="r", b="s2", forward=lossy, backward=QUICK),
    )
    network = bring(Topology(name="chain", nodes=nodes, links=links))
    pair, size = way(network, "s1", "s2"), 2_000_000
    before = counter(network, "r-s2", "r")
    with inside_netns(pair.target_netns):
        listener = socket.create_server((pair.target_address, PORT))
    with inside_netns(pair.source_netns):
        near = socket.create_connection((pair.target_address, PORT))
    far, _ = listener.accept()
    with listener, near, far:
        near.setblocking(False)
        sent = got = 0
        while got < size:
            with contextlib.suppress(BlockingIOError):
                sent += near.send(bytes(min(1 << 16, size - sent))) if sent < size else 0
            got += len(far.recv(1 << 16))
    after = counter(network, "r-s2", "r")
    lost, passed = after.dropped["loss"] - before.dropped["loss"], after.packets - before.packets

    assert passed > size / 1448
    assert lost / (lost + passed) == pytest.approx(0.05, abs=0.02)


def test_a_drop_in_the_queue_is_not_told_to_the_sender(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e6, delay_s=0.001, queue_bytes=10_000)))
    before = counter(network, "s1-s2", "s1")
    with Stream(network, "s1", "s2") as stream:
        # Where a drop is told, a socket that asks for errors gets ENOBUFS.
        stream._near.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        stream.send(40, 1000)
    assert eventually(lambda: counter(network, "s1-s2", "s1").dropped["queue"] - before.dropped["queue"] >= 25)


@needs_iproute
@pytest.mark.parametrize("rate_bps", [1e4, 3.9e10, 4e11])
def test_rates_beyond_32_bits_and_very_low_ones_are_in_force(bring: Bring, rate_bps: float) -> None:
    network = bring(topology(QUICK))
    wanted = Direction(rate_bps=rate_bps, delay_s=0.001)
    network.shape("s1-s2", "s1", wanted)

    assert network.shaping()["s1-s2", "s1"] == wanted
    with inside_netns(network.netns("s1")):
        shown = subprocess.run(["tc", "-j", "qdisc", "show"], check=True, capture_output=True).stdout
    assert f'"rate":{round(rate_bps / 8)},'.encode() in shown.replace(b" ", b"") or rate_bps > 1e10


@needs_iproute
def test_what_somebody_changes_by_hand_is_seen(bring: Bring) -> None:
    network = bring(topology(QUICK))
    assert network.status().changed == ()
    with inside_netns(network.netns("s1")):
        subprocess.run(
            ["tc", "qdisc", "change", "dev", "to-s2", "root", "netem", "delay", "7ms", "loss", "1%"], check=True
        )
    applied = network.shaping()["s1-s2", "s1"]

    assert applied.delay_s == 0.007
    assert applied.loss == pytest.approx(0.01)
    assert network.status().changed == ("s1-s2 from s1",)
    assert network.shaping()["s1-s2", "s2"] == QUICK

    with inside_netns(network.netns("s2")):
        subprocess.run(["tc", "qdisc", "del", "dev", queue_device("to-s1"), "root"], check=True)
    assert network.status().broken == ("s1-s2 from s2 is not shaped",)


@needs_iproute
def test_no_address_is_asked_for_over_a_shaped_link(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e5, delay_s=0.050)))
    rtts_s = round_trips_s([way(network, "s1", "s2")], probes=1, interval_s=0.01, wait_s=1.0)[0]
    with inside_netns(network.netns("s1")):
        shown = subprocess.run(["ip", "neigh", "show", "nud", "all"], check=True, capture_output=True, text=True).stdout

    assert rtts_s == [pytest.approx(0.1134, abs=0.001)]  # asking would double it
    assert {line.split()[-1] for line in shown.splitlines() if "to-s2" in line} == {"NOARP"}


def test_the_host_gets_no_device_of_ours(bring: Bring) -> None:
    before = {name for _, name in socket.if_nameindex()}
    network = bring(topology(QUICK))

    assert {name for _, name in socket.if_nameindex()} == before
    with inside_netns(network.netns("s1")):
        assert {name for _, name in socket.if_nameindex()} == {"lo", "to-s2", "q-s2"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor cannot disagree with itself")
def test_packets_keep_their_order_on_several_processors(bring: Bring) -> None:
    network = bring(topology(QUICK))
    with Stream(network, "s1", "s2") as stream:
        for _ in range(10):
            # Sent by this thread while timers release the first ones on the other processor.
            arrived = stream.arrivals(400, stream.send(400, 428), wait_s=0.5)
            assert [number for number, _ in arrived] == list(range(400))
