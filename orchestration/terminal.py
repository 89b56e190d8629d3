"""A comparison as a person at a terminal follows it: a bar per run, a line per result, Ctrl-C twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from orchestration.comparison import Comparison
from orchestration.errors import INTERRUPTED
from orchestration.session import play
from orchestration.stage import Stage, Watcher
from testbed.errors import TestbedError


class NothingAnsweredError(TestbedError):
    """Every run failed whole."""

    exit_code = 1


class UnfinishedError(TestbedError):
    """Not all runs were played."""

    exit_code = 1


class InterruptedComparisonError(UnfinishedError):
    """Somebody interrupted the comparison."""

    exit_code = INTERRUPTED


async def watched(comparison: Comparison, stage: Stage, directory: Path, console: Console) -> None:
    """Play a comparison into a directory that exists.

    What was collected stays there when one of these is raised: NothingAnsweredError when every run failed whole,
    InterruptedComparisonError, UnfinishedError.
    """
    loop = asyncio.get_running_loop()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[ended]}/{task.fields[requests]} answered"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task: TaskID | None = None

        def begin(name: str, seconds: float, requests: int) -> None:
            nonlocal task
            task = progress.add_task(name, total=seconds, ended=0, requests=requests)

        def tick(seconds: float, ended: int) -> None:
            if task is not None:
                progress.update(task, completed=max(0.0, seconds), ended=ended)

        def end() -> None:
            if task is not None:
                progress.remove_task(task)

        def say(text: str) -> None:
            if text:
                progress.console.print(text, soft_wrap=True, markup=False)

        watcher = Watcher(say=say, begin=begin, tick=tick, end=end)

        working = asyncio.ensure_future(play(comparison, stage, directory, watcher))

        def interrupt() -> None:
            if watcher.interrupted.is_set():
                working.cancel()  # agents are stopped and links restored on the way out
                return
            watcher.interrupted.set()
            say("interrupted: collecting what there is (again to give up)")

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, interrupt)
        try:
            runs = await working
            unfinished = f"{runs} of {len(comparison.runs)} runs are in {directory}"
            if watcher.interrupted.is_set():
                raise InterruptedComparisonError(f"interrupted: {unfinished}, the last one perhaps in part")
            if runs < len(comparison.runs):
                raise UnfinishedError(f"agents have ended: {unfinished}")
            if not watcher.answered:
                raise NothingAnsweredError(f"no request was answered; see {directory}")
        except asyncio.CancelledError:
            raise TestbedError("given up: the run under way was not kept") from None
