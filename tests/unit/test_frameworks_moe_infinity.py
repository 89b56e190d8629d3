"""MoE-Infinity: hosts that hold everything, what they pin, and what they would predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.errors import FrameworkError
from agents.frameworks.activations import REMEMBERED, UNDER_WAY, Activations, similarity
from agents.frameworks.base import Arrival, Feedback, Plan
from agents.frameworks.moe_infinity import MOST_AHEAD, MoeInfinity
from agents.protocol import Placement
from tests.support.clusters import DEVICE
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()
SHAPE = cluster()
PLACED = MoeInfinity().place(SHAPE, MIXTRAL, MEASURED)


def hosts(placement: Placement) -> set[str]:
    return {copy.server for copy in placement.replicas}


def begun(server: str, live: Still, placement: Placement = PLACED) -> MoeInfinity:
    framework = MoeInfinity()
    framework.begin(view(server, live, placement, MEASURED))
    return framework


def entry(home: str, live: Still) -> str:
    arrival = Arrival(request=1, kind="score", home=home, tokens=37, output_tokens=0)
    return begun(home, live).enter(arrival, view(home, live, PLACED, MEASURED))


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_as_many_servers_hold_everything_as_the_memory_of_all_allows() -> None:
    for redundancy, count in ((1.0, 1), (2.9, 2), (3.0, 3), (20.0, 10)):
        placement = MoeInfinity().place(cluster(redundancy=redundancy), MIXTRAL, MEASURED)

        assert len(hosts(placement)) == count
        assert len(placement.replicas) == 256 * count


def test_the_hosts_are_those_that_load_least_and_quickest() -> None:
    """s5 and s8 have 48 GB; the others would load 200 or more of 256 experts for every request."""
    assert hosts(PLACED) == {"s5", "s8"}


def test_a_home_that_is_a_host_keeps_its_requests_and_others_go_where_they_are_served_soonest() -> None:
    """s8 loads more than twice as quickly as s5, which outweighs the way from the metro of s5."""
    live = Still(SHAPE)

    assert {home: entry(home, live) for home in ("s5", "s8", "s6", "s10")} == {
        "s5": "s5",
        "s8": "s8",
        "s6": "s8",
        "s10": "s8",
    }


def test_a_host_with_a_long_queue_is_avoided_unless_it_is_home() -> None:
    """A request queues in each of its 32 layers."""
    live = Still(SHAPE)
    live.backlog_s = {"s8": 0.1}

    assert entry("s6", live) == "s5"
    assert entry("s8", live) == "s8"


def test_a_host_that_is_lost_is_replaced_by_another() -> None:
    live = Still(SHAPE)
    live.lost = {"s8"}

    assert entry("s6", live) == "s5"


def test_a_request_never_leaves_its_host() -> None:
    framework = begun("s8", Still(SHAPE))

    for layer in range(MIXTRAL.layers):
        plan = framework.plan(demand(layer, home="s10"), view("s8", Still(SHAPE), PLACED, MEASURED))
        assert {choice.server for choice in plan.choices} == {plan.next_server} == {"s8"}


def test_a_cluster_in_which_no_server_can_hold_everything_is_refused() -> None:
    small = replace(DEVICE, slow_bytes=40 * 10**9)

    with pytest.raises(FrameworkError, match="on one server, and none has room for mixtral-8x7b"):
        MoeInfinity().place(equal_servers(4, device=small), MIXTRAL, MEASURED)


# --- residency --------------------------------------------------------------------------------------------------------


def test_everything_lies_in_slow_memory_and_the_cache_begins_with_early_layers() -> None:
    here = [copy for copy in PLACED.replicas if copy.server == "s5"]
    worth = begun("s5", Still(SHAPE)).worth()

    kept = sorted(here, key=lambda copy: -worth((copy.layer, copy.expert, copy.precision)))[:115]

    assert not any(copy.fast for copy in here)
    assert np.mean([copy.layer for copy in kept]) < 10 < np.mean([copy.layer for copy in here])


def test_a_server_with_room_for_everything_loads_nothing() -> None:
    large = replace(DEVICE, fast_bytes=110 * 10**9)

    assert all(copy.fast for copy in MoeInfinity().place(equal_servers(2, device=large), MIXTRAL, MEASURED).replicas)


def test_where_slow_memory_is_too_small_the_rest_stays_in_fast_memory() -> None:
    """48 GB x 85 % + 50 GB hold 115 + 141 experts: all there are, and no room stays free for loads."""
    tight = replace(DEVICE, slow_bytes=int(141.5 * MIXTRAL.expert_bytes["full"]))

    placement = MoeInfinity().place(equal_servers(1, device=tight), MIXTRAL, MEASURED)

    assert sum(copy.fast for copy in placement.replicas) == 115


# --- predictions ------------------------------------------------------------------------------------------------------


def done(history: Activations, request: int, rows: list[list[int]]) -> None:
    for layer, row in enumerate(rows):
        history.saw(request, layer, enumerate(row))
    history.done(request)


def test_the_nearest_request_of_the_past_predicts_the_rest_and_nearer_layers_weigh_more() -> None:
    history = Activations(layers=3, experts=2)
    done(history, 1, [[4, 0], [3, 1], [0, 8]])
    done(history, 2, [[0, 4], [0, 4], [4, 0]])
    history.saw(3, 0, [(0, 2)])

    weights = history.predicted(3, 0)

    # Of request 1: rows as shares, times 1 - 1/4 and 1 - 2/4.
    assert weights.tolist() == [[0.0, 0.0], [0.75 * 0.75, 0.75 * 0.25], [0.0, 0.5]]
    assert history.wanted(3, 0) == [(1, 0), (2, 1), (1, 1)]


def test_what_has_been_seen_since_changes_which_request_is_nearest() -> None:
    history = Activations(layers=3, experts=2)
    done(history, 1, [[4, 0], [4, 0], [4, 0]])
    done(history, 2, [[3, 1], [0, 4], [0, 4]])
    history.saw(3, 0, [(0, 1)])
    assert history.wanted(3, 0)[0] == (1, 0)

    history.saw(3, 1, [(1, 9)])

    assert history.wanted(3, 1) == [(2, 1)]


def test_a_long_request_is_as_near_as_a_short_one_of_the_same_kind() -> None:
    row = np.array([[1.0, 2.0, 0.0]])
    others = np.array([row, 50 * row, [[0.0, 0.0, 7.0]]])

    assert similarity(row, others) == pytest.approx([1.0, 1.0, 0.0])


def test_nothing_is_predicted_without_a_past_or_for_a_stranger() -> None:
    history = Activations(layers=2, experts=2)
    history.saw(1, 0, [(0, 1)])

    assert history.wanted(1, 0) == []
    assert history.wanted(99, 0) == []


def test_later_passes_of_a_request_add_to_its_matrix() -> None:
    history = Activations(layers=2, experts=2)
    done(history, 1, [[1, 0], [1, 0]])
    done(history, 1, [[1, 0], [0, 3]])
    history.saw(2, 0, [(0, 1)])

    assert history.predicted(2, 0)[1] == pytest.approx([2 / 3 * 0.25, 2 / 3 * 0.75])


def test_memory_is_bounded_in_requests_done_and_under_way() -> None:
    history = Activations(layers=1, experts=1)
    for request in range(3 * REMEMBERED):
        done(history, request, [[1]])
    for request in range(1000, 1000 + 2 * UNDER_WAY):
        history.saw(request, 0, [(0, 1)])

    assert len(history._past) == REMEMBERED
    assert len(history._current) == UNDER_WAY


def asked(framework: MoeInfinity, request: int, layers: int, live: Still) -> list[Plan]:
    seen = view("s5", live, PLACED, MEASURED)
    plans = []
    for layer in range(layers):
        plans.append(framework.plan(demand(layer, request=request), seen))
        framework.observe(Feedback(request=request, step=0, layer=layer, duration_s=0.0, wait_s=0.0))
    return plans


def test_a_host_loads_ahead_what_the_nearest_request_of_the_past_asked_for_next() -> None:
    live = Still(SHAPE)
    framework = begun("s5", live)
    asked(framework, 1, MIXTRAL.layers, live)

    (plan,) = asked(framework, 2, 1, live)

    assert 0 < len(plan.prefetch) <= MOST_AHEAD
    assert {copy.server for copy in plan.prefetch} == {"s5"}
    first = [copy.expert for copy in plan.prefetch if copy.layer == 1]
    assert len(first) >= 4
    assert set(first) <= {entry.expert for entry in demand(1).experts}
    assert all(copy.layer > 0 for copy in plan.prefetch)


def test_nothing_is_loaded_ahead_for_the_first_request_nor_by_a_server_that_is_no_host() -> None:
    live = Still(SHAPE)

    assert [plan.prefetch for plan in asked(begun("s5", live), 1, 3, live)] == [()] * 3
    assert begun("s1", live).plan(demand(0), view("s1", live, PLACED, MEASURED)).prefetch == ()


# --- what is worth keeping --------------------------------------------------------------------------------------------


def test_before_the_first_request_calibration_says_what_is_worth_keeping_and_early_layers_weigh_more() -> None:
    history = Activations(layers=3, experts=2, usage=np.array([[3.0, 1.0], [1.0, 1.0], [1.0, 1.0]]))

    assert history.worth().tolist() == [[0.75, 0.25], [0.75 * 0.5, 0.75 * 0.5], [0.5 * 0.5, 0.5 * 0.5]]


def test_what_a_request_under_way_is_expected_to_need_is_worth_more_than_what_it_has_left_behind() -> None:
    history = Activations(layers=3, experts=2, usage=np.ones((3, 2)))
    done(history, 1, [[1, 0], [1, 0], [1, 0]])
    history.saw(2, 0, [(0, 1)])
    before = history.worth()
    history.saw(2, 1, [(0, 1)])

    history.predicted(2, 1)

    # Of request 1, that is 1 - 1/4; the mean of it and of usage, 3/4, would be worth 3/4 times 2/4.
    assert history.worth()[2, 0] == 0.75
    assert before[2, 0] == pytest.approx(0.375)
    assert history.worth()[1, 0] == 0.75  # asked for by request 2 itself, one layer down
    assert history.worth()[0, 1] == pytest.approx(0.25)  # by nobody but the calibration


def test_a_request_that_is_over_leaves_its_matrix_and_no_expectation() -> None:
    history = Activations(layers=2, experts=2)
    done(history, 1, [[1, 0], [0, 1]])
    history.saw(2, 0, [(0, 1)])
    history.predicted(2, 0)
    history.saw(2, 1, [(0, 1)])

    history.done(2)

    assert history.worth() == pytest.approx(np.array([[2 / 3, 0.0], [2 / 9, 2 / 9]]))
