"""HetRoute's entry: what homes tell each other of requests under way, and what follows for the next one."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, View
from agents.frameworks.expected import Floats
from agents.frameworks.hetroute import HetRoute
from agents.frameworks.hetroute_beliefs import decoding_share
from agents.frameworks.hetroute_underway import MOST, Route, Underway, Visit, announced, announcement
from agents.protocol import Placement, RequestKind

from .framework_cases import MIXTRAL, Still, calibration, cluster, view

MEASURED = calibration()
SHAPE = cluster(rate=40.0)
PLACED = HetRoute({"precisions": "int8", "rehearse": False}).place(SHAPE, MIXTRAL, MEASURED)
#: Half a pass on each of two servers of three, 20 ms each, and 10 ms on links.
ROUTE = Route.of([0, 0, 1, 1], [0.010] * 4, servers=3, away_s=0.010)

seconds = st.floats(0.0, 1.0)


def visit(*, entered_s: float = 0.0, duration_s: float = 0.050, passes: float = 1.0) -> Visit:
    return Visit(route=ROUTE, entered_s=entered_s, duration_s=duration_s, passes=passes)


def waited_s(one: Visit, now_s: float) -> Floats:
    underway = Underway(3)
    underway.add(one)
    return underway.wait_s(now_s)


def arrival(home: str, *, output_tokens: int = 0, number: int = 0) -> Arrival:
    kind: RequestKind = "generate" if output_tokens else "score"
    return Arrival(request=number, kind=kind, home=home, tokens=37, output_tokens=output_tokens)


class Homes:
    """HetRoute on some servers of one cluster; what one announces the others hear at once."""

    def __init__(self, *names: str, placement: Placement = PLACED, announce: bool = True) -> None:
        self.live = Still(SHAPE)
        self.views: dict[str, View] = {name: view(name, self.live, placement, MEASURED) for name in names}
        self.frameworks = {name: HetRoute({"announce": announce}) for name in names}
        for name, framework in self.frameworks.items():
            framework.begin(self.views[name])

    def enter(self, home: str) -> str:
        framework, seen = self.frameworks[home], self.views[home]
        first = framework.enter(arrival(home), seen)
        text = framework.announce(arrival(home), seen)
        for name, other in self.frameworks.items():
            if text and name != home:
                other.heard(home, text, self.views[name])
        return first


def test_simultaneous_requests_on_one_way_wait_for_each_other_all_the_way() -> None:
    underway = Underway(3)
    underway.add(visit())

    assert ROUTE.pass_s(underway.wait_s(0.0)) == pytest.approx(0.050 + 0.040)


def test_a_request_that_leads_by_more_than_a_stay_is_never_met_again() -> None:
    assert waited_s(visit(), 0.026).tolist() == [0.0, 0.0, 0.0]
    assert waited_s(visit(), 0.024).max() > 0.0


@given(now_s=seconds, later_s=seconds)
def test_a_pass_that_goes_on_is_waited_for_less_and_less(now_s: float, later_s: float) -> None:
    one = visit(duration_s=1.0)
    first, second = sorted((now_s, later_s))

    assert (waited_s(one, first) >= waited_s(one, second) - 1e-12).all()
    assert (waited_s(one, first) >= 0.0).all()


@given(now_s=seconds)
def test_a_request_of_many_passes_is_met_half_of_the_time_on_two_equal_servers(now_s: float) -> None:
    many = visit(duration_s=100.0, passes=1000.0)

    assert ROUTE.jobs @ waited_s(many, now_s) == pytest.approx(0.5 * 0.040)


def test_what_has_ended_is_waited_for_no_more() -> None:
    underway = Underway(3)
    underway.add(visit(entered_s=1.0))

    assert underway.wait_s(1.0).any()
    assert not underway.wait_s(1.05).any()
    assert not underway.wait_s(1.0).any()  # and forgotten


def test_no_flood_of_announcements_takes_more_than_so_much_memory() -> None:
    underway = Underway(3)
    for _ in range(MOST + 5):
        underway.add(visit())

    assert len(underway) == MOST


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([1, 1.0]),
        msgspec.msgpack.encode([-1, 1.0, 1.0]),
        msgspec.msgpack.encode([0, 0.5, 1.0]),
        msgspec.msgpack.encode([0, 1.0, 0.0]),
        msgspec.msgpack.encode([0, 1.0, float("nan")]),
        msgspec.msgpack.encode([0, 1e9, 1.0]),
    ],
)
def test_what_is_no_announcement_is_refused(text: bytes) -> None:
    with pytest.raises(FrameworkError, match="not an announcement"):
        announced(text, servers=10)


def test_a_server_that_is_none_is_refused() -> None:
    with pytest.raises(FrameworkError, match="entered server 10, of 10"):
        announced(announcement(10, 1.0, 0.1), servers=10)


def test_the_longest_request_can_still_be_announced() -> None:
    told = announced(announcement(1, float("inf"), float("inf")), servers=2)

    assert np.isfinite([told.passes, told.duration_s]).all()
    assert announced(announcement(1, 1.0, 0.0), servers=2).duration_s > 0.0  # and the shortest


def test_a_burst_at_several_homes_spreads_where_homes_tell_each_other() -> None:
    """Six requests at one moment, at homes next to each other, whose nearest pipeline is the same."""
    burst = ("s1", "s2", "s3", "s4", "s1", "s2")
    first = Homes(*burst).enter("s1")
    told, untold = Homes(*burst), Homes(*burst, announce=False)

    spread = Counter(told.enter(home) for home in burst)
    crowd = Counter(untold.enter(home) for home in burst)

    assert len(spread) > 1
    assert max(spread.values()) < crowd[first]


def test_a_burst_long_over_changes_nothing() -> None:
    homes = Homes("s1", "s2")
    first = homes.enter("s1")
    for _ in range(8):
        homes.enter("s2")
    homes.live.time_s += 60.0

    assert homes.enter("s1") == first


def test_a_subclass_that_chooses_entries_itself_announces_nothing() -> None:
    class Homely(HetRoute):
        def enter(self, arrival: Arrival, view: View) -> str:
            return arrival.home

    framework, seen = Homely(), view("s3", Still(SHAPE), PLACED, MEASURED)
    framework.begin(seen)
    framework.enter(arrival("s3"), seen)

    assert framework.announce(arrival("s3"), seen) == b""


def test_a_home_that_gathers_for_itself_announces_nothing() -> None:
    framework = HetRoute({"look_ahead": "none"})
    seen = view("s3", Still(SHAPE), PLACED, MEASURED)
    framework.begin(seen)

    assert framework.enter(arrival("s3"), seen) == "s3"
    assert framework.announce(arrival("s3"), seen) == b""


def test_text_that_is_to_be_generated_counts_as_more_passes() -> None:
    framework = HetRoute()
    seen = view("s3", Still(SHAPE), PLACED, MEASURED)
    framework.begin(seen)
    told = []
    for output_tokens in (0, 1, 101):
        framework.enter(arrival("s3", output_tokens=output_tokens), seen)
        told.append(announced(framework.announce(arrival("s3"), seen), servers=10))

    one, alike, many = told
    assert one.passes == alike.passes == 1.0
    assert many.passes == pytest.approx(1.0 + 100 * decoding_share(seen))
    # Each of them crosses the links in full: 101 tokens take longer than their share of device time says.
    assert many.passes * one.duration_s < many.duration_s < 101 * alike.duration_s
    assert 0.05 < decoding_share(seen) < 1.0  # of 37 tokens' eight experts per layer one token asks for two
