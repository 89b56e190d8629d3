"""``--view oracle``: frameworks see the true state instead of gossip and estimates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from analysis.load import Run
from orchestration.comparison import ESTIMATED, ORACLE
from orchestration.places import Backend, Sees, backend_for
from scenarios.timeline import ServerFailure, ServerSlowdown
from testbed.errors import TestbedError
from testbed.simulation.loop import VirtualLoop
from testbed.simulation.network import SimulatedNetwork
from testbed.topology import BITS_PER_BYTE, Direction, Link, Node, Topology
from tests.support.simulated import compared, every, requests, scenario, simulate, topology, user_framework

QUICK = Direction(rate_bps=1e9, delay_s=0.001)
SLOW = Direction(rate_bps=1e8, delay_s=0.010)
ROUTED = Topology(
    name="routed",
    nodes=(Node(name="s1"), Node(name="r", kind="router"), Node(name="s2")),
    links=(Link(a="s1", b="r", forward=QUICK, backward=QUICK), Link(a="r", b="s2", forward=SLOW, backward=SLOW)),
)
#: Tells the slowness and the liveness of s3 at the moment of planning in the records of its decisions.
TELL = """
def plan(self, demand, view):
    from agents.frameworks.cost import CostTerms
    terms = CostTerms(
        transmission_s=view.path("s2", "s3")[0], loading_s=float(view.alive("s3")), compute_s=view.slowness("s3"),
        quality_s=0.0, traffic_s=0.0, ahead_s=0.0,
    )
    def living(copies):
        return next((copy for copy in copies if copy.server != "s3"), copies[0])
    choices = [Choice.of(living(view.replicas(demand.layer, entry.expert))) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server, terms=terms)
"""


@pytest.fixture
def network() -> SimulatedNetwork:
    return SimulatedNetwork(ROUTED, VirtualLoop(), deliver=lambda source, target, message: None)


def test_the_true_state_of_an_idle_path_is_that_of_its_links(network: SimulatedNetwork) -> None:
    assert network.state("s1", "s2") == (pytest.approx(0.011), 1e8)


def test_a_link_that_changes_is_known_at_once(network: SimulatedNetwork) -> None:
    network.shape("r-s2", "r", Direction(rate_bps=1e7, delay_s=0.030))

    assert network.state("s1", "s2") == (pytest.approx(0.031), 1e7)
    assert network.state("s2", "s1") == (pytest.approx(0.011), 1e8)


def test_what_stands_in_a_queue_delays_what_is_sent_now(network: SimulatedNetwork) -> None:
    network.send("s1", "s2", 100_000, "bulk")

    waiting_s, _ = network.state("s1", "s2")
    assert waiting_s - 0.011 == pytest.approx(BITS_PER_BYTE * 100_000 / 1e9, rel=0.1)  # on the first link, so far


def test_the_oracle_needs_virtual_time() -> None:
    said: list[str] = []

    assert backend_for(Sees.ORACLE, Backend.AUTO, said.append) is Backend.SIM
    assert len(said) == 1
    assert backend_for(Sees.ESTIMATED, Backend.NETNS, said.append) is Backend.NETNS
    with pytest.raises(TestbedError, match="--view oracle needs --backend sim"):
        backend_for(Sees.ORACLE, Backend.NETNS, said.append)


def told(view: str, tmp_path: Path) -> Run:
    """Requests at s1 all 10 ms, while s3 slows down at 1.0 s and fails at 1.5 s."""
    played = replace(
        scenario(requests(["s1"], every(0.01, from_s=0.9, to_s=2.0), tokens=4)),
        slowdowns=(ServerSlowdown(at_s=1.0, server="s3", factor=4.0),),
        failures=(ServerFailure(at_s=1.5, server="s3"),),
    )
    framework = user_framework(tmp_path / "tell.py", TELL)
    comparison = replace(compared(played, [framework], topology("small3")), view=view)
    return simulate(comparison, tmp_path / view).run


def first(run: Run, column: str, value: float) -> float:
    """When a decision first held this; infinity if none did."""
    moments = run.layers.filter(pl.col(column) == value)["start_s"].to_list()
    return min(moments, default=float("inf"))


def test_with_the_oracle_a_slow_and_a_failed_server_are_known_at_once_and_with_gossip_later(tmp_path: Path) -> None:
    runs = {view: told(view, tmp_path) for view in (ESTIMATED, ORACLE)}
    noticed = {
        view: (first(run, "predicted_compute_s", 4.0), first(run, "predicted_loading_s", 0.0))
        for view, run in runs.items()
    }

    (slow_s, lost_s), (later_s, much_later_s) = noticed[ORACLE], noticed[ESTIMATED]
    assert slow_s == pytest.approx(1.0, abs=0.02)
    assert lost_s == pytest.approx(1.5, abs=0.02)
    assert slow_s < later_s
    assert lost_s + 0.3 < much_later_s
    assert {run.manifest.view for run in runs.values()} == {ESTIMATED, ORACLE}
