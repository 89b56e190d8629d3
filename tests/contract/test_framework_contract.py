"""What every registered framework must do, whatever its idea."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.cluster import Cluster
from agents.depth.apply import trimmed
from agents.depth.registry import DEPTHS
from agents.frameworks.base import Arrival, Demand, Framework, Plan, Review, View
from agents.frameworks.placements import check_placement
from agents.frameworks.registry import BLIND_TO_BUDGET, FRAMEWORKS, create, create_depth
from agents.protocol import FULL, MAX_NOTES_BYTES, Placement

from ..support.depth import facts  # noqa: TID252
from ..unit.framework_cases import MIXTRAL, Still, calibration, cluster, demand, view  # noqa: TID252

MEASURED = calibration()
NAMES = sorted(FRAMEWORKS)
CLUSTERS = ("edge10", "small3")


@cache
def placed(name: str, topology: str) -> tuple[Cluster, Placement]:
    shape = cluster(topology)
    return shape, create(name).place(shape, MIXTRAL, MEASURED)


def begun(name: str, topology: str, server: str) -> tuple[Framework, View, Still]:
    shape, placement = placed(name, topology)
    live = Still(shape)
    framework, seen = create(name), view(server, live, placement, MEASURED)
    framework.begin(seen)
    return framework, seen, live


def route(name: str, topology: str, home: str) -> list[tuple[Demand, Plan, str]]:
    """Every layer of a request, planned at the server that the layer before named."""
    framework, seen, _ = begun(name, topology, home)
    here = framework.enter(Arrival(request=1, kind="score", home=home, tokens=37, output_tokens=0), seen)
    steps = []
    for layer in range(MIXTRAL.layers):
        framework, seen, _ = begun(name, topology, here)
        asked = demand(layer, home=home)
        plan = framework.plan(asked, seen)
        steps.append((asked, plan, here))
        here = plan.next_server
    return steps


def copies(placement: Placement, layer: int) -> set[tuple[int, str, str]]:
    return {(r.expert, r.server, r.precision) for r in placement.replicas if r.layer == layer}


def assert_complete(asked: Demand, plan: Plan, placement: Placement) -> None:
    assert sorted(choice.expert for choice in plan.choices) == [entry.expert for entry in asked.experts]
    assert {(c.expert, c.server, c.precision) for c in plan.choices} <= copies(placement, asked.layer)


@pytest.mark.parametrize("topology", CLUSTERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_placement_holds_every_expert_within_memory_and_redundancy(name: str, topology: str) -> None:
    shape, placement = placed(name, topology)

    check_placement(placement, shape, MIXTRAL, framework=name)


@pytest.mark.parametrize("redundancy", [1.0, 1.3, 6.0])
@pytest.mark.parametrize("name", sorted({FRAMEWORKS[name][:2]: name for name in NAMES}.values()))
def test_a_placement_keeps_within_any_redundancy(name: str, redundancy: float) -> None:
    shape = cluster("small3", redundancy=redundancy)

    check_placement(create(name).place(shape, MIXTRAL, MEASURED), shape, MIXTRAL, framework=name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BLIND_TO_BUDGET])
def test_every_expert_has_a_copy_in_full_precision_somewhere(name: str) -> None:
    _, placement = placed(name, "edge10")

    held = {(r.layer, r.expert) for r in placement.replicas if r.precision == FULL}

    assert len(held) == MIXTRAL.layers * MIXTRAL.experts


@pytest.mark.parametrize("name", NAMES)
def test_placing_twice_gives_the_same_placement(name: str) -> None:
    shape, placement = placed(name, "small3")

    assert create(name).place(shape, MIXTRAL, MEASURED) == placement


@pytest.mark.parametrize("topology", CLUSTERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_of_a_request_finds_each_of_its_experts_once(name: str, topology: str) -> None:
    shape, placement = placed(name, topology)

    for home in (shape.names[0], shape.names[-1]):
        for asked, plan, _ in route(name, topology, home):
            assert_complete(asked, plan, placement)
            assert plan.next_server in shape.names


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_ahead_lies_here_and_what_is_noted_may_travel(name: str) -> None:
    shape, placement = placed(name, "edge10")
    for home in shape.names[::3]:
        for _, plan, here in route(name, "edge10", home):
            assert set(plan.prefetch) <= {copy for copy in placement.replicas if copy.server == here}
            assert plan.notes is None or len(plan.notes) <= MAX_NOTES_BYTES
        framework, seen, _ = begun(name, "edge10", home)
        arrival = Arrival(request=1, kind="score", home=home, tokens=37, output_tokens=0)
        assert len(framework.notes(arrival, seen)) <= MAX_NOTES_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_what_a_home_announces_is_understood_everywhere(name: str) -> None:
    def arrival(home: str) -> Arrival:
        return Arrival(request=1, kind="generate", home=home, tokens=37, output_tokens=8)

    shape, _ = placed(name, "small3")
    home, *others = shape.names
    framework, seen, _ = begun(name, "small3", home)
    framework.enter(arrival(home), seen)
    text = framework.announce(arrival(home), seen)

    assert len(text) <= MAX_NOTES_BYTES
    for other in others:
        framework, seen, _ = begun(name, "small3", other)
        framework.heard(home, text, seen)
        assert framework.enter(arrival(other), seen) in shape.names


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_worth_keeping_has_a_worth(name: str) -> None:
    _, placement = placed(name, "edge10")
    framework, seen, _ = begun(name, "edge10", placement.replicas[0].server)
    framework.plan(demand(0), seen)
    worth = framework.worth()

    if worth is not None:
        assert all(math.isfinite(worth((copy.layer, copy.expert, copy.precision))) for copy in placement.replicas)


@pytest.mark.parametrize("name", NAMES)
def test_a_review_leaves_the_placement_or_finds_one_within_memory_and_redundancy(name: str) -> None:
    """Of what one server has counted in one request, as far as it counts anything."""
    shape, placement = placed(name, "small3")
    framework, seen, _ = begun(name, "small3", "s1")
    for layer in range(MIXTRAL.layers):
        framework.plan(demand(layer, home="s1"), seen)
    asked = framework.counted()

    found = framework.review(
        Review(
            placement=placement,
            counted={"s1": asked} if asked else {},
            elapsed_s=60.0,
            cluster=shape,
            profile=MIXTRAL,
            calibration=MEASURED,
        )
    )

    assert framework.review_s is None or framework.review_s > 0
    if found is not None:
        check_placement(found, shape, MIXTRAL, framework=name)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_request_takes_the_same_way(name: str) -> None:
    assert route(name, "edge10", "s7") == route(name, "edge10", "s7")


@pytest.mark.parametrize("forced", ["s1", "s3"])
@pytest.mark.parametrize("name", NAMES)
def test_a_next_server_that_is_fixed_stays_fixed(name: str, forced: str) -> None:
    here = route(name, "small3", "s2")[5][2]
    framework, seen, _ = begun(name, "small3", here)

    assert framework.plan(demand(5, next_server=forced), seen).next_server == forced


@pytest.mark.parametrize("tokens", [0, 1, 64, 512])
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_may_have_no_token_one_or_many(name: str, tokens: int) -> None:
    _, placement = placed(name, "small3")
    here = route(name, "small3", "s1")[3][2]
    framework, seen, _ = begun(name, "small3", here)

    asked = demand(3, tokens=tokens)

    assert_complete(asked, framework.plan(asked, seen), placement)


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_server_gets_no_expert_that_another_one_has_too(name: str) -> None:
    shape, placement = placed(name, "edge10")
    for lost in shape.names:
        here = next(server for server in shape.names if server != lost)
        framework, seen, live = begun(name, "edge10", here)
        framework.plan(demand(0), seen)
        live.lost = {lost}
        for layer in range(0, MIXTRAL.layers, 5):
            for choice in framework.plan(demand(layer), seen).choices:
                others = [c for c in copies(placement, layer) if c[0] == choice.expert and c[1] != lost]
                assert choice.server != lost or not others


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([name for name in NAMES if name not in BLIND_TO_BUDGET]),
    budget=st.floats(0.0, 0.004),
    seed=st.integers(0, 1000),
    tokens=st.integers(1, 64),
)
def test_the_quality_budget_is_never_exceeded(name: str, budget: float, seed: int, tokens: int) -> None:
    """Except by frameworks that have one precision only and therefore cannot heed it."""
    framework, seen, _ = begun(name, "edge10", "s3")
    spent = 0.0
    for layer in range(MIXTRAL.layers):
        asked = demand(layer, tokens=tokens, seed=seed, spent=spent, budget=budget)
        share = {entry.expert: entry.gate_share for entry in asked.experts}
        for choice in framework.plan(asked, seen).choices:
            spent += share[choice.expert] * MEASURED.quality_loss(layer, choice.precision)
        assert spent <= budget + 1e-12


# --- composed with a depth policy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_composed_name_routes_and_places_as_its_first_part(name: str) -> None:
    shape, placement = placed(name, "small3")

    composed = create(f"{name}+trimmoe")

    assert composed.name == f"{name}+trimmoe"
    assert composed.place(shape, MIXTRAL, MEASURED) == placement


@pytest.mark.parametrize("depth", [name for name in DEPTHS if name != "none"])
@pytest.mark.parametrize("name", NAMES)
def test_under_every_depth_policy_each_expert_runs_once_or_is_left_out_and_the_ledger_is_kept(
    name: str, depth: str
) -> None:
    here = route(name, "edge10", "s3")[0][2]
    framework, seen, _ = begun(name, "edge10", here)
    seen.facts = facts(MIXTRAL.layers, MIXTRAL.experts)
    policy = create_depth(f"{name}+{depth}")
    assert policy is not None
    policy.begin(seen, None, quality_budget=0.02)
    spent = 0.0
    for layer in range(MIXTRAL.layers):
        asked = demand(layer, tokens=6, seed=layer, spent=spent, next_server=here)

        found = trimmed(policy, asked, framework.plan(asked, seen), seen, lambda rest: framework.plan(rest, seen))

        share = {entry.expert: entry.gate_share for entry in asked.experts}
        assert sorted(c.expert for c in found.plan.choices) == [entry.expert for entry in found.demand.experts]
        assert {(c.runs, c.server, c.precision) for c in found.plan.choices} <= copies(seen.placement, layer)
        assert found.plan.next_server == here
        spent += found.cut_loss + sum(share[c.expert] * seen.loss(layer, c) for c in found.plan.choices)
        assert not found.cuts or spent <= asked.quality_budget + 1e-12
