"""Links spread over two relay processes: they are what they are with one, and one process that dies takes its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from testbed import proof
from testbed.backends.kernel import inside_netns
from testbed.errors import TestbedError
from testbed.ledger import OwnedProcess, all_names, ledger_of
from testbed.network import Network, down
from testbed.probes import Way, middle, round_trips_s
from testbed.topology import Direction, Topology
from tests.support.networks import QUICK, eventually, link_way, mesh, settle, soon, topology

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_is_left(run_root: Path) -> Iterator[None]:
    """Whatever a test does, afterwards no relay of it runs and its run directory is gone."""
    yield
    started = [process for name in all_names() for process in relays_of(name)]
    for name in all_names():
        down(name)
    assert [process for process in started if process.alive()] == []
    assert list(run_root.iterdir()) == []


@contextmanager
def two_relays(wanted: Topology) -> Iterator[Network]:
    with Network.up(wanted, name="two", shaper="relay", relays=2) as network:
        settle(network)
        yield network


def relays_of(name: str) -> list[OwnedProcess]:
    return ledger_of(name).processes("relay")


def kill_relay(network: Network, number: int) -> list[str]:
    """Kill one relay; the links that it carried."""
    relay = relays_of(network.name)[number - 1]
    os.kill(relay.pid, signal.SIGKILL)
    assert eventually(lambda: not relay.alive())
    return network.setup.carried[number]


def round_trip_is(network: Network, link: str, expected_s: float) -> bool:
    """Whether echoes over a link take that long; measured again if other work was in the way."""
    a, b = link.split("-")

    def good() -> bool:
        rtts = round_trips_s([link_way(network, a, b)], probes=9, interval_s=0.01, wait_s=expected_s + 0.1)[0]
        return abs(middle(rtts) - expected_s) <= 0.0005

    return soon(good)


def numbers_that_arrive(there: Way, count: int) -> list[int]:
    """Which of so many numbered datagrams come through, in their order."""
    with inside_netns(there.target_netns):
        far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside_netns(there.source_netns):
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with far, near:
        far.bind((there.target_address, 7000))
        far.settimeout(1.0)
        for number in range(count):
            near.sendto(bytes([number]), (there.target_address, 7000))
        found = []
        with suppress(TimeoutError):
            while True:
                found.append(far.recv(1)[0])
    return found


def typed(*arguments: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "testbed.cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_two_relays_share_the_links_and_each_link_has_the_delay_of_its_file() -> None:
    with two_relays(mesh(4)) as network:
        assert [len(links) for links in network.setup.carried.values()] == [3, 3]
        assert len([process for process in relays_of("two") if process.alive()]) == 2
        assert all(round_trip_is(network, link.name, 0.002) for link in network.topology.links)
        order = [(report.link, report.source) for report in network.counters()]
        assert order == [(link.name, end) for link in network.topology.links for end in (link.a, link.b)]


def test_a_change_is_of_one_link_and_time_and_lateness_are_of_all() -> None:
    slow = Direction(rate_bps=1e9, delay_s=0.006)
    with two_relays(mesh(3)) as network:
        changed, other = (links[0] for links in network.setup.carried.values())
        for end in changed.split("-"):
            assert network.shape(changed, end, slow) == slow

        assert round_trip_is(network, changed, 0.012)
        assert round_trip_is(network, other, 0.002)
        assert network.status().changed == tuple(f"{changed} from {end}" for end in changed.split("-"))
        network.scale(3.0)
        assert round_trip_is(network, changed, 0.036)
        assert round_trip_is(network, other, 0.006)
        with_traffic = network.lateness()
        assert with_traffic.releases == sum(with_traffic.buckets) > 18
        network.reset_lateness()
        assert network.lateness().releases < with_traffic.releases
        network.rewind(7)


def test_a_killed_relay_takes_its_links_alone_and_comes_back_with_them() -> None:
    slow = Direction(rate_bps=1e9, delay_s=0.004)
    with two_relays(mesh(4)) as network:
        network.scale(2.0)
        kept = network.setup.carried[1][0]
        network.shape(kept, kept.split("-")[0], slow)
        lost = kill_relay(network, 2)

        status = network.status()
        assert not status.up
        assert not status.relay_alive
        assert status.gone_relays == ("relay 2 of 2",)
        assert status.broken[0] == f"relay 2 of 2 is gone, and 3 links with it: {lost[0]}, {lost[1]} and {lost[2]}"
        assert {report.link for report in network.counters(reachable=True)} == set(network.setup.carried[1])
        with pytest.raises(TestbedError, match="relay 2 of 2 does not answer: its links are gone"):
            network.shape(lost[0], lost[0].split("-")[0], QUICK)
        assert network.shape(kept, kept.split("-")[0], slow) == slow

        mender = Network.attach("two")
        assert mender.dilation == 2.0
        mender.restart()
        mender.close()

        again = Network.attach("two")
        assert again.status().up
        assert again.status().changed == (f"{kept} from {kept.split('-')[0]}",)  # the living relay forgot nothing
        assert again.dilation == 2.0
        assert round_trip_is(again, lost[0], 0.004)
        assert round_trip_is(again, kept, 0.010)
        proof.prove(again)
        again.close()


def test_a_node_made_anew_has_the_links_of_both_relays_back() -> None:
    with two_relays(mesh(3)) as network:
        hub = next(
            node.name
            for node in network.topology.nodes
            if all(any(node.name in link.split("-") for link in links) for links in network.setup.carried.values())
        )
        network.restart(hub)

        assert network.status().up
        proof.prove(network)


def test_what_is_lost_does_not_depend_on_how_many_relays_there_are() -> None:
    lossy = Direction(rate_bps=1e9, delay_s=0.001, loss=0.3)
    wanted = topology(QUICK, lossy, back=QUICK)

    def arrived(relays: int) -> list[int]:
        with Network.up(wanted, name="two", shaper="relay", relays=relays) as network:
            settle(network)
            network.rewind(11)
            return numbers_that_arrive(link_way(network, "s2", "s3"), 100)

    one, two = arrived(1), arrived(2)
    assert one == two
    assert 50 < len(one) < 90


def test_the_commands_tell_of_two_relays_and_mend_the_one_that_died(run_root: Path) -> None:
    printed = typed("up", "topologies/small3.yaml", "--name", "two", "--shaper", "relay", "--relays", "2")
    assert "3 links (2 relays)" in printed
    directory = ledger_of("two").directory
    assert {path.name for path in directory.glob("*.log")} == {"relay-1.log", "relay-2.log"}
    network = Network.attach("two")
    lost = kill_relay(network, 1)
    network.close()

    found = json.loads(typed("status", "--json", code=1))
    assert (found["relays"], found["gone_relays"], found["relay_alive"]) == (2, ["relay 1 of 2"], False)
    assert not {each["link"] for each in found["directions"]} & set(lost)
    printed = typed("status", code=1)
    assert "relay 1 of 2 is gone, and 1 link with it" in printed
    assert "3 by 2 relays" in printed
    assert "(not shaped)" in typed("graph")
    assert "restarted relay 1 of 2" in typed("restart")
    typed("set", lost[0], "delay=9ms")
    printed = typed("status")
    assert "up, 3 sandboxes" in printed
    assert "9 ms" in printed
    assert "removed two" in typed("down")


def test_a_kill_while_relays_are_started_leaves_what_down_removes(run_root: Path) -> None:
    code = "from testbed.network import Network; from tests.support.networks import mesh; "
    code += "Network.up(mesh(4), name='two', shaper='relay', relays=4)"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert eventually(lambda: bool(relays_of("two")), 20)
    process.kill()
    process.wait()

    def removed() -> bool:
        # A relay that was being started holds the lock until it has become a program of its own.
        with suppress(TestbedError):
            return down("two")
        return False

    assert eventually(removed)
    assert list(run_root.iterdir()) == []


def test_more_relays_than_links_are_not_started_and_that_is_said() -> None:
    printed = typed("up", "topologies/small3.yaml", "--name", "many", "--shaper", "relay", "--relays", "7")

    assert "note: no relay without a link: 3 of the 7 relays asked for run" in printed
    assert len(relays_of("many")) == 3
    assert "--relays no: write auto" in typed("up", "topologies/small3.yaml", "--relays", "no", code=2)
