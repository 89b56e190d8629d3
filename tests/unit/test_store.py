from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agents.clock import VirtualClock
from agents.errors import PlacementError
from agents.protocol import Loads, Replica
from agents.store import FAST_SHARE, ExpertStore
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Device

EXPERT_BYTES = {"full": 100}


def device(*, fast_bytes: int) -> Device:
    return Device(
        peak_flops_per_s=1e12,
        memory_bytes_per_s=1e11,
        fast_bytes=fast_bytes,
        slow_bytes=1_000,
        load_bytes_per_s=1_000.0,  # 0.1 s per expert
    )


def replica(expert: int, *, fast: bool) -> Replica:
    return Replica(layer=0, expert=expert, server="s1", precision="full", fast=fast)


def key(expert: int) -> tuple[int, int, str]:
    return 0, expert, "full"


def in_virtual_time(
    body: Callable[[ExpertStore, VirtualClock], Awaitable[None]], replicas: list[Replica], *, fast_bytes: int
) -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)

    async def main() -> None:
        store = ExpertStore(
            replicas=replicas, device=device(fast_bytes=fast_bytes), expert_bytes=EXPERT_BYTES, clock=clock
        )
        await body(store, clock)
        store.close()
        await clock.sleep_until_s(clock.now_s() + 1.0)  # a load that has begun ends

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def room(experts: int) -> int:
    """Fast memory in which exactly this many experts fit."""
    return round(experts * 100 / FAST_SHARE + 1)


async def use(store: ExpertStore, clock: VirtualClock, expert: int) -> float:
    """Seconds until the expert was there."""
    began_s = clock.now_s()
    store.hold(key(expert))
    there_s = await store.fetch(key(expert), ready_s=began_s)
    store.release(key(expert))
    return there_s - began_s


def test_an_expert_in_fast_memory_is_there_at_once_and_a_slow_one_is_loaded() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        assert await use(store, clock, 0) == 0.0
        assert await use(store, clock, 1) == pytest.approx(0.1)
        assert await use(store, clock, 1) == 0.0

    in_virtual_time(body, [replica(0, fast=True), replica(1, fast=False)], fast_bytes=room(2))


def test_the_least_recently_used_expert_goes_first() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        for expert in (0, 1, 0, 2):  # 2 evicts 1
            await use(store, clock, expert)
        assert await use(store, clock, 0) == 0.0
        assert await use(store, clock, 1) == pytest.approx(0.1)

    in_virtual_time(body, [replica(expert, fast=False) for expert in range(3)], fast_bytes=room(2))


def test_an_expert_in_use_is_not_evicted() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.hold(key(0))
        await store.fetch(key(0), ready_s=clock.now_s())
        await use(store, clock, 1)
        assert store.is_fast(key(0))

    in_virtual_time(body, [replica(expert, fast=False) for expert in range(2)], fast_bytes=room(1))


def test_calls_that_need_the_same_load_share_it() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        waited_s = await asyncio.gather(use(store, clock, 0), use(store, clock, 0))
        assert waited_s == pytest.approx([0.1, 0.1])
        assert store.loader.jobs == 1

    in_virtual_time(body, [replica(0, fast=False)], fast_bytes=room(1))


def test_without_room_for_one_expert_every_use_is_a_load() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        assert await use(store, clock, 0) == pytest.approx(0.1)
        assert await use(store, clock, 0) == pytest.approx(0.1)

    in_virtual_time(body, [replica(0, fast=False)], fast_bytes=50)


def test_an_expert_that_was_not_placed_here_is_refused() -> None:
    async def body(store: ExpertStore, _: VirtualClock) -> None:
        with pytest.raises(PlacementError, match="expert 7 of layer 0 in precision full has no replica"):
            store.hold(key(7))

    in_virtual_time(body, [replica(0, fast=True)], fast_bytes=room(1))


def test_a_placement_beyond_the_fast_memory_is_refused() -> None:
    with pytest.raises(PlacementError, match="fast memory"):
        in_virtual_time(_nothing, [replica(0, fast=True), replica(1, fast=True)], fast_bytes=room(1))


# --- what is worth keeping, and what is loaded ahead ------------------------------------------------------------------


def worth(*values: float) -> Callable[[tuple[int, int, str]], float]:
    """Of experts 0, 1, 2 ..."""
    return lambda key: values[key[1]]


SLOW = [replica(expert, fast=False) for expert in range(5)]


def test_what_is_worth_least_goes_first_however_recently_it_was_used() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.keep_by(worth(0.1, 0.9, 0.5, 0.0, 0.0))
        assert store.cached() == [key(1), key(2)]  # it begins with the best
        await use(store, clock, 0)
        assert store.cached() == [key(1), key(0)]
        await use(store, clock, 2)
        assert store.cached() == [key(1), key(2)]

    in_virtual_time(body, SLOW, fast_bytes=room(2))


def test_a_copy_that_is_loaded_ahead_is_there_when_it_is_asked_for() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(3)])
        await clock.sleep_until_s(clock.now_s() + 0.11)
        assert await use(store, clock, 3) == 0.0
        assert await use(store, clock, 3) == 0.0
        assert store.loads == Loads(prefetched=1, used=1)

    in_virtual_time(body, SLOW, fast_bytes=room(2))


def test_who_asks_for_a_copy_on_its_way_waits_for_the_rest_and_a_load_is_not_interrupted() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(3), key(4)])
        await clock.sleep_until_s(clock.now_s() + 0.04)
        waited_s = await asyncio.gather(use(store, clock, 0), use(store, clock, 3))
        # 0 comes behind 3, which was under way, and before 4, which was not.
        assert waited_s == pytest.approx([0.16, 0.06])
        assert store.loads == Loads(demanded=1, prefetched=1, used=1)

    in_virtual_time(body, SLOW, fast_bytes=room(3))


def test_what_is_needed_now_is_loaded_before_anything_ahead() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(3)])
        assert await use(store, clock, 0) == pytest.approx(0.1)
        assert await use(store, clock, 3) == pytest.approx(0.1)

    in_virtual_time(body, SLOW, fast_bytes=room(3))


def test_new_wishes_of_a_request_take_the_place_of_its_old_ones_and_requests_take_turns() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(0), key(1)])
        store.prefetch(8, [key(2)])
        store.prefetch(7, [key(3), key(4)])
        await clock.sleep_until_s(clock.now_s() + 0.5)
        assert store.cached() == [key(2), key(3), key(4)]

    in_virtual_time(body, SLOW, fast_bytes=room(5))


def test_nothing_is_loaded_ahead_in_the_place_of_what_is_worth_more_or_in_use_or_still_to_be_used() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        values = [0.5, 0.4, 0.6, 0.3, 0.7]
        store.keep_by(lambda key: values[key[1]])
        store.hold(key(4))
        store.prefetch(7, [key(1), key(3), key(0)])  # worth less than both that are there
        await clock.sleep_until_s(clock.now_s() + 0.5)
        assert set(store.cached()) == {key(4), key(2)}
        values[:] = [0.5, 0.8, 0.4, 0.9, 0.1]
        store.prefetch(7, [key(3), key(1)])  # 3 instead of 2; then 4 is in use and 3 was not used yet
        await clock.sleep_until_s(clock.now_s() + 0.5)
        assert set(store.cached()) == {key(4), key(3)}
        assert store.loads == Loads(prefetched=1)

    in_virtual_time(body, SLOW, fast_bytes=room(2))


def test_what_was_loaded_ahead_for_nothing_is_counted_when_it_goes() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(3)])
        await clock.sleep_until_s(clock.now_s() + 0.11)
        await use(store, clock, 0)
        await use(store, clock, 1)
        assert store.loads == Loads(demanded=2, prefetched=1, wasted=1)

    in_virtual_time(body, SLOW, fast_bytes=room(2))


def test_a_copy_of_another_server_cannot_be_loaded_ahead() -> None:
    async def body(store: ExpertStore, _: VirtualClock) -> None:
        with pytest.raises(PlacementError, match="expert 7 of layer 0"):
            store.prefetch(1, [key(7)])

    in_virtual_time(body, SLOW, fast_bytes=room(1))


def test_a_store_that_is_closed_loads_nothing_more_ahead() -> None:
    async def body(store: ExpertStore, clock: VirtualClock) -> None:
        store.prefetch(7, [key(3), key(4)])
        await clock.sleep_until_s(clock.now_s() + 0.05)
        store.close()
        await clock.sleep_until_s(clock.now_s() + 0.5)
        assert store.loads.prefetched == 1

    in_virtual_time(body, SLOW, fast_bytes=room(3))


async def _nothing(store: ExpertStore, clock: VirtualClock) -> None:
    raise AssertionError("the store should have refused")
