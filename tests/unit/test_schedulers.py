"""What each scheduler decides, and which mistakes of one are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.schedulers.base import BaseScheduler, Group, Key, SchedulerError, State
from agents.schedulers.bevy import Bevy
from agents.schedulers.caches import POLICIES, layers_away, policy
from agents.schedulers.each_alone import EachAlone
from agents.schedulers.lockstep import Lockstep
from agents.schedulers.prefetch import NextGate, WithPrefetch
from agents.schedulers.prefetch_matrix import Activations
from agents.schedulers.registry import SCHEDULERS, create
from tests.support.offloading_cases import EXPERTS, LAYERS, at, play, state

# --- lockstep and each alone ------------------------------------------------------------------------------------------


def test_lockstep_waits_until_the_whole_batch_is_ready() -> None:
    waiting = state([at(0, 1, [0, 1]), at(1, 1, [1, 2])], resident=[0, 1])
    assert Lockstep().next_group(waiting) == ()

    waiting = state([at(0, 1, [0, 1]), at(1, 1, [1, 2])], resident=[0, 1, 2])
    assert Lockstep().next_group(waiting) == (0, 1)


def test_who_arrives_during_a_pass_joins_lockstep_after_it() -> None:
    assert Lockstep().next_group(state([at(0, 2), at(1, 0)])) == (0,)
    assert Lockstep().next_group(state([at(0, 0, advance=6), at(1, 0)])) == (0, 1)


def test_lockstep_reads_what_is_demanded_and_nothing_else() -> None:
    assert Lockstep().next_load(state([at(0, 1, [3, 4])], resident=[3])) == 4
    assert Lockstep().next_load(state([at(0, 2, guess=(5, 6))])) is None


def test_each_alone_serves_who_came_first_even_if_others_are_ready() -> None:
    assert EachAlone().next_group(state([at(0, 1, [0]), at(1, 0)])) == ()
    assert EachAlone().next_group(state([at(0, 1, [0]), at(1, 0)], resident=[0])) == (0,)


# --- bevy -------------------------------------------------------------------------------------------------------------


def test_bevy_runs_the_least_advanced_with_all_who_stand_beside_it() -> None:
    found = state([at(0, 4), at(1, 1, [0]), at(2, 2, advance=8), at(3, 2, advance=2)])

    assert Bevy().next_group(found) == (2, 3)


def test_bevy_lets_a_leader_run_ahead_while_those_behind_wait_for_loads() -> None:
    assert Bevy().next_group(state([at(0, 4), at(1, 1, [0])])) == (0,)


def test_who_was_passed_over_too_often_runs_first() -> None:
    found = state([at(0, 4, passed_over=7), at(1, 2)])

    assert Bevy({"patience": 8}).next_group(found) == (1,)
    assert Bevy({"patience": 7}).next_group(found) == (0,)


def test_bevy_reads_first_what_the_least_advanced_waits_for() -> None:
    assert Bevy().next_load(state([at(0, 5, [12]), at(1, 1, [1, 2]), at(2, 1, [3])])) == 3


def test_a_demand_that_waited_too_long_is_read_first() -> None:
    found = state([at(0, 5, [12]), at(1, 1, [1])])
    found.loads = 4

    assert Bevy({"patience": 5}).next_load(found) == 1
    assert Bevy({"patience": 4}).next_load(found) == 12


def test_bevy_reads_nothing_where_nothing_is_demanded() -> None:
    assert Bevy().next_load(state([at(0, 1, [0], guess=(5, 6))], resident=[0])) is None


# --- prefetching ------------------------------------------------------------------------------------------------------


def gate(**options: int) -> WithPrefetch:
    return WithPrefetch(Lockstep(), NextGate(options.get("m")), name="p", cap=options.get("cap", 64))


def test_a_prediction_is_read_only_when_nothing_is_demanded() -> None:
    assert gate().next_load(state([at(0, 1, [3], guess=(6, 7))])) == 3
    assert gate().next_load(state([at(0, 1, [3], guess=(6, 7))], resident=[3])) == 6


def test_what_more_requests_guess_is_read_first_and_what_is_here_not_at_all() -> None:
    found = state([at(0, 1, guess=(6, 7)), at(1, 1, guess=(8, 7)), at(2, 1, guess=(7,))], resident=[7])

    assert gate().protected(found)[0] == 7
    assert gate().next_load(found) == 6


def test_cap_and_m_bound_what_is_loaded_ahead() -> None:
    found = state([at(0, 1, guess=(6, 7))], resident=[6])

    assert gate().next_load(found) == 7
    assert gate(cap=1).next_load(found) is None
    assert gate(m=1).next_load(found) is None


def test_activation_matrices_predict_the_later_layers_of_the_request_most_alike() -> None:
    past = [np.zeros((LAYERS, EXPERTS)) for _ in range(2)]
    past[0][:, 0], past[1][:, 3] = 1, 1
    predictor, empty = Activations(), state([])
    predictor.begin(empty, past)

    assert predictor.wanted(empty) == []
    predictor.revealed(at(0, 1), {3: 2})
    assert predictor.wanted(empty) == [EXPERTS + 3, 2 * EXPERTS + 3]  # the nearer layer first
    predictor.ended(0)
    assert predictor.wanted(empty) == []


def test_a_request_that_left_is_remembered() -> None:
    predictor, empty = Activations(), state([])
    predictor.begin(empty, [])
    for layer in range(LAYERS):
        predictor.revealed(at(0, 2 * layer + 1), {layer * EXPERTS + 2: 1})
    predictor.ended(0)
    predictor.revealed(at(1, 1), {2: 1})

    assert predictor.wanted(empty) == [EXPERTS + 2, 2 * EXPERTS + 2]


# --- caches -----------------------------------------------------------------------------------------------------------


def test_policies_give_up_what_their_equations_say() -> None:
    found = state([at(0, 2)], resident=[0, 5, 6, 10])  # stands at layer 1: layer 0 comes last
    found.last_use[[0, 5, 6, 10]] = 9, 3, 4, 7
    found.uses[[0, 5, 6, 10]] = 8, 5, 1, 6

    assert {name: policy(name)(found, found.resident) for name in POLICIES} == {
        "lru": 5,
        "lfu": 6,
        "least-stale": 0,
        "next-use": 6,  # asked for by one pass in many: further away than the layer that was just left
    }


def test_the_next_layer_of_any_request_is_near() -> None:
    assert layers_away(state([at(0, 2), at(1, 5)])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_takes_only_what_is_free(name: str) -> None:
    found = state([at(0, 1)], resident=range(8))
    free = found.resident.copy()
    free[:7] = False

    assert policy(name)(found, free) == 7


def test_an_unknown_policy_or_option_is_named() -> None:
    with pytest.raises(SchedulerError, match="'lruu'; did you mean 'lru'"):
        create("bevy", {"cache": "lruu"})
    with pytest.raises(SchedulerError, match="no option 'patients'"):
        create("bevy", {"patients": 3})
    with pytest.raises(SchedulerError, match="'cap' must be a whole number of at least 1, not 0"):
        create("prefetch", {"cap": 0})
    with pytest.raises(SchedulerError, match="no scheduler 'bevi'; did you mean 'bevy'"):
        create("bevi")


# --- the registry, and schedulers of the user's own -------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_registered_scheduler_carries_its_name_and_serves_everybody(name: str) -> None:
    assert create(name).name == name
    played, _ = play(name)

    assert all(each.finished_s is not None for each in played.requests)
    assert played.counts.tokens == 24


MINE = """
from agents.schedulers.base import BaseScheduler

class Mine(BaseScheduler):
    name = "mine"

    def next_group(self, state):
        ready = [] if state.running else state.ready()
        return (max(ready, key=lambda each: each.advance).request,) if ready else ()
"""


def test_a_scheduler_of_ones_own_is_a_file_with_one_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert play(create(str(path)))[0].counts.tokens == 24

    path.write_text(MINE + "\nclass Second(Mine):\n    pass\n")
    with pytest.raises(SchedulerError, match="exactly one subclass of BaseScheduler; it has 2"):
        create(str(path))


class Broken(BaseScheduler):
    name = "broken"

    def __init__(self, group: Group = (), load: Key | None = None) -> None:
        super().__init__()
        self._group, self._load = group, load

    def next_group(self, state: State) -> Group:
        return () if state.running else self._group or tuple(state.standing)[:1]

    def next_load(self, state: State) -> Key | None:
        return self._load


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Broken(group=(7,)), "runs .7,.: not each of them waits"),
        (Broken(group=(0, 0)), "stands there twice"),
        (Broken(), "not all of their experts are in fast memory"),
        (Broken(load=99), "expert 99, which is in fast memory or does not exist"),
    ],
)
def test_an_impossible_decision_ends_the_run_and_names_the_scheduler(broken: Broken, message: str) -> None:
    with pytest.raises(SchedulerError, match=f"broken.*{message}"):
        play(broken)
