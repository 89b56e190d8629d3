"""EdgeShard: chains of whole layers."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import structs

from agents.errors import FrameworkError
from agents.frameworks.edgeshard import MOST_CANDIDATES, EdgeShard, chain, neighbourhood
from agents.frameworks.expected import Expected
from agents.protocol import Placement
from tests.support.clusters import cluster as equal_servers

from .framework_cases import MIXTRAL, Still, calibration, cluster, demand, view

MEASURED = calibration()


def owners(placement: Placement) -> list[str]:
    return list(placement.notes["owners"])


def test_a_layer_lives_on_one_server_with_all_its_experts() -> None:
    placement = EdgeShard().place(cluster(), MIXTRAL, MEASURED)

    for layer, owner in enumerate(owners(placement)):
        assert {(r.server, r.precision) for r in placement.replicas if r.layer == layer} == {(owner, "full")}


def test_no_device_is_busy_more_than_seven_tenths_of_the_time_when_that_can_be() -> None:
    shape = cluster(rate=20.0)
    found, _ = chain(shape, MIXTRAL, MEASURED, "full")
    layer_s = Expected(shape, MIXTRAL, MEASURED).layer_s("full")

    busy: Counter[int] = Counter()
    for layer, owner in enumerate(found.owners):
        busy[owner] += 20.0 * layer_s[owner, layer]

    assert max(busy.values()) <= 0.7


def test_a_higher_rate_spreads_the_layers_over_more_servers() -> None:
    calm, busy = (set(owners(EdgeShard().place(cluster(rate=rate), MIXTRAL, MEASURED))) for rate in (2.0, 40.0))

    assert len(calm) < len(busy)


def test_a_rate_that_nothing_can_carry_still_gets_a_placement() -> None:
    placement = EdgeShard().place(cluster(rate=1000.0), MIXTRAL, MEASURED)

    assert len(placement.replicas) == 256


def test_fewer_bytes_per_expert_need_fewer_servers() -> None:
    full, small = (
        set(owners(EdgeShard({"precision": precision}).place(cluster(rate=2.0), MIXTRAL, MEASURED)))
        for precision in ("full", "int4")
    )

    assert len(small) < len(full)


def test_every_expert_runs_where_the_layer_is_and_the_request_goes_on_to_the_next_owner() -> None:
    shape = cluster()
    framework = EdgeShard()
    placement = framework.place(shape, MIXTRAL, MEASURED)
    chain_names = owners(placement)
    framework.begin(view(chain_names[6], Still(shape), placement, MEASURED))

    plan = framework.plan(demand(6), view(chain_names[6], Still(shape), placement, MEASURED))

    assert {choice.server for choice in plan.choices} == {chain_names[6]}
    assert plan.next_server == chain_names[7]


@pytest.mark.parametrize(
    ("options", "words"), [({"precision": "int3"}, "int3.*full, int8, int4"), ({"precison": "int8"}, "precison")]
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(FrameworkError, match=words):
        EdgeShard(options).place(cluster(), MIXTRAL, MEASURED)


def test_in_a_large_cluster_the_chain_stays_in_the_neighbourhood_that_is_quickest() -> None:
    """Servers 41 to 70 are near each other; the first forty are far from everybody."""
    far = equal_servers(70, delay_s=0.050)
    near = [
        [0.001 if min(a, b) >= 40 and a != b else delay_s for b, delay_s in enumerate(row)]
        for a, row in enumerate(far.delay_s)
    ]
    shape = structs.replace(far, delay_s=tuple(tuple(row) for row in near))

    placement = EdgeShard().place(shape, MIXTRAL, MEASURED)

    assert {int(name.removeprefix("s")) for name in owners(placement)} <= set(range(41, 71))


def test_a_cluster_that_the_programme_can_see_whole_is_not_cut() -> None:
    shape = equal_servers(MOST_CANDIDATES)
    assert neighbourhood(shape, MIXTRAL, MEASURED, "full") is shape
    assert len(neighbourhood(equal_servers(MOST_CANDIDATES + 1), MIXTRAL, MEASURED, "full").servers) == MOST_CANDIDATES
