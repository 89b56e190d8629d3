"""One summary of all frameworks: the numbers behind the table, and the table as Markdown, CSV and cells.

Frameworks are ranked by mean latency only if every run kept its fidelity bounds and ran to its end.  Otherwise the
order of the file stays, the runs at fault are marked and the reason is written down: a ranking would be believed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from analysis import text
from analysis.bootstrap import Bootstrap, Estimate
from analysis.load import Comparison
from analysis.metrics import METRICS, metric, paired_change, summarise
from testbed.errors import TestbedError

STRONG_BASELINE = "edgeshard"
MARK = "†"
#: The columns of the table; everything else is in the CSV.
ALWAYS_SHOWN = (
    "latency_mean_s",
    "latency_p95_s",
    "latency_p99_s",
    "slo_share",
    "throughput_requests_per_s",
    "traffic_bytes_per_token",
    "nll_increase",
    "moves_per_request",
    "failed_share",
)
#: Shown where a framework has a value.
SOMETIMES_SHOWN = ("ttft_mean_s", "tpot_mean_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Every framework's numbers, in the order to show them."""

    reference: str
    estimates: Mapping[str, Mapping[str, Estimate]]  # framework -> metric key
    changes: Mapping[str, Estimate]  # framework -> relative change of mean latency, paired; not for the reference
    ranked: bool
    doubts: tuple[str, ...]  # why the frameworks should not be ranked
    marked: frozenset[str]  # frameworks with such a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value and, in small print, its interval."""

    value: str
    interval: str = ""


def summary(
    comparison: Comparison, bootstrap: Bootstrap, *, reference: str | None = None, allow_unfaithful: bool = False
) -> Summary:
    """All numbers of a comparison.  ``reference`` is what changes are relative to."""
    base = _reference(comparison, reference)
    estimates = {name: summarise(comparison.runs_of(name), bootstrap) for name in comparison.frameworks}
    doubts = [f"{run.name}: fidelity verdict {run.manifest.fidelity.verdict}" for run in comparison.unfaithful]
    doubts += [f"{run.name}: interrupted" for run in comparison.interrupted]
    ranked = allow_unfaithful or not doubts
    order = list(comparison.frameworks)
    if ranked:
        order.sort(key=lambda name: _rank(estimates[name]["latency_mean_s"]))
    return Summary(
        reference=base,
        estimates={name: estimates[name] for name in order},
        changes={
            name: paired_change(comparison.runs_of(name), comparison.runs_of(base), bootstrap)
            for name in order
            if name != base
        },
        ranked=ranked,
        doubts=tuple(doubts),
        marked=frozenset(run.manifest.framework for run in (*comparison.unfaithful, *comparison.interrupted)),
    )


def header(found: Summary) -> list[str]:
    """The column titles with their units."""
    titles = []
    for key in _shown(found):
        entry = metric(key)
        titles.append(f"{entry.title} ({entry.unit})" if entry.unit else entry.title)
    return ["Framework", titles[0], f"Mean vs {found.reference}", *titles[1:]]


def _shown(found: Summary) -> list[str]:
    some = [
        key
        for key in SOMETIMES_SHOWN
        if any(estimates[key].value is not None for estimates in found.estimates.values())
    ]
    return [*ALWAYS_SHOWN, *some]


def rows(found: Summary) -> list[list[Cell]]:
    """The table's cells, a row per framework."""
    table = []
    for name, estimates in found.estimates.items():
        numbers = [_cell(estimates[key], metric(key).scale) for key in _shown(found)]
        change = found.changes.get(name)
        relative = Cell(value="reference") if change is None else Cell(value=text.change_with_interval(change))
        mark = f" {MARK}" if name in found.marked else ""
        table.append([Cell(value=name + mark), numbers[0], relative, *numbers[1:]])
    return table


def order_note(found: Summary) -> str:
    """One sentence on the order of the rows."""
    reasons = "; ".join(found.doubts)
    if not found.ranked:
        return f"NOT RANKED, in the order of the file, because of the runs marked {MARK}: {reasons}."
    if found.doubts:
        return f"Ranked by mean latency on demand, although runs marked {MARK} are in doubt: {reasons}."
    return "Ranked by mean latency."


def markdown(comparison: Comparison, found: Summary) -> str:
    """``summary.md``: title, table, how to read it."""
    lines = [f"# {comparison.scenario}", "", order_note(found), *(f"Note: {note}" for note in comparison.notes), ""]
    titles = header(found)
    lines += ["| " + " | ".join(_plain(title) for title in titles) + " |"]
    lines += ["|---|" + "---:|" * (len(titles) - 1)]
    for row in rows(found):
        lines.append("| " + " | ".join(_plain(f"{cell.value} {cell.interval}".strip()) for cell in row) + " |")
    method = next(iter(found.estimates.values()))["latency_mean_s"].method
    lines += ["", f"[ ] = 95 % bootstrap interval: {method}. Definitions: docs/metrics.md."]
    return "\n".join(lines) + "\n"


def csv_text(found: Summary) -> str:
    """``summary.csv``: every metric with its interval and n, in SI units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("", "_low", "_high", "_n")
    change = "latency_mean_change"
    keys = [change, *(entry.key for entry in METRICS)]
    writer.writerow(["framework", "reference", "in_doubt", *(key + part for key in keys for part in parts)])
    for name, estimates in found.estimates.items():
        values: list[object] = [name, found.reference, str(name in found.marked).lower()]
        for key in keys:
            estimate = found.changes.get(name) if key == change else estimates[key]
            values += ["", "", "", ""] if estimate is None else _fields(estimate)
        writer.writerow(values)
    return out.getvalue()


def _reference(comparison: Comparison, asked: str | None) -> str:
    if asked is not None:
        if asked not in comparison.frameworks:
            names = ", ".join(comparison.frameworks)
            raise TestbedError(f"reference '{asked}' is not in this comparison; it has: {names}")
        return asked
    return STRONG_BASELINE if STRONG_BASELINE in comparison.frameworks else comparison.frameworks[0]


def _rank(mean: Estimate) -> float:
    return float("inf") if mean.value is None else mean.value  # nothing completed: last


def _cell(estimate: Estimate, scale: float) -> Cell:
    value, _, bounds = text.estimate(estimate, scale).partition(" ")
    return Cell(value=value, interval=bounds)


def _fields(estimate: Estimate) -> list[object]:
    bounds = (estimate.value, estimate.low, estimate.high)
    return ["" if bound is None else f"{bound:.6g}" for bound in bounds] + [estimate.n]


def _plain(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
