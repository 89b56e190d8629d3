"""A testbed survives what people and machines do to it: kills at any moment, two commands at once, many cycles."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from testbed import proof
from testbed.backends import kernel
from testbed.errors import TestbedError
from testbed.ledger import all_names, ledger_of
from testbed.network import Network, down
from testbed.probes import Bounds, Transfer, goodputs_bps
from testbed.shaping.client import RelayShaper
from tests.support.networks import QUICK, eventually, link_way, mesh, topology

pytestmark = pytest.mark.root

BRING_UP = """
import sys
from testbed.network import Network
from tests.support.networks import mesh
Network.up(mesh(5), name=sys.argv[1]).close()
print("up", flush=True)
"""
TAKE_DOWN = "import sys; from testbed.network import down; down(sys.argv[1])"


@pytest.fixture(autouse=True)
def nothing_is_left(run_root: Path) -> Iterator[None]:
    """Whatever a test does, afterwards mounts, processes and run directories are as before."""
    before = _mounts(), _relays()
    yield
    for name in all_names():
        down(name)
    assert _mounts() == before[0]
    assert eventually(lambda: _relays() <= before[1], 15)
    assert list(run_root.iterdir()) == []


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_down_removes_everything_and_can_be_repeated() -> None:
    network = Network.up(mesh(3), name="a")
    network.down()

    assert not down("a")


def test_a_network_can_be_used_by_another_process_that_attaches() -> None:
    Network.up(topology(QUICK), name="a").close()
    network = Network.attach("a")

    assert network.topology == topology(QUICK)
    assert network.status().up
    network.close()


def test_attaching_to_nothing_says_what_to_type() -> None:
    with pytest.raises(TestbedError, match=r"testbed 'a' is not up: type `make testbed up`"):
        Network.attach("a")
    with pytest.raises(TestbedError, match="no testbed is up"):
        Network.attach()


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4])
def test_a_kill_in_the_middle_of_up_leaves_what_down_removes(after_s: float, run_root: Path) -> None:
    process = python(BRING_UP, "killed")
    assert eventually(lambda: (run_root / "killed").exists() or process.poll() is not None, 20)
    time.sleep(after_s)
    process.kill()
    finish(process)

    down("killed")
    assert list(run_root.iterdir()) == []
    Network.up(mesh(3), name="killed").down()


def test_a_half_made_testbed_is_named_and_not_touched_by_up(run_root: Path) -> None:
    process = python(BRING_UP, "half")
    assert eventually(lambda: len(ledger_of("half").entries("netns")) > 0, 20)
    process.kill()
    finish(process)
    if not ledger_of("half").complete:
        with pytest.raises(TestbedError, match="was left half up or half down: type `make down` first"):
            Network.up(mesh(3), name="half")
        with pytest.raises(TestbedError, match="is half up"):
            Network.attach("half")
    assert down("half")


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_in_the_middle_of_down_is_mended_by_down(seed: int, run_root: Path) -> None:
    Network.up(mesh(6), name="a").close()
    process = python(TAKE_DOWN, "a")
    ledger = ledger_of("a")
    relay = ledger.processes("relay")[0]
    eventually(lambda: not relay.alive() or process.poll() is not None, 20)
    time.sleep(random.Random(seed).uniform(0, 0.02))  # noqa: S311
    process.kill()
    finish(process)

    down("a")
    assert list(run_root.iterdir()) == []


def test_a_killed_relay_is_reported_and_taken_down() -> None:
    network = Network.up(mesh(3), name="a")
    relay = ledger_of("a").processes("relay")[0]
    os.kill(relay.pid, signal.SIGKILL)
    assert eventually(lambda: not relay.alive())

    status = network.status()
    assert not status.up
    assert status.broken == ("the relay process is gone, and every link with it",)
    network.down()


def test_asking_a_dead_relay_says_that_the_links_are_gone() -> None:
    network = Network.up(topology(QUICK), name="a")
    os.kill(ledger_of("a").processes("relay")[0].pid, signal.SIGKILL)

    with pytest.raises(TestbedError, match="the relay does not answer: the links are gone"):
        network.shape("s1-s2", "s1", QUICK)
    network.down()


def test_down_ends_the_programs_in_its_sandboxes_and_no_other(tmp_path: Path) -> None:
    network = Network.up(mesh(2), name="a")
    other = Network.up(mesh(2), name="b")
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    recorded = network.popen("s1", sleep, log=tmp_path / "log")
    # A crash of the orchestrator right after starting an agent: nobody wrote the agent's id down.
    unrecorded = network._sandbox("s2").popen(sleep, log=tmp_path / "log")
    foreign = other.popen("s1", sleep, log=tmp_path / "log")
    outside = subprocess.Popen(sleep)
    time.sleep(0.3)
    network.down()

    assert recorded.wait(timeout=5) == unrecorded.wait(timeout=5) == -signal.SIGKILL
    assert foreign.poll() is None
    assert outside.poll() is None
    assert other.status().processes == 1
    other.down()
    assert foreign.wait(timeout=5) == -signal.SIGKILL
    outside.kill()
    outside.wait()


def test_two_at_once_of_the_same_name_give_one_clear_message(run_root: Path) -> None:
    both = [python(BRING_UP, "same") for _ in range(2)]
    ended = sorted(finish(process) for process in both)

    assert [code for code, _, _ in ended] == [0, 1]
    assert "being brought up or down by another command" in ended[1][2] or "is already up" in ended[1][2]
    network = Network.attach("same")
    assert network.status().up
    network.close()


def test_testbeds_of_different_names_live_side_by_side() -> None:
    networks = [Network.up(mesh(3), name=name) for name in ("a", "b", "c")]

    assert all(network.status().up for network in networks)
    assert all_names() == ["a", "b", "c"]
    networks[1].down()
    assert networks[0].status().up
    assert networks[2].status().up
    networks[0].down()
    networks[2].down()


def test_an_error_in_the_middle_of_up_leaves_nothing(run_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(network: Network) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("testbed.proof.prove", fail)
    with pytest.raises(KeyboardInterrupt):
        Network.up(mesh(3), name="a")

    assert list(run_root.iterdir()) == []


def test_a_link_that_cannot_be_shaped_fails_up_and_leaves_nothing(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(shaper: RelayShaper, cables: object) -> None:
        raise TestbedError("the relay refused: OSError: cannot limit the bundles of interface 2")

    monkeypatch.setattr(RelayShaper, "plug", refuse)
    with pytest.raises(TestbedError, match="cannot limit the bundles"):
        Network.up(mesh(3), name="a", shaper="relay")

    assert list(run_root.iterdir()) == []


@pytest.mark.slow
def test_two_hundred_cycles_in_one_process_leave_no_descriptor_and_no_memory_behind() -> None:
    def cycle() -> None:
        with Network.up(topology(QUICK), name="cycle") as network:
            network.shape("s1-s2", "s1", QUICK)

    libc = ctypes.CDLL(None)
    for _ in range(20):
        cycle()
    descriptors, memory = _descriptors(), []
    for _ in range(180):
        cycle()
        # Cycles of references and freed memory that the allocator keeps are nobody's; they come and go by the megabyte.
        gc.collect()
        libc.malloc_trim(0)
        memory.append(_resident_bytes())

    assert _descriptors() == descriptors
    # Flat: what the last cycles need is what the first ones needed.
    assert statistics.median(memory[-30:]) - statistics.median(memory[:30]) < 2e6


def test_ten_servers_and_45_links_are_up_in_two_seconds() -> None:
    durations_s = []
    for _ in range(3):
        start_s = time.monotonic()
        with Network.up(mesh(10), name="ten"):
            durations_s.append(time.monotonic() - start_s)

    assert min(durations_s) < 2.0


def _mounts() -> list[str]:
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _relays() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if b"testbed.shaping.relay" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _kill_relay() -> None:
    relay = ledger_of("a").processes("relay")[0]
    os.kill(relay.pid, signal.SIGKILL)
    assert eventually(lambda: not relay.alive())


def _lose_interface(netns: Path) -> None:
    with kernel.inside_netns(netns), IPRoute() as netlink:
        netlink.link("del", index=socket.if_nametoindex("to-s2"))


def _take_interface_down(netns: Path) -> None:
    with kernel.inside_netns(netns), IPRoute() as netlink:
        netlink.link("set", index=socket.if_nametoindex("to-s2"), state="down")


def _lose_routes(netns: Path) -> None:
    with kernel.inside_netns(netns), IPRoute() as netlink:
        netlink.flush_routes(table=254)


def _lose_address(netns: Path) -> None:
    with kernel.inside_netns(netns), IPRoute() as netlink:
        netlink.flush_addr(index=socket.if_nametoindex("to-s2"))


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (_lose_interface, "s1 has lost its end of s1-s2"),
        (_take_interface_down, "somebody took the end of s1-s2 at s1 down (to-s2)"),
        (_lose_address, "the end of s1-s2 at s1 has lost its address"),
        (_lose_routes, "s1 has lost its route to s2 and 1 others"),
    ],
)
def test_a_node_that_lacks_a_part_of_its_wiring_is_broken_and_mended(lose: Callable[[Path], None], said: str) -> None:
    with Network.up(mesh(3), name="a") as network:
        lose(network.netns("s1"))

        assert network.status().broken == (said,)
        network.restart("s1")
        assert network.status().up
        proof.prove(network)


def test_a_restart_killed_before_the_node_has_its_links_back_is_seen_and_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Network.up(mesh(3), name="a") as network:
        with monkeypatch.context() as patch:
            patch.setattr(RelayShaper, "plug", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                network.restart("s1")

        assert network.status().broken_nodes == ("s1",)
        network.restart("s1")
        assert network.status().up
        proof.prove(network)


def test_a_relay_that_was_started_anew_and_got_no_cables_is_seen_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    with Network.up(mesh(2), name="a") as network:
        _kill_relay()
        with monkeypatch.context() as patch:
            patch.setattr(RelayShaper, "plug", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                network.restart()

        assert network.status().broken == ("s1-s2 from s1 is not shaped", "s1-s2 from s2 is not shaped")
        network.restart()
        assert network.status().up
        proof.prove(network)


def test_neighbours_that_lost_their_namespaces_and_the_relay_come_back_together() -> None:
    with Network.up(mesh(3), name="a") as network:
        _kill_relay()
        for node in ("s1", "s2"):
            kernel.unmount(network.netns(node))
        assert network.status().broken_nodes == ("s1", "s2")
        network.restart("s1", "s2")

        assert network.status().up
        proof.prove(network)


def test_a_restart_of_a_testbed_that_was_taken_down_meanwhile_makes_nothing(run_root: Path) -> None:
    network = Network.up(mesh(2), name="a")
    down("a")

    with pytest.raises(TestbedError, match="testbed 'a' has been taken down"):
        network.restart("s1")
    network.close()
    assert list(run_root.iterdir()) == []


def test_a_buffer_beyond_what_the_kernel_can_count_is_as_large_as_it_can_be() -> None:
    with Network.up(topology(QUICK), name="a") as network:
        bounds = Bounds(window_bytes=10**11, pace_bytes_per_s=10**8)
        transfer = Transfer(way=link_way(network, "s1", "s2"), bounds=bounds, warm_up_s=0.01, measure_s=0.05)

        assert goodputs_bps([[transfer]])[0][0] > 0
