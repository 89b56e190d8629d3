"""The report of ``testbed check``: what was understood, and what to expect of it."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

from testbed import wording
from testbed.describe import check_report
from testbed.impairments import CoDel, Distribution, GilbertElliott, Opportunities, Steps
from testbed.load import load_topology
from testbed.topology import Device, Direction, Link, Node, Topology
from testbed.wording import impairments

FOLDER = Path(__file__).parents[2] / "topologies"
DEVICE = Device(
    peak_flops_per_s=18e12,
    memory_bytes_per_s=300e9,
    fast_bytes=12 * 10**9,
    slow_bytes=96 * 10**9,
    load_bytes_per_s=12e9,
)


def rows(report: str, start: str) -> list[str]:
    """The words of each line from the line that starts with ``start`` to the next empty one."""
    lines = report.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(start))
    rest = [" ".join(line.split()) for line in lines[first + 1 :]]
    return rest[: rest.index("")] if "" in rest else rest


def full_mesh(size: int) -> Topology:
    direction = Direction(rate_bps=1e9, delay_s=0.001)
    names = [f"s{number}" for number in range(size)]
    return Topology(
        name="mesh",
        nodes=tuple(Node(name=name, device=DEVICE) for name in names),
        links=tuple(
            Link(a=a, b=b, forward=direction, backward=direction) for i, a in enumerate(names) for b in names[i + 1 :]
        ),
    )


def test_devices_links_and_queues_are_shown_as_they_will_be_applied() -> None:
    report = check_report(load_topology(FOLDER / "edge10.yaml"))

    assert report.startswith("edge10: 10 servers, 45 links\n")
    assert "s8 10 % 42 TFLOP/s 205 GB/s 48 GB 96 GB 64 GB/s millbrook" in rows(report, "Nodes")
    assert "s1 ↔ s8 2 Gbit/s 20.05 ms 10.03 MB (auto)" in rows(report, "Links")


def test_the_round_trip_of_every_pair_is_twice_its_one_way_delay_in_a_mesh() -> None:
    topology = load_topology(FOLDER / "small3.yaml")

    header, _, *matrix = rows(check_report(topology), "Expected round trip, ms")

    assert header == "s1 s2 s3"
    assert matrix == ["s1 - 4.00 14.00", "s2 4.00 - 12.00", "s3 14.00 12.00 -"]


def test_pairs_that_cross_other_nodes_are_marked_and_their_way_is_listed() -> None:
    report = check_report(load_topology(FOLDER / "metro-routers.yaml"))

    assert "s1 - 1.20* 1.60* 19.20* 19.80* 20.00*" in rows(report, "Expected round trip, ms")
    assert "s6 500* 500* 500* 500* 500* -" in rows(report, "Slowest link")
    assert "s1 ↔ north ↔ south ↔ s4" in rows(report, "* crosses other nodes")


def test_a_link_that_differs_by_direction_has_two_lines() -> None:
    links = rows(check_report(load_topology(FOLDER / "metro-routers.yaml")), "Links")

    assert "north → south 2 Gbit/s 9 ms 5 MB (auto)" in links
    assert "south → north 1 Gbit/s 9 ms 2.5 MB (auto)" in links


def test_a_queue_that_the_file_gives_is_not_called_automatic() -> None:
    direction = Direction(rate_bps=1e9, delay_s=0.001, queue_bytes=65536, jitter_s=0.002, loss=0.01)
    topology = Topology(
        name="two",
        nodes=(Node(name="s1", device=DEVICE), Node(name="s2", device=DEVICE)),
        links=(Link(a="s1", b="s2", forward=direction, backward=direction),),
    )

    assert "s1 ↔ s2 1 Gbit/s 1 ms 2 ms (normal) 1 % 64 KiB" in rows(check_report(topology), "Links")


def test_only_columns_that_say_something_are_shown() -> None:
    plain = rows(check_report(load_topology(FOLDER / "small3.yaml")), "Links")
    moving = rows(check_report(load_topology(FOLDER / "trace-edge3.yaml")), "Links")

    assert plain[0] == "from to rate delay queue"
    assert moving[0] == "from to rate delay jitter loss bursts queue codel"
    assert "s1 → s2 ~ 70 Mbit/s 25 ms 3 ms (late-tail) - - 150 packets 5 ms" in moving
    assert "s2 ↔ s3 200 Mbit/s 8 ms - - 0.99 % (5 packets) 512 KiB -" in moving


def test_recordings_are_named_with_their_mean_and_their_period() -> None:
    report = check_report(load_topology(FOLDER / "trace-edge3.yaml"))

    assert rows(report, "Recordings")[2:] == [
        "downlink.steps rate 70 Mbit/s 30.31 s",
        "uplink.mahimahi chances to send 7.583 Mbit/s 10 s",
        "satellite.csv delay 22.04 ms 60 s",
    ]
    assert "Recordings" not in check_report(load_topology(FOLDER / "small3.yaml"))


def test_what_a_sandbox_may_use_is_shown_where_a_file_limits_it() -> None:
    free, limited = Node(name="s1", device=DEVICE), Node(name="s2", device=DEVICE, cpus=0.5, ram_bytes=512 * 2**20)
    direction = Direction(rate_bps=1e9, delay_s=0.001)
    link = Link(a="s1", b="s2", forward=direction, backward=direction)
    nodes = rows(check_report(Topology(name="two", nodes=(free, limited), links=(link,))), "Nodes")

    assert nodes[1] == "node users peak memory fast slow load cpus ram metro"
    assert [line.split()[-3:] for line in nodes[3:]] == [["GB/s", "-", "-"], ["0.5", "512", "MiB"]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"jitter_s": 0.001}, "jitter 1 ms (normal)"),
        ({"jitter_s": 0.001, "jitter_shape": Distribution(name="tail", table=(1,))}, "jitter 1 ms (tail)"),
        ({"jitter_s": 0.001, "reorder": True}, "jitter 1 ms (normal, reorders)"),
        ({"loss": 0.02, "duplicate": 0.001, "corrupt": 1e-6}, "loss 2 %, duplicate 0.1 %, corrupt 0.0001 %"),
        ({"burst_loss": GilbertElliott(worsens=0.01, recovers=0.19)}, "bursts 5 % (5.26 packets)"),
        ({"codel": CoDel()}, "codel 5 ms"),
        ({"codel": CoDel(target_s=0.02, interval_s=0.5)}, "codel 20 ms in 500 ms"),
        ({"queue_packets": 100}, "queue 100 packets"),
        ({"queue_bytes": 65536}, "queue 64 KiB"),
        ({"rate_trace": Steps(name="down", ends_s=(1.0,), values=(1e9,))}, "rate follows down"),
        ({"opportunities": Opportunities(name="up", at_s=(0.001,))}, "rate follows up"),
        (
            {"delay_trace": Steps(name="ping", ends_s=(1.0,), values=(0.1,)), "loss": 0.5},
            "delay follows ping, loss 50 %",
        ),
    ],
)
def test_a_direction_is_put_in_words(fields: dict[str, Any], words: str) -> None:
    assert impairments(Direction(rate_bps=1e9, delay_s=0.001, **fields)) == words


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_matrix_is_wider_than_the_console_and_none_loses_a_column(width: int) -> None:
    report = check_report(load_topology(FOLDER / "edge10.yaml"), width=width)
    part = report[report.index("Expected round trip") : report.index("Slowest link")]

    assert max(map(len, report.splitlines())) <= width
    headers = [line.split() for line in part.splitlines() if set(line.split()) <= {f"s{n}" for n in range(1, 11)}]
    assert [name for header in headers for name in header] == [f"s{number}" for number in range(1, 11)]


def test_many_servers_are_summed_up_and_not_drawn_as_a_matrix() -> None:
    report = check_report(full_mesh(41))

    assert "All 820 pairs of servers" in report
    assert "round trip, ms 2.00 2.00 2.00" in rows(report, "All 820 pairs")


def test_a_server_alone_has_no_pairs_to_show() -> None:
    report = check_report(Topology(name="one", nodes=(Node(name="s1", device=DEVICE),), links=()))

    assert report.startswith("one: 1 server, 0 links\n")
    assert "round trip" not in report


def test_the_examples_of_the_wording_hold() -> None:
    assert doctest.testmod(wording).failed == 0
