"""An event loop in virtual time: what runs when, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from testbed.simulation.loop import StuckError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def give_up(loop: VirtualLoop, task: asyncio.Task[Any]) -> None:
    """End what will not end by itself."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_an_hour_of_sleep_takes_no_time(loop: VirtualLoop) -> None:
    started_s = time.monotonic()
    loop.run_until_complete(asyncio.sleep(3600.0))

    assert loop.time() == 3600.0
    assert time.monotonic() - started_s < 10.0


def test_sleepers_wake_in_the_order_of_their_times(loop: VirtualLoop) -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        woken.append((name, loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(sleeper("late", 3.0), sleeper("early", 1.0), sleeper("middle", 2.0))

    loop.run_until_complete(all_of_them())

    assert woken == [("early", 1.0), ("middle", 2.0), ("late", 3.0)]


def test_what_is_due_at_the_same_instant_runs_in_the_order_in_which_it_was_scheduled(loop: VirtualLoop) -> None:
    ran: list[str] = []
    loop.call_at(1.0, ran.append, "first")
    loop.tell_at(1.0, lambda now_s: ran.append("second"))
    loop.call_at(1.0, ran.append, "third")
    loop.run_until_complete(asyncio.sleep(2.0))

    assert ran == ["first", "second", "third"]


def test_everything_that_a_timer_wakes_runs_before_the_next_timer_of_the_same_instant(loop: VirtualLoop) -> None:
    ran: list[str] = []

    def wake() -> None:
        ran.append("timer")
        loop.call_soon(lambda: (ran.append("woken"), loop.call_soon(ran.append, "woken by that")))

    loop.call_at(1.0, wake)
    loop.call_at(1.0, ran.append, "next timer")
    loop.run_until_complete(asyncio.sleep(2.0))

    assert ran == ["timer", "woken", "woken by that", "next timer"]


def test_a_cancelled_timer_never_runs_and_takes_no_time(loop: VirtualLoop) -> None:
    ran: list[str] = []
    loop.call_at(0.5, ran.append, "kept")
    loop.call_at(9.0, ran.append, "cancelled").cancel()
    loop.call_soon(ran.append, "cancelled too").cancel()
    loop.run_until_complete(asyncio.sleep(1.0))

    assert ran == ["kept"]
    assert loop.time() == 1.0


def test_who_is_told_gets_the_time(loop: VirtualLoop) -> None:
    told: list[float] = []
    loop.tell_at(0.25, told.append)
    loop.run_until_complete(asyncio.sleep(1.0))

    assert told == [0.25]


def test_what_should_have_been_in_the_past_happens_now(loop: VirtualLoop) -> None:
    seen: list[float] = []

    async def late() -> None:
        await asyncio.sleep(5.0)
        loop.call_at(1.0, lambda: seen.append(loop.time()))
        loop.tell_at(2.0, seen.append)
        await asyncio.sleep(1.0)

    loop.run_until_complete(late())

    assert seen == [5.0, 5.0]


def test_timeouts_locks_and_queues_of_asyncio_work(loop: VirtualLoop) -> None:
    async def work() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        event = asyncio.Event()
        loop.call_later(2.0, queue.put_nowait, 7)
        loop.call_later(3.0, event.set)
        seen: list[object] = [await queue.get(), loop.time(), await event.wait(), loop.time()]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100.0), timeout=4.0)
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1.0))
        return [*seen, loop.time()]

    assert loop.run_until_complete(work()) == [7, 2.0, True, 3.0, 8.0]


def test_a_cancelled_task_ends_at_once(loop: VirtualLoop) -> None:
    async def work() -> float:
        task = asyncio.create_task(asyncio.sleep(100.0))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return loop.time()

    assert loop.run_until_complete(work()) == 1.0


def test_callbacks_keep_the_context_in_which_they_were_scheduled(loop: VirtualLoop) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    async def work(name: str) -> None:
        who.set(name)
        loop.call_soon(lambda: seen.append(who.get()))
        loop.call_later(1.0, lambda: seen.append(who.get()))
        await asyncio.sleep(2.0)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    loop.run_until_complete(both())

    assert seen == ["a", "b", "a", "b"]


def test_when_everybody_waits_for_ever_it_says_so(loop: VirtualLoop) -> None:
    async def wait() -> None:
        await loop.create_future()

    task = loop.create_task(wait())
    with pytest.raises(StuckError, match="never happen"):
        loop.run_until_complete(task)
    give_up(loop, task)


def test_an_error_of_the_work_is_the_callers(loop: VirtualLoop) -> None:
    async def fail() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        loop.run_until_complete(fail())


def test_an_error_of_a_callback_is_logged_and_the_rest_goes_on(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.call_soon(lambda: 1 // 0)
    loop.call_later(1.0, lambda: [].pop())
    with caplog.at_level(logging.ERROR):
        loop.run_until_complete(asyncio.sleep(2.0))

    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ZeroDivisionError, IndexError]


def test_an_error_of_who_is_told_ends_the_run(loop: VirtualLoop) -> None:
    loop.tell_at(1.0, lambda now_s: 1 // 0)
    task = loop.create_task(asyncio.sleep(2.0))
    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(task)

    assert not loop.is_running()
    give_up(loop, task)


def test_a_loop_that_is_stopped_early_says_so(loop: VirtualLoop) -> None:
    async def work() -> None:
        await asyncio.sleep(9.0)

    loop.call_at(1.0, loop.stop)
    task = loop.create_task(work())
    with pytest.raises(RuntimeError, match="before the work was done"):
        loop.run_until_complete(task)
    loop.run_until_complete(task)

    assert loop.time() == 9.0


def test_after_a_rewind_time_begins_anew_and_what_was_scheduled_never_happens(loop: VirtualLoop) -> None:
    ran: list[str] = []
    loop.call_at(5.0, ran.append, "of the run before")
    loop.tell_at(5.0, lambda now_s: ran.append("of the run before"))
    loop.run_until_complete(asyncio.sleep(1.0))
    loop.rewind(-1.0)

    assert loop.time() == -1.0
    loop.run_until_complete(asyncio.sleep(20.0))
    assert ran == []
    assert loop.time() == 19.0


def test_events_are_counted(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0.5))
    before = loop.events
    for number in range(10):
        loop.call_later(0.1 * number, lambda: None)
        loop.tell_at(1.0 + 0.1 * number, lambda now_s: None)
    loop.call_later(0.1, lambda: None).cancel()
    loop.run_until_complete(asyncio.sleep(3.0))
    without = loop.events
    loop.run_until_complete(asyncio.sleep(3.0))

    assert without - before - (loop.events - without) == 20


def test_a_loop_runs_once_at_a_time_and_not_after_it_was_closed() -> None:
    loop = VirtualLoop()

    async def nested() -> None:
        with pytest.raises(RuntimeError, match="already running"):
            loop.run_forever()
        with pytest.raises(RuntimeError, match="cannot be closed"):
            loop.close()

    loop.run_until_complete(nested())
    loop.close()

    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_forever()


def test_a_signal_calls_its_handler_and_afterwards_things_are_as_before(loop: VirtualLoop) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    seen: list[str] = []
    loop.add_signal_handler(signal.SIGUSR1, seen.append, "interrupted")
    loop.call_later(1.0, signal.raise_signal, signal.SIGUSR1)
    loop.run_until_complete(asyncio.sleep(2.0))

    assert seen == ["interrupted"]
    assert loop.remove_signal_handler(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is before
    assert not loop.remove_signal_handler(signal.SIGUSR1)


def test_the_same_program_runs_the_same_way_every_time() -> None:
    def run() -> list[tuple[float, int]]:
        loop = VirtualLoop()
        seen: list[tuple[float, int]] = []

        async def worker(number: int) -> None:
            for turn in range(20):
                await asyncio.sleep((number * 7 + turn * 3) % 5 * 0.1)
                seen.append((loop.time(), number))

        async def all_of_them() -> None:
            await asyncio.gather(*(worker(number) for number in range(10)))

        loop.run_until_complete(all_of_them())
        loop.close()
        return seen

    assert run() == run()
