"""The physics of the simulated network: what a message meets on its way, in virtual time.

Times are exact where the model is; a test that allows some slack says what the slack is for.  Where it says "kernel",
the figure was measured on the emulated network (``benchmarks/simulated_links.py``).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.errors import TestbedError
from testbed.simulation.bundle import Bundle
from testbed.simulation.flow import Flow
from testbed.simulation.loop import VirtualLoop
from testbed.simulation.network import SimulatedLane, SimulatedNetwork
from testbed.tcp import INITIAL_WINDOW_PACKETS, bundle_for
from testbed.topology import Direction, Link, Node, Topology

FAST = Direction(rate_bps=1e9, delay_s=0.005)
#: 120 µs for a full packet; bundles of 8; a queue of 262,144 bytes, so that a flow begins with 131 packets.
SLOW = Direction(rate_bps=1e8, delay_s=0.010)
SLOW_WINDOW = 131
LOSSY = Direction(rate_bps=1e8, delay_s=0.010, loss=0.5)
FULL_BYTES, SEGMENT_BYTES, HEADER_BYTES = 1500, 1448, 52
RTO_S = 0.2  # and a round trip


def wire_bytes(size_bytes: int) -> int:
    """What a message takes on a link."""
    return size_bytes + HEADER_BYTES * -(-size_bytes // SEGMENT_BYTES)


def serialization_s(size_bytes: int, direction: Direction) -> float:
    return 8 * wire_bytes(size_bytes) / direction.rate_bps


def chain(*directions: Direction, back: Direction | None = None) -> Topology:
    """s1 - s2 - s3 ...: servers at the ends, routers between."""
    last = len(directions)
    nodes = tuple(Node(name=f"s{n + 1}", kind="server" if n in (0, last) else "router") for n in range(last + 1))
    links = tuple(
        Link(a=f"s{n + 1}", b=f"s{n + 2}", forward=there, backward=back or there) for n, there in enumerate(directions)
    )
    return Topology(name="chain", nodes=nodes, links=links)


def dumbbell(middle: Direction, pairs: int = 2, edge: Direction = FAST) -> Topology:
    """a1, a2 ... - left - right - b1, b2 ...: every pair has links of its own but for the middle one."""
    nodes = [Node(name="left", kind="router"), Node(name="right", kind="router")]
    links = [Link(a="left", b="right", forward=middle, backward=middle)]
    for number in range(1, pairs + 1):
        nodes += [Node(name=f"a{number}"), Node(name=f"b{number}")]
        links += [
            Link(a=f"a{number}", b="left", forward=edge, backward=edge),
            Link(a="right", b=f"b{number}", forward=edge, backward=edge),
        ]
    return Topology(name="dumbbell", nodes=tuple(nodes), links=tuple(links))


class World:
    """A simulated network and what has arrived in it."""

    def __init__(self, topology: Topology, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.network = SimulatedNetwork(topology, self.loop, deliver=self._deliver, seed=seed)
        self.arrived: list[tuple[object, float]] = []
        self.then: Callable[[str, str, object], None] = lambda source, target, message: None

    def _deliver(self, source: str, target: str, message: object) -> None:
        self.arrived.append((message, self.loop.time()))
        self.then(source, target, message)

    def send(self, at_s: float, size_bytes: int, message: object = "message", *, ends: str = "s1 s2") -> None:
        source, target = ends.split()
        self.loop.call_at(at_s, self.network.send, source, target, size_bytes, message)

    def shape(self, at_s: float, direction: Direction, *, link: str = "s1-s2", source: str = "s1") -> None:
        self.loop.call_at(at_s, self.network.shape, link, source, direction)

    def run(self, until_s: float = 60.0) -> dict[object, float]:
        """When what has arrived until then."""
        self.loop.run_until_complete(asyncio.sleep(until_s - self.loop.time()))
        return dict(self.arrived)

    def carried_bytes(self, link: str) -> int:
        return sum(report.bytes for report in self.network.counters() if report.link == link)

    def dropped(self, reason: str) -> int:
        return sum(report.dropped[reason] for report in self.network.counters())


class Chosen(random.Random):
    """Loses the draws of the given numbers, where the probability of a loss is not 0, and no others."""

    def __init__(self, lost: Collection[int]) -> None:
        super().__init__(0)
        self._lost, self._drawn = lost, -1

    def random(self) -> float:
        self._drawn += 1
        return 0.0 if self._drawn in self._lost else 1.0


class Pair:
    """One flow over lanes of its own, of which given packets are lost."""

    def __init__(
        self,
        *directions: Direction,
        lost: Collection[int] = (),
        window: int = 100,
        back: Direction = SLOW,
        merge: bool = True,
    ) -> None:
        self.loop = VirtualLoop()
        self.lanes = [
            SimulatedLane(f"{n}", "a", "b", direction, Chosen(lost), self.loop)
            for n, direction in enumerate(directions)
        ]
        self.back = SimulatedLane("back", "b", "a", back, random.Random(0), self.loop)  # noqa: S311 - physics
        for lane in self.lanes:
            lane.exact = lane.exact and merge
        self.arrived: list[tuple[object, float]] = []
        self.sent: list[tuple[float, int]] = []  # (time, position in the stream), on the first lane
        self.flow = Flow(
            self.lanes,
            [self.back] * len(self.lanes),
            window=window,
            timers=self.loop,
            deliver=lambda message: self.arrived.append((message, self.loop.time())),
        )

    def send(self, at_s: float, size_bytes: int, message: object = "message") -> None:
        self.loop.call_at(at_s, self.flow.send, size_bytes, message)

    def run(self, until_s: float = 60.0) -> dict[object, float]:
        self.loop.run_until_complete(asyncio.sleep(until_s))
        return dict(self.arrived)


def tries_s(pair: Pair) -> list[float]:
    """When the flow put something on its first lane, from now on."""
    times: list[float] = []
    lane = pair.lanes[0]

    class Watched(SimulatedLane):
        __slots__ = ()

        def send(self, bundle: Bundle, now_s: float) -> bool:
            times.append(now_s)
            return super().send(bundle, now_s)

    lane.__class__ = Watched
    return times


# --- one message ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 1000, 1448, 1449, 10_000, 100_000, SLOW_WINDOW * SEGMENT_BYTES])
@pytest.mark.parametrize("direction", [SLOW, FAST, replace(SLOW, rate_bps=1e6)], ids=["100M", "1G", "1M"])
def test_a_message_on_an_idle_link_takes_serialization_plus_delay_to_the_microsecond(
    size_bytes: int, direction: Direction
) -> None:
    world = World(chain(direction))
    world.send(1.0, size_bytes)

    arrived_s = world.run()["message"]
    assert arrived_s == pytest.approx(1.0 + serialization_s(size_bytes, direction) + direction.delay_s, abs=1e-6)


@pytest.mark.parametrize("message", [None, False, "", 0])
def test_every_message_is_delivered_even_an_empty_one_that_means_nothing(message: object) -> None:
    world = World(chain(SLOW))
    world.send(0.0, 0, message)

    assert world.run() == {message: pytest.approx(0.010 + 8 * 53 / 1e8)}


def test_a_message_crosses_links_one_after_the_other() -> None:
    world = World(chain(SLOW, replace(SLOW, delay_s=0.003), FAST))
    world.send(0.0, 1000, ends="s1 s4")

    expected_s = 2 * serialization_s(1000, SLOW) + serialization_s(1000, FAST) + 0.010 + 0.003 + 0.005
    assert world.run()["message"] == pytest.approx(expected_s, abs=1e-6)


def test_pipelining_a_big_message_over_two_equal_hops_takes_one_serialization_plus_one_bundle_not_two() -> None:
    world = World(chain(FAST, FAST))
    world.send(0.0, 300_000, ends="s1 s3")

    one_bundle_s = 8 * bundle_for(FAST) * FULL_BYTES / FAST.rate_bps
    expected_s = serialization_s(300_000, FAST) + one_bundle_s + 2 * FAST.delay_s
    assert world.run()["message"] == pytest.approx(expected_s, abs=1e-6)


def test_a_fast_link_before_a_slow_one_costs_its_first_bundle_and_its_delay() -> None:
    world = World(chain(FAST, SLOW))
    world.send(0.0, 100_000, ends="s1 s3")

    first_bundle_s = 8 * bundle_for(FAST) * FULL_BYTES / FAST.rate_bps
    expected_s = first_bundle_s + serialization_s(100_000, SLOW) + FAST.delay_s + SLOW.delay_s
    assert world.run()["message"] == pytest.approx(expected_s, abs=1e-6)


def test_a_message_larger_than_the_window_takes_more_round_trips() -> None:
    # 1 Gbit/s and 25 ms: serialization is nothing beside a round trip, and the window doubles with each.
    world = World(chain(replace(FAST, delay_s=0.025)))
    for number, windows in enumerate((1, 3, 7)):
        world.send(10.0 * number, windows * INITIAL_WINDOW_PACKETS * SEGMENT_BYTES, windows, ends="s1 s2")
    first, *later = (arrived_s - 10.0 * n for n, arrived_s in enumerate(world.run().values()))

    assert first == pytest.approx(0.025, abs=0.004)
    assert later[0] == pytest.approx(0.075, abs=0.008)
    # What has been acknowledged stays allowed: the third message begins with twice what the second had under way.
    assert later[1] == pytest.approx(0.075, abs=0.025)


def test_bytes_on_the_link_are_the_payload_and_52_for_every_packet() -> None:
    sizes = [1, 1448, 1449, 50_000, 300_000, 2_000_000]
    world = World(chain(FAST, SLOW))
    for number, size_bytes in enumerate(sizes):
        world.send(2.0 * number, size_bytes, ends="s1 s3")
    world.run()

    # The second link may drop some, which then cross the first again.
    assert world.carried_bytes("s2-s3") == sum(map(wire_bytes, sizes))
    assert world.carried_bytes("s1-s2") == world.carried_bytes("s2-s3") + world.dropped("queue") * FULL_BYTES


def test_nothing_is_on_its_way_after_it_has_arrived() -> None:
    world = World(chain(SLOW, SLOW))
    world.send(0.0, 300_000, ends="s1 s3")
    world.run(10.0)

    assert all(report.queued_bytes == 0 for report in world.network.counters())


# --- many messages ----------------------------------------------------------------------------------------------------


def test_messages_of_one_flow_arrive_in_the_order_in_which_they_were_sent() -> None:
    world = World(chain(SLOW, SLOW))
    for number in range(50):
        world.send(0.001 * number, 100_000 if number % 10 == 0 else 200, number, ends="s1 s3")
    world.run()

    assert [message for message, _ in world.arrived] == list(range(50))


def test_messages_that_wait_for_the_window_share_packets() -> None:
    # As in the kernel, what is written while the window holds it back goes out in full packets.
    world = World(chain(replace(SLOW, delay_s=0.5)))
    for number in range(10_000):
        world.send(0.0, 100, number)
    world.run()

    packets = sum(report.packets for report in world.network.counters())
    assert len(world.arrived) == 10_000
    assert SLOW_WINDOW + (10_000 - SLOW_WINDOW) * 100 / SEGMENT_BYTES <= packets < 3 * SLOW_WINDOW + 700


def test_two_long_transfers_over_one_link_each_get_half_within_5_percent() -> None:
    # The second begins 5 s later and needs some seconds to catch up, as cubic does.
    world = World(dumbbell(SLOW, edge=replace(FAST, delay_s=0.001)))
    for pair in (1, 2):
        for _ in range(800):
            world.send(5.0 * (pair - 1), 1_000_000, pair, ends=f"a{pair} b{pair}")
    world.run(60.0)
    received = [sum(message == pair and at_s > 20.0 for message, at_s in world.arrived) for pair in (1, 2)]

    assert sum(received) * serialization_s(1_000_000, SLOW) == pytest.approx(40.0, rel=0.02)
    assert received[0] == pytest.approx(received[1], rel=0.05)


def test_two_streams_of_messages_that_fit_the_window_each_get_half_of_the_link_within_5_percent() -> None:
    world = World(dumbbell(SLOW))
    received = {"a1": 0, "a2": 0}

    def again(source: str, target: str, message: object) -> None:
        received[source] += 1
        world.network.send(source, target, 50_000, message)

    world.then = again
    for pair in (1, 2):
        for number in range(3):  # enough under way to keep the link busy
            world.send(0.004 * number + 0.002 * pair, 50_000, ends=f"a{pair} b{pair}")
    world.run(20.0)

    carried_s = sum(received.values()) * serialization_s(50_000, SLOW)
    assert carried_s == pytest.approx(20.0, rel=0.01)
    assert received["a1"] == pytest.approx(received["a2"], rel=0.05)


def test_two_pairs_that_meet_on_a_middle_link_share_it_and_those_that_do_not_meet_do_not() -> None:
    # One bundle of 42 packets at once: one pair alone, two that meet.
    times: dict[int, list[float]] = {}
    for pairs in (1, 2):
        world = World(dumbbell(SLOW, pairs))
        for pair in range(1, pairs + 1):
            world.send(0.0, 60_000, pair, ends=f"a{pair} b{pair}")
        times[pairs] = sorted(world.run().values())
    alone_s, (first_s, second_s) = times[1][0], times[2]

    assert first_s == pytest.approx(alone_s, abs=0.001)
    assert second_s - first_s == pytest.approx(serialization_s(60_000, SLOW), abs=0.001)

    apart = World(
        Topology(
            name="apart",
            nodes=tuple(Node(name=name) for name in ("s1", "s2", "s3")),
            links=(
                Link(a="s1", b="s2", forward=SLOW, backward=SLOW),
                Link(a="s1", b="s3", forward=SLOW, backward=SLOW),
            ),
        )
    )
    for target in ("s2", "s3"):
        apart.send(0.0, 60_000, target, ends=f"s1 {target}")
    assert len(set(apart.run().values())) == 1


def test_a_small_message_beside_a_long_transfer_waits_for_at_most_the_window_in_front_of_it() -> None:
    edge = replace(FAST, delay_s=0.001)
    world = World(dumbbell(SLOW, edge=edge))
    world.send(0.0, 20_000_000, "long", ends="a1 b1")
    sent_s = {number: 0.2 + 0.05 * number for number in range(20)}
    for number, at_s in sent_s.items():
        world.send(at_s, 200, number, ends="a2 b2")
    arrived_s = world.run()
    idle_s = SLOW.delay_s + 2 * edge.delay_s
    waits_s = [arrived_s[number] - at_s - idle_s for number, at_s in sent_s.items()]

    # The queue takes 262,144 bytes, 21 ms; a flow that keeps it full fills some of it, and never more.
    assert max(waits_s) < 8 * SLOW.effective_queue_bytes / SLOW.rate_bps + 0.001
    assert statistics.mean(waits_s) > 0.002
    assert arrived_s["long"] > sent_s[19]


def test_directions_of_a_link_do_not_take_room_from_each_other() -> None:
    world = World(chain(SLOW))
    world.send(0.0, 100_000, "there", ends="s1 s2")
    world.send(0.0, 100_000, "back", ends="s2 s1")
    arrived_s = world.run()

    assert arrived_s["there"] == arrived_s["back"] == pytest.approx(0.010 + serialization_s(100_000, SLOW))


def test_acknowledgements_wait_behind_what_is_queued_on_their_way_back() -> None:
    # Twice the window: its second half leaves when the first is acknowledged.
    size_bytes = 2 * SLOW_WINDOW * SEGMENT_BYTES
    alone, against = World(chain(SLOW)), World(chain(SLOW))
    for world in (alone, against):
        world.send(0.0, size_bytes, "there")
    against.send(0.0, SLOW_WINDOW * SEGMENT_BYTES, "back", ends="s2 s1")
    later_s = against.run()["there"] - alone.run()["there"]

    # The first acknowledgement sets out at 11 ms and finds 5 ms of the other's burst before it.
    assert 0.003 < later_s < 0.006


def test_the_way_back_may_be_another_one() -> None:
    # The first half waits for 10 ms, its acknowledgement for 40 ms.
    world = World(chain(replace(SLOW, rate_bps=1e9), back=replace(SLOW, delay_s=0.040)))
    world.send(0.0, 2 * 256 * SEGMENT_BYTES)

    assert world.run()["message"] == pytest.approx(2 * 0.010 + 0.040, abs=0.005)


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_single_lost_small_message_comes_after_the_round_trip_and_200_ms() -> None:
    pair = Pair(LOSSY, lost={0})
    pair.send(1.0, 1000)

    assert pair.run()["message"] == pytest.approx(1.0 + (0.020 + RTO_S) + 0.010 + serialization_s(1000, LOSSY))


def test_who_waits_for_a_lost_message_is_told_of_it_sooner_when_more_follow() -> None:
    # Three later packets are acknowledged a round trip after they were sent: the loss is certain.
    pair = Pair(LOSSY, lost={0})
    for number in range(4):
        pair.send(0.001 * number, 1000, number)
    arrived_s = pair.run()

    assert arrived_s[0] == pytest.approx(0.003 + 0.020 + 0.010, abs=0.001)
    assert set(arrived_s.values()) == {arrived_s[0]}  # the others had to wait for it


def test_one_later_packet_tells_of_a_loss_a_quarter_of_a_round_trip_after_it_was_acknowledged() -> None:
    pair = Pair(LOSSY, lost={0})
    pair.send(0.0, 2 * SEGMENT_BYTES)

    assert pair.run()["message"] == pytest.approx(0.020 + 0.020 / 4 + 0.010, abs=0.001)


def test_a_loss_in_the_midst_of_a_message_costs_about_one_round_trip() -> None:
    undisturbed, disturbed = Pair(LOSSY), Pair(LOSSY, lost={40})
    for pair in (undisturbed, disturbed):
        pair.send(0.0, 80 * SEGMENT_BYTES)
    # The lost packet was sent at 0; its successor is acknowledged after 20 ms and its place in the queue.
    expected_s = 41 * 120e-6 + 0.020 + 0.010

    assert undisturbed.run()["message"] == pytest.approx(0.010 + 80 * 120e-6, abs=1e-5)
    assert disturbed.run()["message"] == pytest.approx(expected_s, abs=0.002)
    assert disturbed.flow.retransmitted == 1


def test_a_lost_tail_of_two_packets_is_probed_for_after_two_round_trips_and_repaired_after_another() -> None:
    # Sent at 0; the last acknowledgement comes at 21 ms; the probe, which is the last packet, leaves 2 RTT + 8 ms
    # later; its acknowledgement tells of the other one.
    pair = Pair(LOSSY, lost={8, 9})
    pair.send(0.0, 10 * SEGMENT_BYTES)
    heard_s = 8 * 120e-6 + 0.020
    probed_s = heard_s + 2 * 0.0205 + 0.008

    assert pair.run()["message"] == pytest.approx(probed_s + 0.020 + 0.010, abs=0.002)


def test_what_a_probe_repairs_has_shrunk_the_window() -> None:
    pair = Pair(LOSSY, lost={0})
    pair.send(0.0, 1000)
    pair.send(1.0, 1000)
    pair.run()

    assert pair.flow.window.packets == pytest.approx(0.7 * 100, rel=0.01)


def test_nothing_is_sent_again_while_what_is_under_way_will_tell() -> None:
    # A packet takes 120 ms here, longer than a probe would wait.
    pair = Pair(replace(LOSSY, rate_bps=1e5), lost={0})
    tries = tries_s(pair)
    pair.send(0.0, 4 * SEGMENT_BYTES)
    pair.run()

    assert pair.flow.retransmitted == 1
    assert tries[-1] == pytest.approx(2 * 0.120 + 0.020 + 0.020 / 4, abs=0.001)


def test_a_lost_last_packet_alone_is_sent_again_200_ms_and_a_round_trip_after_the_last_news() -> None:
    pair = Pair(LOSSY, lost={9})
    pair.send(0.0, 10 * SEGMENT_BYTES)
    heard_s = 9 * 120e-6 + 0.020

    assert pair.run()["message"] == pytest.approx(heard_s + 0.0205 + RTO_S + 0.010, abs=0.002)


def test_a_packet_that_is_lost_again_and_again_is_sent_after_ever_longer_waits() -> None:
    pair = Pair(LOSSY, lost=range(6))
    tries = tries_s(pair)
    pair.send(0.0, 1000)
    pair.run()
    waits_s = [after - before for before, after in itertools.pairwise(tries)]

    # A probe and the first time-out wait equally long; each further one twice as long as the one before.
    assert waits_s == pytest.approx([0.220, 0.220, 0.440, 0.880, 1.760, 3.520])


def test_a_retransmission_that_is_lost_is_noticed_by_what_was_sent_after_it() -> None:
    # Packet 3 is lost twice; packets that the window lets go meanwhile tell of it.
    pair = Pair(LOSSY, lost={3, 20}, window=20)
    pair.send(0.0, 60 * SEGMENT_BYTES)

    assert pair.run()["message"] < 0.15  # no time-out
    assert pair.flow.retransmitted == 2


@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_mean_added_time_of_small_messages_is_what_the_model_says(loss: float) -> None:
    world = World(chain(replace(SLOW, loss=loss), back=SLOW))
    number = 4000
    for each in range(number):
        world.send(20.0 * each, 1000, each)
    arrived_s = world.run(20.0 * number)
    added_s = statistics.mean(arrived_s[each] - 20.0 * each for each in range(number)) - 0.010

    # One wait of 220 ms after the first loss, another after the second, then twice as long each time.
    expected_s = 0.220 * (loss + loss**2 + 2 * loss**3 + 4 * loss**4)
    deviation_s = 0.220 * (loss / number) ** 0.5
    assert len(arrived_s) == number
    assert added_s - serialization_s(1000, SLOW) == pytest.approx(expected_s, abs=4 * deviation_s)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from([0.0, 0.02, 0.2, 0.5]),
    jitter_s=st.sampled_from([0.0, 0.002]),
    hops=st.integers(1, 3),
    messages=st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(0, 60_000)), min_size=1, max_size=12),
)
def test_whatever_is_lost_every_message_arrives_exactly_once_and_in_order(
    seed: int, loss: float, jitter_s: float, hops: int, messages: Sequence[tuple[float, int]]
) -> None:
    direction = replace(SLOW, loss=loss, jitter_s=jitter_s, queue_bytes=30_000)
    world = World(chain(FAST, *[direction] * (hops - 1)) if hops > 1 else chain(direction), seed)
    for number, (at_s, size_bytes) in enumerate(sorted(messages)):
        world.send(at_s, size_bytes, number, ends=f"s1 s{hops + 1}")
    world.run(3600.0)

    assert [message for message, _ in world.arrived] == list(range(len(messages)))
    last = world.network.counters()[2 * (hops - 1)]
    assert last.bytes >= sum(size_bytes for _, size_bytes in messages)


def test_on_a_path_only_the_lossy_link_loses_and_it_loses_single_packets() -> None:
    # The first link carries bundles of 44 packets; were they lost as a whole, losses would come in 44s.
    world = World(chain(FAST, replace(SLOW, loss=0.02)))
    for number in range(100):
        world.send(2.0 * number, 100_000, number, ends="s1 s3")
    world.run(400.0)
    first, _, second, _ = world.network.counters()

    assert len(world.arrived) == 100
    assert not any(first.dropped.values())
    assert second.dropped["loss"] == pytest.approx(0.02 * (second.packets + second.dropped["loss"]), rel=0.25)


def test_after_a_loss_the_window_shrinks_by_a_third_and_grows_again_as_cubic() -> None:
    # Packet 50 of the first window is lost, after 50 acknowledgements have let it grow to 150.
    pair = Pair(LOSSY, lost={50})
    for number in range(60):
        pair.send(0.1 * number, 160 * SEGMENT_BYTES, number)
    windows = []
    for _ in range(60):
        pair.run(0.1)
        windows.append(pair.flow.window.packets)

    assert windows[0] == pytest.approx(0.7 * 150, rel=0.02)
    assert windows == sorted(windows)
    # Cubic would be back at 150 after 4.9 s of sending, and its clock stands still for 6 tenths of the time.
    assert windows[-1] == pytest.approx(150 - 0.4 * (4.9 - 0.4 * 6.0) ** 3, rel=0.02)


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_that_overflows_drops_and_everything_arrives_nevertheless() -> None:
    world = World(dumbbell(SLOW, 4))
    for pair in range(1, 5):
        world.send(0.0, 300_000, pair, ends=f"a{pair} b{pair}")
    arrived_s = world.run()

    assert len(arrived_s) == 4
    assert world.dropped("queue") > 0
    assert max(arrived_s.values()) > 0.020 + 4 * serialization_s(300_000, SLOW)


def test_a_burst_that_fits_the_window_but_not_the_queue_loses_its_tail() -> None:
    # 200 packets into a queue of 30,000 bytes on an idle line: 20 are accepted.
    pair = Pair(replace(SLOW, queue_bytes=30_000), window=200)
    pair.send(0.0, 200 * SEGMENT_BYTES)
    arrived_s = pair.run()["message"]

    assert pair.lanes[0].counters(60.0).dropped["queue"] == pair.flow.retransmitted > 170
    # The tail is probed for, and recovery begins with one packet: (5) of testbed.simulation.cubic.
    assert 0.15 < arrived_s < 1.0


@pytest.mark.parametrize(
    ("direction", "size_bytes", "kernel_share"),
    [
        (replace(SLOW, delay_s=0.020), 50_000_000, 0.90),
        (SLOW, 50_000_000, 0.95),
        (FAST, 200_000_000, 0.90),
        (replace(SLOW, rate_bps=1e7), 5_000_000, 0.97),
    ],
    ids=["100M 20 ms", "100M 10 ms", "1G 5 ms", "10M 10 ms"],
)
def test_a_long_transfer_fills_the_link_as_the_kernels_does(
    direction: Direction, size_bytes: int, kernel_share: float
) -> None:
    world = World(chain(direction))
    world.send(0.0, size_bytes)

    share = serialization_s(size_bytes, direction) / world.run(120.0)["message"]
    assert kernel_share <= share <= 1.0


@pytest.mark.parametrize(
    ("directions", "size_bytes", "kernel_ms"),
    [
        # Messages one after the other on one connection.  Where tails are lost, the kernel itself varies by 10 %.
        ([SLOW], 300_000, [40.5, 287.0, 53.4, 36.7, 36.4]),
        ([SLOW], 1_000_000, [98.6, 94.2, 109.9, 118.4, 117.2]),
        ([SLOW, SLOW], 300_000, [72.3, 527.4, 353.4, 66.9]),
        ([SLOW, SLOW], 1_000_000, [141.2, 163.6, 166.9]),
        ([FAST], 1_000_000, [21.1, 13.5, 13.6]),
        ([FAST, FAST], 1_000_000, [37.2, 19.2, 19.2]),
        ([replace(FAST, delay_s=0.025)], 5_000_000, [197.3, 67.0, 67.0]),
        ([replace(FAST, delay_s=0.025)] * 2, 5_000_000, [374.5, 181.4, 92.4]),
    ],
    ids=["100M 300 kB", "100M 1 MB", "100M twice 300 kB", "100M twice 1 MB", "1G", "1G twice", "1G 25 ms", "... twice"],
)
def test_messages_beyond_the_window_and_the_queue_take_as_long_as_the_kernel_takes(
    directions: list[Direction], size_bytes: int, kernel_ms: list[float]
) -> None:
    world = World(chain(*directions))
    gap_s = 0.25 + 1.5 * serialization_s(size_bytes, directions[0])
    world.send(0.0, 100, "first", ends=f"s1 s{len(directions) + 1}")
    for number in range(len(kernel_ms)):
        world.send(0.3 + gap_s * number, size_bytes, number, ends=f"s1 s{len(directions) + 1}")
    arrived_s = world.run()

    times_ms = [1e3 * (arrived_s[number] - 0.3 - gap_s * number) for number in range(len(kernel_ms))]
    assert times_ms == pytest.approx(kernel_ms, rel=0.10)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_link_that_is_down_for_3_s_delivers_afterwards_when_the_sender_next_tries() -> None:
    world = World(chain(SLOW))
    world.shape(1.0, replace(SLOW, loss=1.0))
    world.shape(4.0, SLOW)
    world.send(1.1, 1000)

    # Tries at 1.1, then after 0.22, 0.22, 0.44, 0.88 and 1.76 s, which is the first when the link is there again.
    assert world.run()["message"] == pytest.approx(1.1 + 16 * 0.220 + 0.010, abs=0.001)


def test_what_is_sent_while_a_link_is_down_comes_all_together_afterwards() -> None:
    world = World(chain(SLOW))
    world.shape(1.0, replace(SLOW, loss=1.0))
    world.shape(4.0, SLOW)
    for number in range(10):
        world.send(1.1 + 0.2 * number, 20_000, number)
    world.run()

    assert [message for message, _ in world.arrived] == list(range(10))
    assert all(4.0 < at_s < 5.5 for _, at_s in world.arrived)


def test_a_rate_change_half_way_stretches_the_rest() -> None:
    # 100,000 bytes need 8.3 ms; after 4 ms the rest takes five times as long.
    world = World(chain(SLOW))
    world.send(1.0, 100_000)
    world.shape(1.004, replace(SLOW, rate_bps=2e7))

    rest_s = serialization_s(100_000, SLOW) - 0.004
    assert world.run()["message"] == pytest.approx(1.004 + 5 * rest_s + 0.010, abs=1e-6)


def test_a_link_that_becomes_faster_shortens_the_rest() -> None:
    world = World(chain(replace(SLOW, rate_bps=2e7)))
    world.send(1.0, 100_000)
    world.shape(1.020, SLOW)

    rest_s = serialization_s(100_000, replace(SLOW, rate_bps=2e7)) - 0.020
    assert world.run()["message"] == pytest.approx(1.020 + rest_s / 5 + 0.010, abs=1e-6)


def test_a_congestion_event_slows_what_is_sent_during_it_and_nothing_else() -> None:
    world = World(chain(SLOW))
    world.shape(1.0, replace(SLOW, rate_bps=1e7))
    world.shape(2.0, SLOW)
    for at_s in (0.5, 1.5, 2.5):
        world.send(at_s, 10_000, at_s)
    arrived_s = world.run()

    quick_s, slow_s = serialization_s(10_000, SLOW), serialization_s(10_000, replace(SLOW, rate_bps=1e7))
    assert [at - sent for sent, at in arrived_s.items()] == pytest.approx(
        [0.010 + quick_s, 0.010 + slow_s, 0.010 + quick_s]
    )


def test_a_longer_delay_holds_for_what_is_sent_after_it() -> None:
    world = World(chain(SLOW))
    world.send(1.0, 1000, "before")
    world.shape(1.005, replace(SLOW, delay_s=0.050))
    world.send(1.010, 1000, "after")
    arrived_s = world.run()

    assert arrived_s["before"] == pytest.approx(1.010 + serialization_s(1000, SLOW))
    assert arrived_s["after"] == pytest.approx(1.060 + serialization_s(1000, SLOW))


@given(st.integers(0, 1000), st.lists(st.tuples(st.floats(0, 0.3), st.integers(1, 40_000)), min_size=1, max_size=20))
@settings(max_examples=40)
def test_changes_in_the_midst_of_everything_lose_no_message(seed: int, messages: Sequence[tuple[float, int]]) -> None:
    rng = random.Random(seed)  # noqa: S311 - physics, not secrets
    world = World(chain(FAST, SLOW), seed)
    for number, (at_s, size_bytes) in enumerate(sorted(messages)):
        world.send(at_s, size_bytes, number, ends="s1 s3")
    for _ in range(10):
        changed = Direction(
            rate_bps=rng.choice([1e6, 1e8, 1e9]),
            delay_s=rng.choice([0.0, 0.01, 0.1]),
            jitter_s=rng.choice([0.0, 0.002]),
            loss=rng.choice([0.0, 0.0, 0.1, 1.0]),
        )
        link, source = rng.choice([("s1-s2", "s1"), ("s2-s3", "s2"), ("s2-s3", "s3")])
        world.shape(rng.uniform(0, 0.5), changed, link=link, source=source)
    for link, source in (("s1-s2", "s1"), ("s2-s3", "s2")):
        world.shape(1.0, FAST, link=link, source=source)
    world.run(3600.0)

    assert [message for message, _ in world.arrived] == list(range(len(messages)))


def test_jitter_keeps_the_order_and_adds_its_mean() -> None:
    world = World(chain(replace(SLOW, jitter_s=0.002)))
    sent_s = {number: 0.5 * number for number in range(2000)}
    for number, at_s in sent_s.items():
        world.send(at_s, 3000, number)
    arrived_s = world.run(2000.0)
    extra_s = [arrived_s[number] - at_s - 0.010 - serialization_s(3000, SLOW) for number, at_s in sent_s.items()]

    assert [message for message, _ in world.arrived] == list(sent_s)
    assert statistics.mean(extra_s) == pytest.approx(0.0, abs=0.0003)
    assert statistics.stdev(extra_s) == pytest.approx(0.002, rel=0.1)


# --- equivalences -----------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    messages=st.lists(st.tuples(st.floats(0.0, 0.2), st.integers(1, 400_000)), min_size=1, max_size=8),
    rate_bps=st.sampled_from([2e7, 1e8, 1e9, 1e10]),
    queue_bytes=st.sampled_from([None, 60_000, 10_000_000]),
    window=st.sampled_from([2, 20, 131, 256]),
)
# a message that waited with a later one; a burst behind packets that have not arrived
@example(messages=[(0.0, 1)] * 3 + [(0.0, 1448)], rate_bps=2e7, queue_bytes=None, window=2)
@example(messages=[(0.0, 1)] * 4 + [(0.0, 1449), (0.0, 183_897)], rate_bps=2e7, queue_bytes=None, window=131)
@example(
    messages=[(0.0, 9), (0.0105, 9), (0.0106, 14_480), (0.0107, 99_999)], rate_bps=1e8, queue_bytes=None, window=20
)
def test_the_merged_burst_over_one_exact_link_equals_bundle_by_bundle(
    messages: Sequence[tuple[float, int]], rate_bps: float, queue_bytes: int | None, window: int
) -> None:
    direction = Direction(rate_bps=rate_bps, delay_s=0.010, queue_bytes=queue_bytes)
    runs = []
    for merge in (True, False):
        pair = Pair(direction, window=window, merge=merge)
        for number, (at_s, size_bytes) in enumerate(sorted(messages)):
            pair.send(at_s, size_bytes, number)
        pair.run(600.0)
        counters = pair.lanes[0].counters(600.0)
        runs.append((pair.arrived, (counters.packets, counters.bytes, counters.dropped), pair.flow.window.packets))
    (merged, carried, end), (single, carried_singly, end_singly) = runs

    assert [message for message, _ in merged] == [message for message, _ in single]
    assert [at_s for _, at_s in merged] == pytest.approx([at_s for _, at_s in single], abs=1e-9)
    assert carried == carried_singly
    assert end == pytest.approx(end_singly)


def test_the_merged_burst_is_one_event_instead_of_many() -> None:
    events = []
    for merge in (True, False):
        pair = Pair(SLOW, merge=merge)
        pair.send(0.0, 100 * SEGMENT_BYTES)
        pair.run()
        events.append(pair.loop.events)

    assert events[0] < events[1] - 8


def congested(seed: int) -> list[tuple[object, float]]:
    """What arrives when, where messages of four pairs meet on a lossy link with jitter."""
    world = World(dumbbell(replace(SLOW, loss=0.02, jitter_s=0.001), 4), seed)
    for number in range(40):
        world.send(0.02 * number, 5000 * (1 + number % 7), number, ends=f"a{number % 4 + 1} b{number % 4 + 1}")
    world.run()
    return world.arrived


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_other_losses() -> None:
    assert congested(1) == congested(1)
    assert congested(1) != congested(2)


# --- what people see --------------------------------------------------------------------------------------------------


def test_counters_say_what_every_direction_has_carried_and_what_waits() -> None:
    world = World(chain(SLOW))
    world.send(1.0, 14_480)
    world.loop.run_until_complete(asyncio.sleep(1.0006))
    there, back = world.network.counters()

    assert (there.link, there.source, there.target, there.applied) == ("s1-s2", "s1", "s2", SLOW)
    assert (there.packets, there.bytes, there.queued_bytes) == (10, 15_000, 7_500)
    assert (back.packets, back.bytes, back.queued_bytes) == (0, 0, 0)
    assert world.network.sent == 1


def test_a_link_is_shaped_from_either_end_under_either_name() -> None:
    network = World(chain(SLOW, FAST)).network
    slower = replace(SLOW, rate_bps=1e6)

    assert network.shape("s2-s1", "s2", slower) == slower
    assert network.shaping() == {
        ("s1-s2", "s1"): SLOW,
        ("s1-s2", "s2"): slower,
        ("s2-s3", "s2"): FAST,
        ("s2-s3", "s3"): FAST,
    }


@pytest.mark.parametrize(
    ("link", "source", "complaint"),
    [("s1-s9", "s1", "has no link 's1-s9'"), ("s1-s2", "s3", "'s3' is no end of s1-s2")],
)
def test_a_link_that_is_not_there_cannot_be_shaped(link: str, source: str, complaint: str) -> None:
    with pytest.raises(TestbedError, match=complaint):
        World(chain(SLOW, FAST)).network.shape(link, source, SLOW)
