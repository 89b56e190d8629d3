"""HetRoute keeps the quality budget, and finds a way while one full-precision copy of each expert is alive."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.errors import FrameworkError
from agents.frameworks.base import View
from agents.frameworks.hetroute import HetRoute
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from agents.routing import check_plan

from ..support.clusters import cluster  # noqa: TID252
from .framework_cases import Still, calibration, demand

LAYERS = 4
SMALL = replace(ModelProfile.load("mixtral-8x7b"), layers=LAYERS, experts=4)


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> tuple[Still, Placement, float, float]:
    """A cluster, copies anywhere in any precision, each expert at least once in full; a budget, and losses."""
    servers = draw(st.integers(2, 5))
    shape = cluster(servers, delay_s=draw(st.sampled_from([1e-4, 5e-3])))
    copies = set()
    for layer in range(LAYERS):
        for expert in range(SMALL.experts):
            copies.add((layer, expert, draw(st.sampled_from(shape.names)), FULL))
            for precision in draw(st.lists(st.sampled_from([FULL, "int8", "int4"]), max_size=2)):
                copies.add((layer, expert, draw(st.sampled_from(shape.names)), precision))
    live = Still(shape)
    live.lost = set(draw(st.lists(st.sampled_from(shape.names), max_size=servers - 1)))
    live.backlog_s = {name: draw(st.sampled_from([0.0, 0.01, 3.0])) for name in shape.names}
    placement = Placement(
        replicas=tuple(
            Replica(layer=layer, expert=expert, server=server, precision=precision, fast=draw(st.booleans()))
            for layer, expert, server, precision in sorted(copies)
        )
    )
    return live, placement, draw(st.sampled_from([0.0, 1e-3, 0.02])), draw(st.sampled_from([1e-4, 0.02, 0.5]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=settings_of_a_run(),
    seed=st.integers(0, 9),
    set_level=st.booleans(),
    fails=st.lists(st.tuples(st.integers(1, LAYERS - 1), st.integers(0, 4)), max_size=3),
)
def test_whatever_fails_and_whenever_the_budget_holds_and_a_living_full_copy_is_a_way(
    drawn: tuple[Still, Placement, float, float], seed: int, set_level: bool, fails: list[tuple[int, int]]
) -> None:
    """``fails``: before which layer of the request which other server fails."""
    live, placement, budget, loss = drawn
    measured = calibration(SMALL, int8=loss / 10, int4=loss)
    here = next(name for name in live.cluster.names if name not in live.lost)
    seen = View(server=here, cluster=live.cluster, profile=SMALL, calibration=measured, placement=placement, live=live)
    framework = HetRoute({"set_level": set_level})
    framework.begin(seen)
    replicas = frozenset((r.layer, r.expert, r.server, r.precision) for r in placement.replicas)
    spent = 0.0
    for layer in range(LAYERS):
        names = live.cluster.names
        live.lost |= {names[at] for when, at in fails if when == layer and at < len(names)} - {here}
        asked = demand(layer, home=here, tokens=6, experts=SMALL.experts, seed=seed, spent=spent, budget=budget)
        living = {
            r.expert
            for r in placement.replicas
            if r.layer == layer and r.server not in live.lost and r.precision == FULL
        }
        try:
            plan = framework.plan(asked, seen)
        except FrameworkError:
            assert not {entry.expert for entry in asked.experts} <= living
            return
        check_plan(plan, asked, replicas, live.cluster.names, "hetroute")
        shares = {entry.expert: entry.gate_share for entry in asked.experts}
        spent += sum(shares[choice.expert] * seen.loss(layer, choice) for choice in plan.choices)
        assert spent <= budget + 1e-12
        assert not {choice.server for choice in plan.choices} & live.lost
