"""Prism: slots by entropy, experts by what a server's users ask, and when to migrate."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.base import Review
from agents.frameworks.domains import server_usage
from agents.frameworks.expected import Floats
from agents.frameworks.placements import check_placement, spread
from agents.frameworks.prism import Prism, as_counted, assigned, covered, entropy, repaired, slots_per_layer
from agents.frameworks.prism_migration import migration_s, waiting_s, worth_migrating
from agents.models.calibrate import Calibration
from agents.protocol import Placement, Replica
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()


def drawn(servers: int, layers: int, experts: int, seed: int) -> Floats:
    usage: Floats = np.random.default_rng(seed).dirichlet(np.full(experts, 0.5), size=(servers, layers))
    return usage


# --- slots ------------------------------------------------------------------------------------------------------------


def test_a_layer_that_spreads_over_more_experts_gets_more_slots() -> None:
    usage = np.array([[[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]])

    assert entropy(usage)[0] == pytest.approx([np.log(4), np.log(2), 0.0])
    assert slots_per_layer(usage, [6]).tolist() == [[4, 2, 0]]


@given(
    servers=st.integers(1, 5),
    layers=st.integers(1, 6),
    experts=st.integers(1, 6),
    seed=st.integers(0, 999),
    rooms=st.lists(st.integers(0, 36), min_size=5, max_size=5),
)
def test_after_the_repair_every_expert_fits_somewhere_and_no_server_holds_more(
    servers: int, layers: int, experts: int, seed: int, rooms: list[int]
) -> None:
    rooms = [min(room, layers * experts) for room in rooms[:servers]]
    usage = drawn(servers, layers, experts, seed)
    slots = slots_per_layer(usage, rooms)

    if sum(rooms) < layers * experts:
        with pytest.raises(ValueError, match="slots are too few"):
            repaired(slots, experts=experts)
        return
    fixed = repaired(slots, experts=experts)
    held = covered(assigned(usage, fixed), usage)

    assert fixed.sum(axis=1).tolist() == rooms
    assert fixed.sum(axis=0).min() >= experts
    assert fixed.min() >= 0
    assert fixed.max() <= experts
    assert held.any(axis=0).all()
    assert (held.sum(axis=2) == fixed).all()


# --- experts ----------------------------------------------------------------------------------------------------------


def test_a_server_keeps_the_experts_that_its_own_users_ask_for_most() -> None:
    usage = np.array([[[0.1, 0.6, 0.3]], [[0.5, 0.2, 0.3]]])

    assert assigned(usage, np.array([[2], [1]])).tolist() == [[[False, True, True]], [[True, False, False]]]


def test_an_uncovered_expert_takes_the_place_of_the_least_used_duplicate() -> None:
    """Both servers keep experts 0 and 1; expert 1 is asked for least at the second one."""
    usage = np.array([[[0.5, 0.4, 0.1]], [[0.6, 0.3, 0.1]]])
    held = assigned(usage, np.array([[2], [2]]))

    assert covered(held, usage).tolist() == [[[True, True, False]], [[True, False, True]]]


def test_the_share_of_a_servers_users_weighs_its_duplicates() -> None:
    usage = np.array([[[0.5, 0.4, 0.1]], [[0.6, 0.3, 0.1]]])
    held = assigned(usage, np.array([[2], [2]]))

    weighted = covered(held, np.array([0.1, 0.9])[:, None, None] * usage)

    assert weighted.tolist() == [[[True, False, True]], [[True, True, False]]]


def test_more_of_what_is_asked_for_is_at_home_than_under_a_spread_that_knows_no_homes() -> None:
    shape, measured = _with_subjects(cluster()), _specialised()
    usage = server_usage(shape, measured)

    def at_home(placement: Placement) -> float:
        share = {server.name: server.home_share for server in shape.servers}
        return sum(
            share[copy.server] * usage[shape.index(copy.server), copy.layer, copy.expert] / MIXTRAL.layers
            for copy in placement.replicas
        )

    assert at_home(Prism().place(shape, MIXTRAL, measured)) > 1.3 * at_home(spread(shape, MIXTRAL, measured))


def test_the_budget_is_used_and_all_of_it_in_fast_memory() -> None:
    placement = Prism().place(cluster(), MIXTRAL, MEASURED)

    assert len(placement.replicas) == 512
    assert all(copy.fast for copy in placement.replicas)


def test_lower_precision_keeps_twice_as_many_copies() -> None:
    placement = Prism({"precision": "int8"}).place(cluster(), MIXTRAL, MEASURED)

    assert Counter(copy.precision for copy in placement.replicas) == {"int8": 1024}


def test_where_fast_memory_is_short_a_server_keeps_what_it_uses_most_there() -> None:
    shape = equal_servers(2)
    usage = server_usage(shape, MEASURED)
    placement = Prism().place(shape, MIXTRAL, MEASURED)

    for place, name in enumerate(shape.names):
        here = [copy for copy in placement.replicas if copy.server == name]
        fast = [usage[place, copy.layer, copy.expert] for copy in here if copy.fast]
        slow = [usage[place, copy.layer, copy.expert] for copy in here if not copy.fast]
        assert len(fast) == 115  # of 352 MB in 85 % of 48 GB
        assert min(fast) >= max(slow)


def test_online_the_nearest_copy_is_called_and_results_come_home() -> None:
    shape = cluster()
    framework = Prism()
    placement = framework.place(shape, MIXTRAL, MEASURED)
    seen = view("s6", Still(shape), placement, MEASURED)

    plan = framework.plan(demand(4, home="s6"), seen)

    assert plan.next_server == "s6"
    for choice in plan.choices:
        holders = [c.server for c in placement.replicas if (c.layer, c.expert) == (4, choice.expert)]
        assert seen.delay_s("s6", choice.server) == min(seen.delay_s("s6", holder) for holder in holders)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FrameworkError, match=r"prism cannot run in precision 'int3'.*full, int8, int4"):
        Prism({"precision": "int3"}).place(cluster(), MIXTRAL, MEASURED)


# --- migration --------------------------------------------------------------------------------------------------------

SMALL = replace(MIXTRAL, layers=1, experts=2, top_k=1)
TWO = equal_servers(2, delay_s=0.005, rate_bps=8e9)


def keeps(first: int, second: int) -> Placement:
    """Servers s1 and s2 with one expert each."""
    return Placement(
        replicas=tuple(
            Replica(layer=0, expert=expert, server=server, precision="full", fast=True)
            for server, expert in (("s1", first), ("s2", second))
        )
    )


def asks(first: float) -> Floats:
    """Users of s1 choose expert 0 for this share of their tokens, users of s2 expert 1."""
    return np.array([[[first, 1 - first]], [[1 - first, first]]])


def test_waiting_is_round_trips_and_bytes_of_calls_elsewhere() -> None:
    """5 requests/s for 300 s, all their 37 tokens elsewhere: 10 ms and twice 37 x 8192 bytes at 1 GB/s each."""
    everything_elsewhere = waiting_s(keeps(1, 0), cluster=TWO, profile=SMALL, usage=asks(1.0))

    assert everything_elsewhere == pytest.approx(5 * 300 * (0.010 + 2 * 37 * 8192 / 1e9))
    assert waiting_s(keeps(0, 1), cluster=TWO, profile=SMALL, usage=asks(1.0)) == 0.0


def test_servers_receive_at_the_same_time_and_each_one_copy_after_the_other() -> None:
    one_s = 0.005 + SMALL.expert_bytes["full"] / 1e9
    both = Placement(replicas=keeps(0, 1).replicas + keeps(1, 0).replicas)

    assert migration_s(keeps(0, 1), keeps(1, 0), cluster=TWO, profile=SMALL) == pytest.approx(one_s)
    assert migration_s(keeps(0, 1), both, cluster=TWO, profile=SMALL) == pytest.approx(one_s)
    assert migration_s(keeps(0, 1), keeps(0, 0), cluster=TWO, profile=SMALL) == pytest.approx(one_s)
    assert migration_s(both, keeps(1, 0), cluster=TWO, profile=SMALL) == 0.0


@pytest.mark.parametrize(("interval_s", "worth"), [(300.0, True), (1.0, False)])
def test_it_migrates_if_the_new_cost_and_the_transfer_are_below_the_old_cost(interval_s: float, worth: bool) -> None:
    """Swapping both experts takes 0.36 s once and saves 0.053 s in every second."""
    found = worth_migrating(
        keeps(1, 0), keeps(0, 1), cluster=TWO, profile=SMALL, usage=asks(1.0), interval_s=interval_s
    )

    assert found is worth


def test_it_stays_where_nothing_would_get_better() -> None:
    assert not worth_migrating(keeps(0, 1), keeps(0, 1), cluster=TWO, profile=SMALL, usage=asks(0.9))
    assert not worth_migrating(keeps(0, 1), keeps(1, 0), cluster=TWO, profile=SMALL, usage=asks(0.5))


def test_a_copy_that_nobody_has_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="nobody holds expert 1 of layer 0 in precision full"):
        migration_s(keeps(0, 0), keeps(0, 1), cluster=TWO, profile=SMALL)


# --- reviews ----------------------------------------------------------------------------------------------------------


def asked_for(usage: Floats, shape: Cluster, *, tokens: int = 200_000) -> dict[str, list[list[int]]]:
    """Counts as they come from servers whose users choose experts by ``usage``, many or few as they are."""
    share = np.array([server.home_share for server in shape.servers])
    counts = np.rint(usage * tokens * share[:, None, None]).astype(int)
    return dict(zip(shape.names, counts.tolist(), strict=True))


def reviewed(counted: dict[str, list[list[int]]], shape: Cluster, placement: Placement) -> Placement | None:
    review = Review(
        placement=placement,
        counted=counted,
        elapsed_s=300.0,
        cluster=shape,
        profile=MIXTRAL,
        calibration=_specialised(),
    )
    return Prism().review(review)


def test_users_that_ask_for_something_else_than_expected_get_another_placement() -> None:
    shape, measured = _with_subjects(cluster()), _specialised()
    placement = Prism().place(shape, MIXTRAL, measured)
    drifted = server_usage(shape, replace(measured, usage=measured.usage[[1, 2, 0]]))

    wanted = reviewed(asked_for(drifted, shape), shape, placement)

    assert wanted is not None
    check_placement(wanted, shape, MIXTRAL, framework="prism")
    new_s, old_s = (waiting_s(p, cluster=shape, profile=MIXTRAL, usage=drifted) for p in (wanted, placement))
    assert new_s < old_s


def test_users_that_ask_as_they_did_at_the_last_review_keep_their_placement() -> None:
    shape, measured = _with_subjects(cluster()), _specialised()
    counted = asked_for(server_usage(shape, replace(measured, usage=measured.usage[[1, 2, 0]])), shape)

    wanted = reviewed(counted, shape, Prism().place(shape, MIXTRAL, measured))

    assert wanted is not None
    assert reviewed(counted, shape, wanted) is None


def test_without_a_single_request_nothing_changes() -> None:
    shape = cluster()
    placement = Prism().place(shape, MIXTRAL, _specialised())

    assert reviewed({}, shape, placement) is None
    assert reviewed(asked_for(server_usage(shape, MEASURED), shape, tokens=0), shape, placement) is None


def test_load_and_home_shares_are_taken_from_what_was_counted() -> None:
    """740 and 2220 calls of top-2 gates: 370 and 1110 tokens, 40 requests of 37 tokens within 10 s."""
    counts = np.zeros((2, 3, 2))
    counts[0, :, 0], counts[1, :, 1] = 740, 2220

    seen = as_counted(TWO, counts, 10.0, top_k=2)

    assert [server.home_share for server in seen.servers] == [0.25, 0.75]
    assert seen.arrival_rate_per_s == pytest.approx(4.0)


def test_a_server_counts_what_its_users_ask_for_and_begins_anew_when_it_has_told() -> None:
    shape, framework = cluster(), Prism()
    placement = framework.place(shape, MIXTRAL, MEASURED)
    seen = view("s6", Still(shape), placement, MEASURED)
    framework.begin(seen)
    framework.plan(demand(4, home="s6"), seen)

    counted = framework.counted()

    assert [sum(row) for row in counted] == [0, 0, 0, 0, 2 * 37, *[0] * 27]
    assert counted[4] == [{e.expert: e.tokens for e in demand(4).experts}.get(expert, 0) for expert in range(8)]
    assert sum(map(sum, framework.counted())) == 0


def test_five_minutes_lie_between_two_reviews_unless_an_option_says_otherwise() -> None:
    assert Prism().review_s == 300.0
    assert Prism({"review_s": 20}).review_s == 20.0


def _specialised() -> Calibration:
    """Domains that hardly share an expert."""
    usage = np.random.default_rng(1).dirichlet(np.full(MIXTRAL.experts, 0.4), size=(3, MIXTRAL.layers))
    return replace(MEASURED, usage=usage)


def _with_subjects(shape: Cluster) -> Cluster:
    """Users who ask about one of the three domains most of the time, in turn."""
    subjects = [{domain: 0.8 if domain == own else 0.1 for domain in "abc"} for own in "abcabcabca"]
    servers = zip(shape.servers, subjects, strict=True)
    return structs.replace(
        shape, servers=tuple(structs.replace(server, domain_shares=tuple(asked.items())) for server, asked in servers)
    )
