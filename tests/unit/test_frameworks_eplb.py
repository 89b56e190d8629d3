"""EPLB: how many copies, and where."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agents.frameworks.eplb import Eplb, copy_counts, pack
from agents.frameworks.expected import Expected
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, calibration, cluster

MEASURED = calibration()


def test_a_small_example_worked_by_hand() -> None:
    """Loads 50, 24, 10, 8 and six slots on three equal servers with room for two.

    Copies: 50 -> 25 + 25, then 25 > 24, so a third: 16.67 each; 24, 10 and 8 stay single.
    Packing 24 | 16.67 | 16.67, then 16.67 to one of the lighter two, which has one already: so to the first, 40.67;
    10 and 8 to the others, which are equal: 26.67 and 24.67.
    """
    load = [50.0, 24.0, 10.0, 8.0]

    counts = copy_counts(load, 6, most=3)

    assert counts == [3, 1, 1, 1]
    assert pack(load, counts, [2, 2, 2], [1.0, 1.0, 1.0]) == [[1, 0], [0, 2], [0, 3]]


def test_groups_are_packed_to_nodes_and_experts_within_a_node_by_the_same_two_equations() -> None:
    """Four groups of two on two nodes of three servers, six slots each; worked by hand as the published example goes.

    Groups 60, 40, 56 and 20: 60 | 56, then 40 to the lighter node, 20 to the other: nodes (A, D) and (C, B).
    In (C, B), 50, 6, 30 and 10: 50 -> 25 + 25, then 30 -> 15 + 15.  Packing 25 | 25 | 15, then 15 to the first of the
    two that are equal, 40; 10 to the third, 25, and 6 to the second, 31.
    """
    groups = {"A": [40.0, 20.0], "B": [30.0, 10.0], "C": [50.0, 6.0], "D": [12.0, 8.0]}

    assert pack([sum(group) for group in groups.values()], [1] * 4, [2, 2], [1.0, 1.0]) == [[0, 3], [2, 1]]
    load = groups["C"] + groups["B"]
    counts = copy_counts(load, 6, most=3)
    assert counts == [2, 1, 2, 1]
    assert pack(load, counts, [2] * 3, [1.0] * 3) == [[0, 2], [0, 1], [2, 3]]


def test_experts_that_many_users_ask_for_get_more_copies() -> None:
    """Half of all users ask about a domain that needs expert 0 alone, the others about one that needs all the rest."""
    shape = cluster()
    servers = [
        structs.replace(s, domain_shares=(("a" if s.name in ("s6", "s7", "s10") else "b", 1.0),)) for s in shape.servers
    ]
    usage = np.zeros_like(MEASURED.usage)
    usage[0, :, 0] = usage[1, :, 1:] = 1.0
    measured = replace(MEASURED, usage=usage / usage.sum(axis=2, keepdims=True).clip(1e-9))

    placement = Eplb().place(structs.replace(shape, servers=tuple(servers)), MIXTRAL, measured)

    copies = Counter(copy.expert for copy in placement.replicas)
    assert copies[0] > 2 * max(copies[expert] for expert in range(1, 8))


def test_a_server_twice_as_quick_takes_twice_the_load() -> None:
    packed = pack([1.0] * 9, [1] * 9, [9, 9], [2.0, 1.0])

    assert [len(experts) for experts in packed] == [6, 3]


def test_a_copy_that_finds_no_server_goes_to_the_next_busiest_expert() -> None:
    """Both servers with room hold expert 0 when its third copy comes."""
    assert pack([9.0, 2.0], [3, 1], [2, 2], [1.0, 1.0]) == [[0, 1], [0, 1]]


@given(
    load=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=9),
    rooms=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    more=st.integers(0, 20),
)
def test_no_server_holds_too_much_or_an_expert_twice_and_every_expert_is_somewhere(
    load: list[float], rooms: list[int], more: int
) -> None:
    slots = len(load) + more
    counts = copy_counts(load, slots, most=len(rooms))
    packed = pack(load, counts, rooms, [1.0] * len(rooms))

    assert all(len(held) <= room and len(set(held)) == len(held) for held, room in zip(packed, rooms, strict=True))
    if sum(counts) <= sum(rooms):
        assert {expert for held in packed for expert in held} == set(range(len(load)))


@given(load=st.lists(st.floats(0.1, 100.0), min_size=2, max_size=8), more=st.integers(1, 10))
def test_another_split_of_the_slots_has_no_lower_heaviest_copy(load: list[float], more: int) -> None:
    """Taking a copy from any expert and giving it to another leaves the heaviest copy as heavy, or heavier."""
    counts = copy_counts(load, len(load) + more, most=100)
    heaviest = max(weight / count for weight, count in zip(load, counts, strict=True))

    for source in range(len(load)):
        for target in range(len(load)):
            other = list(counts)
            other[source] -= 1
            other[target] += 1
            if other[source] > 0:
                assert max(w / c for w, c in zip(load, other, strict=True)) >= heaviest * (1 - 1e-12)


def test_the_whole_budget_is_used_and_every_layer_gets_as_many_copies() -> None:
    placement = Eplb().place(cluster(), MIXTRAL, MEASURED)

    assert Counter(r.layer for r in placement.replicas) == dict.fromkeys(range(32), 16)
    assert all(replica.fast for replica in placement.replicas)


def test_equal_servers_are_asked_for_about_equally_much() -> None:
    shape = equal_servers(6)
    placement = Eplb().place(shape, MIXTRAL, MEASURED)
    usage = Expected(shape, MIXTRAL, MEASURED).token_share
    copies = Counter((r.layer, r.expert) for r in placement.replicas)

    load = dict.fromkeys(shape.names, 0.0)
    for replica in placement.replicas:
        load[replica.server] += usage[replica.layer, replica.expert] / copies[replica.layer, replica.expert]

    assert max(load.values()) < 1.15 * np.mean(list(load.values()))


def test_more_slots_than_servers_can_hold_apart_are_left_free() -> None:
    assert copy_counts([5.0, 1.0], 9, most=3) == [3, 3]


def test_it_has_no_option_but_the_seed_of_its_draws() -> None:
    with pytest.raises(Exception, match="no option 'precision'"):
        Eplb({"precision": "int8"})
