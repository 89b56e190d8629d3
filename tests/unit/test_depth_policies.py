"""Depth policies: what they cut, why, and that no ledger is overdrawn whoever routes."""

from __future__ import annotations

import doctest
import importlib
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from agents.depth.allowance import Allowance
from agents.depth.apply import trimmed
from agents.depth.base import COHERENCE, MARGIN, BaseDepth, Cut, JointLoss, Reason, skip_loss
from agents.depth.calm import Calm
from agents.depth.lookahead import Lookahead
from agents.depth.plancost import Part, descents, parts_of
from agents.depth.registry import DEPTHS, create
from agents.depth.skip_layers import SkipLayers
from agents.depth.trimmoe import TrimMoe
from agents.errors import FrameworkError
from agents.frameworks.base import Choice, Demand, ExpertDemand, Feedback, Plan, View
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica

from ..support import depth  # noqa: TID252
from ..support.clusters import cluster  # noqa: TID252
from .framework_cases import Still, calibration

LAYERS, EXPERTS = 6, 4
SMALL = replace(ModelProfile.load("mixtral-8x7b"), layers=LAYERS, experts=EXPERTS)
HERE, AWAY = "s1", "s2"


def seen(
    *, importance: float = 0.002, likeness: float = 2.0, delay_s: float = 0.005, facts: bool = True, seed: int = 0
) -> View:
    """From s1: even experts in full precision here, odd ones on s2, an int8 copy of each on s3."""
    shape = cluster(3, delay_s=delay_s)
    copies = [
        Replica(layer=layer, expert=expert, server=server, precision=precision, fast=True)
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for server, precision in ((AWAY if expert % 2 else HERE, FULL), ("s3", "int8"))
    ]
    return View(
        server=HERE,
        cluster=shape,
        profile=SMALL,
        calibration=calibration(SMALL),
        placement=Placement(replicas=tuple(copies)),
        live=Still(shape),
        facts=depth.facts(LAYERS, EXPERTS, importance=importance, likeness=likeness, seed=seed) if facts else None,
    )


def entry(expert: int, rows: int, share: float) -> ExpertDemand:
    return ExpertDemand(expert=expert, rows=rows, tokens=rows.bit_count(), gate_share=share)


def asked(*entries: ExpertDemand, layer: int = 2, spent: float = 0.0, budget: float = 0.02) -> Demand:
    return Demand(
        request=1,
        kind="score",
        step=0,
        layer=layer,
        home=HERE,
        tokens=4,
        experts=entries,
        quality_spent=spent,
        quality_budget=budget,
        next_server=None,
    )


def planned(demand: Demand, view: View, *, draw: random.Random | None = None) -> Plan:
    """The full copy of each expert, or any copy that ``draw`` takes."""
    choices = []
    for each in demand.experts:
        copies = view.replicas(demand.layer, each.expert)
        choices.append(Choice.of(draw.choice(copies) if draw else next(c for c in copies if c.precision == FULL)))
    return Plan(choices=tuple(choices), next_server=HERE)


def begun(policy: TrimMoe, view: View, *, budget: float = 0.02) -> TrimMoe:
    policy.begin(view, None, quality_budget=budget)
    return policy


# --- what cuts may spend ----------------------------------------------------------------------------------------------


def test_cuts_leave_what_later_layers_lose_in_their_own_precisions() -> None:
    """int8 in layer 2, and int4 after it: a blend, whose later layers lose more than this one."""
    view = seen()
    lower = {True: "int8", False: "int4"}
    copies = tuple(
        replace_struct(copy, precision=lower[copy.layer <= 2]) if copy.server == "s3" else copy
        for copy in view.placement.replicas
    )
    view.rearrange(Placement(replicas=copies))
    demand = asked(entry(0, 0b1111, 0.6), entry(1, 0b0011, 0.4), spent=0.001)
    choices = tuple(Choice(expert=expert, server="s3", precision="int8") for expert in (0, 1))

    found = Allowance().of(demand, Plan(choices=choices, next_server=HERE), view)

    now = view.quality_loss(2, "int8")
    later = sum(view.quality_loss(layer, "int4") for layer in range(3, LAYERS))
    assert found == pytest.approx(0.02 - 0.001 - now - later)
    full = planned(demand, view)
    assert Allowance().of(demand, full, view) == pytest.approx(0.02 - 0.001)  # who needs no budget leaves none


# --- what a plan takes ------------------------------------------------------------------------------------------------


def test_a_team_takes_as_long_as_its_slowest_server_and_a_trip_ends_with_its_last_expert() -> None:
    view = seen()
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.25), entry(3, 0b0110, 0.25))

    here, away = parts_of(planned(demand, view), demand.experts, 4, view, 2, lambda expert: expert)

    size = 3 * SMALL.hidden_bytes  # tokens 0 to 2 go to s2
    one_s = view.call_s(AWAY, FULL, 2)
    assert away.time_s[0] == pytest.approx(2 * view.transfer_s(HERE, AWAY, size) + view.launch_s(AWAY) + 2 * one_s)
    assert away.time_s[1] < away.time_s[0]
    assert away.time_s[-1] == 0.0
    assert away.size_bytes == (2 * size, 2 * 2 * SMALL.hidden_bytes, 0)
    assert here.time_s[0] == pytest.approx(view.launch_s(HERE) + view.call_s(HERE, FULL, 4))
    assert here.time_s[-1] == 0.0


def test_cuts_follow_the_slowest_server() -> None:
    team = [
        Part(server="a", experts=(1, 2), time_s=(0.010, 0.004, 0.0), size_bytes=(8, 4, 0)),
        Part(server="b", experts=(3,), time_s=(0.006, 0.0), size_bytes=(8, 0)),
    ]

    steps = list(descents(team))

    assert [(step.expert, step.last) for step in steps] == [(1, False), (3, True), (2, True)]
    assert [step.layer_s for step in steps] == [0.006, 0.004, 0.0]
    assert [step.size_bytes for step in steps] == [12, 4, 0]


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_experts_of_different_tokens_lose_their_sum_and_those_of_one_token_more() -> None:
    facts = depth.facts(LAYERS, EXPERTS)
    apart, together = JointLoss(facts, 2), JointLoss(facts, 2)
    alone = [MARGIN * 0.5 * skip_loss(facts, 2, expert) for expert in (0, 1)]

    for expert in (0, 1):
        apart.add(entry(expert, 0b0011 << 2 * expert, 0.5))
        together.add(entry(expert, 0b0011, 0.5))

    assert apart.total == pytest.approx(sum(alone))
    assert together.total == pytest.approx((1 + COHERENCE) * sum(alone))


# --- TrimMoE ----------------------------------------------------------------------------------------------------------


def test_an_unimportant_expert_far_away_is_left_out_and_an_important_one_is_fetched() -> None:
    demand = asked(entry(0, 0b1111, 0.9), entry(1, 0b0011, 0.1))

    cheap, dear = (
        begun(TrimMoe({"moves": ("skip",)}), view).trim(demand, planned(demand, view), view)
        for view in (seen(importance=0.0005), seen(importance=5.0))
    )

    assert cheap.skipped[1] is Reason.TRIP
    assert not dear
    assert dear.kept[1] is Reason.BUDGET
    assert dear.kept[0] is Reason.ASIDE


def test_what_saves_little_for_its_loss_is_kept_although_the_ledger_would_allow_it() -> None:
    view = seen(importance=0.05, delay_s=1e-6)
    demand = asked(entry(0, 0b1111, 1.0), budget=0.5)
    policy = begun(TrimMoe({"moves": ("skip",), "loss_price": 1e6}), view, budget=0.5)

    cut = policy.trim(demand, planned(demand, view), view)

    assert not cut
    assert cut.kept == {0: Reason.WORTH}


def test_a_similar_expert_at_hand_takes_the_place_of_one_far_away() -> None:
    view = seen(importance=1.0, likeness=0.1)
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.5), budget=0.1)
    policy = begun(TrimMoe(), view, budget=0.1)
    plan = planned(demand, view)

    found = trimmed(policy, demand, plan, view, lambda rest: planned(rest, view))

    replaced = [choice for choice in found.plan.choices if choice.substitute is not None]
    assert [choice.expert for choice in replaced] == [1]
    assert all(choice.server == HERE for choice in replaced)
    assert {key.partition("/")[0] for key in found.decisions} <= {"exact-local", "substitute", "skip"}
    assert sum(found.decisions.values()) == 6


@pytest.mark.parametrize("name", ["trimmoe", "skip-only", "substitute-only", "skip-layers"])
def test_a_budget_of_nothing_and_a_model_without_facts_are_left_alone(name: str) -> None:
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.5), budget=0.0)
    for view, budget in ((seen(importance=1e-9), 0.0), (seen(facts=False), 0.02)):
        policy = create(name)
        policy.begin(view, None, quality_budget=budget)

        assert not policy.trim(replace(demand, quality_budget=budget), planned(demand, view), view)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(["trimmoe", "skip-only", "substitute-only", "skip-layers"]),
    budget=st.sampled_from([0.0, 1e-4, 0.005, 0.02, 0.2]),
    importance=st.sampled_from([1e-5, 1e-3, 0.02, 1.0]),
    likeness=st.sampled_from([0.1, 0.7, 2.0]),
    seed=st.integers(0, 999),
)
def test_cuts_never_overdraw_the_ledger_whatever_routes(
    name: str, budget: float, importance: float, likeness: float, seed: int
) -> None:
    """The framework takes copies at random, low precisions among them; cuts stop where these leave no room."""
    view, draw = seen(importance=importance, likeness=likeness, seed=seed), random.Random(seed)  # noqa: S311
    policy = create(name)
    policy.begin(view, None, quality_budget=budget)
    spent = 0.0
    for layer in range(LAYERS):
        rows = [draw.randrange(1, 16) for _ in range(EXPERTS)]
        shares = np.array([each.bit_count() for each in rows]) / sum(each.bit_count() for each in rows)
        entries = [entry(e, rows[e], float(shares[e])) for e in range(EXPERTS)]
        demand = asked(*entries, layer=layer, spent=spent, budget=budget)

        found = trimmed(
            policy, demand, planned(demand, view, draw=draw), view, lambda rest: planned(rest, view, draw=draw)
        )

        share = {each.expert: each.gate_share for each in entries}
        spent += found.cut_loss
        spent += sum(share[choice.expert] * view.loss(layer, choice) for choice in found.plan.choices)
        assert sorted(c.expert for c in found.plan.choices) == [e.expert for e in found.demand.experts]
        if found.cuts:
            assert spent <= budget + 1e-12


def test_a_cut_of_what_nobody_asked_for_is_an_error_that_names_the_policy() -> None:
    class Wrong(BaseDepth):
        name = "wrong"

        def trim(self, demand: Demand, plan: Plan, view: View) -> Cut:
            return Cut(skipped={3: Reason.STATIC})

    view = seen()
    demand = asked(entry(0, 0b1111, 1.0))

    with pytest.raises(FrameworkError, match=r"depth policy wrong, layer 2: it cuts experts \[3\]"):
        trimmed(Wrong(), demand, planned(demand, view), view, lambda rest: planned(rest, view))


# --- look-ahead -------------------------------------------------------------------------------------------------------


def test_a_loss_is_dearer_the_less_is_left_to_spend() -> None:
    ahead = Lookahead(seen())
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.5))

    prices = [ahead.price_s(demand, budget) for budget in (0.0, 1e-5, 1e-4, 1e-3, 1.0)]

    assert prices[0] == float("inf")
    assert prices == sorted(prices, reverse=True)
    assert prices[1] > prices[-1] == 0.0


def test_a_later_layer_with_long_trips_makes_losses_dearer_now() -> None:
    ahead = Lookahead(seen())
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.5))
    before = ahead.price_s(demand, 1e-4)

    ahead.remember(4, 0.05, [(1e-4, 0.04), (2e-4, 0.05)])

    assert ahead.price_s(demand, 1e-4) > before


# --- exits ------------------------------------------------------------------------------------------------------------


def test_the_threshold_rises_where_the_gauge_expects_too_many_errors_and_falls_back_to_the_certified_one() -> None:
    heads = depth.heads(LAYERS, 16, safe_from=0.6)
    policy = TrimMoe({"risk": 0.05, "exit_price": 0.0})
    policy.begin(seen(), heads, quality_budget=0.02)
    assert policy.gate is not None
    certified = policy.threshold
    assert certified == pytest.approx(0.6)

    stream = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    sure = heads.confident(LAYERS - 2, stream)
    barely, unsure = stream[(sure > certified) & (sure < certified + 0.1)], stream[sure < 0.3]
    assert len(barely) > 2
    assert len(unsure) > 2
    for _ in range(200):
        policy.leaves(LAYERS - 2, barely, seen())
    raised = policy.threshold
    for _ in range(3000):
        policy.leaves(LAYERS - 2, unsure, seen())

    assert raised > certified
    assert policy.threshold == certified


def test_few_of_many_tokens_do_not_leave_and_the_last_one_does() -> None:
    heads, view = depth.heads(LAYERS, 16, safe_from=0.6, scale=3.0), seen(delay_s=0.0001)
    policy = TrimMoe({"risk": 0.05, "exit_price": 0.001})
    policy.begin(view, heads, quality_budget=0.02)
    stream = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    sure = heads.confident(1, stream) >= policy.threshold
    assert 0 < sure.sum() < 40

    assert not policy.leaves(1, stream, view).any(), "forty tokens keep every expert busy without these, too"
    assert policy.leaves(1, stream[sure][:1], view).all()


def test_calm_asks_for_confidence_only() -> None:
    heads = depth.heads(LAYERS, 16, safe_from=0.6, scale=3.0)
    policy = Calm({"risk": 0.05})
    policy.begin(seen(), heads, quality_budget=0.02)
    stream = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)

    left = policy.leaves(1, stream, seen())

    np.testing.assert_array_equal(left, heads.confident(1, stream) >= np.float32(policy.threshold))
    assert not policy.leaves(LAYERS - 1, stream, seen()).any(), "there is no head after the last layer"


def test_measured_delays_weigh_predicted_ones() -> None:
    view = seen()
    demand = asked(entry(0, 0b1111, 0.5), entry(1, 0b0011, 0.5), budget=1e-9)
    policy = begun(TrimMoe({"moves": ("skip",)}), view)
    for _ in range(50):
        policy.trim(demand, planned(demand, view), view)
        policy.observe(Feedback(request=1, step=0, layer=2, duration_s=1.0, wait_s=0.9))

    assert policy.delay_weight > 2.0


# --- static skipping, names -------------------------------------------------------------------------------------------


def test_static_skipping_takes_the_same_least_important_layers_every_time() -> None:
    view = seen(importance=0.002)
    policy = SkipLayers({"share": 0.5})
    policy.begin(view, None, quality_budget=0.02)
    assert view.facts is not None
    losses = (view.calibration.usage.mean(axis=0) * view.facts.importance).sum(axis=1)

    assert policy.skipped == set(np.argsort(losses)[: LAYERS // 2].tolist())
    assert not policy.keeps_budget


@pytest.mark.parametrize("module", ["leaving", "plancost", "registry"])
def test_the_examples_in_docstrings_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"agents.depth.{module}")).failed == 0


def test_every_policy_has_a_name_and_says_what_it_does_not_take() -> None:
    assert [create(name).name for name in DEPTHS] == list(DEPTHS)
    assert create("calm:0.1").risk == 0.1  # type: ignore[attr-defined]
    with pytest.raises(FrameworkError, match="takes no number"):
        create("none:2")
    with pytest.raises(FrameworkError, match="did you mean 'trimmoe'"):
        create("trimoe")
    with pytest.raises(FrameworkError, match="it must be between 0 and 1"):
        create("skip-layers:7")
