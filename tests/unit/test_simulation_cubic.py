"""The window of one sender: slow start and its end, CUBIC, recovery, time-outs.  Positions count packets here."""

from __future__ import annotations

import itertools
import math

import pytest

from testbed.simulation.cubic import BETA, Cubic, Phase

RTT_S = 0.1


class Bulk:
    """A sender that always has more, whose packets are acknowledged one by one."""

    def __init__(self, window: int, *, rtt_s: float = RTT_S) -> None:
        self.window = Cubic(window, rtt_s=rtt_s)
        self.sent = self.acknowledged = 0
        self.fill()

    def fill(self) -> None:
        self.sent = self.acknowledged + int(self.window.packets)
        self.window.used(self.sent - self.acknowledged, self.acknowledged, self.sent, held_back=True)

    def acknowledge(self, at_s: float, *, rtt_s: float = RTT_S, packets: int = 1) -> None:
        self.acknowledged += packets
        self.window.acknowledged(at_s, packets, self.acknowledged, rtt_s, self.sent)
        self.fill()

    def round(self, at_s: float, *, rtt_s: float = RTT_S, lasts_s: float = 0.01) -> None:
        """One window is acknowledged, evenly within ``lasts_s``."""
        number = int(self.window.packets)
        for each in range(number):
            self.acknowledge(at_s + lasts_s * each / number, rtt_s=rtt_s)


def lose(bulk: Bulk) -> None:
    """Enter recovery and leave it again."""
    window = bulk.window
    window.lose(bulk.sent)
    window.recovering(1, bulk.sent, RTT_S, 0, advanced=True, lost=False)
    bulk.acknowledged = bulk.sent
    bulk.fill()


def test_the_window_doubles_with_every_round_trip_until_something_happens() -> None:
    bulk = Bulk(10)
    for number, expected in enumerate((20, 40, 80, 160)):
        bulk.round(RTT_S * (1 + number))
        assert bulk.window.packets == expected


def test_who_sends_less_than_half_a_window_learns_nothing_of_the_path() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    for number in range(1, 50):
        window.acknowledged(0.1 * number, 10, 10 * number, RTT_S, 10 * number)

    assert window.packets == 100


def test_a_burst_lets_the_window_grow_to_twice_itself_at_most() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    for number in range(1, 50):
        window.used(80, 80 * (number - 1), 80 * number)
        for each in range(80):
            window.acknowledged(0.1 * number + 1e-5 * each, 1, 80 * (number - 1) + each + 1, RTT_S, 80 * number)

    assert window.packets == 160


def test_slow_start_ends_when_the_round_trip_has_grown() -> None:
    bulk = Bulk(100)
    bulk.round(0.1)
    bulk.round(0.2, rtt_s=RTT_S + 0.0120)  # 1/8 of it is 12.5 ms

    assert math.isinf(bulk.window.threshold)
    bulk.round(0.3, rtt_s=RTT_S + 0.0130)
    assert bulk.window.threshold == pytest.approx(400, abs=10)


def test_slow_start_ends_when_acknowledgements_come_without_a_gap_for_half_a_round_trip() -> None:
    short, long = Bulk(100), Bulk(100)
    short.round(0.1, lasts_s=0.045)
    long.round(0.1, lasts_s=0.055)

    assert math.isinf(short.window.threshold)
    # 50 ms and half a millisecond are 92 packets.
    assert long.window.threshold == pytest.approx(192, abs=2)


def test_gaps_between_acknowledgements_are_no_sign_of_a_full_path() -> None:
    bulk = Bulk(30)
    bulk.round(0.1, lasts_s=0.09)  # one every 3 ms

    assert math.isinf(bulk.window.threshold)


def test_before_any_loss_the_window_grows_by_a_twentieth_per_round_trip_once_slow_start_is_over() -> None:
    bulk = Bulk(100)
    bulk.round(0.1, lasts_s=0.09)
    before = bulk.window.packets
    bulk.round(0.2)

    assert bulk.window.packets == pytest.approx(1.05 * before, rel=0.02)


def test_a_loss_takes_three_tenths_of_the_window() -> None:
    bulk = Bulk(1000)
    lose(bulk)

    assert bulk.window.phase is Phase.OPEN
    assert bulk.window.packets == bulk.window.threshold == pytest.approx(1000 * BETA)


def test_after_a_loss_the_window_returns_along_a_cubic_and_then_probes_beyond() -> None:
    bulk = Bulk(1000)
    lose(bulk)
    k_s = (1000 * (1 - BETA) / 0.4) ** (1 / 3)
    at_s, windows = 0.1, {}
    while at_s < 2 * k_s:
        bulk.round(at_s, lasts_s=0.099)
        at_s += 0.1
        windows[at_s] = bulk.window.packets

    for at_s, window in windows.items():
        assert window == pytest.approx(1000 + 0.4 * (at_s - k_s) ** 3, rel=0.02)


def test_a_small_window_grows_as_fast_as_an_aimd_flow() -> None:
    # Cubic alone would add 0.0004 packets in the first round trip of 1 ms.
    bulk = Bulk(10, rtt_s=0.001)
    lose(bulk)
    before = bulk.window.packets
    for number in range(1, 31):
        bulk.round(0.001 * number, rtt_s=0.001, lasts_s=0.0009)

    assert bulk.window.packets - before == pytest.approx(30 * 8 / 15, rel=0.2)


def test_above_the_threshold_only_who_is_held_back_learns_of_more_room() -> None:
    window = Cubic(1000, rtt_s=RTT_S)
    window.probed()
    for number in range(1, 11):  # 600 of 700 packets at a time
        window.used(600, 600 * (number - 1), 600 * number)
        window.acknowledged(0.1 * number, 600, 600 * number, RTT_S, 600 * number)
    assert window.packets == window.threshold

    window.used(700, 6000, 6700)
    window.acknowledged(1.1, 700, 6700, RTT_S, 6700)
    assert window.packets > window.threshold


def test_idle_time_does_not_count() -> None:
    steady, idle = Bulk(1000), Bulk(1000)
    for bulk in (steady, idle):
        lose(bulk)
        bulk.round(0.1)
    idle.window.resumed(60.0)
    steady.round(0.2)
    idle.round(60.2)

    assert idle.window.packets == pytest.approx(steady.window.packets, rel=1e-3)


def test_a_second_loss_on_the_way_up_makes_room_for_newcomers() -> None:
    bulk = Bulk(1000)
    lose(bulk)
    lose(bulk)
    for number in range(1, 200):
        bulk.round(0.1 * number, lasts_s=0.099)
        if bulk.window.packets > 0.7 * 0.85 * 1000:
            break

    # It levels off at 0.85 x 700 instead of 700.
    before = bulk.window.packets
    bulk.round(0.1 * number + 0.1, lasts_s=0.099)
    assert bulk.window.packets - before < 3


def test_recovery_from_the_loss_of_nearly_all_starts_with_one_packet_as_the_kernel_does() -> None:
    # 26 bundles were sent, the last 5 lost; the kernel's retransmissions, acknowledgement by acknowledgement.
    window = Cubic(231, rtt_s=0.020)
    window.lose(100)
    window.allow(1, 0, advanced=False, lost=True)
    sent = []
    for _ in range(5):
        allowed = int(window.packets)
        sent.append(allowed)
        window.sent += allowed
        window.recovering(allowed, 0, 0.020, 0, advanced=True, lost=False)

    assert sent == [1, 2, 3, 4, 5]


def test_recovery_from_a_single_loss_sends_seven_packets_for_ten_acknowledged() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    window.lose(1000)
    flight, sent = 99, 0
    for _ in range(60):
        flight -= 1
        window.recovering(1, 0, RTT_S, flight, advanced=False, lost=False)
        while int(window.packets) > flight:
            flight, sent, window.sent = flight + 1, sent + 1, window.sent + 1

    assert sent == pytest.approx(60 * BETA, abs=1.01)


def test_after_a_time_out_slow_start_leads_from_one_packet_back_to_the_threshold() -> None:
    bulk = Bulk(100)
    bulk.window.timed_out(0, bulk.sent)
    assert (bulk.window.packets, bulk.window.phase) == (1.0, Phase.LOSS)

    bulk.sent = bulk.acknowledged
    bulk.fill()
    seen = []
    for number in range(1, 9):
        bulk.round(0.1 * number, lasts_s=0.001)
        seen.append(bulk.window.packets)
    assert seen[:6] == [2, 4, 8, 16, 32, 64]
    assert all(later / earlier < 1.1 for earlier, later in itertools.pairwise(seen[6:]))
    assert seen[6] == pytest.approx(100 * BETA, rel=0.1)


def test_a_time_out_is_over_when_everything_sent_before_it_has_arrived() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    window.timed_out(0, 50)
    window.acknowledged(1.0, 1, 49, RTT_S, 50)
    assert window.phase is Phase.LOSS

    window.acknowledged(1.1, 1, 50, RTT_S, 50)
    assert window.phase is Phase.OPEN


def test_further_time_outs_of_the_same_trouble_do_not_lower_the_threshold_again() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    window.timed_out(0, 50)
    window.timed_out(0, 50)

    assert window.threshold == pytest.approx(100 * BETA)


def test_what_a_probe_repairs_is_a_loss_too() -> None:
    window = Cubic(100, rtt_s=RTT_S)
    window.probed()

    assert (window.packets, window.phase) == (pytest.approx(100 * BETA), Phase.OPEN)


def test_the_round_trip_is_smoothed_over_eight_samples() -> None:
    window = Cubic(100, rtt_s=0.1)
    for number in range(8):
        window.acknowledged(float(number), 1, number + 1, 0.2, number + 1)

    assert window.rtt_s == pytest.approx(0.2 - 0.1 * (7 / 8) ** 8)
