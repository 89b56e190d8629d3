"""HetRoute: placement, look-ahead, beliefs and budget."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from agents.cluster import Cluster
from agents.errors import FrameworkError
from agents.frameworks.base import Arrival, Feedback, View
from agents.frameworks.expected import Expected
from agents.frameworks.hetroute import HetRoute
from agents.frameworks.hetroute_outlook import Outlook, flow, nominal
from agents.frameworks.hetroute_placement import near_groups, queueing_s
from agents.frameworks.placements import budget_bytes
from agents.models.calibrate import Calibration
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.models.spec import twin_directory
from agents.protocol import FULL, Placement, Replica
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()


@cache
def placed(rate: float = 20.0, redundancy: float = 2.0, precisions: str = "int8") -> tuple[Cluster, Placement]:
    shape = cluster(rate=rate, redundancy=redundancy)
    return shape, HetRoute({"precisions": precisions, "rehearse": False}).place(shape, MIXTRAL, MEASURED)


def begun(server: str, **options: object) -> tuple[HetRoute, Still, Placement]:
    shape, placement = placed()
    live, framework = Still(shape), HetRoute(options)
    framework.begin(view(server, live, placement, MEASURED))
    return framework, live, placement


def arrival(home: str) -> Arrival:
    return Arrival(request=0, kind="score", home=home, tokens=37, output_tokens=0)


def test_near_servers_are_found_from_delays_alone() -> None:
    shape = cluster()
    groups = {frozenset(shape.names[k] for k in group) for group in near_groups(shape)}

    metros = [{"s1", "s2", "s3", "s4"}, {"s5", "s6", "s7"}, {"s8", "s9", "s10"}]
    assert all(frozenset(metro) in groups for metro in metros)
    assert frozenset(shape.names) in groups


def test_every_expert_has_a_full_precision_copy() -> None:
    _, placement = placed()

    assert {(r.layer, r.expert) for r in placement.replicas if r.precision == FULL} == {
        (layer, expert) for layer in range(32) for expert in range(8)
    }


@pytest.mark.parametrize("redundancy", [1.0, 1.4, 2.0])
def test_copies_stay_within_the_redundancy(redundancy: float) -> None:
    shape, placement = placed(redundancy=redundancy)

    used = sum(MIXTRAL.expert_bytes[r.precision] for r in placement.replicas)
    assert used <= budget_bytes(shape, MIXTRAL)


def test_no_pipeline_loses_more_than_a_whole_pass_can_afford() -> None:
    shape = cluster(rate=20.0, redundancy=2.0)
    total = sum(MEASURED.quality_loss(layer, "int4") for layer in range(MIXTRAL.layers))
    used = {}
    for budget in (0.99 * total, 1.01 * total):
        framework = HetRoute({"rehearse": False})
        framework.measured(None, None, quality_budget=budget)
        replicas = framework.place(shape, MIXTRAL, MEASURED).replicas
        used[budget] = {replica.layer for replica in replicas if replica.precision == "int4"}

    below, above = used.values()
    assert 0 < len(below) < MIXTRAL.layers
    assert len(above) == MIXTRAL.layers


def test_a_model_that_fits_any_server_is_kept_in_every_metro() -> None:
    """The guarantee serves one of three metros; two lower copies must not lie beside it."""
    shape, profile = cluster(rate=40.0, redundancy=2.0), ModelProfile.load("switch-base-8")

    placement = HetRoute().place(shape, profile, Calibration.load(twin_directory("switch-base-8")))

    metros = [{"s1", "s2", "s3", "s4"}, {"s5", "s6", "s7"}, {"s8", "s9", "s10"}]
    owners = [set(entry["owners"]) for entry in placement.notes["pipelines"]]
    assert all(any(entry <= metro for entry in owners) for metro in metros)


def test_redundancy_below_one_is_refused() -> None:
    with pytest.raises(FrameworkError, match="below 1"):
        HetRoute().place(cluster(redundancy=0.9), MIXTRAL, MEASURED)


def test_more_redundancy_never_makes_the_expected_latency_worse() -> None:
    expected_s = [placed(rate=40.0, redundancy=redundancy)[1].notes["expected_s"] for redundancy in (1.0, 1.5, 2.0)]

    assert expected_s[0] > 1.3 * expected_s[1]
    assert expected_s[1] >= expected_s[2]


def test_under_load_a_second_pipeline_takes_a_share() -> None:
    _, placement = placed(rate=40.0)
    shares = [entry["share"] for entry in placement.notes["pipelines"] if entry["precision"] == "int8"]

    assert len(shares) == 2
    assert min(shares) > 0.02
    assert sum(shares) > 0.9


def test_residency_goes_to_the_copies_that_the_router_selects() -> None:
    """Two servers hold more than their fast memory; what is routed is resident, the mere guarantee is not."""
    shape = cluster("small3")
    said: list[str] = []
    framework = HetRoute({"precisions": "int8"})
    framework.progress = said.append
    placement = framework.place(shape, MIXTRAL, MEASURED)

    assert [line for line in said if line.startswith("rehearsed")]

    slow = [replica for replica in placement.replicas if not replica.fast]
    assert slow
    assert {replica.precision for replica in slow} == {FULL}


def test_queueing_grows_without_end_but_stays_finite() -> None:
    times = queueing_s(np.ones(4), np.array([0.0, 0.5, 0.95, 2.0]))

    assert times.tolist() == sorted(times.tolist())
    assert times[:2].tolist() == [1.0, 2.0]
    assert np.isfinite(times).all()


def outlook_of(shape: Cluster, placement: Placement) -> Outlook:
    penalty_s = {precision: np.zeros(MIXTRAL.layers) for precision in MIXTRAL.expert_bytes}
    expected = Expected(shape, MIXTRAL, MEASURED)
    return Outlook(shape, MIXTRAL, expected, placement.replicas, price_s_per_byte=0.0, penalty_s=penalty_s)


def test_the_look_ahead_of_one_pipeline_is_the_sum_of_its_steps() -> None:
    shape, _ = placed()
    replicas = [
        Replica(layer=layer, expert=expert, server="s3" if layer < 16 else "s4", precision="int4", fast=True)
        for layer in range(32)
        for expert in range(8)
    ]
    outlook = outlook_of(shape, Placement(replicas=tuple(replicas)))
    live = nominal(shape)
    value_s = outlook.values(live, outlook.transitions(live)[0])
    expected = Expected(shape, MIXTRAL, MEASURED)
    layer_s = expected.layer_s("int4")

    by_hand = layer_s[2, :16].sum() + expected.move_s()[2, 3] + layer_s[3, 16:].sum()
    by_hand += outlook.head_s[3] + shape.delay_s[3][6]
    assert value_s[0, 2, 6] == pytest.approx(by_hand)


def test_a_wait_on_the_way_makes_the_look_ahead_dearer_and_moves_the_flow() -> None:
    shape, placement = placed(rate=40.0)
    outlook = outlook_of(shape, placement)
    live = nominal(shape)
    calm_s = outlook.values(live, outlook.transitions(live)[0])
    waits = live.wait_s.copy()
    waits[3] = 0.010
    busy = dataclasses.replace(live, wait_s=waits)
    busy_s = outlook.values(busy, outlook.transitions(busy)[0])

    assert (busy_s >= calm_s - 1e-12).all()
    assert busy_s[0].min() > calm_s[0].min()


def test_the_simulated_router_runs_each_expert_as_often_as_it_is_called() -> None:
    shape, placement = placed(rate=40.0)
    expected = Expected(shape, MIXTRAL, MEASURED)

    selected = flow(outlook_of(shape, placement), shape, expected).selected

    np.testing.assert_allclose(selected.sum(axis=2), expected.called)


def test_a_calm_request_enters_a_pipeline_and_stays_in_it() -> None:
    shape, placement = placed()
    live = Still(shape)
    chains = [entry["owners"] for entry in placement.notes["pipelines"] if entry["precision"] == "int8"]
    framework = HetRoute()
    framework.begin(view("s7", live, placement, MEASURED))
    here = framework.enter(arrival("s7"), view("s7", live, placement, MEASURED))
    way = []
    for layer in range(32):
        framework = HetRoute()
        seen = view(here, live, placement, MEASURED)
        framework.begin(seen)
        plan = framework.plan(demand(layer, home="s7"), seen)
        assert {choice.server for choice in plan.choices} == {here}
        way.append(here)
        here = plan.next_server

    assert way in chains


def test_entry_avoids_a_server_that_is_lost_or_long_busy() -> None:
    framework, live, placement = begun("s3")
    seen = view("s3", live, placement, MEASURED)
    first = framework.enter(arrival("s3"), seen)

    live.lost = {first}
    assert framework.enter(arrival("s3"), seen) != first

    live.lost = set()
    live.backlog_s = {first: 5.0}
    for _ in range(20):  # beliefs are slow on purpose
        live.time_s += 0.3
        second = framework.enter(arrival("s3"), seen)
    assert second != first


def test_without_budget_everything_runs_in_full_precision() -> None:
    framework, live, placement = begun("s3")

    plan = framework.plan(demand(4, budget=0.0), view("s3", live, placement, MEASURED))

    assert {choice.precision for choice in plan.choices} == {FULL}
    assert not any(choice.fallback for choice in plan.choices)


def test_where_all_copies_are_overloaded_the_guarantee_is_the_fallback() -> None:
    framework, live, placement = begun("s3", backlog_limit_s=0.01)
    live.backlog_s = dict.fromkeys(live.cluster.names, 0.5)
    live.time_s = 1.0

    for _ in range(3):
        live.time_s += 1.0
        plan = framework.plan(demand(4), view("s3", live, placement, MEASURED))

    assert {(choice.precision, choice.fallback) for choice in plan.choices} == {(FULL, True)}


def test_an_expert_without_any_living_copy_is_an_error_that_says_so() -> None:
    framework, live, placement = begun("s3")
    live.lost = {r.server for r in placement.replicas if r.layer == 4}

    with pytest.raises(FrameworkError, match="layer 4"):
        framework.plan(demand(4), view("s3", live, placement, MEASURED))


def test_layers_that_take_longer_than_predicted_make_the_terms_dearer_that_they_consist_of() -> None:
    framework, live, placement = begun("s3")
    owners = chain(placement)
    layer = next(k for k in range(31) if owners[k] == owners[k + 1] == "s3")
    seen = view("s3", live, placement, MEASURED)
    for request in range(50):
        framework.plan(demand(layer, request=request), seen)
        assert framework.terms is not None
        took_s = 3 * framework.terms.layer_s
        framework.observe(Feedback(request=request, step=0, layer=layer, duration_s=took_s, wait_s=took_s))

    _, loading, computation = framework._beliefs.weights
    assert 1.5 < computation <= 2.0
    assert loading == 1.0  # nothing was loaded, so loads cannot be at fault


def chain(placement: Placement) -> list[str]:
    return list(placement.notes["pipelines"][0]["owners"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"look_ahead": "far"}, "request, layer, none"),
        ({"precisions": "int3"}, "int3"),
        ({"lookahead": 1}, "lookahead"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(FrameworkError, match=words):
        HetRoute(options).place(cluster(), MIXTRAL, MEASURED)


@pytest.mark.parametrize(
    "options",
    [
        {"set_level": False},
        {"look_ahead": "layer"},
        {"look_ahead": "none"},
        {"merge": False},
        {"precision_aware": False},
    ],
)
def test_ablations_plan_every_expert_too(options: dict[str, object]) -> None:
    framework, live, placement = begun("s3", **options)
    asked = demand(4)

    plan = framework.plan(asked, view("s3", live, placement, MEASURED))

    assert [choice.expert for choice in plan.choices] == [entry.expert for entry in asked.experts]


def test_with_a_single_pipeline_a_request_does_not_stay_outside_of_it() -> None:
    """However busy the owners are: experts called layer by layer from elsewhere cost everybody more."""
    shape, placement = placed(rate=40.0, redundancy=1.0)
    owners = chain(placement)
    live = Still(shape)
    live.backlog_s = dict.fromkeys(owners, 0.02)
    outside = next(name for name in shape.names if name != owners[3])
    framework = HetRoute()
    framework.begin(view(outside, live, placement, MEASURED))

    plan = framework.plan(demand(3), view(outside, live, placement, MEASURED))

    assert plan.next_server == owners[4]


def test_more_servers_than_fit_its_tables_are_refused_in_words() -> None:
    with pytest.raises(FrameworkError, match="it takes up to 62 servers, not 63"):
        HetRoute().place(equal_servers(63), MIXTRAL, calibration())


def test_without_redundancy_there_is_one_copy_of_each_expert_in_full_precision() -> None:
    placement = HetRoute({"redundancy": 1, "rehearse": False}).place(cluster(), MIXTRAL, MEASURED)

    assert len(placement.replicas) == MIXTRAL.layers * MIXTRAL.experts
    assert {replica.precision for replica in placement.replicas} == {FULL}


def test_without_precision_awareness_nothing_is_compressed() -> None:
    options = {"precision_aware": False, "rehearse": False}
    placement = HetRoute(options).place(cluster(), MIXTRAL, MEASURED)

    assert {replica.precision for replica in placement.replicas} == {FULL}


def test_a_plan_says_what_it_expects_term_by_term() -> None:
    framework, live, placement = begun("s3")

    plan = framework.plan(demand(4), view("s3", live, placement, MEASURED))

    assert plan.terms is not None
    assert plan.terms.compute_s > 0
    assert plan.terms.ahead_s > 0


def facts(difference: float) -> ExpertFacts:
    """Leaving an expert out costs 1 %; another expert in its place costs a share of that."""
    layers, experts = MIXTRAL.layers, MIXTRAL.experts
    square = np.full((layers, experts, experts), difference, dtype=np.float32)
    return ExpertFacts(
        coactivation=square[None],
        transition=square[1:],
        loss={},
        importance=np.full((layers, experts), 0.01, dtype=np.float32),
        similarity=square,
        difference=square,
    )


def one_lost(difference: float) -> tuple[HetRoute, View, int]:
    """Expert 2 of layer 4 lives on a server of its own, which has died; the others are on s3."""
    copies = [
        Replica(layer=4, expert=expert, server="s9" if expert == 2 else "s3", precision=FULL, fast=True)
        for expert in range(MIXTRAL.experts)
    ]
    live = Still(cluster())
    live.lost = {"s9"}
    seen = View(
        server="s3",
        cluster=live.cluster,
        profile=MIXTRAL,
        calibration=MEASURED,
        placement=Placement(replicas=tuple(copies)),
        live=live,
        facts=facts(difference),
    )
    framework = HetRoute()
    framework.begin(seen)
    return framework, seen, 2


def test_an_expert_without_a_feasible_copy_is_replaced_within_the_budget_only() -> None:
    framework, seen, lost = one_lost(0.2)
    plan = framework.plan(demand(4, next_server="s3"), seen)

    (replaced,) = (choice for choice in plan.choices if choice.runs != choice.expert)
    assert (replaced.expert, replaced.server) == (lost, "s3")
    assert seen.loss(4, replaced) == pytest.approx(0.01 * 0.2**2, rel=1e-3)
    with pytest.raises(FrameworkError, match="within the quality budget"):
        framework.plan(demand(4, next_server="s3", budget=1e-6), seen)


def test_substitutes_stay_unused_while_a_copy_of_the_expert_is_feasible() -> None:
    framework, seen, _ = one_lost(0.0)
    seen._live.lost = set()  # type: ignore[attr-defined]

    plan = framework.plan(demand(4, next_server="s3"), seen)

    assert all(choice.runs == choice.expert for choice in plan.choices)
