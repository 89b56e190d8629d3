"""A sweep directory as one table: a row per cell, with the numbers of ``analysis.metrics``.

They are computed from the cells' records each time, so they cannot be older than their definition.  That takes some
15 ms per cell.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from analysis.bootstrap import Array, Bootstrap, Estimate, Statistic
from analysis.load import MANIFEST_FILE, Run
from analysis.metrics import metric, offered_requests_per_s
from analysis.schema import FORMAT, Manifest, empty, read_json, read_table
from testbed.errors import TestbedError

SWEEP_FILE, CELL_FILE, FAILED = "sweep.json", "cell.json", "failed"
FINISHED, FAILURE = "finished", "failed"

#: Where a cell stands in the grid, and what it was played with.
COORDINATES: dict[str, pl.DataType] = {
    "scenario": pl.String(),
    "topology": pl.String(),
    "framework": pl.String(),
    "rate_per_s": pl.Float64(),
    "seed": pl.Int64(),
    "duration_s": pl.Float64(),
    "generate_share": pl.Float64(),
    "model": pl.String(),
    "redundancy": pl.Float64(),
}
COUNTS: dict[str, pl.DataType] = {"sent": pl.Int64(), "completed": pl.Int64(), "failed": pl.Int64()}
#: As ``analysis.metrics`` defines them.
METRICS = (
    "failed_share",
    "latency_mean_s",
    "latency_median_s",
    "latency_p95_s",
    "latency_p99_s",
    "slo_share",
    "throughput_requests_per_s",
    "throughput_tokens_per_s",
    "traffic_bytes_per_token",
    "moves_per_request",
    "nll_increase",
)
TRAFFIC, OFFERED = "traffic_bytes_per_request", "offered_requests_per_s"
SCHEMA: dict[str, pl.DataType] = {
    **COORDINATES,
    "state": pl.String(),
    **COUNTS,
    **dict.fromkeys((*METRICS, TRAFFIC, OFFERED), pl.Float64()),
    "verdict": pl.String(),
    "wall_s": pl.Float64(),
    "cell": pl.String(),
    "reason": pl.String(),
}


class ValueOnly(Bootstrap):
    """Values without intervals, quickly: a table of cells shows the spread over seeds instead."""

    def estimate(self, samples: Sequence[Array], statistic: Statistic) -> Estimate:
        """The statistic over all rows of all runs."""
        runs = [sample for sample in samples if len(sample)]
        if not runs:
            return Estimate(value=None, n=0, method="no data")
        rows = np.concatenate(runs)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(rows[np.newaxis])[0])
        return Estimate(value=value if math.isfinite(value) else None, n=len(rows), method="no interval")


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """What ``sweep.json`` says: the cells that were asked for last."""

    scenario: str
    cells: tuple[str, ...]
    finished: bool
    question: str = ""
    format: int = FORMAT


class CellFile(msgspec.Struct, frozen=True, kw_only=True):
    """What ``cell.json`` says of a cell's place in the grid."""

    scenario: str
    topology: str
    topology_content: str
    framework: str
    rate_per_s: float
    duration_s: float
    generate_share: float | None
    seed: int
    model: str
    redundancy: float


class FailureFile(msgspec.Struct, frozen=True, kw_only=True):
    """Why a cell has no records."""

    cell: CellFile
    reason: str


class CellManifest(Manifest, frozen=True, kw_only=True):
    """A run's manifest with what a comparison does not ask for."""

    wall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The cells that were asked for last, as far as they have been played."""

    path: Path
    scenario: str
    question: str
    table: pl.DataFrame  # ``SCHEMA``; in the order of ``sweep.json``
    missing: int  # cells that have neither finished nor failed
    slo_s: float | None
    versions: tuple[str, ...]  # of the testbed's code, by which the finished cells were played

    @property
    def notes(self) -> tuple[str, ...]:
        """What is incomplete or mixed, in words."""
        notes = []
        asked = self.missing + self.table.height
        failed = self.table.filter(pl.col("state") == FAILURE).height
        if self.missing:
            notes.append(f"Not yet played: {self.missing} of {asked} cells. Call the sweep again.")
        if failed:
            notes.append(f"Failed: {failed} of {asked} cells. `failed/` says why.")
        if len(self.versions) > 1:
            notes.append(f"{len(self.versions)} versions of the testbed played these cells: `versions` in manifests.")
        return tuple(notes)


def is_sweep(path: Path) -> bool:
    """Whether this is the directory of a sweep."""
    return (path / SWEEP_FILE).is_file()


def load_sweep(path: Path) -> Sweep:
    """Read all cells that were asked for last; TestbedError naming the file when one is not as documented."""
    plan = read_json(path / SWEEP_FILE, SweepFile)
    places: list[CellFile] = []
    rows: list[dict[str, object]] = []
    slos, versions = [], set()
    for name in plan.cells:
        if (path / name / MANIFEST_FILE).is_file():
            place, manifest = read_json(path / name / CELL_FILE, CellFile), _manifest(path / name)
            rows.append(_finished(path / name, place, manifest))
            slos.append(manifest.slo_s)
            versions.add(manifest.versions.get("git") or manifest.versions.get("edge-moe-testbed", "?"))
        elif (path / FAILED / f"{name}.json").is_file():
            failure = read_json(path / FAILED / f"{name}.json", FailureFile)
            place = failure.cell
            rows.append({**_place(place), "state": FAILURE, "cell": name, "reason": failure.reason})
        else:
            continue
        places.append(place)
    names = _names_of_topologies(places)
    for row, place in zip(rows, places, strict=True):
        row["topology"] = names[place.topology_content]
    return Sweep(
        path=path,
        scenario=plan.scenario,
        question=plan.question,
        table=pl.DataFrame(rows, schema=SCHEMA, orient="row"),
        missing=len(plan.cells) - len(rows),
        slo_s=slos[0] if slos else None,
        versions=tuple(sorted(versions)),
    )


def write_table(sweep: Sweep, directory: Path) -> None:
    """``sweep.parquet`` and ``sweep.csv``, each whole or not there at all."""
    for suffix, write in (("parquet", sweep.table.write_parquet), ("csv", sweep.table.write_csv)):
        partial = directory / f".sweep.{suffix}.{os.getpid()}"  # two sweeps may end at the same time
        try:
            write(partial)
            partial.replace(directory / f"sweep.{suffix}")
        except OSError as error:
            raise TestbedError(f"the table cannot be written to {directory}: {error.strerror or error}") from None


class _CellRun(Run):
    """A run whose completed requests are looked up once; it has no other table than its requests."""

    @cached_property
    def completed(self) -> pl.DataFrame:  # a property that remembers
        return super().completed


@cache
def _empty(table: str) -> pl.DataFrame:
    return empty(table)


def _finished(path: Path, place: CellFile, manifest: CellManifest) -> dict[str, object]:
    requests = read_table(path / "requests.parquet", "requests")
    others = {name: _empty(name) for name in ("layers", "links", "servers", "events")}
    run = _CellRun(path=path, manifest=manifest, requests=requests, **others)
    counts = {name: getattr(manifest.counts, name) for name in COUNTS}
    numbers = {key: metric(key).measure([run], ValueOnly()).value for key in METRICS}
    return {
        **_place(place),
        "state": FINISHED,
        **counts,
        **numbers,
        TRAFFIC: run.completed["sent_bytes"].mean(),
        OFFERED: offered_requests_per_s([run]),
        "verdict": manifest.fidelity.verdict,
        "wall_s": manifest.wall_s,
        "cell": path.name,
    }


def _place(place: CellFile) -> dict[str, object]:
    return {key: getattr(place, key) for key in COORDINATES}


def _manifest(path: Path) -> CellManifest:
    manifest = read_json(path / MANIFEST_FILE, CellManifest)
    if not manifest.complete:
        raise TestbedError(f"{path}: this cell is not complete; remove it and call the sweep again")
    return manifest


def _names_of_topologies(places: Iterable[CellFile]) -> dict[str, str]:
    """By content: two networks of one name are told apart."""
    names = {place.topology_content: place.topology for place in places}
    shared = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {content: f"{name} ({content[:4]})" if name in shared else name for content, name in names.items()}
