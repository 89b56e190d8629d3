from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from orchestration.catalogue import builder, scenario_names
from orchestration.player import changed
from scenarios import workload
from scenarios.congestion import links_between_metros, squeeze
from scenarios.timeline import LinkChange, Scenario, Setting, render
from scenarios.workload import FIRST_ARRIVAL_S, MEAN_TOKENS, counted_shares, domain_shares, poisson
from testbed.errors import TestbedError
from testbed.load import load_topology
from testbed.topology import Direction

ROOT = Path(__file__).parents[2]
SETTING = Setting(
    topology=load_topology(ROOT / "topologies" / "edge10.yaml"),
    domains=("code", "docs", "prose"),
    prompts_per_domain=100,
    prompt_tokens=128,
    seed=3,
)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert poisson(SETTING, rate_per_s=10, duration_s=20) == poisson(SETTING, rate_per_s=10, duration_s=20)
    other = replace(SETTING, seed=4)
    assert poisson(SETTING, rate_per_s=10, duration_s=20) != poisson(other, rate_per_s=10, duration_s=20)


def test_a_longer_run_begins_like_the_shorter_one() -> None:
    short, long = (poisson(SETTING, rate_per_s=10, duration_s=seconds) for seconds in (5, 20))
    assert long[: len(short)] == short


def test_arrivals_have_the_asked_for_rate_homes_and_lengths() -> None:
    requests = poisson(SETTING, rate_per_s=50, duration_s=200)
    homes = Counter(request.home for request in requests)
    users = {node.name: node.users for node in SETTING.topology.servers}

    assert len(requests) == pytest.approx(10_000, rel=0.05)
    for name, share in users.items():
        assert homes[name] / len(requests) == pytest.approx(share / sum(users.values()), abs=0.02)
    assert sum(request.tokens for request in requests) / len(requests) == pytest.approx(MEAN_TOKENS, rel=0.05)
    assert all(FIRST_ARRIVAL_S <= request.at_s < FIRST_ARRIVAL_S + 200 for request in requests)


def test_servers_of_one_metro_ask_mostly_for_one_domain() -> None:
    requests = poisson(SETTING, rate_per_s=50, duration_s=100)
    for metro in ("northport", "eastvale", "millbrook"):
        members = {node.name for node in SETTING.topology.servers if node.metro == metro}
        domains = Counter(request.domain for request in requests if request.home in members)
        assert domains.most_common(1)[0][1] / domains.total() == pytest.approx(0.8, abs=0.05)


def test_the_shares_that_placements_are_told_are_those_that_are_drawn() -> None:
    """A server with few users is home to some 250 of 5000 requests, so a counted share is within 0.1."""
    told = domain_shares(SETTING)
    requests = poisson(SETTING, rate_per_s=50, duration_s=100)

    counted = counted_shares(requests)

    assert set(told) == set(counted) == {node.name for node in SETTING.topology.servers}
    for home, shares in told.items():
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares == pytest.approx(counted[home], abs=0.1)


def test_shares_can_be_counted_where_there_is_nothing_or_next_to_nothing_to_count() -> None:
    assert counted_shares(()) == {}
    assert doctest.testmod(workload).failed == 0


@pytest.mark.parametrize(("rate", "duration"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_a_rate_or_duration_that_is_not_positive_is_refused(rate: float, duration: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        poisson(SETTING, rate_per_s=rate, duration_s=duration)


def test_more_requests_than_a_run_can_play_are_refused_before_they_are_made() -> None:
    with pytest.raises(TestbedError, match="a run plays at most"):
        poisson(SETTING, rate_per_s=1e5, duration_s=1e5)


def test_congestion_hits_the_links_between_metros_and_restores_every_one() -> None:
    links = links_between_metros(SETTING.topology)
    metro = {node.name: node.metro for node in SETTING.topology.nodes}
    assert len(links) == 45 - (6 + 3 + 3)
    assert all(metro[name.split("-")[0]] != metro[name.split("-")[1]] for name in links)

    changes = squeeze(SETTING.topology, links, from_s=2.0, to_s=4.0, rate_share=0.1, extra_delay_s=0.01)
    assert Counter(change.link for change in changes) == Counter(dict.fromkeys(links, 2))
    assert {change.at_s for change in changes if change.restore} == {4.0}


@pytest.mark.parametrize("name", ["steady_load", "link_congestion", "generation"])
def test_a_scenario_is_a_whole_plan_before_it_runs(name: str) -> None:
    built = builder(name)(SETTING)
    assert built.name == name
    assert name in scenario_names()
    assert built.requests
    assert {request.kind for request in built.requests} == {"generate" if name == "generation" else "score"}
    text = render(built, first=3)
    assert f"{len(built.requests)} requests in 12 s" in text
    assert f"... {len(built.requests) - 3} more requests" in text


def test_an_unknown_scenario_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TestbedError, match=r"'link_congestoin'; did you mean 'link_congestion'"):
        builder("link_congestoin")


def test_a_scenario_file_of_the_users_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from scenarios.steady_load import build\n")
    assert isinstance(builder(str(path))(SETTING), Scenario)
    path.write_text("import nothing_like_this\n")
    with pytest.raises(TestbedError, match="does not load: ModuleNotFoundError"):
        builder(str(path))
    path.write_text("x = 1\n")
    with pytest.raises(TestbedError, match="has no function build"):
        builder(str(path))


def test_a_link_change_touches_only_what_it_names_and_keeps_the_queue() -> None:
    direction = Direction(rate_bps=1e9, delay_s=0.005, jitter_s=0.001, loss=0.01)
    squeezed = changed(direction, LinkChange(at_s=0.0, link="a-b", rate_bps=1e8))

    assert squeezed.rate_bps == 1e8
    assert (squeezed.delay_s, squeezed.jitter_s, squeezed.loss) == (0.005, 0.001, 0.01)
    assert squeezed.effective_queue_bytes == direction.effective_queue_bytes
    assert changed(direction, LinkChange(at_s=0.0, link="a-b", restore=True)) == direction
