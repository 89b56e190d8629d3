"""An event loop whose time is virtual: when nobody has anything to do now, the next thing to do is now.

Coroutines, tasks, futures and timers are asyncio's own, so code written for real time runs unchanged.  Nothing is read
from sockets or other threads.  What is due at the same instant runs in the order in which it was scheduled, each with
everything that it wakes before the next, so a program without randomness of its own runs the same way every time.

>>> loop = VirtualLoop(start_s=-1.0)
>>> loop.run_until_complete(asyncio.sleep(3600.0, result="an hour later")), loop.time()
('an hour later', 3599.0)
>>> loop.close()
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

log = logging.getLogger(__name__)


class StuckError(RuntimeError):
    """Everybody waits for something that will never happen."""


if TYPE_CHECKING:  # to typeshed, a loop that lacks any of thirty methods for sockets and processes is abstract
    _Loop = asyncio.BaseEventLoop
else:
    _Loop = asyncio.AbstractEventLoop


class _Handle(asyncio.Handle):
    """asyncio's own, made in half the time: it never looks for debug mode."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback, self._args, self._loop = callback, args, loop
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """The same."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback, self._args, self._loop, self._when = callback, args, loop, when
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None


class VirtualLoop(_Loop):
    """Runs tasks and timers; its seconds pass only while everybody waits.

    ``events`` counts the callbacks that have run.
    """

    def __init__(self, *, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._ready: deque[Any] = deque()  # handles
        #: (when, order of scheduling, callback of ``tell_at`` or None, handle): the last two are never compared.
        self._timers: list[tuple[float, int, Any, Any]] = []
        self._scheduled = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._signals: dict[int, Any] = {}
        self.events = 0

    # --- time and scheduling ------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def call_soon(  # type: ignore[override]  # typeshed types the arguments of callbacks more narrowly than we need
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run ``callback`` at this instant, after what is already due."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run ``callback`` after ``delay`` seconds."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run ``callback`` at ``when``, or at once if that has passed."""
        handle = _TimerHandle(when, callback, args, self, context)
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._scheduled, None, handle))
        return handle

    def tell_at(self, when_s: float, callback: Callable[[float], object]) -> None:
        """``call_at`` for those who call often: the callback gets the time and cannot be cancelled.

        An error in it ends the run instead of being logged.
        """
        self._scheduled += 1
        heapq.heappush(self._timers, (when_s, self._scheduled, callback, None))

    def rewind(self, start_s: float) -> None:
        """Begin anew at ``start_s``, so that a run does not feel how many have been before it.

        What is still scheduled for later never happens: messages of a run that has ended, for example.
        """
        for _, _, told, handle in self._timers:
            if not told:
                handle.cancel()
        self._timers.clear()
        self._scheduled = 0
        self._now_s = start_s

    # --- running ------------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until ``stop`` is called; StuckError when nothing is left that could call it."""
        if self._running or self._closed:
            raise RuntimeError("the loop is " + ("closed" if self._closed else "already running"))
        asyncio.events._set_running_loop(self)
        self._running, self._stopping = True, False
        ready, timers, heappop = self._ready, self._timers, heapq.heappop
        events = 0
        try:
            while True:
                while ready:
                    handle = ready.popleft()
                    if not handle._cancelled:
                        events += 1
                        try:
                            handle._context.run(handle._callback, *handle._args)
                        except (SystemExit, KeyboardInterrupt):
                            raise
                        except BaseException as error:
                            self._failed(handle, error)
                if self._stopping:
                    return
                if not timers:
                    raise StuckError("everybody waits for something that will never happen")
                when_s, _, told, timer = heappop(timers)
                if told:
                    events += 1
                    if when_s > self._now_s:
                        self._now_s = when_s
                    told(self._now_s)
                elif not timer._cancelled:
                    events += 1
                    if when_s > self._now_s:
                        self._now_s = when_s
                    try:
                        timer._context.run(timer._callback, *timer._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._failed(timer, error)
        finally:
            self.events += events
            self._running = False
            asyncio.events._set_running_loop(None)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a coroutine or future is done, and return its result."""
        new = not asyncio.isfuture(future)
        task = asyncio.ensure_future(future, loop=self)

        def stop(_: Any) -> None:
            self.stop()

        task.add_done_callback(stop)
        try:
            self.run_forever()
        except BaseException:
            if new and task.done() and not task.cancelled():
                task.exception()  # what is raised here tells more than that it was never looked at
            raise
        finally:
            task.remove_done_callback(stop)
        if not task.done():
            raise RuntimeError("the loop was stopped before the work was done")
        return task.result()

    def stop(self) -> None:
        """End ``run_forever`` once nothing is left to do at this instant."""
        self._stopping = True

    def is_running(self) -> bool:
        """Whether the loop runs."""
        return self._running

    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def close(self) -> None:
        """Forget everything that is scheduled."""
        if self._running:
            raise RuntimeError("a running loop cannot be closed")
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for number in list(self._signals):
            self.remove_signal_handler(number)

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: asynchronous generators are left to the garbage collector."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    # --- what tasks and futures ask of their loop ---------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Run a coroutine."""
        return asyncio.Task(coro, loop=self, **options)

    def get_debug(self) -> bool:
        """Never: asyncio's debug mode measures real time."""
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody else handles, as asyncio does."""
        log.error(context.get("message", "unhandled"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody else handles."""
        self.default_exception_handler(context)

    def _failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": f"{handle!r} failed", "exception": error, "handle": handle})

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a cancelled timer is passed over when its moment comes."""

    # --- signals, so that a person can interrupt a simulation ---------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Call ``callback`` in the midst of whatever runs when the signal comes."""
        before = signal.signal(sig, lambda *_: callback(*args))
        self._signals.setdefault(sig, before)

    def remove_signal_handler(self, sig: int) -> bool:
        """Back to what it was."""
        before = self._signals.pop(sig, None)
        if before is None or sys.is_finalizing():
            return False
        signal.signal(sig, before)
        return True
