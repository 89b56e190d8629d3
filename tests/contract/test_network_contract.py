"""What every backend with every shaper must pass, on the real thing; what this machine lacks is skipped by name."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.backends.kernel import inside_netns
from testbed.errors import TestbedError
from testbed.network import Network
from testbed.probes import Transfer, Way, goodputs_bps, middle, round_trips_s
from testbed.setup import BackendName
from testbed.shaping.base import DirectionReport
from testbed.shaping.engines import ShaperName
from testbed.shaping.kernellinks import queue_device
from testbed.topology import Direction, Link, Node, Topology
from testbed.verify import calibrate
from tests.support.networks import (
    QUICK,
    Bring,
    bringing,
    eventually,
    link_way,
    mesh,
    run_in,
    soon,
    topology,
    transfer,
    way,
)

pytestmark = pytest.mark.root

BACKENDS: dict[str, tuple[BackendName, ShaperName]] = {
    "netns+relay": ("netns", "relay"),
    "netns+netem": ("netns", "netem"),
    "mininet+relay": ("mininet", "relay"),
    "docker+relay": ("docker", "relay"),
}


@pytest.fixture(params=BACKENDS)
def bring(request: pytest.FixtureRequest, run_root: Path) -> Iterator[Bring]:
    """Bring a topology up on the backend under test; it is taken down afterwards."""
    with bringing(*BACKENDS[request.param]) as bring:
        yield bring


#: Kernels up to 6.1 open a connection with a receive window of 64 KiB, whatever the route says.
MESSAGES_BEFORE = 4


def round_trip_is(way_there: Way, expected_s: float, within_s: float = 0.0005) -> bool:
    """Whether echoes take that long; measured again if other work was in the way."""

    def good() -> bool:
        rtts = round_trips_s([way_there], probes=9, interval_s=0.01, wait_s=expected_s + 0.1)[0]
        return abs(middle(rtts) - expected_s) <= within_s

    return soon(good)


# ---- sandboxes


def test_names_resolve_to_data_plane_addresses(bring: Bring, tmp_path: Path) -> None:
    network = bring(mesh(3))
    code = "import socket, sys; print(*(socket.gethostbyname(n) for n in sys.argv[1:]))"

    printed = run_in(network, "s1", code, tmp_path / "log", "s1", "s2", "s3")

    assert printed.split() == [network.wiring.node(name).address for name in ("s1", "s2", "s3")]


def test_a_connection_by_name_crosses_the_shaped_interface(bring: Bring, tmp_path: Path) -> None:
    network = bring(mesh(3))
    before = {(c.link, c.source): c.bytes for c in network.counters()}
    serve = (
        "import socket; s = socket.create_server(('s2', 7000)); c, (peer, _) = s.accept(); "
        "print(len(c.recv(100000, socket.MSG_WAITALL)), peer)"
    )
    call = "import socket; s = socket.create_connection(('s2', 7000)); s.sendall(bytes(100000)); s.recv(1)"
    server = network.popen("s2", [sys.executable, "-c", serve], log=tmp_path / "server")
    assert eventually(lambda: _listens(network, "s2", 7000))
    run_in(network, "s1", call, tmp_path / "client")
    server.wait(timeout=10)

    moved = {(c.link, c.source): c.bytes - before[c.link, c.source] for c in network.counters()}
    assert moved["s1-s2", "s1"] > 100_000
    assert moved["s1-s2", "s2"] > 0
    assert moved["s1-s3", "s1"] == moved["s2-s3", "s3"] == 0
    # Programs know each other by the address of the node, not of the cable.
    assert (tmp_path / "server").read_text().split() == ["100000", network.wiring.node("s1").address]


def test_a_program_runs_without_privileges_and_under_its_own_id(bring: Bring, tmp_path: Path) -> None:
    network = bring(topology(QUICK))
    code = "import os, sys; print(os.getpid()); print(open('/proc/self/status').read(), flush=True); sys.stdin.read()"
    code += "; import time; time.sleep(60)"
    process = network.popen("s1", [sys.executable, "-c", code], log=tmp_path / "log")
    assert eventually(lambda: "NoNewPrivs" in (tmp_path / "log").read_text(), 20)

    lines = (tmp_path / "log").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines[1:] if ":\t" in line)
    from_outside = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    inner = next(line for line in from_outside if line.startswith("NSpid:")).split()[-1]
    assert lines[0] == inner
    assert {status[kind] for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    process.kill()
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_the_host_sees_no_hosts_file_of_a_sandbox(bring: Bring, tmp_path: Path) -> None:
    before = Path("/etc/hosts").read_text()
    network = bring(topology(QUICK))
    inside = run_in(network, "s1", "print(open('/etc/hosts').read(), end='')", tmp_path / "log")

    assert inside == network.wiring.hosts
    assert Path("/etc/hosts").read_text() == before


def test_a_program_that_does_not_exist_ends_with_one_line(bring: Bring, tmp_path: Path) -> None:
    network = bring(topology(QUICK))
    process = network.popen("s1", ["/no/such/program"], log=tmp_path / "log")

    assert process.wait(timeout=10) == 126
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_there_is_no_way_out_of_the_emulated_network(bring: Bring) -> None:
    network = bring(topology(QUICK))
    with inside_netns(network.netns("s1")), socket.socket() as sock, pytest.raises(OSError, match="unreachable"):
        sock.connect(("192.0.2.1", 9))
    with inside_netns(network.netns("s1")):
        interfaces = {name for _, name in socket.if_nameindex()}
    ours = {interface.name for interface in network.wiring.node("s1").interfaces}
    if "netem" in network.setup.engines.values():
        ours |= {queue_device(name) for name in ours}
    assert interfaces == {"lo", *ours}
    assert not (network.netns("s1").parent / "no").exists()


def test_nodes_with_long_names_of_one_prefix_have_interfaces_of_their_own(bring: Bring) -> None:
    names = ("hub", "rack-12-port-1a", "rack-12-port-1b", "rack-12-port-1c")
    links = tuple(Link(a="hub", b=name, forward=QUICK, backward=QUICK) for name in names[1:])
    network = bring(Topology(name="long", nodes=tuple(Node(name=name) for name in names), links=links))

    interfaces = [interface.name for interface in network.wiring.node("hub").interfaces]
    assert len(set(interfaces)) == 3
    assert max(map(len, interfaces)) <= 15
    assert all(round_trip_is(link_way(network, "hub", name), 0.002) for name in names[1:])


def test_servers_do_not_forward_and_routers_do(bring: Bring) -> None:
    nodes = (Node(name="s1"), Node(name="r", kind="router"), Node(name="s2"))
    links = tuple(Link(a=a, b=b, forward=QUICK, backward=QUICK) for a, b in (("s1", "r"), ("r", "s2")))
    network = bring(Topology(name="star", nodes=nodes, links=links))

    assert round_trip_is(way(network, "s1", "s2"), 0.004)
    forwards = {}
    for name in ("s1", "r", "s2"):
        with inside_netns(network.netns(name)):
            forwards[name] = Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()
    assert forwards == {"s1": "0", "r": "1", "s2": "0"}


def test_tcp_settings_do_not_depend_on_the_host(bring: Bring) -> None:
    network = bring(topology(QUICK))
    pair = way(network, "s1", "s2")
    with inside_netns(pair.target_netns):
        listener = socket.create_server((pair.target_address, 7000))
    with inside_netns(pair.source_netns):
        near = socket.create_connection((pair.target_address, 7000))
    far, _ = listener.accept()
    with listener, near, far:
        for sock in (near, far):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"cubic"
    with inside_netns(pair.source_netns):
        assert Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").read_text() == "0\n"


def test_a_message_of_300_kb_is_not_held_back_by_slow_start(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e9, delay_s=0.020)))
    pair, size = way(network, "s1", "s2"), 300_000
    with inside_netns(pair.target_netns):
        listener = socket.create_server((pair.target_address, 7000))

    def seconds() -> float:
        with inside_netns(pair.source_netns):
            near = socket.create_connection((pair.target_address, 7000))
        far, _ = listener.accept()
        with near, far:
            far.settimeout(5)
            for _ in range(MESSAGES_BEFORE):  # a connection in use, as between agents
                near.sendall(bytes(size))
                _receive(far, size)
            time.sleep(0.1)
            start_s = time.monotonic()
            near.sendall(bytes(size))
            _receive(far, size)
            return time.monotonic() - start_s

    with listener:
        expected_s = 0.020 + 8 * size / 1e9
        assert soon(lambda: seconds() < expected_s + 0.010)


# ---- links


@pytest.mark.parametrize(
    "direction",
    [
        Direction(rate_bps=10e6, delay_s=0.002),
        Direction(rate_bps=100e6, delay_s=0.005),
        Direction(rate_bps=1e9, delay_s=0.001),
        Direction(rate_bps=50e6, delay_s=0.005, jitter_s=0.0005),
    ],
    ids=["10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "jitter"],
)
def test_tcp_reaches_the_rate_each_way_and_both_ways_at_once(bring: Bring, direction: Direction) -> None:
    network = bring(topology(direction))
    rtt_s, ideal_bps = 2 * direction.delay_s, direction.rate_bps * 1448 / 1500

    # Packets one by one take more of the sender's memory than bundles do, and that bounds what is under way.
    pace_bps = direction.rate_bps * (1.5 if direction.per_packet else 1.0)
    there, back = (transfer(way(network, *pair), pace_bps, rtt_s) for pair in (("s1", "s2"), ("s2", "s1")))

    def shares(*transfers: Transfer) -> list[float]:
        return [found / ideal_bps for found in goodputs_bps([transfers])[0]]

    assert soon(lambda: 0.97 <= shares(there)[0] <= 1.02)
    assert soon(lambda: 0.97 <= shares(back)[0] <= 1.02)
    # At once, acknowledgements wait in the other's queue and take a share of its rate.
    assert soon(lambda: min(shares(there, back)) >= 0.85)


@pytest.mark.parametrize("delay_s", [0.0, 0.0003, 0.001, 0.005, 0.022])
def test_the_round_trip_is_twice_the_one_way_delay(bring: Bring, delay_s: float) -> None:
    network = bring(topology(Direction(rate_bps=1e9, delay_s=delay_s)))

    assert round_trip_is(way(network, "s1", "s2"), 2 * delay_s, max(0.0003, 0.02 * 2 * delay_s))


def test_delay_is_one_way_and_directions_differ(bring: Bring) -> None:
    network = bring(topology(replace(QUICK, delay_s=0.002), back=replace(QUICK, delay_s=0.012)))

    assert round_trip_is(way(network, "s1", "s2"), 0.014)


def test_loss_counts_packets_even_where_tcp_sends_bundles(bring: Bring) -> None:
    network = bring(topology(QUICK))
    pair, size = link_way(network, "s1", "s2"), 3_000_000
    with inside_netns(pair.target_netns):
        listener = socket.create_server((pair.target_address, 7000))
    with inside_netns(pair.source_netns):
        near = socket.create_connection((pair.target_address, 7000))
    far, _ = listener.accept()
    # The connection was made while bundles were allowed, and must not go on sending them.
    network.shape("s1-s2", "s1", replace(QUICK, loss=0.05))
    before = _counter(network, "s1")
    with listener, near, far:
        near.setblocking(False)
        sent = got = 0
        while got < size:
            with contextlib.suppress(BlockingIOError):
                sent += near.send(bytes(min(1 << 16, size - sent))) if sent < size else 0
            got += len(far.recv(1 << 16))
    after = _counter(network, "s1")
    lost, passed = after.dropped["loss"] - before.dropped["loss"], after.packets - before.packets

    assert passed > size / 1448  # every packet by itself
    assert lost / (lost + passed) == pytest.approx(0.05, abs=0.02)


def test_jitter_spreads_delays_and_keeps_the_order(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e9, delay_s=0.010)))
    network.shape("s1-s2", "s1", Direction(rate_bps=1e9, delay_s=0.010, jitter_s=0.002))
    pair = way(network, "s1", "s2")
    with inside_netns(pair.target_netns):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        far.bind((pair.target_address, 7000))
        far.settimeout(1.0)
    with inside_netns(pair.source_netns):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, far:
        numbers: list[int] = []
        for number in range(150):
            near.sendto(number.to_bytes(4, "big"), (pair.target_address, 7000))
            if number % 2:
                time.sleep(0.002)
        while len(numbers) < 150:
            numbers.append(int.from_bytes(far.recv(16), "big"))

    def spread_is_right() -> bool:
        rtts = round_trips_s([pair], probes=60, interval_s=0.025, wait_s=0.2)[0]
        low, _, high = statistics.quantiles(rtts, n=4)
        # The middle half of a normal distribution is 1.35 deviations wide; a host that stalls makes single probes late.
        return 0.001 < (high - low) / 1.35 < 0.004

    assert numbers == list(range(150))
    assert soon(spread_is_right)


def test_a_change_at_run_time_acts_at_once_on_its_direction_alone(bring: Bring) -> None:
    network = bring(mesh(3))
    before = network.shaping()
    wanted = Direction(rate_bps=5e7, delay_s=0.030)

    assert network.shape("s2-s1", "s1", wanted) == wanted  # the link's name may be written from either end
    assert network.shaping() == {**before, ("s1-s2", "s1"): wanted}
    assert round_trip_is(link_way(network, "s1", "s2"), 0.031)
    assert round_trip_is(link_way(network, "s1", "s3"), 0.002)


def test_a_change_takes_less_than_five_milliseconds(bring: Bring) -> None:
    network = bring(mesh(4))
    durations_s = []
    for number in range(40):
        start_s = time.monotonic()
        network.shape("s1-s2", "s1", replace(QUICK, rate_bps=1e8 + number))
        durations_s.append(time.monotonic() - start_s)

    assert statistics.median(durations_s) < 0.005


def test_a_change_loses_nothing_that_is_queued(bring: Bring) -> None:
    slow = Direction(rate_bps=2e6, delay_s=0.005, queue_bytes=200_000)
    network = bring(topology(slow))
    pair = way(network, "s1", "s2")
    with inside_netns(pair.target_netns):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        far.bind((pair.target_address, 7000))
        far.settimeout(2.0)
    with inside_netns(pair.source_netns):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with near, far:
        for number in range(60):  # a third of a second at this rate
            near.sendto(number.to_bytes(1000, "big"), (pair.target_address, 7000))
        assert eventually(lambda: _counter(network, "s1").queued_bytes > 30_000, 0.2)
        for rate_bps in (1e6, 4e6, 50e6):
            network.shape("s1-s2", "s1", replace(slow, rate_bps=rate_bps, queue_bytes=5000))
        assert [int.from_bytes(far.recv(2000), "big") for _ in range(60)] == list(range(60))


def test_the_queue_drops_what_does_not_fit_and_counts_it(bring: Bring) -> None:
    network = bring(topology(Direction(rate_bps=1e6, delay_s=0.001, queue_bytes=20_000)))
    pair = way(network, "s1", "s2")
    before = _counter(network, "s1")
    with inside_netns(pair.source_netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        for _ in range(50):
            near.sendto(bytes(972), (pair.target_address, 7000))  # 1000 bytes with headers
    assert eventually(lambda: _counter(network, "s1").dropped["queue"] >= before.dropped["queue"] + 25)

    after = _counter(network, "s1")
    passed, dropped = after.packets - before.packets, after.dropped["queue"] - before.dropped["queue"]
    assert passed + dropped == 50
    assert 20 <= passed <= 23  # the queue, and what left it meanwhile


def test_scaling_slows_every_link_and_keeps_what_the_emulated_world_sees(bring: Bring) -> None:
    network = bring(mesh(3, Direction(rate_bps=4e8, delay_s=0.002)))
    before = network.shaping()
    network.scale(4)

    assert round_trip_is(way(network, "s1", "s2"), 4 * 0.004)
    assert network.shaping() == before
    faster = Direction(rate_bps=4e8, delay_s=0.001)
    assert network.shape("s1-s2", "s1", faster) == faster
    with_another = Network.attach(network.name)
    assert (with_another.dilation, with_another.shaping()["s1-s2", "s1"]) == (4, faster)
    with_another.close()

    def good() -> bool:
        found = goodputs_bps([[transfer(way(network, "s1", "s2"), 1e8, 0.012)]])[0][0]
        return found == pytest.approx(1e8 * 1448 / 1500, rel=0.05)

    assert soon(good)
    network.scale(1)
    assert round_trip_is(way(network, "s1", "s3"), 0.004)


def test_lateness_is_counted_since_the_last_reset(bring: Bring) -> None:
    network = bring(topology(QUICK))
    if "netem" in network.setup.engines.values():
        pytest.skip("netem: the kernel does not tell how late it is")
    network.reset_lateness()
    assert network.lateness().releases == 0
    round_trips_s([way(network, "s1", "s2")], probes=5, interval_s=0.01, wait_s=0.2)

    lateness = network.lateness()
    assert lateness.releases == sum(lateness.buckets) >= 10
    assert 0 <= lateness.p50_s <= lateness.p99_s <= lateness.max_s


def test_calibration_passes_what_is_in_force_and_fails_what_is_not(
    bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = bring(mesh(3, Direction(rate_bps=3e8, delay_s=0.003)))
    network.shape("s1-s2", "s1", Direction(rate_bps=1e8, delay_s=0.008))
    assert {(m.source, m.target) for m in calibrate(network)} == set(itertools.permutations(("s1", "s2", "s3"), 2))
    assert soon(lambda: all(measured.ok for measured in calibrate(network)))

    # Claim something else to be in force: every kind of deviation is noticed, and nothing else.
    claimed = network.shaping()
    claimed["s1-s2", "s1"] = Direction(rate_bps=1e8, delay_s=0.020)
    claimed["s2-s3", "s3"] = Direction(rate_bps=6e7, delay_s=0.003)
    monkeypatch.setattr(network, "shaping", lambda: claimed)
    wrong = {("s1", "s2"), ("s2", "s1"), ("s3", "s2")}
    assert soon(lambda: {(m.source, m.target) for m in calibrate(network) if not m.ok} == wrong)


def test_a_node_or_link_that_is_not_there_is_named(bring: Bring, tmp_path: Path) -> None:
    network = bring(topology(QUICK))
    with pytest.raises(TestbedError, match="no node 's9'; it has s1 and s2"):
        network.popen("s9", ["true"], log=tmp_path / "log")
    with pytest.raises(TestbedError, match="no link 's1-s9'; it has s1-s2"):
        network.shape("s1-s9", "s1", QUICK)
    with pytest.raises(TestbedError, match="'s9' is no end of s1-s2"):
        network.shape("s1-s2", "s9", QUICK)


def _counter(network: Network, source: str) -> DirectionReport:
    return next(report for report in network.counters() if report.source == source)


def _receive(sock: socket.socket, size: int) -> None:
    while size:
        size -= len(sock.recv(min(size, 1 << 20)))


def _listens(network: Network, node: str, port: int) -> bool:
    with inside_netns(network.netns(node)):
        table = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/net/tcp").read_text()
    return any(line.split()[1].endswith(f":{port:04X}") for line in table.splitlines()[1:])
