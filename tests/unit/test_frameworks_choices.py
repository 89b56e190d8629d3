"""Random, round robin, least loaded: what tells them apart is which copy they choose, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from agents.frameworks.base import Plan, View
from agents.frameworks.draws import draw
from agents.frameworks.eplb import Eplb
from agents.frameworks.greedy import Greedy
from agents.frameworks.least_loaded import LeastLoaded
from agents.frameworks.random_choice import RandomChoice
from agents.frameworks.round_robin import RoundRobin
from agents.protocol import Placement, Replica
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()
SHAPE = cluster()


def everywhere(*servers: str) -> Placement:
    """Every expert once on each of these servers."""
    return Placement(
        replicas=tuple(
            Replica(layer=layer, expert=expert, server=server, precision="full", fast=True)
            for server in servers
            for layer in range(MIXTRAL.layers)
            for expert in range(MIXTRAL.experts)
        )
    )


def seen_from(server: str, placement: Placement, live: Still | None = None) -> View:
    return view(server, live or Still(SHAPE), placement, MEASURED)


def servers_of(plan: Plan) -> list[str]:
    return [choice.server for choice in plan.choices]


@pytest.mark.parametrize("framework", [RandomChoice(), RoundRobin(), LeastLoaded()])
def test_they_are_placed_as_greedy_is_and_gather_where_they_plan(framework: Greedy) -> None:
    placement = framework.place(SHAPE, MIXTRAL, MEASURED)
    seen = seen_from("s4", placement)
    framework.begin(seen)

    assert placement == Greedy().place(SHAPE, MIXTRAL, MEASURED)
    assert framework.plan(demand(3), seen).next_server == "s4"


def test_random_takes_all_copies_about_equally_often() -> None:
    seen = seen_from("s1", everywhere("s1", "s2", "s3", "s4"))

    taken = Counter(
        s for request in range(500) for s in servers_of(RandomChoice().plan(demand(0, request=request), seen))
    )

    # 4000 draws of 1/4: a share leaves 1000 ± 120 once in 10^5 times.
    assert set(taken) == {"s1", "s2", "s3", "s4"}
    assert all(abs(count - sum(taken.values()) / 4) < 120 for count in taken.values())


def test_random_draws_depend_on_request_layer_and_seed_but_not_on_what_came_before() -> None:
    seen = seen_from("s1", everywhere(*SHAPE.names))
    used = RandomChoice()
    for request in range(5):
        used.plan(demand(0, request=request), seen)

    again = servers_of(used.plan(demand(7, request=3), seen))

    assert again == servers_of(RandomChoice().plan(demand(7, request=3), seen))
    assert again != servers_of(RandomChoice().plan(demand(7, request=4), seen))
    assert again != servers_of(RandomChoice({"seed": 1}).plan(demand(7, request=3), seen))


@pytest.mark.parametrize("framework", [RandomChoice(), LeastLoaded(), Eplb()])
def test_another_run_draws_other_copies_and_the_same_run_the_same(framework: RandomChoice) -> None:
    def drawn(seed: int) -> list[str]:
        seen = seen_from("s1", everywhere(*SHAPE.names))
        seen.seed = seed
        return servers_of(framework.plan(demand(7, request=3), seen))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_draws_of_two_frameworks_are_independent() -> None:
    where = {"seed": 0, "run": 0, "request": 1, "step": 0, "layer": 2}

    assert draw("random", **where).random() != draw("eplb", **where).random()


def test_round_robin_takes_the_copies_of_an_expert_in_turn() -> None:
    seen = seen_from("s1", everywhere("s1", "s2", "s3"))
    framework = RoundRobin()
    framework.begin(seen)

    turns = [servers_of(framework.plan(demand(0), seen)) for _ in range(4)]

    assert turns == [[server] * 8 for server in ("s1", "s2", "s3", "s1")]


def test_a_layer_that_is_planned_again_after_cuts_takes_no_further_turn() -> None:
    seen = seen_from("s1", everywhere("s1", "s2", "s3"))
    framework = RoundRobin()
    framework.begin(seen)

    framework.plan(demand(0), seen)
    again = servers_of(framework.plan(replace(demand(0), again=True), seen))

    assert again == servers_of(framework.plan(demand(0), seen)) == ["s2"] * 8


def test_round_robin_begins_elsewhere_on_another_server_and_anew_in_another_run() -> None:
    placement = everywhere("s1", "s2", "s3")
    framework = RoundRobin()
    for _ in range(2):
        seen = seen_from("s2", placement)
        framework.begin(seen)
        assert servers_of(framework.plan(demand(0), seen)) == ["s2"] * 8


def test_round_robin_goes_on_without_a_server_that_is_lost() -> None:
    live = Still(SHAPE)
    seen = seen_from("s1", everywhere("s1", "s2", "s3"), live)
    framework = RoundRobin()
    framework.begin(seen)
    live.lost = {"s2"}

    assert [servers_of(framework.plan(demand(0), seen))[0] for _ in range(3)] == ["s1", "s3", "s1"]


def test_least_loaded_takes_the_less_busy_of_two_copies() -> None:
    live = Still(SHAPE)
    live.backlog_s = {"s1": 0.5, "s2": 0.1}
    seen = seen_from("s1", everywhere("s1", "s2"), live)

    assert {s for k in range(20) for s in servers_of(LeastLoaded().plan(demand(0, request=k), seen))} == {"s2"}


def test_least_loaded_looks_at_two_of_many_copies_so_only_the_busiest_is_never_taken() -> None:
    live = Still(SHAPE)
    live.backlog_s = {name: 0.1 * place for place, name in enumerate(SHAPE.names)}
    seen = seen_from("s1", everywhere(*SHAPE.names), live)

    taken = Counter(s for k in range(300) for s in servers_of(LeastLoaded().plan(demand(0, request=k), seen)))

    # Of the k-th busiest of n servers, 2 (n - k) / n (n - 1) of the draws: 20 % go to the idlest, none to the busiest.
    assert set(taken) == set(SHAPE.names) - {"s10"}
    assert taken["s1"] / sum(taken.values()) == pytest.approx(0.2, abs=0.04)


def test_equally_busy_servers_share_what_least_loaded_sends() -> None:
    shape = equal_servers(3)
    seen = view("s1", Still(shape), everywhere("s1", "s2", "s3"), MEASURED)

    taken = Counter(s for k in range(200) for s in servers_of(LeastLoaded().plan(demand(0, request=k), seen)))

    assert min(taken.values()) > 0.25 * sum(taken.values())
