from __future__ import annotations

from pathlib import Path

from testbed.load import load_topology
from testbed.shaping.engines import RELAY_CEILING_BPS, beyond_the_relay

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def test_links_faster_than_the_relay_are_named_and_no_others() -> None:
    topology = load_topology(TOPOLOGIES / "edge10.yaml")
    fast = beyond_the_relay(topology)

    assert fast
    for link in topology.links:
        asks_too_much = max(link.forward.rate_bps, link.backward.rate_bps) > RELAY_CEILING_BPS
        assert (link.name in fast) == asks_too_much


def test_a_topology_within_the_limit_has_none() -> None:
    assert beyond_the_relay(load_topology(TOPOLOGIES / "metro-routers.yaml")) == []
