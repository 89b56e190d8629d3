"""What servers make of links from messages that they would have sent anyway, over links that are simulated."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from agents.protocol import Failed, Message
from agents.telemetry import FORGET_S, Telemetry
from testbed.simulation.loop import VirtualLoop
from testbed.simulation.network import SimulatedNetwork
from testbed.topology import BITS_PER_BYTE, Direction, Link, Node, Topology
from tests.support.clusters import cluster

RATE_BPS, DELAY_S = 1e9, 0.005
#: A layer's states of a long prompt, and a word of gossip.
BULK_BYTES, SMALL_BYTES = 1_000_000, 200
EVERY_S = 0.2
GOOD = Direction(rate_bps=RATE_BPS, delay_s=DELAY_S)


@dataclass
class Pair:
    """s1 sends to s2, which estimates the path."""

    loop: VirtualLoop = field(default_factory=VirtualLoop)
    latest_bps: float = 0.0  # that the latest large message got

    def __post_init__(self) -> None:
        cable = Link(a="s1", b="s2", forward=GOOD, backward=GOOD)
        both = Topology(name="pair", nodes=(Node(name="s1"), Node(name="s2")), links=(cable,))
        self.network = SimulatedNetwork(both, self.loop, deliver=self._arrived)
        self.known = Telemetry(cluster(2, delay_s=DELAY_S, rate_bps=RATE_BPS), "s2", now_s=0.0)

    def _arrived(self, source: str, target: str, message: Message) -> None:
        self.known.received(message, now_s=self.loop.time())
        if message.size_bytes == BULK_BYTES:
            self.latest_bps = BITS_PER_BYTE * BULK_BYTES / (self.loop.time() - message.sent_s - DELAY_S)

    def transfer(self, times: int, *, size_bytes: int = BULK_BYTES) -> None:
        """A small message and a large one, so many times."""
        for _ in range(times):
            for size in (SMALL_BYTES, size_bytes):
                body = Failed(request=0, step=0, reason="")
                message = Message(run="r", source="s1", sent_s=self.loop.time(), size_bytes=size, body=body)
                self.network.send("s1", "s2", size, message)
                self.rest(EVERY_S)

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def change(self, direction: Direction) -> None:
        """Another physics from now on."""
        self.network.shape("s1-s2", "s1", direction)

    def estimate(self) -> tuple[float, float]:
        """Delay and rate as known now."""
        return self.known.path("s1", "s2", now_s=self.loop.time())


@pytest.mark.parametrize("slower", [2.0, 10.0])
def test_a_rate_that_drops_is_known_within_fifteen_percent_after_ten_transfers(slower: float) -> None:
    pair = Pair()
    pair.transfer(5)
    pair.change(Direction(rate_bps=RATE_BPS / slower, delay_s=DELAY_S))

    pair.transfer(10)

    delay_s, rate_bps = pair.estimate()
    assert rate_bps == pytest.approx(RATE_BPS / slower, rel=0.15)
    assert delay_s == pytest.approx(DELAY_S, rel=0.05)


def test_when_a_rate_comes_back_the_estimate_follows_what_transport_makes_of_it() -> None:
    """TCP has lost segments and opens its window again bit by bit: a message does not get the link's rate at once."""
    pair = Pair()
    pair.change(Direction(rate_bps=RATE_BPS / 10, delay_s=DELAY_S))
    pair.transfer(10)
    pair.change(GOOD)

    pair.transfer(15)

    rate_bps = pair.estimate()[1]
    assert rate_bps > 1.5 * RATE_BPS / 10
    assert rate_bps == pytest.approx(pair.latest_bps, rel=0.2)


def test_a_delay_that_grows_is_known_within_ten_percent_after_ten_messages_and_is_no_lower_rate() -> None:
    pair = Pair()
    pair.change(Direction(rate_bps=RATE_BPS, delay_s=4 * DELAY_S))

    pair.transfer(10, size_bytes=SMALL_BYTES)

    delay_s, rate_bps = pair.estimate()
    assert delay_s == pytest.approx(4 * DELAY_S, rel=0.10)
    assert rate_bps == pytest.approx(RATE_BPS)


def test_without_messages_a_path_is_what_the_topology_says_however_old_that_is() -> None:
    pair = Pair()
    pair.rest(100.0)

    assert pair.estimate() == (DELAY_S, RATE_BPS)


def test_what_was_measured_long_ago_counts_for_little() -> None:
    pair = Pair()
    pair.change(Direction(rate_bps=RATE_BPS / 4, delay_s=DELAY_S))
    pair.transfer(10)
    _, measured_bps = pair.estimate()

    pair.rest(3 * FORGET_S)
    assert measured_bps < 0.3 * RATE_BPS
    assert pair.estimate()[1] > 0.8 * RATE_BPS
