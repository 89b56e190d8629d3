"""The dynamic programme over layers, servers and used sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.frameworks.shards import Floats, best_shards, runs


def by_brute_force(run_s: Floats, move_s: Floats, enter_s: Floats, leave_s: Floats) -> float:
    """Every sequence of distinct servers with every way to cut the layers."""
    servers, layers = run_s.shape[0], run_s.shape[1] - 1
    best = float("inf")
    for count in range(1, min(servers, layers) + 1):
        for chain in itertools.permutations(range(servers), count):
            for cuts in itertools.combinations(range(1, layers), count - 1):
                ends = (0, *cuts, layers)
                cost = enter_s[chain[0]] + leave_s[chain[-1]]
                cost += sum(run_s[d, ends[k], ends[k + 1]] for k, d in enumerate(chain))
                cost += sum(move_s[a, b] for a, b in itertools.pairwise(chain))
                best = min(best, float(cost))
    return best


def cost_of(owners: tuple[int, ...], run_s: Floats, move_s: Floats, enter_s: Floats, leave_s: Floats) -> float:
    cost, begin = enter_s[owners[0]] + leave_s[owners[-1]], 0
    for owner, group in itertools.groupby(owners):
        end = begin + len(list(group))
        cost += run_s[owner, begin, end] + (move_s[owners[begin - 1], owner] if begin else 0.0)
        begin = end
    return float(cost)


@settings(max_examples=60, deadline=None)
@given(servers=st.integers(1, 4), layers=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_no_other_chain_is_better(servers: int, layers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    run_s = runs(random.uniform(0.1, 1.0, (servers, layers)))
    run_s = run_s * random.uniform(0.5, 2.0, run_s.shape)  # not additive: a run may cost anything
    run_s[random.random(run_s.shape) < 0.2] = np.inf
    move_s, enter_s, leave_s = (random.uniform(0, 1.0, shape) for shape in ((servers, servers), servers, servers))

    found = best_shards(run_s, move_s=move_s, enter_s=enter_s, leave_s=leave_s)

    expected = by_brute_force(run_s, move_s, enter_s, leave_s)
    if found is None:
        assert expected == float("inf")
    else:
        assert found.cost_s == pytest.approx(expected)
        assert cost_of(found.owners, run_s, move_s, enter_s, leave_s) == pytest.approx(expected)


def test_a_narrow_beam_still_finds_a_feasible_chain() -> None:
    random = np.random.default_rng(5)
    run_s = runs(random.uniform(0.1, 1.0, (8, 12)))
    layers = np.arange(13)
    run_s[:, layers[None, :] - layers[:, None] > 2] = np.inf  # room for two layers each: six servers are needed
    arguments = {"move_s": random.uniform(0, 0.2, (8, 8)), "enter_s": np.zeros(8), "leave_s": np.zeros(8)}

    exact, narrow = best_shards(run_s, **arguments), best_shards(run_s, **arguments, beam=8)

    assert exact is not None
    assert narrow is not None
    assert len(narrow.owners) == 12
    assert exact.cost_s <= narrow.cost_s < 1.2 * exact.cost_s


def test_more_servers_than_the_beam_holds_are_planned_in_bounded_work() -> None:
    run_s = runs(np.random.default_rng(1).uniform(0.1, 1.0, (14, 8)))

    found = best_shards(run_s, move_s=np.full((14, 14), 0.01), enter_s=np.zeros(14), leave_s=np.zeros(14), beam=64)

    assert found is not None
    assert len(set(found.owners)) == len([owner for owner, _ in itertools.groupby(found.owners)])


def test_where_nothing_is_feasible_there_is_no_chain() -> None:
    run_s = np.full((2, 4, 4), np.inf)

    assert best_shards(run_s, move_s=np.zeros((2, 2)), enter_s=np.zeros(2), leave_s=np.zeros(2)) is None
