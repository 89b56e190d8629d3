"""Petals: spans that even out throughput, and the client's way through them."""

from __future__ import annotations

import itertools

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.errors import FrameworkError
from agents.frameworks.base import Arrival
from agents.frameworks.petals import Petals
from agents.frameworks.petals_routing import (
    BAN_S,
    REFRESH_S,
    SERIALISATION_S,
    UNKNOWN_S,
    Bans,
    Spans,
    entries,
    read,
    ways,
)
from agents.frameworks.petals_spans import grown, laid, spans
from agents.protocol import Placement, Replica
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()
SHAPE = cluster()
PLACED = Petals().place(SHAPE, MIXTRAL, MEASURED)
SPANS: dict[str, list[int]] = PLACED.notes["spans"]


#: Two servers that have all layers, s5 near s7 and s1 far from it.
TWICE = Placement(
    replicas=tuple(
        Replica(layer=layer, expert=expert, server=server, precision="full", fast=True)
        for server in ("s1", "s5")
        for layer in range(MIXTRAL.layers)
        for expert in range(MIXTRAL.experts)
    ),
    notes={"spans": {"s1": [0, 32], "s5": [0, 32]}, "layer_s": {"s1": 0.003, "s5": 0.003}},
)


def arrival(home: str) -> Arrival:
    return Arrival(request=1, kind="score", home=home, tokens=37, output_tokens=0)


def chain(home: str, live: Still, placement: Placement = PLACED) -> list[str]:
    """The servers of all layers, each asked anew as agents are."""
    seen = view(home, live, placement, MEASURED)
    here = begun(home, live, placement).enter(arrival(home), seen)
    found = []
    for layer in range(MIXTRAL.layers):
        found.append(here)
        here = (
            begun(here, live, placement)
            .plan(demand(layer, home=home), view(here, live, placement, MEASURED))
            .next_server
        )
    return [*found, here]


def begun(server: str, live: Still, placement: Placement = PLACED) -> Petals:
    framework = Petals()
    framework.begin(view(server, live, placement, MEASURED))
    return framework


# --- spans ------------------------------------------------------------------------------------------------------------


def test_every_server_hosts_one_span_and_together_they_have_all_layers() -> None:
    for name, (begin, end) in SPANS.items():
        layers = {r.layer for r in PLACED.replicas if r.server == name}
        assert layers == set(range(begin, end))
    assert {layer for begin, end in SPANS.values() for layer in range(begin, end)} == set(range(32))


def test_a_span_is_as_long_as_fast_memory_allows_but_for_the_last_one_of_the_budget() -> None:
    """24 GB hold 7 layers of 2.8 GB in 85 %, 48 GB hold 14, 12 GB hold 3; the budget is 64 layers."""
    lengths = {name: end - begin for name, (begin, end) in SPANS.items()}

    assert lengths.pop("s8") == 6  # the slowest device joins last
    assert lengths == {"s1": 7, "s2": 7, "s3": 7, "s4": 7, "s5": 14, "s6": 3, "s7": 3, "s9": 7, "s10": 3}


def test_the_least_served_layer_is_served_about_as_well_as_the_average_one() -> None:
    begins, kept = laid([8] * 12, [1.0] * 12, layers=32, allowed=96)

    served = [sum(begin <= layer < begin + n for begin, n in zip(begins, kept, strict=True)) for layer in range(32)]

    assert min(served) == max(served) == 3


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    throughput=st.lists(st.floats(0.5, 50.0), min_size=8, max_size=8),
    allowed=st.integers(8, 40),
)
def test_nothing_stays_uncovered_if_the_lengths_add_up_to_the_model(
    lengths: list[int], throughput: list[float], allowed: int
) -> None:
    layers = 8
    lengths = [min(layers, length) for length in lengths]

    begins, kept = laid(lengths, throughput[: len(lengths)], layers=layers, allowed=allowed)

    assert sum(kept) <= allowed
    assert all(0 <= begin <= layers - length for begin, length in zip(begins, kept, strict=True))
    if sum(lengths) >= layers:
        covered = {layer for begin, length in zip(begins, kept, strict=True) for layer in range(begin, begin + length)}
        assert covered == set(range(layers))


def test_spans_grow_into_slow_memory_where_loading_is_quickest() -> None:
    assert grown([2, 1, 0], [9, 9, 0], np.array([1.0, 0.5, 0.1]), layers=6) == [3, 3, 0]


def test_layers_beyond_fast_memory_are_placed_in_slow_memory() -> None:
    shape = equal_servers(2)  # 2 x 48 GB hold 28 of 32 layers

    hosted, layer_s = spans(shape, MIXTRAL, MEASURED, "full", framework="petals")

    assert [(span.begin, span.end, span.fast) for span in hosted] == [(0, 16, 14), (16, 32, 14)]
    assert layer_s[0] == layer_s[1] > spans(equal_servers(3), MIXTRAL, MEASURED, "full", framework="petals")[1][0]


def test_a_budget_below_one_model_is_refused_by_name() -> None:
    with pytest.raises(FrameworkError, match=r"petals needs one copy of all experts; redundancy 0\.9 is too small"):
        Petals().place(cluster(redundancy=0.9), MIXTRAL, MEASURED)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FrameworkError, match=r"petals cannot run in precision 'int3'.*full, int8, int4"):
        Petals({"precision": "int3"}).place(SHAPE, MIXTRAL, MEASURED)


# --- ways -------------------------------------------------------------------------------------------------------------


@given(
    hosted=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=6),
    rtts=st.lists(st.floats(0.0, 0.1), min_size=49, max_size=49),
    compute=st.lists(st.floats(0.001, 0.1), min_size=6, max_size=6),
)
def test_the_first_server_is_that_of_dijkstras_shortest_path(
    hosted: list[tuple[int, int]], rtts: list[float], compute: list[float]
) -> None:
    layers = 6
    hosts: Spans = {f"s{k}": (begin, min(layers, begin + length)) for k, (begin, length) in enumerate(hosted)}
    layer_s = dict(zip(hosts, compute, strict=False))

    def half_rtt_s(one: str, other: str) -> float:
        places = [6 if name == "home" else int(name[1:]) for name in (one, other)]
        return 0.0 if one == other else rtts[7 * places[0] + places[1]]

    found = ways(hosts, layers=layers, layer_s=layer_s, half_rtt_s=half_rtt_s, home="home")
    ends = entries(hosts, 0, found)
    best_s = min((half_rtt_s("home", s) + SERIALISATION_S + cost for s, cost in ends.items()), default=None)

    graph = nx.DiGraph()
    graph.add_nodes_from(["start", "end"])
    for server, (begin, end) in hosts.items():
        for layer in range(begin, end):
            graph.add_edge((server, layer), (server, layer + 1, "done"), weight=layer_s[server])
            if layer + 1 < end:
                graph.add_edge((server, layer + 1, "done"), (server, layer + 1), weight=0.0)
        if begin == 0:
            graph.add_edge("start", (server, 0), weight=half_rtt_s("home", server) + SERIALISATION_S)
        if end == layers:
            graph.add_edge((server, layers, "done"), "end", weight=half_rtt_s(server, "home"))
        for other, (first, last) in hosts.items():
            if first <= end < last:
                weight = half_rtt_s(server, other) + SERIALISATION_S
                graph.add_edge((server, end, "done"), (other, end), weight=weight)
    if best_s is None:
        assert not nx.has_path(graph, "start", "end")
    else:
        assert best_s == pytest.approx(nx.dijkstra_path_length(graph, "start", "end"))


def test_a_request_stays_to_the_end_of_a_span_and_its_states_go_home() -> None:
    for home in ("s1", "s7", "s10"):
        found = chain(home, Still(SHAPE))

        assert found[-1] == home
        for layer, (here, following) in enumerate(itertools.pairwise(found[:-1])):
            assert SPANS[here][0] <= layer < SPANS[here][1]
            assert here == following or layer + 1 == SPANS[here][1]


def test_clients_far_apart_may_begin_at_different_servers() -> None:
    firsts = {
        home: begun(home, Still(SHAPE)).enter(arrival(home), view(home, Still(SHAPE), PLACED, MEASURED))
        for home in SHAPE.names
    }

    assert {SPANS[first][0] for first in firsts.values()} == {0}


def test_a_way_whose_length_is_unknown_counts_as_150_ms() -> None:
    live = Still(SHAPE)
    live.lost = set(SHAPE.names) - {"s1"}  # nobody answers: the client has to try servers all the same
    framework, seen = begun("s1", live), view("s1", live, PLACED, MEASURED)

    assert framework._half_rtt_s(seen, "s1", "s2") == UNKNOWN_S
    assert framework.enter(arrival("s1"), seen) in SPANS


def test_a_banned_server_stays_out_for_15_s_although_it_is_back() -> None:
    live = Still(SHAPE)
    framework, seen = begun("s7", live, TWICE), view("s7", live, TWICE, MEASURED)
    first = framework.enter(arrival("s7"), seen)

    live.lost = {"s5"}
    second = framework.enter(arrival("s7"), seen)
    live.lost = set()
    live.time_s = BAN_S - 0.1
    third = framework.enter(arrival("s7"), seen)
    live.time_s = BAN_S
    fourth = framework.enter(arrival("s7"), seen)

    assert [first, second, third, fourth] == ["s5", "s1", "s1", "s5"]


def test_bans_double_until_the_server_answers() -> None:
    bans = Bans()
    bans.failed("s1", now_s=0.0)
    bans.failed("s1", now_s=5.0)  # a ban is under way: nothing new
    assert not bans.banned("s1", now_s=15.0)

    bans.failed("s1", now_s=15.0)
    assert bans.banned("s1", now_s=44.0)
    assert not bans.banned("s1", now_s=45.0)

    bans.succeeded("s1")
    bans.failed("s1", now_s=45.0)
    assert not bans.banned("s1", now_s=60.0)


def test_a_link_that_becomes_slow_is_noticed_at_the_next_look_only(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Still(SHAPE)
    framework, seen = begun("s7", live, TWICE), view("s7", live, TWICE, MEASURED)
    framework.enter(arrival("s7"), seen)
    monkeypatch.setattr(live, "path", lambda one, other: (9.0 if "s5" in (one, other) else 0.001, 1e9))

    live.time_s = REFRESH_S - 0.1
    assert framework.enter(arrival("s7"), seen) == "s5"

    live.time_s = REFRESH_S
    assert framework.enter(arrival("s7"), seen) == "s1"


def test_a_pass_whose_next_server_is_lost_takes_another_one() -> None:
    live = Still(SHAPE)
    ends = {end for _, end in SPANS.values() if end < 32}
    here = next(name for name, (_, end) in sorted(SPANS.items()) if end in ends)
    layer = SPANS[here][1] - 1
    framework, seen = begun(here, live), view(here, live, PLACED, MEASURED)
    following = framework.plan(demand(layer), seen).next_server
    others = [name for name, (begin, end) in SPANS.items() if begin <= layer + 1 < end and name != following]

    live.lost = {following}

    assert others
    assert framework.plan(demand(layer), seen).next_server in others


# --- the chain that travels -------------------------------------------------------------------------------------------


def noted(home: str, live: Still) -> bytes:
    return begun(home, live).notes(arrival(home), view(home, live, PLACED, MEASURED))


def followed(home: str, live: Still, notes: bytes) -> list[str]:
    """The servers of all layers when the chain travels with the request."""
    here = begun(home, live).enter(arrival(home), view(home, live, PLACED, MEASURED))
    found = []
    for layer in range(MIXTRAL.layers):
        found.append(here)
        asked = demand(layer, home=home, notes=notes)
        plan = begun(here, live).plan(asked, view(here, live, PLACED, MEASURED))
        notes = notes if plan.notes is None else plan.notes
        here = plan.next_server
    return [*found, here]


def test_servers_follow_the_chain_of_the_client_whatever_they_know_themselves() -> None:
    """A server that takes all ways for long would go another one, but nobody asks it."""
    live, elsewhere = Still(SHAPE), Still(SHAPE)
    elsewhere.path = lambda one, other: (0.5 if "s1" in (one, other) else 0.001, 1e9)  # type: ignore[method-assign]
    notes = noted("s7", live)

    assert followed("s7", live, notes) == chain("s7", live)
    assert [s for s, _ in read(notes)] == list(dict.fromkeys(followed("s7", live, notes)[:-1]))
    for server, end in read(notes)[:-1]:
        plan = begun(server, elsewhere).plan(
            demand(end - 1, home="s7", notes=notes), view(server, elsewhere, PLACED, MEASURED)
        )
        assert plan.next_server == followed("s7", live, notes)[end]
        assert plan.notes is None


def test_a_chain_whose_next_server_is_lost_is_repaired_and_the_new_one_travels_on() -> None:
    live = Still(SHAPE)
    notes = noted("s7", live)
    (here, end), following = next(
        (hop, other)
        for hop, (other, _) in itertools.pairwise(read(notes))
        if any(begin <= hop[1] < last for name, (begin, last) in SPANS.items() if name != other)
    )
    live.lost = {following}

    plan = begun(here, live).plan(demand(end - 1, home="s7", notes=notes), view(here, live, PLACED, MEASURED))

    assert plan.next_server != following
    assert plan.notes is not None
    assert read(plan.notes)[0] == (here, end)
    assert read(plan.notes)[1][0] == plan.next_server
    assert read(plan.notes)[-1][1] == MIXTRAL.layers


def test_notes_that_are_no_chain_are_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        read(b"\x93abc")
