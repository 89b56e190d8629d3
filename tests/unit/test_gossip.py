from __future__ import annotations

import numpy as np
import pytest

from agents.gossip import FANOUT, FULL_MESH, dead_after_s, peers_of
from agents.protocol import DEAD_AFTER_S, GOSSIP_INTERVAL_S, Message, State
from agents.telemetry import Telemetry
from tests.support.clusters import cluster


def test_in_a_small_cluster_everybody_talks_to_everybody() -> None:
    assert peers_of(3, servers=FULL_MESH, round_number=5) == [n for n in range(FULL_MESH) if n != 3]


@pytest.mark.parametrize("servers", [33, 100, 125, 126, 625, 626, 1000])
def test_news_of_every_server_reaches_all_others_within_two_cycles(servers: int) -> None:
    rounds = next(c for c in range(1, 9) if (FANOUT + 1) ** c >= servers)
    knows = np.eye(servers, dtype=bool)  # knows[a, b]: a has news of b
    for round_number in range(1, 2 * rounds + 1):  # it may just have missed the round in which it begins
        said = knows.copy()
        for place in range(servers):
            for peer in peers_of(place, servers=servers, round_number=round_number):
                knows[peer] |= said[place]

    assert knows.all()


@pytest.mark.parametrize("servers", [33, 125, 1000])
def test_in_a_large_cluster_a_server_says_few_messages_a_round(servers: int) -> None:
    for round_number in range(10):
        told = peers_of(7, servers=servers, round_number=round_number)
        assert 1 <= len(told) <= FANOUT
        assert 7 not in told


def test_news_of_a_third_server_keeps_it_alive_in_a_large_cluster() -> None:
    servers = 40
    listener = Telemetry(cluster(servers, delay_s=0.010, rate_bps=1e9), "s1", now_s=0.0)
    late_s = dead_after_s(servers) + 1.0
    news = np.zeros((5, servers))
    news[:2] = late_s - 0.1
    news[:2, 4] = 0.5  # nobody has heard of s5 since
    news[2:, 2] = (0.3, 0.2, 0.1)
    body = State(backlog_s=0.0, wait_s=0.0, load_backlog_s=0.0, links=[])
    listener.received(
        Message(run="r", source="s2", sent_s=late_s - 0.01, size_bytes=0, body=body, arrays=(news,)),
        now_s=late_s,
    )

    assert listener.tick(now_s=late_s) == ["s5"]
    assert listener.alive("s3")
    assert listener.peer_state("s3") == (0.3, 0.2, 0.1)


def test_older_news_does_not_replace_newer_and_nonsense_is_ignored() -> None:
    servers = 40
    listener = Telemetry(cluster(servers, delay_s=0.010, rate_bps=1e9), "s1", now_s=5.0)
    body = State(backlog_s=0.0, wait_s=0.0, load_backlog_s=0.0, links=[])
    stale, from_the_future, too_short = (np.ones((5, n)) for n in (servers, servers, 3))
    stale[:2], from_the_future[:2], too_short[:2] = 4.0, 99.0, 5.5
    for news in (stale, from_the_future, too_short):
        listener.received(Message(run="r", source="s2", sent_s=5.9, size_bytes=0, body=body, arrays=(news,)), now_s=6.0)

    assert listener.peer_state("s3") == (0.0, 0.0, 0.0)
    assert listener.alive("s3")


def test_a_large_cluster_waits_longer_before_it_gives_a_server_up() -> None:
    assert dead_after_s(FULL_MESH) == DEAD_AFTER_S
    assert dead_after_s(1000) == DEAD_AFTER_S + 2 * 5 * GOSSIP_INTERVAL_S


def test_who_has_heard_a_server_later_does_not_know_better_how_it_is() -> None:
    """Activations prove that a server lives, and say nothing of its load."""
    servers = 40
    listener = Telemetry(cluster(servers, delay_s=0.010, rate_bps=1e9), "s1", now_s=0.0)
    told = State(backlog_s=0.5, wait_s=0.0, load_backlog_s=0.0, links=[])
    listener.received(
        Message(run="r", source="s3", sent_s=1.8, size_bytes=0, body=told, arrays=(np.zeros((0, 0)),)), now_s=1.9
    )
    news = np.zeros((5, servers))
    news[0, 2], news[1, 2], news[2, 2] = 2.0, 1.0, 0.1  # heard of s3 at 2.0, but how it was at 1.0
    body = State(backlog_s=0.0, wait_s=0.0, load_backlog_s=0.0, links=[])
    listener.received(Message(run="r", source="s2", sent_s=2.0, size_bytes=0, body=body, arrays=(news,)), now_s=2.1)

    assert listener.peer_state("s3")[0] == 0.5
