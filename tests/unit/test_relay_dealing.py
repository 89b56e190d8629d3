"""Several relays: how cables are dealt out to them, who is asked what, and what becomes of their answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import TestbedError
from testbed.ledger import Ledger
from testbed.load import load_topology
from testbed.setup import Setup
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport, Lateness
from testbed.shaping.client import RelayShaper
from testbed.shaping.dealing import deal, parse_relays, relay_count, weights_of
from testbed.shaping.lateness import LatenessHistogram, merged
from testbed.shaping.processes import RelayProcesses
from testbed.shaping.spread import SpreadShaper
from testbed.topology import Direction, Engine
from tests.support.networks import QUICK, mesh, topology

EDGE10 = Path(__file__).parents[2] / "topologies/edge10.yaml"


def loads(weights: Mapping[str, float], dealt: Mapping[str, int], relays: int) -> list[float]:
    return [sum(weights[link] for link in weights if dealt[link] == number) for number in range(1, relays + 1)]


# ---- dealing out


@given(
    rates=st.lists(st.floats(min_value=1e3, max_value=1e12), min_size=1, max_size=40),
    relays=st.integers(min_value=1, max_value=8),
)
def test_every_cable_has_one_relay_and_none_carries_more_than_a_cable_above_the_mean(
    rates: list[float], relays: int
) -> None:
    weights = {f"a-b{number}": rate for number, rate in enumerate(rates)}
    relays = relay_count(relays, links=len(weights), cores=1)
    dealt = deal(weights, relays)
    found = loads(weights, dealt, relays)

    assert list(dealt) == list(weights)
    assert set(dealt.values()) == set(range(1, relays + 1))  # a relay without links would end by itself
    assert max(found) <= (sum(rates) / relays + (1 - 1 / relays) * max(rates)) * (1 + 1e-9)


def test_the_links_of_edge10_are_within_two_per_cent_of_evenly_dealt() -> None:
    weights = weights_of(load_topology(EDGE10).links)
    for relays in (2, 3, 4):
        found = loads(weights, deal(weights, relays), relays)
        assert max(found) / min(found) < 1.02


def test_equal_cables_are_dealt_by_number_and_one_relay_has_all() -> None:
    weights = weights_of(mesh(4).links)

    assert sorted(deal(weights, 2).values()) == [1, 1, 1, 2, 2, 2]
    assert set(deal(weights, 1).values()) == {1}
    assert deal({}, 0) == {}


def test_a_cable_weighs_what_both_its_directions_may_carry() -> None:
    slow = Direction(rate_bps=1e6, delay_s=0.0)
    assert weights_of(topology(QUICK, back=slow).links) == {"s1-s2": 1e9 + 1e6}


@pytest.mark.parametrize(("cores", "relays"), [(1, 1), (2, 1), (5, 1), (6, 2), (8, 2), (16, 4), (64, 16), (400, 45)])
def test_auto_takes_a_quarter_of_the_cores_and_never_more_relays_than_links(cores: int, relays: int) -> None:
    assert relay_count("auto", links=45, cores=cores) == relays


def test_asked_for_or_not_there_is_no_relay_without_a_link() -> None:
    assert relay_count(4, links=3, cores=64) == 3
    assert relay_count(4, links=0, cores=64) == relay_count("auto", links=0, cores=64) == 0


@pytest.mark.parametrize("written", ["0", "-1", "two", "1.5", "", "99999"])
def test_a_count_that_is_none_is_refused_with_what_to_write(written: str) -> None:
    with pytest.raises(TestbedError, match=f"^--relays {written}: write auto, or how many"):
        parse_relays(written)
    with pytest.raises(TestbedError, match="ask for at least one"):
        relay_count(0, links=3, cores=1)


def test_a_count_and_auto_are_understood() -> None:
    assert (parse_relays("12"), parse_relays("auto")) == (12, "auto")


def test_a_testbed_that_names_no_relays_has_one_for_all_links_of_the_relay() -> None:
    engines: dict[str, Engine] = {"s1-s2": "relay", "s1-s3": "netem", "s2-s3": "relay"}
    setup = Setup(topology=mesh(3), backend="netns", engines=engines, seed=0, initial_window=10)

    assert setup.carried == {1: ["s1-s2", "s2-s3"]}


# ---- lateness


def test_merged_lateness_is_what_one_histogram_of_all_releases_says() -> None:
    both, parts = LatenessHistogram(), (LatenessHistogram(), LatenessHistogram())
    for number in range(1000):
        late_s = number * 1.7e-5 if number < 999 else 3.0
        both.add(late_s)
        parts[number % 7 == 0].add(late_s)

    assert merged([part.summary() for part in parts]) == both.summary()


def test_lateness_that_nobody_counted_merges_to_none() -> None:
    assert merged([]) == merged([Lateness()]) == Lateness()


# ---- who is asked what


class FakeRelay:
    """Notes what it is asked."""

    def __init__(self, dilation: float = 1.0, links: bool = True, runs: bool = True) -> None:
        self.asked: list[object] = []
        self._in_force, self._runs = (dilation, links), runs

    def alive(self) -> bool:
        return self._runs

    def in_force(self) -> tuple[float, bool]:
        return self._in_force

    def plug(self, cables: list[CablePlan]) -> None:
        self.asked.append([cable.link for cable in cables])

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        self.asked.append(link)
        return direction

    def rewind(self, seed: int) -> None:
        self.asked.append(("rewind", seed))

    def dilate(self, dilation: float) -> None:
        self.asked.append(("dilate", dilation))
        if not self._runs:
            raise TestbedError("gone")

    def report(self, *, reachable: bool) -> tuple[DirectionReport, ...]:
        self.asked.append(("report", reachable))
        return ()


def spread(first: FakeRelay, second: FakeRelay) -> SpreadShaper:
    return SpreadShaper({cast("RelayShaper", first): ["a-b", "b-c"], cast("RelayShaper", second): ["a-c"]})


def cable(link: str) -> CablePlan:
    a, b = (CableEnd(node=node, netns=f"/n/{node}", interface="to") for node in link.split("-"))
    return CablePlan(link=link, a=a, b=b, forward=QUICK, backward=QUICK)


def test_what_concerns_a_link_goes_to_its_relay_alone() -> None:
    first, second = FakeRelay(), FakeRelay()
    shaper = spread(first, second)
    shaper.plug([cable("a-b"), cable("a-c"), cable("b-c")])
    shaper.plug([cable("a-c")])
    shaper.shape("b-c", "b", QUICK)

    assert first.asked == [["a-b", "b-c"], "b-c"]
    assert second.asked == [["a-c"], ["a-c"]]


def test_what_concerns_all_goes_to_every_relay_even_if_one_fails() -> None:
    first, second = FakeRelay(runs=False), FakeRelay()
    shaper = spread(first, second)
    shaper.rewind(7)
    shaper.report(reachable=True)
    with pytest.raises(TestbedError, match="gone"):
        shaper.dilate(3.0)

    assert first.asked == second.asked == [("rewind", 7), ("report", True), ("dilate", 3.0)]


@pytest.mark.parametrize(
    ("first", "second", "dilation"),
    [
        (FakeRelay(dilation=4.0), FakeRelay(dilation=4.0), 4.0),
        (FakeRelay(runs=False), FakeRelay(dilation=4.0), 4.0),
        (FakeRelay(links=False), FakeRelay(dilation=4.0), 4.0),  # just started, told nothing yet
        (FakeRelay(runs=False), FakeRelay(runs=False), 1.0),
    ],
    ids=["both", "one gone", "one without links", "both gone"],
)
def test_dilation_is_what_a_relay_with_links_runs_by(first: FakeRelay, second: FakeRelay, dilation: float) -> None:
    assert spread(first, second).dilation == dilation


# ---- who runs


def recorded(ledger: Ledger, number: int, *, runs: bool) -> None:
    ledger.record({"kind": "socket", "file": f"relay-{number}.ipc", "relay": number})
    if runs:
        ledger.record_process("relay", os.getpid())
    else:
        ledger.record({"kind": "relay", "pid": os.getpid(), "started": 1})  # another process had this id then


def test_a_relay_is_gone_until_it_is_recorded_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    relays = RelayProcesses(ledger, {1: ["a-b"], 2: ["a-c", "b-c"], 3: ["c-d"]}, seed=0)
    for number, runs in ((1, True), (2, False), (3, True)):
        recorded(ledger, number, runs=runs)

    assert relays.gone() == (2,)
    assert relays.loss(2) == "relay 2 of 3 is gone, and 2 links with it: a-c and b-c"
    recorded(ledger, 2, runs=True)
    assert relays.gone() == ()


def test_a_relay_of_a_ledger_that_numbers_none_is_the_first(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    relays = RelayProcesses(ledger, {1: ["a-b"]}, seed=0)
    ledger.record({"kind": "socket", "file": "relay-x.ipc"})
    assert relays.gone() == (1,)
    assert relays.loss(1) == "the relay process is gone, and every link with it"

    ledger.record_process("relay", os.getpid())
    assert relays.gone() == ()
