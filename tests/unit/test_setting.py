"""Changes at run time: what ``KEY=VALUE`` means, what it leaves alone, and what ``testbed set`` does with it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.commands import setting
from testbed.errors import TestbedError
from testbed.impairments import CoDel, Distribution, GilbertElliott, Opportunities, Steps
from testbed.loading.changes import changed
from testbed.network import Network
from testbed.topology import Device, Direction, Link, Node, Topology
from testbed.wiring import wire

SHAPE = Distribution(name="flat", table=(-8192, 8192))
#: Every field differs from its default.
FULL = Direction(
    rate_bps=1e9,
    delay_s=0.005,
    jitter_s=0.001,
    jitter_shape=SHAPE,
    reorder=True,
    loss=0.01,
    burst_loss=GilbertElliott(worsens=0.01, recovers=0.2),
    duplicate=0.02,
    corrupt=0.03,
    queue_bytes=10**7,
    codel=CoDel(),
    rate_trace=Steps(name="down", ends_s=(1.0,), values=(1e9,)),
    delay_trace=Steps(name="ping", ends_s=(1.0,), values=(0.005,)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "up").write_text("1\n")
    (tmp_path / "down").write_text("0 1\n1 10\n3 40\n")
    (tmp_path / "ping.csv").write_text("when,rtt\n10:00:00,40\n10:00:01,60\n")
    (tmp_path / "tail.dist").write_text("-8192 8192\n")
    return tmp_path


def refusal(*texts: str, directory: Path = Path(), direction: Direction = FULL) -> str:
    with pytest.raises(TestbedError) as caught:
        changed(direction, texts, directory)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("rate=100Mbit/s", {"rate_bps": 1e8, "rate_trace": None}),
        ("delay=20 ms", {"delay_s": 0.020, "delay_trace": None}),
        ("jitter=2ms", {"jitter_s": 0.002}),
        ("jitter_table=false", {"jitter_shape": None}),
        ("reorder=false", {"reorder": False}),
        ("loss=5%", {"loss": 0.05}),
        ("loss=0", {"loss": 0.0}),
        ("bursts=false", {"burst_loss": None}),
        ("bursts=worsens:2%,recovers:50%", {"burst_loss": GilbertElliott(worsens=0.02, recovers=0.5)}),
        ("duplicate=0.5%", {"duplicate": 0.005}),
        ("corrupt=0.1 %", {"corrupt": 0.001}),
        ("queue=64KiB", {"queue_bytes": 65536}),
        ("queue=1000packets", {"queue_bytes": None, "queue_packets": 1000}),
        ("queue=auto", {"queue_bytes": None}),
        ("codel=false", {"codel": None}),
        ("codel=target:10ms", {"codel": CoDel(target_s=0.010)}),
        ("codel={target: 10 ms, interval: 50 ms}", {"codel": CoDel(target_s=0.010, interval_s=0.050)}),
    ],
)
def test_a_change_touches_what_it_names_and_nothing_else(text: str, fields: dict[str, object]) -> None:
    assert changed(FULL, [text], Path()) == replace(FULL, **fields)  # type: ignore[arg-type]


def test_several_changes_are_made_together() -> None:
    plain = Direction(rate_bps=1e9, delay_s=0.002)

    assert changed(plain, ["reorder=true", "jitter=1ms", "loss=1%"], Path()) == replace(
        plain, reorder=True, jitter_s=0.001, loss=0.01
    )


def test_recordings_replace_constants_and_constants_recordings(folder: Path) -> None:
    chances = changed(FULL, ["rate=trace:up,format=mahimahi"], folder)
    steps = changed(chances, ["rate=trace:down,format:steps,unit:kbit/s"], folder)

    assert chances == replace(
        FULL, rate_bps=8 * 1504 * 1000, rate_trace=None, opportunities=Opportunities(name="up", at_s=(0.001,))
    )
    assert (steps.opportunities, steps.rate_bps) == (None, 30e3)
    assert changed(steps, ["rate=1Gbit/s"], folder) == replace(FULL, rate_trace=None)


def test_a_format_with_colons_and_spaces_is_written_in_braces_or_as_it_is(folder: Path) -> None:
    short = "delay=trace:ping.csv,format:csv,time:when,time_format:%H:%M:%S,value:rtt,unit:ms,round_trip:true"
    braces = (
        "delay={trace: ping.csv, format: csv, time: when, time_format: '%H:%M:%S', value: rtt, unit: ms,"
        " round_trip: true}"
    )

    assert changed(FULL, [short], folder) == changed(FULL, [braces], folder)
    assert changed(FULL, [short], folder).delay_s == pytest.approx(0.025)


def test_a_table_is_read_from_the_directory_that_is_given(folder: Path) -> None:
    assert changed(FULL, ["jitter_table=tail.dist"], folder) == replace(
        FULL, jitter_shape=Distribution(name="tail", table=(-8192, 8192))
    )


def test_all_mistakes_are_told_at_once() -> None:
    assert refusal("rate=100 mbps", "dealy=3ms", "loss=2") == (
        "rate: '100 mbps' is ambiguous: write '100 Mbit/s' or '100 MB/s'\n"
        "dealy: unknown key; did you mean 'delay'?\n"
        "loss: '2' is too large: at most '100 %'; did you mean '2 %'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss", "'loss' is no change; write KEY=VALUE, such as 'delay=20ms'"),
        ("loss=", "'loss=' is no change; write KEY=VALUE, such as 'delay=20ms'"),
        ("=1%", "'=1%' is no change; write KEY=VALUE, such as 'delay=20ms'"),
        ("codel=on", "codel: expected true or false, found the text 'on'"),
        ("rate=trace:up", "rate: 'format' is missing; write 'format: mahimahi', 'format: steps' or 'format: csv'"),
        ("rate=trace:nowhere,format:mahimahi", "rate.trace: nowhere: no such file"),
        ("loss=1%,2%", "loss: '1%,2%' has an unknown unit; a share is written in %"),
        ("plr=1%", "plr: unknown key; did you mean 'loss' (share of the packets that are lost, each by itself)?"),
        ("loss=\udcff", "loss=\udcff: the character '\\udcff' is not allowed in YAML"),
    ],
)
def test_a_wrong_change_is_refused_in_these_words(text: str, message: str) -> None:
    assert refusal(text) == message


def test_a_key_that_is_given_twice_is_refused() -> None:
    assert refusal("loss=1%", "loss=2%") == "'loss' is given twice"


def test_a_change_without_effect_is_refused_and_one_that_ends_an_effect_is_not() -> None:
    plain = Direction(rate_bps=1e9, delay_s=0.002)

    assert refusal("reorder=true", direction=plain).startswith("reorder: no effect without 'jitter'")
    assert changed(FULL, ["jitter=0"], Path()) == replace(FULL, jitter_s=0.0)
    assert changed(replace(FULL, rate_trace=None), ["queue=3000B"], Path()).queue_bytes == 3000


# --- the command ------------------------------------------------------------------------------------------------------

DEVICE = Device(peak_flops_per_s=1e12, memory_bytes_per_s=1e9, fast_bytes=10**9, slow_bytes=0, load_bytes_per_s=1e9)
PLAIN = Direction(rate_bps=1e9, delay_s=0.002)


class StandIn:
    """A network of one link that remembers what it is asked for."""

    name = "lab"
    end_of = Network.end_of

    def __init__(self) -> None:
        self.topology = Topology(
            name="lab",
            nodes=(Node(name="s1", device=DEVICE), Node(name="s2", device=DEVICE)),
            links=(Link(a="s1", b="s2", forward=PLAIN, backward=PLAIN),),
        )
        self.wiring = wire(self.topology, self.name)
        self.in_force = {("s1-s2", "s1"): PLAIN, ("s1-s2", "s2"): replace(PLAIN, loss=0.01)}
        self.shaped: list[str] = []
        self.closed = False

    def attach(self, name: str | None) -> StandIn:
        return self

    def shaping(self) -> dict[tuple[str, str], Direction]:
        return dict(self.in_force)

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        self.shaped.append(source)
        self.in_force[link, source] = direction
        return direction

    def alone(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(setting, "Network", stand_in)
    return stand_in


def test_a_link_is_changed_both_ways_each_from_what_is_in_force_there(
    network: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    setting.set_link("s2-s1", ["delay=20ms", "codel=true", "queue=4000packets"])
    new = replace(PLAIN, delay_s=0.020, codel=CoDel(), queue_packets=4000)

    assert network.in_force == {("s1-s2", "s1"): new, ("s1-s2", "s2"): replace(new, loss=0.01)}
    assert network.closed
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "link rate delay impairments",
        "s1 → s2 1 Gbit/s 20 ms codel 5 ms, queue 4000 packets",
        "s2 → s1 1 Gbit/s 20 ms loss 1 %, codel 5 ms, queue 4000 packets",
    ]


def test_with_from_only_the_packets_that_leave_there_are_changed(network: StandIn) -> None:
    setting.set_link("s1-s2", ["loss=5%"], source="s2")

    assert network.shaped == ["s2"]
    assert network.in_force["s1-s2", "s1"] == PLAIN


def test_nothing_is_changed_where_anything_is_wrong(network: StandIn) -> None:
    for link, changes, source in (
        ("s1-s2", ["loss=5%", "delay=5"], None),
        ("s1-s3", ["loss=5%"], None),
        ("s1-s2", ["loss=5%"], "s3"),
    ):
        with pytest.raises(TestbedError, match=r"has no unit|has no link 's1-s3'; it has s1-s2|is no end of s1-s2"):
            setting.set_link(link, changes, source=source)

    assert network.shaped == []
    assert network.closed


def test_a_share_that_has_its_sign_is_not_given_another() -> None:
    with pytest.raises(TestbedError) as caught:
        changed(FULL, ["loss=101%"], Path())

    assert str(caught.value) == "loss: '101%' is too large: at most '100 %'"
