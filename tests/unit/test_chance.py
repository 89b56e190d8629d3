"""What chance does to packets: shares, bursts, jitter's shape and memory, and the same dice again."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from dataclasses import replace

import pytest

from testbed.impairments import TABLE_SIGMA, Distribution, GilbertElliott
from testbed.shaping.chance import JITTER_MEMORY, Chance
from testbed.topology import Direction

PLAIN = Direction(rate_bps=1e9, delay_s=0.010)
PACKETS = 200_000


def dice(direction: Direction, seed: int = 1) -> Chance:
    return Chance(direction, random.Random(seed))  # noqa: S311 - physics, not secrets


def losses(direction: Direction, packets: int = PACKETS) -> list[bool]:
    chance = dice(direction)
    return [chance.lost() for _ in range(packets)]


def test_nothing_happens_where_nothing_is_asked_for() -> None:
    chance = dice(PLAIN)

    assert not chance.loses
    assert not any(chance.lost() or chance.duplicated() or chance.corrupted() for _ in range(1000))


@pytest.mark.parametrize("name", ["lost", "duplicated", "corrupted"])
def test_each_share_is_met_by_packets_that_know_nothing_of_each_other(name: str) -> None:
    direction = replace(PLAIN, loss=0.02, duplicate=0.02, corrupt=0.02)
    draw = getattr(dice(direction), name)
    drawn = [draw() for _ in range(PACKETS)]
    after = [b for a, b in itertools.pairwise(drawn) if a]

    assert statistics.mean(drawn) == pytest.approx(0.02, abs=5 * math.sqrt(0.02 / PACKETS))
    assert statistics.mean(after) == pytest.approx(0.02, abs=5 * math.sqrt(0.02 / len(after)))


def test_a_share_of_one_takes_every_packet() -> None:
    chance = dice(replace(PLAIN, loss=1.0, duplicate=1.0, corrupt=1.0))

    assert all(chance.lost() and chance.duplicated() and chance.corrupted() for _ in range(1000))


def test_bursts_have_their_mean_loss_and_their_mean_length() -> None:
    bursts = GilbertElliott(worsens=0.01, recovers=0.2)
    lost = losses(replace(PLAIN, burst_loss=bursts))
    lengths = [sum(1 for _ in group) for is_lost, group in itertools.groupby(lost) if is_lost]

    assert bursts.mean_loss == pytest.approx(1 / 21)
    assert statistics.mean(lost) == pytest.approx(1 / 21, rel=0.08)
    assert bursts.mean_burst_packets == 5
    assert statistics.mean(lengths) == pytest.approx(5, rel=0.08)
    # The length of a spell is geometric: a fifth of them end after one packet.
    assert lengths.count(1) / len(lengths) == pytest.approx(0.2, abs=0.04)


def test_a_bad_link_may_lose_some_and_a_good_one_a_few() -> None:
    bursts = GilbertElliott(worsens=0.05, recovers=0.15, loss_bad=0.4, loss_good=0.01)
    lost = losses(replace(PLAIN, burst_loss=bursts))

    assert bursts.mean_loss == pytest.approx(0.25 * 0.4 + 0.75 * 0.01)
    assert statistics.mean(lost) == pytest.approx(bursts.mean_loss, rel=0.05)


def test_bursts_and_single_losses_add_up_as_the_direction_says() -> None:
    direction = replace(PLAIN, loss=0.1, burst_loss=GilbertElliott(worsens=0.02, recovers=0.18))

    assert direction.mean_loss == pytest.approx(1 - 0.9 * 0.9)
    assert statistics.mean(losses(direction)) == pytest.approx(0.19, rel=0.05)


def test_a_link_that_changes_every_time_loses_every_other_packet() -> None:
    lost = losses(replace(PLAIN, burst_loss=GilbertElliott(worsens=1.0, recovers=1.0)), 10)

    assert lost == [True, False] * 5


def test_a_change_of_other_things_does_not_end_a_bad_spell_and_taking_bursts_back_does() -> None:
    endless = replace(PLAIN, burst_loss=GilbertElliott(worsens=1.0, recovers=1e-9))
    chance = dice(endless)
    assert chance.lost()

    chance.adopt(replace(endless, delay_s=0.5))
    assert chance.lost()
    chance.adopt(PLAIN)
    assert not chance.loses
    chance.adopt(replace(PLAIN, burst_loss=GilbertElliott(worsens=1e-9, recovers=1e-9)))
    assert not any(chance.lost() for _ in range(100))


def test_normal_jitter_has_its_deviation_where_packets_are_far_apart() -> None:
    chance = dice(replace(PLAIN, jitter_s=0.002))
    extra = [chance.extra_s(chance.drawn(float(second))) for second in range(20_000)]

    assert statistics.mean(extra) == pytest.approx(0.0, abs=0.00006)
    assert statistics.stdev(extra) == pytest.approx(0.002, rel=0.03)


def test_jitter_is_remembered_over_ten_times_its_size() -> None:
    jitter_s = 0.002
    chance = dice(replace(PLAIN, jitter_s=jitter_s))
    pairs = []
    for number in range(20_000):
        first = chance.drawn(float(number))
        pairs.append((first, chance.drawn(number + JITTER_MEMORY * jitter_s)))

    assert statistics.correlation(*zip(*pairs, strict=True)) == pytest.approx(math.exp(-1), abs=0.03)


def test_a_table_gives_each_of_its_entries_equally_often() -> None:
    shape = Distribution(name="two", table=(-TABLE_SIGMA, 0, 0, 3 * TABLE_SIGMA))
    chance = dice(replace(PLAIN, jitter_s=0.001, jitter_shape=shape))
    extra = [chance.extra_s(chance.drawn(float(second))) for second in range(20_000)]

    assert set(extra) == {-0.001, 0.0, 0.003}
    assert extra.count(0.003) / len(extra) == pytest.approx(0.25, abs=0.02)
    assert extra.count(-0.001) / len(extra) == pytest.approx(0.25, abs=0.02)


def test_the_ends_of_a_table_are_reached_and_not_passed() -> None:
    chance = dice(replace(PLAIN, jitter_s=0.001, jitter_shape=Distribution(name="t", table=(-8192, 0, 8192))))

    assert [chance.extra_s(z) for z in (-40.0, 0.0, 40.0)] == [-0.001, 0.0, 0.001]


def test_where_packets_may_overtake_every_draw_is_for_itself() -> None:
    chance = dice(replace(PLAIN, jitter_s=0.002, reorder=True))
    drawn = [chance.drawn(number * 1e-6) for number in range(20_000)]

    assert statistics.stdev(drawn) == pytest.approx(1.0, rel=0.03)
    assert statistics.correlation(drawn[:-1], drawn[1:]) == pytest.approx(0.0, abs=0.03)


def test_a_packet_that_leaves_earlier_after_all_still_has_jitter() -> None:
    chance = dice(replace(PLAIN, jitter_s=0.002))
    chance.drawn(10.0)
    chance.earlier(1.0)

    assert math.isfinite(chance.drawn(1.5))


def test_the_same_seed_throws_the_same_dice_again() -> None:
    direction = replace(
        PLAIN, jitter_s=0.001, loss=0.3, duplicate=0.3, burst_loss=GilbertElliott(worsens=0.2, recovers=0.4)
    )
    chance = dice(direction)

    def fates() -> list[tuple[bool, bool, float]]:
        return [(chance.lost(), chance.duplicated(), chance.drawn(0.01 * number)) for number in range(200)]

    fates()
    chance.restart("run 7", direction)
    first = fates()
    chance.restart("run 7", direction)
    assert fates() == first
    chance.restart("run 8", direction)
    assert fates() != first
