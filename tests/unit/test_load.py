"""Reading topology files: what a right file means, and what every kind of wrong file says."""

from __future__ import annotations

import doctest
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed import load, topology
from testbed.errors import TestbedError
from testbed.impairments import CoDel, Distribution, GilbertElliott, Opportunities, Steps
from testbed.load import TopologyError, load_topology, parse_topology
from testbed.loading import build, changes, linkformat, recordings
from testbed.loading.document import MAX_FILE_BYTES
from testbed.topology import Device, Direction, Link
from testbed.traces.mahimahi import read_mahimahi

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests/golden/topology"

SMALL = "{peak: 18 TFLOP/s, memory: 300 GB/s, fast: 12 GB, slow: 96 GB, load: 12 GB/s}"
HEAD = f"""
name: lab
devices:
  small: {SMALL}
nodes:
  s1: {{device: small}}
  s2: {{device: small, users: 3, metro: here}}
"""

CHAIN = "{between: [s1, s2]}, {between: [s2, s3]}"


def with_link(link: str, defaults: str = "{}") -> Link:
    return parse_topology(f"{HEAD}defaults: {{link: {defaults}}}\nlinks: [{link}]\n").links[0]


def messages(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("file", sorted(WRONG.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_wrong_file_is_refused_in_exactly_these_words(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(WRONG)

    with pytest.raises(TopologyError) as caught:
        load_topology(file.name)

    assert f"{caught.value}\n" == file.with_suffix(".txt").read_text("utf-8")


def test_there_are_at_least_twenty_different_mistakes_and_each_has_its_text() -> None:
    wrong = {file.stem for file in WRONG.glob("*.yaml")}

    assert len(wrong) >= 20
    assert wrong == {file.stem for file in WRONG.glob("*.txt")}


def test_a_device_class_is_read_in_si_units() -> None:
    assert parse_topology(HEAD + "links: [{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms}]").node(
        "s1"
    ).device == Device(
        peak_flops_per_s=18e12,
        memory_bytes_per_s=300e9,
        fast_bytes=12 * 10**9,
        slow_bytes=96 * 10**9,
        load_bytes_per_s=12e9,
    )


def test_a_node_may_change_values_of_its_class_or_bring_its_own_device() -> None:
    text = f"""
name: lab
devices:
  small: {{peak: 18 TFLOP/s, memory: 300 GB/s, fast: 12 GB, slow: 96 GB, load: 12 GB/s, efficiency: 40 %}}
nodes:
  s1: {{device: {{class: small, fast: 24 GB, launch: 5 us}}}}
  s2: {{device: {SMALL}}}
links: [{{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms}}]
"""
    one, two = (node.device for node in parse_topology(text).nodes)

    assert one is not None
    assert two is not None
    assert (one.fast_bytes, one.slow_bytes, one.efficiency, one.launch_s) == (24 * 10**9, 96 * 10**9, 0.4, 5e-6)
    assert (two.efficiency, two.launch_s) == (topology.DEFAULT_EFFICIENCY, topology.DEFAULT_LAUNCH_S)


def test_users_count_one_where_nothing_is_said_and_routers_have_none() -> None:
    text = f"{HEAD}  r1: {{router: true}}\ndefaults: {{link: {{rate: 1 Gbit/s, delay: 1 ms}}}}\n"
    net = parse_topology(text + "links: [{between: [s1, r1]}, {between: [r1, s2]}]")

    assert [(node.name, node.kind, node.users, node.metro) for node in net.nodes] == [
        ("s1", "server", 1.0, ""),
        ("s2", "server", 3.0, "here"),
        ("r1", "router", 0.0, ""),
    ]
    assert net.node("r1").device is None


def test_a_link_is_the_same_both_ways_unless_reverse_says_what_differs() -> None:
    same = with_link("{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms, jitter: 1 ms, loss: 2 %, queue: 64 KiB}")
    differs = with_link("{between: [s2, s1], rate: 1 Gbit/s, delay: 5 ms, loss: 2 %, reverse: {rate: 10 Mbit/s}}")

    there = Direction(rate_bps=1e9, delay_s=0.005, jitter_s=0.001, loss=0.02, queue_bytes=65536)
    assert same == Link(a="s1", b="s2", forward=there, backward=there)
    assert differs == Link(
        a="s2",
        b="s1",
        forward=Direction(rate_bps=1e9, delay_s=0.005, loss=0.02),
        backward=Direction(rate_bps=1e7, delay_s=0.005, loss=0.02),
    )


def test_defaults_hold_where_a_link_says_nothing_and_reverse_starts_from_the_link() -> None:
    link = with_link(
        "{between: [s1, s2], delay: 7 ms, reverse: {jitter: 1 ms}}", defaults="{rate: 1 Gbit/s, delay: 5 ms, loss: 1 %}"
    )

    assert link.forward == Direction(rate_bps=1e9, delay_s=0.007, loss=0.01)
    assert link.backward == Direction(rate_bps=1e9, delay_s=0.007, loss=0.01, jitter_s=0.001)


def test_every_impairment_is_read_in_si_units() -> None:
    link = with_link(
        "{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms, jitter: 1 ms, reorder: true, loss: 2 %, duplicate: 0.5 %,"
        " corrupt: 0.001, bursts: {worsens: 1 %, recovers: 20 %, loss_bad: 50 %, loss_good: 0.1 %},"
        " queue: 2000 packets, codel: {target: 10 ms}}"
    )

    assert link.forward == Direction(
        rate_bps=1e9,
        delay_s=0.005,
        jitter_s=0.001,
        reorder=True,
        loss=0.02,
        burst_loss=GilbertElliott(worsens=0.01, recovers=0.2, loss_bad=0.5, loss_good=0.001),
        duplicate=0.005,
        corrupt=0.001,
        queue_packets=2000,
        codel=CoDel(target_s=0.010, interval_s=0.100),
    )
    assert link.backward == link.forward


def test_what_a_default_asks_for_can_be_taken_back_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "flat.dist").write_text("-8192 8192\n")
    text = f"""{HEAD}
defaults:
  link: {{rate: 1 Gbit/s, delay: 5 ms, jitter: 1 ms, jitter_table: flat.dist, queue: 2000 packets, codel: true,
         bursts: {{worsens: 1 %, recovers: 20 %}}}}
links:
  - between: [s1, s2]
    reverse: {{jitter_table: false, bursts: false, codel: false, queue: auto}}
"""
    link = parse_topology(text, directory=tmp_path).links[0]

    assert link.forward == Direction(
        rate_bps=1e9,
        delay_s=0.005,
        jitter_s=0.001,
        jitter_shape=Distribution(name="flat", table=(-8192, 8192)),
        queue_packets=2000,
        codel=CoDel(),
        burst_loss=GilbertElliott(worsens=0.01, recovers=0.2),
    )
    assert link.backward == Direction(rate_bps=1e9, delay_s=0.005, jitter_s=0.001)


def test_a_limit_in_bytes_replaces_one_in_packets_and_the_other_way_round() -> None:
    one = with_link("{between: [s1, s2], queue: 64 KiB}", "{rate: 1 Gbit/s, delay: 1 ms, queue: 9 packets}").forward
    other = with_link("{between: [s1, s2], queue: 9 packets}", "{rate: 1 Gbit/s, delay: 1 ms, queue: 64 KiB}").forward

    assert (one.queue_bytes, one.queue_packets) == (65536, None)
    assert (other.queue_bytes, other.queue_packets) == (None, 9)


def test_recordings_are_found_beside_the_topology_and_their_mean_is_what_paths_see(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/up").write_text("1\n2\n")
    (tmp_path / "traces/down").write_text("0 0\n1 10\n3 40\n")
    (tmp_path / "traces/ping").write_text("s,rtt\n0,40\n1,-\n2,80\n")
    (tmp_path / "lab.yaml").write_text(
        HEAD
        + """links:
  - between: [s1, s2]
    rate: {trace: traces/down, format: steps}
    delay: {trace: traces/ping, format: csv, time: s, time_unit: s, value: rtt, unit: ms, round_trip: true,
            missing: hold}
    reverse: {rate: {trace: traces/up, format: mahimahi}}
"""
    )
    link = load_topology(tmp_path / "lab.yaml").links[0]

    assert link.forward.rate_trace == Steps(name="down", ends_s=(1.0, 3.0), values=(10e6, 40e6))
    assert link.forward.delay_trace == Steps(name="ping", ends_s=(1.0, 2.0, 3.0), values=(0.020, 0.020, 0.040))
    assert (link.forward.rate_bps, link.forward.delay_s) == (30e6, pytest.approx(0.080 / 3))
    assert link.backward.opportunities == Opportunities(name="up", at_s=(0.001, 0.002))
    assert (link.backward.rate_bps, link.backward.rate_trace) == (8 * 1504 * 1000, None)
    assert link.backward.delay_trace == link.forward.delay_trace


def test_a_constant_replaces_a_recorded_default(tmp_path: Path) -> None:
    (tmp_path / "up").write_text("1\n")
    defaults = "defaults: {link: {delay: 1 ms, rate: {trace: up, format: mahimahi}}}"
    text = f"{HEAD}{defaults}\nlinks: [{{between: [s1, s2], reverse: {{rate: 1 Gbit/s}}}}]\n"
    link = parse_topology(text, directory=tmp_path).links[0]

    assert link.forward.opportunities is not None
    assert link.backward == Direction(rate_bps=1e9, delay_s=0.001)


def test_a_file_that_many_links_follow_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "up").write_text("1\n")
    read: list[Path] = []

    def counted(path: Path) -> Opportunities:
        read.append(path)
        return read_mahimahi(path)

    monkeypatch.setattr(recordings, "read_mahimahi", counted)
    rate = "rate: {trace: up, format: mahimahi}"
    links = f"links: [{{between: [s1, s2], {rate}, delay: 1 ms, reverse: {{{rate}}}}}]\n"
    link = parse_topology(HEAD + links, directory=tmp_path).links[0]

    assert len(read) == 1
    assert link.forward.opportunities is link.backward.opportunities


def test_a_key_that_only_some_links_can_use_is_no_mistake_under_the_defaults() -> None:
    defaults = "{rate: 1 Gbit/s, delay: 5 ms, jitter: 1 ms, reorder: true, codel: true}"

    assert with_link("{between: [s1, s2], reverse: {jitter: 0}}", defaults).backward.jitter_s == 0
    assert messages(f"{HEAD}defaults: {{link: {defaults}}}\nlinks: [{{between: [s1, s2], jitter: 0}}]\n") == [
        "no effect without 'jitter'; write 'jitter: 1 ms' beside it, or leave it out"
    ]


def test_a_server_may_be_limited_to_a_part_of_this_machine() -> None:
    text = f"{HEAD}  s3: {{device: small, cpus: 0.5, ram: 512 MiB}}\n"
    net = parse_topology(f"{text}defaults: {{link: {{rate: 1 Gbit/s, delay: 1 ms}}}}\nlinks: [{CHAIN}]\n")

    assert (net.node("s3").cpus, net.node("s3").ram_bytes) == (0.5, 512 * 2**20)
    assert (net.node("s1").cpus, net.node("s1").ram_bytes) == (None, None)


def test_one_server_alone_is_a_network() -> None:
    net = parse_topology(f"name: one\nnodes:\n  s1: {{device: {SMALL}}}\n")

    assert ([node.name for node in net.servers], net.links) == (["s1"], ())


def test_an_anchor_may_be_used_again() -> None:
    net = parse_topology(
        f"name: lab\nnodes:\n  s1: &one {{device: {SMALL}}}\n  s2: *one\n"
        "links: [{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms}]\n"
    )

    assert net.node("s1").device == net.node("s2").device


def test_a_quoted_yaml_boolean_is_a_name_like_any_other() -> None:
    net = parse_topology(f'name: lab\nnodes:\n  "no": {{device: {SMALL}}}\n')

    assert net.nodes[0].name == "no"


def test_problems_are_values_in_the_order_of_the_file() -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(WRONG / "many_mistakes.yaml")

    problems = caught.value.problems
    assert [problem.at for problem in problems] == sorted(problem.at for problem in problems)
    assert [(problem.at.line, problem.path) for problem in problems] == [
        (1, "name"),
        (6, "nodes.s2.device"),
        (8, "links[0].between[1]"),
        (9, "links[0].rate"),
        (11, "links[0].los"),
    ]
    assert isinstance(caught.value, TestbedError)
    assert caught.value.exit_code == 2


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    text = HEAD + "links: [{between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms}]\n"
    file = tmp_path / "lab.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())

    assert load_topology(file) == parse_topology(text)


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "edge10.yaml").touch()

    with pytest.raises(TopologyError, match=r"edge11\.yaml: no such file; .* has edge10\.yaml"):
        load_topology(tmp_path / "edge11.yaml")


def test_a_directory_and_an_endless_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="is a directory"):
        load_topology(tmp_path)
    with pytest.raises(TopologyError, match="larger than 1024 KiB"):
        load_topology("/dev/zero")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may read everything, so the refusal has to be staged.
    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(TopologyError, match=r"lab\.yaml: may not be read by this user"):
        load_topology(tmp_path / "lab.yaml")


def test_more_nodes_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MAX_NODES", 100)

    def chain(size: int) -> str:
        nodes = "".join(f"  s{number}: {{device: small}}\n" for number in range(size))
        links = "".join(f"  - {{between: [s{number}, s{number + 1}]}}\n" for number in range(size - 1))
        defaults = "defaults: {link: {rate: 1 Gbit/s, delay: 1 ms}}"
        return f"name: lab\ndevices: {{small: {SMALL}}}\n{defaults}\nnodes:\n{nodes}links:\n{links}"

    assert len(parse_topology(chain(100)).nodes) == 100
    assert messages(chain(101)) == ["101 nodes; at most 100"]


def test_names_are_suggested_only_where_the_message_will_be_shown() -> None:
    defaults = "defaults: {link: {rate: 1 Gbit/s, delay: 1 ms}}"
    links = "  - {between: [s1, s2x]}\n" * 60

    found = messages(f"{HEAD}{defaults}\nlinks:\n{links}")

    assert found[49] == "unknown node 's2x'; did you mean 's2'?"
    assert found[50] == "unknown node 's2x'; 'nodes' has s1 and s2"


def test_a_file_full_of_mistakes_shows_the_first_fifty_and_counts_the_rest() -> None:
    text = "name: lab\nnodes: {}\n" + "".join(f"wrong-{number}: 1\n" for number in range(60))

    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "lab.yaml")

    assert len(caught.value.problems) == 60
    assert str(caught.value).endswith("lab.yaml: and 10 more mistakes")


@pytest.mark.parametrize("text", ["[" * MAX_FILE_BYTES, "a: " * 10_000, "- " * 100_000, "&a " * 1000, "{" * 5000])
def test_a_hostile_file_is_refused_and_not_followed_into_its_depths(text: str) -> None:
    started = time.process_time()

    assert messages(text)

    assert time.process_time() - started < 10


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet=st.sampled_from(list("ab1:-[]{},&*!'\"#|>%@?<\n\t \\é\x85\u2028")), max_size=80))
def test_any_text_is_refused_with_a_place_and_never_with_a_stack_trace(text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text)

    for problem in caught.value.problems:
        assert problem.message
        assert problem.at.line <= text.count("\n") + text.count("\x85") + text.count("\u2028") + 1


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_is_refused_or_read_and_never_breaks_the_loader(seed: int) -> None:
    lines = (ROOT / "topologies/metro-routers.yaml").read_text("utf-8").splitlines(keepends=True)
    chance = random.Random(seed)  # noqa: S311 - a reproducible choice, nothing secret
    for _ in range(3):
        number = chance.randrange(len(lines))
        line = lines[number]
        at = chance.randrange(len(line) + 1)
        lines[number] = chance.choice(
            [line[:at] + line[at + 1 :], line[:at] + chance.choice("-:{}[],'5x ") + line[at:], "", line + line]
        )

    servers, problems = 0, 0
    try:
        servers = len(parse_topology("".join(lines)).servers)
    except TopologyError as error:
        problems = len(error.problems)
    assert (servers > 0) != (problems > 0)


def test_the_examples_of_the_modules_hold() -> None:
    assert doctest.testmod(load).failed == 0
    assert doctest.testmod(topology).failed == 0
    assert doctest.testmod(changes).failed == 0
    assert doctest.testmod(linkformat).failed == 0


def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TopologyError, match="not a regular file"):
        load_topology(tmp_path / "pipe")
