"""Helpers that several placements share."""

from __future__ import annotations

import doctest
import importlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agents.cluster import Cluster, cluster_of
from agents.errors import FrameworkError
from agents.frameworks.domains import domain_mix, server_usage
from agents.frameworks.placements import apportion, copies_per_server
from testbed.load import load_topology
from tests.support.clusters import DEVICE
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, TOPOLOGIES, calibration, cluster

MODULES = [
    *("activations", "draws", "eplb", "moe_infinity", "petals_routing", "petals_spans", "placements", "prism"),
    *("prism_migration", "registry"),
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"agents.frameworks.{module}")).failed == 0


# --- shares -----------------------------------------------------------------------------------------------------------


@given(
    entries=st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 9)), min_size=1, max_size=12),
    total=st.integers(0, 100),
)
def test_all_units_are_given_that_may_be_and_nobody_gets_too_many(entries: list[tuple[float, int]], total: int) -> None:
    weights, most = [list(column) for column in zip(*entries, strict=True)]

    given_ = apportion(weights, total, most)

    assert sum(given_) == min(total, sum(most))
    assert all(0 <= units <= bound for units, bound in zip(given_, most, strict=True))


@given(weights=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=10), total=st.integers(0, 50))
def test_without_bounds_nobody_is_a_unit_away_from_the_exact_share(weights: list[float], total: int) -> None:
    exact = [total * weight / sum(weights) for weight in weights]

    assert all(
        abs(units - share) < 1 + 1e-9
        for units, share in zip(apportion(weights, total, [1000] * len(weights)), exact, strict=True)
    )


def test_what_a_full_one_cannot_take_goes_to_the_others_in_proportion() -> None:
    assert apportion([100.0, 2.0, 1.0], 7, [1, 9, 9]) == [1, 4, 2]


# --- copies per server ------------------------------------------------------------------------------------------------


def test_copies_follow_fast_memory_within_the_budget() -> None:
    copies = copies_per_server(cluster(), MIXTRAL, "full", framework="prism")

    assert sum(copies) == 512
    assert copies[4] == copies[7] == pytest.approx(2 * copies[0], abs=1)  # 48 GB and 24 GB


def test_without_a_budget_to_speak_of_fast_memory_is_filled_and_slow_memory_left_alone() -> None:
    copies = copies_per_server(equal_servers(8), MIXTRAL, "full", framework="prism")

    assert copies == [64] * 8
    assert copies_per_server(cluster(redundancy=9.0), MIXTRAL, "full", framework="prism")[0] == 57


def test_slow_memory_takes_what_all_fast_memory_cannot() -> None:
    assert copies_per_server(equal_servers(2), MIXTRAL, "full", framework="prism") == [128, 128]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (cluster(redundancy=0.99), r"prism needs one copy of all experts; redundancy 0\.99 is too small"),
        (
            equal_servers(2, device=replace(DEVICE, slow_bytes=0)),
            "no room for mixtral-8x7b in precision full, not even in slow memory",
        ),
    ],
)
def test_too_little_memory_is_refused_by_name(shape: Cluster, words: str) -> None:
    with pytest.raises(FrameworkError, match=words):
        copies_per_server(shape, MIXTRAL, "full", framework="prism")


# --- who asks for what ------------------------------------------------------------------------------------------------


def asking(**shares: dict[str, float]) -> Cluster:
    """Three equal servers whose users ask about these domains."""
    shape = equal_servers(3)
    return structs.replace(
        shape,
        servers=tuple(
            structs.replace(server, domain_shares=tuple(shares.get(server.name, {}).items()))
            for server in shape.servers
        ),
    )


def test_usage_of_a_server_is_mixed_by_what_its_users_ask_about() -> None:
    measured = calibration()

    usage = server_usage(asking(s1={"a": 0.5, "c": 0.5}, s2={"b": 1.0}), measured)

    assert usage[0] == pytest.approx((measured.usage[0] + measured.usage[2]) / 2)
    assert usage[1] == pytest.approx(measured.usage[1])


def test_users_of_whom_nothing_is_known_ask_about_everything_alike() -> None:
    """Nothing at all is known of s3's, and of s1's something that the calibration has no text of."""
    mix = domain_mix(asking(s1={"poems": 1.0}, s2={"poems": 0.5, "b": 0.5}), ("a", "b"))

    assert mix.tolist() == [[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]


def test_a_cluster_carries_what_a_scenario_says_of_its_users() -> None:
    topology = load_topology(TOPOLOGIES / "small3.yaml")

    shape = cluster_of(topology, arrival_rate_per_s=1.0, tokens_per_request=9, domain_shares={"s2": {"b": 1.0}})

    assert [server.domain_shares for server in shape.servers] == [(), (("b", 1.0),), ()]
