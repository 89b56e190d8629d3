r"""How soon a framework is itself again after a disturbance began, and after it ended.

    base  median latency of the requests that arrived before the disturbance                                      (1)
    m(t)  median latency of the requests that arrived in [t, t + W)                                               (2)
    recovery  first t - t0 from which on m stays at or below (1 + TOLERANCE) base until the next change            (3)

(3) is zero where latency never left the band, and infinite where it had not come back when the next change came or the
run ended: then the framework did not recover from that change.  A failed request counts as one that took for ever, so a
framework that drops requests has not recovered.

>>> arrived = np.arange(0.05, 10.0, 0.1)
>>> latency = np.where((arrived >= 4.0) & (arrived < 6.0), 0.5, 0.1)
>>> recovery_s(arrived, latency, from_s=4.0, to_s=10.0, base_s=0.1)
2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.load import Run

Floats = NDArray[np.float64]

#: W of (2), s.
WINDOW_S = 0.5
#: Windows are looked at this often, s.
STEP_S = 0.25
#: How far above (1) counts as recovered.
TOLERANCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One change of a run, and how soon latency was itself again."""

    event: str  # what happened at that moment
    at_s: float
    base_s: float
    worst_s: float  # greatest median of a window until the next change
    recovery_s: float  # infinite: not before the next change


def medians(arrived_s: Floats, latency_s: Floats, *, from_s: float, to_s: float) -> tuple[Floats, Floats]:
    """Starts of the windows between two moments, and (2); windows without an arrival are left out."""
    starts = np.arange(from_s, to_s - 1e-9, STEP_S)
    found = []
    for start in starts:
        within = latency_s[(arrived_s >= start) & (arrived_s < min(start + WINDOW_S, to_s))]
        if len(within):
            found.append((start, float(np.median(within))))
    if not found:
        return np.zeros(0), np.zeros(0)
    table = np.array(found)
    return table[:, 0], table[:, 1]


def recovery_s(arrived_s: Floats, latency_s: Floats, *, from_s: float, to_s: float, base_s: float) -> float:
    """Equation (3) for the change at ``from_s``; nothing arrived: infinite."""
    starts, middle_s = medians(arrived_s, latency_s, from_s=from_s, to_s=to_s)
    if not len(starts):
        return float("inf")
    above = np.flatnonzero(middle_s > (1.0 + TOLERANCE) * base_s)
    if not len(above):
        return 0.0
    if above[-1] + 1 == len(starts):
        return float("inf")
    return float(starts[above[-1] + 1] - from_s)


def recoveries(run: Run) -> list[Recovery]:
    """Every moment of a run at which the scenario changed something, in order."""
    arrived_s = run.requests["scheduled_s"].to_numpy().astype(np.float64)
    latency_s = run.requests["latency_s"].fill_null(float("inf")).to_numpy().astype(np.float64)
    happened: dict[float, list[str]] = {}
    for row in run.events.sort("scheduled_s").iter_rows(named=True):
        happened.setdefault(float(row["scheduled_s"]), []).append(str(row["event"]))
    moments = sorted(happened)
    if not moments:
        return []
    calm = latency_s[arrived_s < moments[0]]
    if not len(calm):
        return []
    base_s = float(np.median(calm))
    ends = [*moments[1:], float(arrived_s.max()) + STEP_S]
    found = []
    for at_s, to_s in zip(moments, ends, strict=True):
        _, middle_s = medians(arrived_s, latency_s, from_s=at_s, to_s=to_s)
        first, *more = happened[at_s]
        found.append(
            Recovery(
                event=first if not more else f"{first} and {len(more)} more",
                at_s=at_s,
                base_s=base_s,
                worst_s=float(middle_s.max()) if len(middle_s) else float("nan"),
                recovery_s=recovery_s(arrived_s, latency_s, from_s=at_s, to_s=to_s, base_s=base_s),
            )
        )
    return found


def table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Rows of a table: framework, repeat, change, base, worst, time to recover."""
    rows: list[tuple[str, ...]] = [("framework", "repeat", "change", "before ms", "worst ms", "recovered after s")]
    for run in runs:
        for entry in recoveries(run):
            after = f"{entry.recovery_s:.2f}" if np.isfinite(entry.recovery_s) else "not before the next"
            rows.append(
                (
                    run.manifest.framework,
                    str(run.manifest.repeat),
                    f"{entry.at_s:.1f} s: {entry.event}",
                    f"{1e3 * entry.base_s:.0f}",
                    f"{1e3 * entry.worst_s:.0f}",
                    after,
                )
            )
    return rows


def time_line(runs: Sequence[Run]) -> Figure:
    """How does latency develop around the changes?  Median of windows of 0.5 s, one line per run."""
    figure = Figure(figsize=(7.0, 3.5), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        arrived_s = run.requests["scheduled_s"].to_numpy().astype(np.float64)
        latency_s = run.requests["latency_s"].fill_null(float("nan")).to_numpy().astype(np.float64)
        finite = np.isfinite(latency_s)
        if not finite.any():
            continue
        starts, middle_s = medians(
            arrived_s[finite], latency_s[finite], from_s=float(arrived_s.min()), to_s=float(arrived_s.max())
        )
        label = f"{run.manifest.framework} (n = {int(finite.sum())})"
        axes.plot(starts + WINDOW_S / 2, 1e3 * middle_s, label=label)
    for moment in sorted({float(t) for run in runs for t in run.events["scheduled_s"]}):
        axes.axvline(moment, color="0.7", linewidth=0.8)
    axes.set_xlabel("arrival (s)")
    axes.set_ylabel("median latency (ms)")
    axes.set_yscale("log")
    axes.legend(fontsize="small")
    return figure


def main() -> int:
    """``python -m analysis.recovery RESULTS``: print the table, write ``recovery.png`` beside the runs."""
    import argparse
    import sys
    from pathlib import Path

    from analysis.load import load
    from testbed.errors import TestbedError

    parser = argparse.ArgumentParser(prog="python -m analysis.recovery", description="Time to recover after changes.")
    parser.add_argument("results", type=Path)
    directory = parser.parse_args().results
    try:
        runs = load(directory).runs
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    rows = table(runs)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    time_line(runs).savefig(directory / "recovery.png", dpi=150)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
