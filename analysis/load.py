"""A comparison directory as frozen values: every run with its manifest and its five tables.

Interrupted work is loaded as far as it got and says so in ``Comparison.notes``; files that contradict
``docs/results.md`` are refused with their name and column, because a figure from a misread column looks fine.

    comparison = load(newest(Path("results")))
    comparison.runs_of("hetroute")[0].requests["latency_s"].mean()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from analysis.schema import ComparisonFile, Manifest, empty, read_json, read_table
from testbed.errors import TestbedError

COMPARISON_FILE = "comparison.json"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One scenario under one framework, once."""

    path: Path
    manifest: Manifest
    requests: pl.DataFrame  # in order of planned arrival
    layers: pl.DataFrame
    links: pl.DataFrame
    servers: pl.DataFrame
    events: pl.DataFrame

    @property
    def name(self) -> str:
        """``hetroute-r1``: the name of the run's directory."""
        return self.path.name

    @property
    def completed(self) -> pl.DataFrame:
        """The requests that came back with a result."""
        return self.requests.filter(pl.col("error").is_null() & pl.col("latency_s").is_not_null())


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All runs of one scenario, and what is missing from them."""

    path: Path
    scenario: str
    question: str
    frameworks: tuple[str, ...]  # those with at least one run, in file order
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()  # what is incomplete, in words

    def runs_of(self, framework: str) -> tuple[Run, ...]:
        """The runs of one framework, by repeat."""
        return tuple(
            sorted(
                (run for run in self.runs if run.manifest.framework == framework), key=lambda run: run.manifest.repeat
            )
        )

    @property
    def unfaithful(self) -> tuple[Run, ...]:
        """The runs whose fidelity verdict is not PASS."""
        return tuple(run for run in self.runs if run.manifest.fidelity.verdict != "PASS")

    @property
    def interrupted(self) -> tuple[Run, ...]:
        """The runs that ended before their timeline did."""
        return tuple(run for run in self.runs if not run.manifest.complete)


def newest(results_dir: Path) -> Path:
    """The newest comparison (or single run) under ``results_dir``; their names begin with the time of their start."""
    found = sorted(
        entry
        for entry in (results_dir.iterdir() if results_dir.is_dir() else ())
        if (entry / COMPARISON_FILE).is_file() or (entry / MANIFEST_FILE).is_file()
    )
    if not found:
        raise TestbedError(f"no results under '{results_dir}': run a scenario first, for example 'make run'")
    return found[-1]


def load(path: Path) -> Comparison:
    """Load a comparison directory, or the directory of a single run as a comparison of one."""
    if not path.is_dir():
        raise TestbedError(f"no such results directory: '{path}'")
    if not (path / COMPARISON_FILE).is_file():
        if (path / MANIFEST_FILE).is_file():
            return _of_one(path)
        raise TestbedError(f"'{path}' holds neither {COMPARISON_FILE} nor {MANIFEST_FILE}: not a results directory")

    plan = read_json(path / COMPARISON_FILE, ComparisonFile)
    listed = [path / name for name in plan.runs]
    unlisted = sorted(
        entry for entry in path.iterdir() if (entry / MANIFEST_FILE).is_file() and entry not in listed
    )  # a comparison killed before its file was rewritten
    present = [entry for entry in (*listed, *unlisted) if (entry / MANIFEST_FILE).is_file()]
    if not present:
        raise TestbedError(f"'{path}' holds no finished or interrupted run; run the scenario again")
    runs = tuple(load_run(entry) for entry in present)

    ran = [run.manifest.framework for run in runs]
    order = dict.fromkeys((*plan.frameworks, *ran))
    notes = [] if plan.finished else ["The comparison was interrupted before its last run."]
    for framework in plan.frameworks:
        if ran.count(framework) < plan.repeats:
            notes.append(f"{framework}: {ran.count(framework)} of {plan.repeats} runs present.")
    notes += [_interruption(run) for run in runs if not run.manifest.complete]
    return Comparison(
        path=path,
        scenario=plan.scenario,
        question=plan.question,
        frameworks=tuple(name for name in order if name in ran),
        runs=runs,
        notes=tuple(notes),
    )


def load_run(path: Path) -> Run:
    """Load one run directory.  An interrupted run may lack tables; a complete one may not."""
    manifest = read_json(path / MANIFEST_FILE, Manifest)

    def table(name: str) -> pl.DataFrame:
        file = path / f"{name}.parquet"
        if not file.is_file() and not manifest.complete:
            return empty(name)
        return read_table(file, name)

    return Run(
        path=path,
        manifest=manifest,
        requests=table("requests").sort("scheduled_s", "request"),
        layers=table("layers"),
        links=table("links"),
        servers=table("servers"),
        events=table("events").sort("scheduled_s", maintain_order=True),
    )


def _of_one(path: Path) -> Comparison:
    run = load_run(path)
    return Comparison(
        path=path,
        scenario=run.manifest.scenario,
        question="",
        frameworks=(run.manifest.framework,),
        runs=(run,),
        notes=() if run.manifest.complete else (_interruption(run),),
    )


def _interruption(run: Run) -> str:
    counts = run.manifest.counts
    return f"{run.name} was interrupted: it holds {counts.completed} completed requests of {counts.sent} sent."
