"""Quality by domain of the text: a row per framework over all its requests, and one per domain.

A mean over all text hides what a lossy framework does to one kind of it, so the domain that suffers most is marked:
the one with the largest NLL increase, of a framework that has any.  The mark follows the point estimate; whether two
domains differ at all, their intervals tell.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from analysis import text
from analysis.bootstrap import Bootstrap, Estimate
from analysis.load import Comparison, Run
from analysis.measure import Runs
from analysis.quality import QUALITY

ALL = "all"
WORST = "▼"
NOTE = (
    "Reference → served: change in percentage points. All answers of a framework without rows of its domains were "
    f"bit-exact. {WORST} the domain with the largest NLL increase. Cloze: n counts requests with items."
)
HEADER = (
    "Framework",
    "Domain",
    "Requests",
    "Perplexity",
    "NLL increase (%)",
    "Next-token accuracy (%)",
    "Top-1 agreement (%)",
    "KL (mnat/token)",
    "Cloze accuracy (%)",
)

_SCALES = {metric.key: metric.scale for metric in QUALITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The quality of one framework on the text of one domain, or on all."""

    framework: str
    domain: str | None  # None: all
    estimates: Mapping[str, Estimate]  # by key of ``QUALITY``
    worst: bool = False

    @property
    def exact(self) -> bool:
        """Whether every answer was the reference's, bit for bit."""
        return self.estimates["exact_share"].value == 1.0


def by_domain(comparison: Comparison, frameworks: Sequence[str], bootstrap: Bootstrap) -> tuple[Row, ...]:
    """All rows, of every framework in turn; none where quality was not measured."""
    found: list[Row] = []
    for framework in frameworks:
        runs = comparison.runs_of(framework)
        overall = _row(framework, None, runs, bootstrap)
        if overall.estimates["top1_agreement"].value is None:
            continue
        domains = sorted({name for run in runs for name in run.completed["domain"].unique()})
        rows = [_row(framework, name, [_only(run, name) for run in runs], bootstrap) for name in domains]
        hurt = max(rows, key=_increase, default=None)
        found.append(overall)
        found += [replace(row, worst=row is hurt and _increase(row) > 0 and len(rows) > 1) for row in rows]
    return tuple(found)


def shown(rows: Sequence[Row]) -> tuple[Row, ...]:
    """What a table shows: of exact frameworks one row is enough, but somewhere the domains' own difficulty stands."""
    lossy = {row.framework for row in rows if row.domain is None and not row.exact}
    with_domains = lossy or {row.framework for row in rows[:1]}
    return tuple(row for row in rows if row.domain is None or row.framework in with_domains)


def cells(row: Row) -> list[str]:
    """A row as text, in the order of ``HEADER``."""
    found = row.estimates
    return [
        row.framework,
        f"{row.domain} {WORST}" if row.worst else row.domain or ALL,
        str(found["top1_agreement"].n),
        _both(found, "perplexity"),
        text.estimate(found["nll_increase"], _SCALES["nll_increase"]),
        _changed(found, "accuracy", "accuracy_change"),
        text.estimate(found["top1_agreement"], _SCALES["top1_agreement"]),
        text.estimate(found["kl_divergence"], _SCALES["kl_divergence"]),
        f"{_changed(found, 'cloze_accuracy', 'cloze_change')} (n = {found['cloze_accuracy'].n})",
    ]


def markdown(rows: Sequence[Row]) -> str:
    """``quality.md``."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|" + "---:|" * (len(HEADER) - 2)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in shown(rows)]
    method = rows[0].estimates["top1_agreement"].method if rows else "no data"
    about = f"[ ] = 95 % bootstrap interval: {method}. Definitions: docs/metrics.md."
    return "\n".join(["# Quality", "", *lines, "", f"{NOTE} {about}"]) + "\n"


def csv_text(rows: Sequence[Row]) -> str:
    """``quality.csv``: every number of every row with its interval and n, in SI units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high", "_n")
    writer.writerow(["framework", "domain", "worst", *(metric.key + part for metric in QUALITY for part in parts)])
    for row in rows:
        values: list[object] = [row.framework, row.domain or ALL, str(row.worst).lower()]
        for metric in QUALITY:
            estimate = row.estimates[metric.key]
            bounds = (estimate.value, estimate.low, estimate.high)
            values += ["" if bound is None else f"{bound:.6g}" for bound in bounds]
            values.append(estimate.n)
        writer.writerow(values)
    return out.getvalue()


def _row(framework: str, domain: str | None, runs: Runs, bootstrap: Bootstrap) -> Row:
    estimates = {metric.key: metric.measure(runs, bootstrap) for metric in QUALITY}
    return Row(framework=framework, domain=domain, estimates=estimates)


def _only(run: Run, domain: str) -> Run:
    return replace(run, requests=run.requests.filter(pl.col("domain") == domain))


def _increase(row: Row) -> float:
    return row.estimates["nll_increase"].value or 0.0


def _both(found: Mapping[str, Estimate], key: str) -> str:
    """``12.3 → 12.4 [11.9, 12.9]``: the reference's value, and the served one with its interval."""
    served = text.estimate(found[key], _SCALES[key])
    return served if served == text.NONE else f"{_before(found, key)} → {served}"


def _changed(found: Mapping[str, Estimate], key: str, change: str) -> str:
    """``30.1 → 28.7: -1.40 [-1.63, -1.19]``: both values, and the change with its interval."""
    served = found[key].value
    if served is None:
        return text.NONE
    both = f"{_before(found, key)} → {text.number(_SCALES[key] * served)}"
    return f"{both}: {text.estimate(found[change], _SCALES[change])}"


def _before(found: Mapping[str, Estimate], key: str) -> str:
    reference = found[f"{key}_reference"].value
    return text.NONE if reference is None else text.number(_SCALES[key] * reference)
