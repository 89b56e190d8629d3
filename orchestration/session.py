"""Plays a comparison on a stage and writes it down, run by run, so that an interrupted one leaves what it has."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from orchestration.comparison import Candidate, Comparison, Episode
from orchestration.divergences import Divergences
from orchestration.logitsfile import LogitsFile
from orchestration.manifest import RESULT_FORMAT, HostFacts, describe, failures, label, one_line, verdict_on
from orchestration.player import Played
from orchestration.recorder import write_json, write_run
from orchestration.stage import Stage, Watcher
from testbed.errors import TestbedError


async def play(comparison: Comparison, stage: Stage, directory: Path, watcher: Watcher) -> int:
    """Run everything into a directory that exists; how many runs were written."""
    with ExitStack() as files:
        # What was computed before the runs is compared with what they answer, and then given back.
        kept = files.enter_context(LogitsFile(directory)) if stage.disturbed_by_work else None
        return await _play(comparison, stage, directory, watcher, kept)


async def _play(
    comparison: Comparison, stage: Stage, directory: Path, watcher: Watcher, kept: LogitsFile | None
) -> int:
    scenario = comparison.scenario
    summary: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "backend": stage.backend,
        "scenario": scenario.name,
        "question": scenario.question,
        "frameworks": [label(candidate.name) for candidate in comparison.candidates],
        "repeats": len(comparison.episodes),
        "seeds": [episode.seed for episode in comparison.episodes],
        "runs": [],
        "finished": False,
    }
    write_json(directory / "comparison.json", summary)
    calibration = await stage.measure(watcher)
    if stage.disturbed_by_work:
        requests = sum(len(episode.scenario.requests) for episode in comparison.episodes)
        watcher.say(f"computing the reference answers of {requests} requests in one process")
        for episode in comparison.episodes:
            compute = partial(episode.references.compute, keep=kept, interrupted=watcher.interrupted.is_set)
            await stage.aside(compute)
    if watcher.interrupted.is_set():
        return 0
    async with stage.agents(comparison, watcher):
        for number, (candidate, repeat) in enumerate(comparison.runs, start=1):
            if stage.ended():
                watcher.say(f"the agents of {', '.join(stage.ended())} have ended: no further runs")
            if watcher.interrupted.is_set() or stage.ended():
                break
            episode = comparison.episodes[repeat]
            name = f"{label(candidate.name)}-r{repeat}"
            watcher.say(
                f"playing {name} ({number} of {len(comparison.runs)}): {len(episode.scenario.requests)} requests, "
                + stage.duration(comparison.dilation, episode.scenario.duration_s)
            )
            watcher.begin(name, episode.scenario.duration_s, len(episode.scenario.requests))
            played, facts = await _run(comparison, candidate, episode, name, stage, directory, watcher)
            verdict = verdict_on(episode.scenario, played, facts, calibration)
            manifest = describe(comparison, candidate, repeat, name, stage.backend, played, facts, calibration, verdict)
            write_run(
                directory / name,
                manifest=manifest,
                scenario=episode.scenario,
                played=played,
                references=episode.references,
            )
            summary["runs"].append(name)
            write_json(directory / "comparison.json", summary)
            watcher.answered += manifest["counts"]["completed"]
            watcher.say(failures(played))
            watcher.say(one_line(name, played, episode.scenario, episode.references, verdict))
    summary["finished"] = len(summary["runs"]) == len(comparison.runs) and not watcher.interrupted.is_set()
    write_json(directory / "comparison.json", summary)
    return len(summary["runs"])


async def _run(
    comparison: Comparison,
    candidate: Candidate,
    episode: Episode,
    name: str,
    stage: Stage,
    directory: Path,
    watcher: Watcher,
) -> tuple[Played, HostFacts]:
    """One run, and how far what it answered is from the references."""
    with ExitStack() as files:
        later = files.enter_context(LogitsFile(directory)) if stage.disturbed_by_work else None
        divergences = Divergences(episode.references, later=later)
        try:
            played, facts = await stage.play(comparison, candidate, episode, name, watcher, logits=divergences.hear)
        finally:
            watcher.end()
        if divergences.waiting:
            watcher.say(f"comparing what {divergences.waiting} requests ended in with their references")
            await stage.aside(partial(divergences.settle, interrupted=watcher.interrupted.is_set))
        played.kl = divergences.found
        played.complaints += divergences.complaints
        return played, facts


def new_directory(results: Path, scenario: str) -> Path:
    """A directory named by this moment; ``...-2`` and so on where others began within the same second."""
    name = f"{datetime.now(tz=UTC):%Y%m%d-%H%M%S}-{scenario}"
    directory, number = results / name, 1
    try:
        results.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                directory.mkdir()
                return directory
            except FileExistsError:
                number += 1
                directory = results / f"{name}-{number}"
    except OSError as error:
        raise TestbedError(f"results cannot be written to {directory}: {error.strerror}") from None
