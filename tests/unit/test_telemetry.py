from __future__ import annotations

import pytest

from agents.protocol import DEAD_AFTER_S, Failed, LinkEstimate, Message, State
from agents.telemetry import FORGET_S, Telemetry
from tests.support.clusters import cluster

NOMINAL = cluster(3, delay_s=0.010, rate_bps=1e9)


def telemetry() -> Telemetry:
    return Telemetry(NOMINAL, "s1", now_s=0.0)


def state(source: str, *, sent_s: float, backlog_s: float = 0.0, links: list[LinkEstimate] | None = None) -> Message:
    body = State(backlog_s=backlog_s, wait_s=0.0, load_backlog_s=0.0, links=links or [])
    return Message(run="r", source=source, sent_s=sent_s, size_bytes=0, body=body)


def bulk(source: str, *, sent_s: float, size_bytes: int) -> Message:
    return Message(
        run="r", source=source, sent_s=sent_s, size_bytes=size_bytes, body=Failed(request=0, step=0, reason="")
    )


def test_a_silent_server_is_declared_lost_once() -> None:
    peers = telemetry()
    peers.received(state("s3", sent_s=0.0), now_s=0.5)

    assert peers.tick(now_s=DEAD_AFTER_S - 0.001) == []
    assert peers.tick(now_s=DEAD_AFTER_S) == ["s2"]
    assert peers.tick(now_s=DEAD_AFTER_S + 0.1) == []
    assert not peers.alive("s2")
    assert peers.alive("s3")


def test_a_lost_server_that_speaks_again_is_back() -> None:
    peers = telemetry()
    peers.tick(now_s=DEAD_AFTER_S)
    peers.received(state("s2", sent_s=2.0), now_s=2.01)

    assert peers.alive("s2")


def test_before_any_message_a_path_looks_as_in_the_topology() -> None:
    assert telemetry().path("s2", "s3", now_s=5.0) == (0.010, 1e9)


def test_slow_bulk_messages_lower_the_rate() -> None:
    peers = telemetry()
    for round_number in range(20):
        sent_s = 0.1 * round_number
        peers.received(bulk("s2", sent_s=sent_s, size_bytes=250_000), now_s=sent_s + 0.010 + 0.020)  # 100 Mbit/s

    _, rate_bps = peers.path("s2", "s1", now_s=2.0)
    assert rate_bps == pytest.approx(1e8, rel=0.15)


def test_small_messages_measure_the_delay() -> None:
    peers = telemetry()
    for round_number in range(20):
        sent_s = 0.1 * round_number
        peers.received(state("s2", sent_s=sent_s), now_s=sent_s + 0.030)

    delay_s, rate_bps = peers.path("s2", "s1", now_s=2.0)
    assert delay_s == pytest.approx(0.030, rel=0.15)
    assert rate_bps == pytest.approx(1e9)


def test_a_path_that_is_avoided_is_forgiven_with_time() -> None:
    peers = telemetry()
    for round_number in range(20):
        sent_s = 0.1 * round_number
        peers.received(state("s2", sent_s=sent_s), now_s=sent_s + 0.110)

    congested_s, _ = peers.path("s2", "s1", now_s=2.0)
    later_s, _ = peers.path("s2", "s1", now_s=2.0 + 5 * FORGET_S)
    assert congested_s > 0.08
    assert later_s == pytest.approx(0.010, rel=0.1)


def test_no_message_makes_a_path_faster_than_its_links() -> None:
    peers = telemetry()
    peers.received(bulk("s2", sent_s=1.0, size_bytes=10_000_000), now_s=1.000001)

    assert peers.path("s2", "s1", now_s=1.0)[1] <= 1e9 * (1 + 1e-9)


def test_gossip_tells_of_paths_between_others() -> None:
    peers = telemetry()
    row = LinkEstimate(source="s3", delay_s=0.050, rate_bps=5e7)
    peers.received(state("s2", sent_s=1.0, backlog_s=0.7, links=[row]), now_s=1.01)

    assert peers.path("s3", "s2", now_s=1.01) == (pytest.approx(0.050), pytest.approx(5e7))
    assert peers.peer_state("s2") == (0.7, 0.0, 0.0)


def test_messages_of_strangers_teach_nothing() -> None:
    peers = telemetry()
    stranger = Message(run="r", source="s9", sent_s=0.0, size_bytes=0, body=Failed(request=0, step=0, reason=""))
    peers.received(stranger, now_s=1.0)

    assert peers.own_rows(now_s=1.0) == []
