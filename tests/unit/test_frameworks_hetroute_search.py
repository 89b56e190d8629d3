"""The search for the best team, against all teams."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.frameworks import hetroute_search
from agents.frameworks.hetroute_alone import apart
from agents.frameworks.hetroute_exact import exact
from agents.frameworks.hetroute_problem import Need, Option, Problem, Team, Way
from agents.frameworks.hetroute_search import best, certain

SERVERS = 4
LINK_S = 0.001


def search(needs: list[Need], *, ahead: Sequence[tuple[int, float]] = ((0, 0.0),), **changes: Any) -> Problem:
    wait_s = changes.pop("wait_s", [0.0] * SERVERS)
    launch_s = changes.pop("launch_s", [0.0] * SERVERS)
    price_s_per_byte = changes.pop("price_s_per_byte", 0.0)
    ways = [
        Way.of(
            here=0,
            following=following,
            ahead_s=ahead_s,
            state_bytes=8192,
            delay_s=[[0.0 if a == b else LINK_S for b in range(SERVERS)] for a in range(SERVERS)],
            s_per_byte=[[0.0 if a == b else 1e-9 for b in range(SERVERS)] for a in range(SERVERS)],
            busy_s=[wait + launch for wait, launch in zip(wait_s, launch_s, strict=True)],
            price_s_per_byte=price_s_per_byte,
        )
        for following, ahead_s in ahead
    ]
    facts: dict[str, Any] = {
        "here": 0,
        "needs": needs,
        "tokens": 4,
        "ways": ways,
        "queue_s": wait_s,
        "launch_s": launch_s,
        "load_wait_s": [0.0] * SERVERS,
        "loss_price_s": 0.0,
        "allowance": 1.0,
    }
    return Problem(**{**facts, **changes})


def need(expert: int, *options: Option, rows: int = 0b1111) -> Need:
    return Need(expert, rows, 1.0, options)


def copy(server: int, compute_s: float, *, loss: float = 0.0, load_s: float = 0.0, precision: str = "full") -> Option:
    return Option(server, precision, compute_s, load_s, loss)


def servers(team: Team | None) -> list[int]:
    assert team is not None
    return [option.server for option in team.options]


def test_two_experts_that_would_wait_for_each_other_are_split() -> None:
    """Each alone is best at server 1; together they would take 10 ms there."""
    needs = [need(e, copy(1, 0.005), copy(2, 0.0055)) for e in range(2)]

    assert servers(best(search(needs))) in ([1, 2], [2, 1])
    assert servers(apart(search(needs))) == [1, 1]


def test_an_expert_that_hides_behind_the_slowest_stays_here() -> None:
    """Expert 0 takes 20 ms anyway, so the slow local copy of expert 1 costs nothing."""
    needs = [need(0, copy(1, 0.020)), need(1, copy(0, 0.010), copy(2, 0.001))]

    assert servers(best(search(needs, price_s_per_byte=1e-9))) == [1, 0]


def test_results_go_straight_to_a_next_server_that_promises_more() -> None:
    team = best(search([need(0, copy(1, 0.005))], ahead=[(0, 0.050), (1, 0.020)]))

    assert team is not None
    assert team.following == 1


def test_a_batch_pays_its_launch_once_per_server() -> None:
    """Two experts of 1 ms and a launch of 5: together 7 ms at one server, 6 and the way at two."""
    needs = [need(e, copy(0, 0.001), copy(1, 0.001)) for e in range(2)]

    team = best(search(needs, launch_s=[0.005] * SERVERS))

    assert servers(team) == [0, 0]
    assert team is not None
    assert team.cost_s == pytest.approx(0.007)


def test_a_copy_in_slow_memory_waits_for_its_load() -> None:
    needs = [need(0, copy(1, 0.001, load_s=0.030), copy(2, 0.010))]

    assert servers(best(search(needs))) == [2]


def test_a_load_that_passes_in_the_queue_costs_nothing() -> None:
    """5 ms at once, or 1 ms after a load of 4.5 that is over long before the queue of 10."""
    needs = [need(0, copy(1, 0.005), copy(1, 0.001, load_s=0.0045, precision="int8"))]

    team = best(search(needs, wait_s=[0.0, 0.010, 0.0, 0.0]))

    assert team is not None
    assert team.options[0].precision == "int8"


def test_this_server_is_not_certain_where_a_load_of_its_own_hides_in_its_queue() -> None:
    """The 10 ms copy needs no load; the 1 ms one is loaded while the device is busy for 20 ms anyway."""
    problem = search(
        [need(0, copy(0, 0.010), copy(0, 0.001, load_s=0.015, precision="int8"))], wait_s=[0.020, 0.0, 0.0, 0.0]
    )

    sure, team = certain(problem), best(problem)

    assert team is not None
    assert team.options[0].precision == "int8"
    assert sure is None or sure.options == team.options


def test_computing_is_free_while_the_residual_stream_is_on_its_way() -> None:
    """It takes 1 ms to the next server; 0.2 or 0.8 ms of computing there are the same, and a loss is not."""
    cheap = copy(1, 0.0002, loss=0.0001, precision="int8")
    problem = search([need(0, cheap, copy(1, 0.0008), rows=0b0001)], ahead=[(1, 0.0)], loss_price_s=2.0, tokens=400)

    sure, team, optimum = certain(problem), best(problem), exact(problem)

    assert team is not None
    assert optimum is not None
    assert team.cost_s == pytest.approx(optimum.cost_s, abs=1e-12)
    assert sure is None


def test_the_allowance_is_a_limit_however_slow_that_is() -> None:
    needs = [need(e, copy(0, 0.001, loss=0.5, precision="int8"), copy(1, 0.9)) for e in range(3)]

    assert servers(best(search(needs, allowance=0.6))).count(0) == 1
    assert servers(best(search(needs, allowance=0.0))) == [1, 1, 1]


def test_without_a_copy_within_the_allowance_there_is_no_team() -> None:
    assert best(search([need(0, copy(0, 0.001, loss=0.5))], allowance=0.4)) is None


def test_loss_has_a_price_below_the_limit() -> None:
    needs = [need(0, copy(0, 0.001, loss=0.01, precision="int8"), copy(0, 0.002))]

    cheap, dear = best(search(needs, loss_price_s=0.05)), best(search(needs, loss_price_s=0.5))

    assert cheap is not None
    assert dear is not None
    assert (cheap.options[0].precision, dear.options[0].precision) == ("int8", "full")


def test_the_terms_add_up_to_the_cost_and_belong_to_the_slowest_server() -> None:
    needs = [need(0, copy(1, 0.020, loss=0.01, load_s=0.004)), need(1, copy(0, 0.001))]
    problem = search(needs, wait_s=[0.0, 0.003, 0.0, 0.0], loss_price_s=1.0, price_s_per_byte=1e-9, ahead=[(0, 0.5)])

    team = best(problem)
    assert team is not None
    terms = problem.terms(team)

    assert terms.total_s == pytest.approx(team.cost_s)
    assert terms.transmission_s == pytest.approx(2 * (LINK_S + 4 * 8192e-9))
    assert terms.loading_s == pytest.approx(0.001)  # 3 of the 4 ms pass in the queue
    assert terms.compute_s == pytest.approx(0.023)
    assert terms.quality_s == pytest.approx(0.01)
    assert terms.ahead_s == 0.5


options = st.builds(
    copy,
    st.integers(0, SERVERS - 1),
    st.floats(1e-4, 5e-3),
    loss=st.sampled_from([0.0, 0.0, 1e-3]),
    load_s=st.sampled_from([0.0, 0.0, 2e-3]),
)
teams = st.lists(
    st.tuples(st.lists(options, min_size=1, max_size=3, unique_by=lambda o: (o.server, o.rate)), st.integers(1, 15)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(drawn=teams, ahead=st.lists(st.floats(0, 5e-3), min_size=2, max_size=2), data=st.data())
def test_the_search_finds_the_cheapest_of_all_teams_or_comes_close(
    drawn: list[tuple[list[Option], int]], ahead: list[float], data: st.DataObject
) -> None:
    needs = [Need(expert, rows, 1.0, tuple(options)) for expert, (options, rows) in enumerate(drawn)]
    problem = search(
        needs,
        wait_s=data.draw(st.lists(st.floats(0, 5e-3), min_size=SERVERS, max_size=SERVERS)),
        launch_s=[1e-4] * SERVERS,
        ahead=list(enumerate(ahead)),
        loss_price_s=1.0,
        price_s_per_byte=1e-9,
        allowance=2.5e-3,
    )
    combinations = list(itertools.product(*(entry.options for entry in needs)))

    every = [
        problem.cost_s(team, way)
        for team in combinations
        for way in problem.ways
        if sum(option.rate for option in team) <= problem.allowance
    ]
    found = best(problem)

    if not every:
        assert found is None
        assert exact(problem) is None
        return
    optimum = exact(problem)
    assert optimum is not None
    assert optimum.cost_s == pytest.approx(min(every), abs=1e-12)
    assert found is not None
    assert found.cost_s >= min(every) - 1e-9
    assert found.cost_s <= min(every) * (1.0 if len(combinations) <= 64 else 1.05) + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    drawn=teams, ahead=st.permutations(range(3)), waits=st.lists(st.integers(0, 3), min_size=SERVERS, max_size=SERVERS)
)
def test_the_order_in_which_next_servers_are_tried_saves_time_and_costs_nothing(
    drawn: list[tuple[list[Option], int]], ahead: list[int], waits: list[int]
) -> None:
    """Times are whole milliseconds, so that many teams cost the same."""
    needs = [
        Need(expert, rows, 1.0, tuple(option._replace(compute_s=round(option.compute_s, 3)) for option in options))
        for expert, (options, rows) in enumerate(drawn)
    ]
    problem = search(
        needs,
        wait_s=[wait / 1e3 for wait in waits],
        ahead=[(following, 1.2345e-3 * place) for following, place in enumerate(ahead)],
        loss_price_s=1.0,
        price_s_per_byte=1e-9,
        allowance=2.5e-3,
    )
    servers = {option.server for entry in needs for option in entry.options}

    tried_as_listed = mock.patch.object(hetroute_search, "_ranked", lambda problem: (servers, problem.ways))

    ranked = best(problem)
    with tried_as_listed:
        listed = best(problem)
    assert (ranked is None) == (listed is None)
    if ranked is not None and listed is not None:
        assert ranked.cost_s == pytest.approx(
            listed.cost_s, abs=1e-9
        )  # which of several that cost the same is nobody's matter


def test_where_to_go_on_is_found_though_it_is_listed_last() -> None:
    """All copies are where the last of the next servers is: to gather anywhere else costs another way."""
    needs = [need(e, copy(2, 0.001), copy(2, 0.0005, loss=0.1)) for e in range(3)]

    team = best(search(needs, ahead=[(0, 0.001), (1, 0.001), (2, 0.001)]))

    assert team is not None
    assert team.following == 2


def many(seed: int) -> list[Need]:
    """Sixteen to sixty experts of up to four copies each; too much for a strategy to draw one by one."""
    draw = random.Random(seed)  # noqa: S311 - cases, not secrets
    needs = []
    for expert in range(draw.randrange(16, 60)):
        copies = {
            (draw.randrange(SERVERS), draw.choice([0.0, 0.0, 1e-3])): (
                draw.uniform(1e-4, 5e-3),
                draw.choice([0.0, 2e-3]),
            )
            for _ in range(draw.randrange(1, 5))
        }
        options = [
            copy(server, time_s, loss=loss, load_s=load_s) for (server, loss), (time_s, load_s) in copies.items()
        ]
        needs.append(Need(expert, draw.randrange(1, 2**20), 1.0, tuple(options)))
    return needs


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), allowance=st.sampled_from([0.0, 1e-2, 1.0]), ahead=st.floats(-2e-3, 2e-3))
def test_a_set_too_large_to_go_through_keeps_the_allowance_and_is_no_worse_than_each_alone(
    seed: int, allowance: float, ahead: float
) -> None:
    needs = many(seed)
    problem = search(
        needs, ahead=[(0, 0.0), (1, ahead)], launch_s=[1e-4] * SERVERS, loss_price_s=1.0, allowance=allowance, tokens=20
    )
    least = sum(min(option.rate for option in entry.options) for entry in needs)

    found, alone = best(problem), apart(problem)

    if least > allowance + 1e-12:
        assert found is None
        return
    assert found is not None
    assert problem.keeps(problem.loss(found.options))
    assert [option in entry.options for entry, option in zip(needs, found.options, strict=True)] == [True] * len(needs)
    (way,) = (way for way in problem.ways if way.following == found.following)
    assert found.cost_s == pytest.approx(problem.cost_s(found.options, way), abs=1e-12)
    if problem.keeps(problem.loss(alone.options)):
        assert found.cost_s <= alone.cost_s + 1e-9


def test_a_server_that_has_everything_and_is_not_in_question_is_certain() -> None:
    needs = [need(e, copy(0, 0.0005)) for e in range(3)]

    assert servers(certain(search(needs))) == [0, 0, 0]
    assert certain(search([need(0, copy(0, 0.050))])) is None  # others might be quicker


@settings(max_examples=150, deadline=None)
@given(drawn=teams, farther_s=st.floats(0, 5e-3), ahead=st.lists(st.floats(0, 2e-3), min_size=2, max_size=2))
def test_what_is_certain_from_the_copies_here_alone_is_no_dearer_than_the_best_of_all(
    drawn: list[tuple[list[Option], int]], farther_s: float, ahead: list[float]
) -> None:
    """Every expert has a copy here as well; the others are behind queues of some length."""
    every = [
        Need(expert, rows, 1.0, (copy(0, 1e-3), *(option for option in options if option.server)))
        for expert, (options, rows) in enumerate(drawn)
    ]
    here = [entry._replace(options=entry.options[:1]) for entry in every]
    changes: dict[str, Any] = {
        "ahead": list(enumerate(ahead)),
        "wait_s": [0.0, *[farther_s] * (SERVERS - 1)],
        "loss_price_s": 1.0,
        "allowance": 1e-2,
    }

    known = certain(search(here, **changes))

    if known is not None:
        optimum = exact(search(every, **changes))
        assert optimum is not None
        assert known.cost_s <= optimum.cost_s + 1e-9
