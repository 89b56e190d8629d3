"""The result format as data: which columns and manifest keys ``docs/results.md`` promises, and a check of each.

Written once here so that a wrong file is named with its column before any figure is drawn from it.  The type
letters are those of the document: ``i64``, ``f64``, ``str``, ``bool``, with ``?`` where a value may be missing.

>>> TABLES["requests"]["latency_s"]
'f64?'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from testbed.errors import TestbedError
from testbed.topology import Topology

T = TypeVar("T")

#: The version of the format that this code reads.  A file without ``format`` is version 1.
FORMAT = 1

TABLES: dict[str, dict[str, str]] = {
    "requests": {
        "request": "i64",
        "kind": "str",
        "home": "str",
        "domain": "str",
        "scheduled_s": "f64",
        "sent_s": "f64",
        "finished_s": "f64?",
        "latency_s": "f64?",
        "late_s": "f64?",
        "ttft_s": "f64?",
        "tpot_s": "f64?",
        "prompt_tokens": "i64",
        "output_tokens": "i64",
        "moves": "i64",
        "sent_bytes": "i64",
        "nll": "f64?",
        "reference_nll": "f64?",
        "top1_agreement": "f64?",
        "kl": "f64?",
        "correct": "i64?",
        "reference_correct": "i64?",
        "cloze_items": "i64?",
        "cloze_hits": "i64?",
        "reference_cloze_hits": "i64?",
        "exact": "bool?",
        "error": "str?",
    },
    "layers": {
        "request": "i64",
        "step": "i64",
        "layer": "i64",
        "server": "str",
        "start_s": "f64",
        "duration_s": "f64",
        "dense_s": "f64",
        "experts_s": "f64",
        "wait_s": "f64",
        "experts": "i64",
        "remote_experts": "i64",
        "slow_experts": "i64",
        "remote_slow_experts": "i64",
        "fallback_experts": "i64",
        "servers": "i64",
        "quality_spent": "f64",
        "substitute_experts": "i64?",
        "skipped_experts": "i64?",
        "tokens": "i64?",
        "frozen_tokens": "i64?",
        "exited_tokens": "i64?",
        "predicted_transmission_s": "f64?",
        "predicted_loading_s": "f64?",
        "predicted_compute_s": "f64?",
        "predicted_quality_s": "f64?",
        "predicted_traffic_s": "f64?",
        "predicted_ahead_s": "f64?",
    },
    "links": {
        "t_s": "f64",
        "link": "str",
        "source": "str",
        "target": "str",
        "rate_bps": "f64",
        "delay_s": "f64",
        "bytes": "i64",
        "packets": "i64",
        "dropped": "i64",
        "queued_bytes": "i64",
    },
    "servers": {
        "t_s": "f64",
        "server": "str",
        "device_busy": "f64",
        "loader_busy": "f64",
        "backlog_s": "f64",
        "rss_bytes": "i64",
        "alive": "bool",
    },
    "events": {"event": "str", "link": "str?", "scheduled_s": "f64", "actual_s": "f64"},
}

#: Columns that results of earlier versions lack; there they hold nothing.
LATER: dict[str, set[str]] = {
    "requests": {"kl", "correct", "reference_correct", "cloze_items", "cloze_hits", "reference_cloze_hits"},
    "layers": {
        "substitute_experts",
        "skipped_experts",
        "tokens",
        "frozen_tokens",
        "exited_tokens",
        "predicted_transmission_s",
        "predicted_loading_s",
        "predicted_compute_s",
        "predicted_quality_s",
        "predicted_traffic_s",
        "predicted_ahead_s",
    },
}

_TYPES: dict[str, pl.DataType] = {"i64": pl.Int64(), "f64": pl.Float64(), "str": pl.String(), "bool": pl.Boolean()}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the fidelity verdict and the bound it was held against."""

    name: str
    value: float | None
    bound: float | None
    unit: str = ""
    ok: bool
    meaning: str = ""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the emulation did what the files asked for."""

    verdict: str
    checks: tuple[Check, ...] = ()


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a run; sent = completed + failed."""

    sent: int
    completed: int
    failed: int


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One link direction as measured before the run."""

    link: str
    source: str
    target: str
    rtt_s: float | None
    expected_rtt_s: float
    goodput_bps: float | None
    expected_goodput_bps: float
    ok: bool
    goodput_at_least: bool = False  # faster than a probe can tell


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``manifest.json`` says of one run.  Keys that only a later version knows are left alone."""

    run_id: str
    scenario: str
    framework: str
    repeat: int
    seed: int
    started_at: str
    duration_s: float
    dilation: float
    slo_s: float
    versions: dict[str, str]
    topology: Topology
    model: dict[str, Any]
    placement: dict[str, Any]
    counts: Counts
    fidelity: Fidelity
    complete: bool
    calibration: tuple[Calibration, ...] = ()
    quality_budget: float | None = None  # relative NLL increase that a request may cost
    deadline_s: float | None = None  # after which a request has failed
    backend: str = "netns"
    view: str = "estimated"  # what frameworks saw: that, or "oracle", the true state
    wall_s: float | None = None  # what the run took
    arrival_rate_per_s: float | None = None  # requests per emulated second
    format: int = FORMAT


class ComparisonFile(msgspec.Struct, frozen=True, kw_only=True):
    """What ``comparison.json`` says: the runs that were meant to be, in order."""

    scenario: str
    frameworks: tuple[str, ...]
    repeats: int
    seeds: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()
    finished: bool
    question: str = ""
    format: int = FORMAT


def dtypes(table: str) -> dict[str, pl.DataType]:
    """The polars type of every column of a table, without the nullable marks."""
    return {column: _TYPES[kind.rstrip("?")] for column, kind in TABLES[table].items()}


def empty(table: str) -> pl.DataFrame:
    """A table with its columns and no rows."""
    return pl.DataFrame(schema=dtypes(table))


def read_table(path: Path, table: str) -> pl.DataFrame:
    """Read one Parquet file, in the documented columns and types; a deviation is named with file and column."""
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TestbedError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    columns = []
    for column, kind in TABLES[table].items():
        if column not in frame.columns and column in LATER.get(table, ()):
            columns.append(pl.Series(column, [None] * frame.height, dtype=_TYPES[kind.rstrip("?")]))
            continue
        if column not in frame.columns:
            raise TestbedError(f"{path}: column '{column}' is missing; docs/results.md lists the columns of {table}")
        columns.append(_checked(frame[column], kind, path))
    return pl.DataFrame(columns)


def read_json(path: Path, kind: type[T]) -> T:
    """Read one JSON file into its struct; a missing or wrong key is named with the file."""
    try:
        value = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise TestbedError(f"{path}: {error}") from error
    version = getattr(value, "format", FORMAT)
    if version != FORMAT:
        raise TestbedError(f"{path}: format {version}, but this analysis reads format {FORMAT}; use a matching version")
    return value


def _checked(series: pl.Series, kind: str, path: Path) -> pl.Series:
    wanted = _TYPES[kind.rstrip("?")]
    found = series.dtype
    harmless = (
        found == wanted
        or found == pl.Null
        or (wanted == pl.Float64 and found.is_numeric())
        or (wanted == pl.Int64 and found.is_integer())
        or (wanted == pl.String and found in (pl.Categorical, pl.Enum))
    )
    if not harmless:
        raise TestbedError(f"{path}: column '{series.name}' holds {found}, expected {wanted}")
    series = series.cast(wanted)
    if wanted == pl.Float64:
        series = series.fill_nan(None)  # not a number is no number: it would spread into every mean
    if not kind.endswith("?") and series.null_count():
        raise TestbedError(f"{path}: column '{series.name}' misses {series.null_count()} of {len(series)} values")
    return series
