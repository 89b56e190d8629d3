"""depth.parquet: what a depth policy decided about every layer's calls, and why (docs/results.md).

It lies beside the other tables of a run whose framework has a depth policy; others have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from agents.protocol import Collected

DEPTH_FILE = "depth.parquet"
DEPTH = {
    "request": pl.Int64,
    "step": pl.Int64,
    "layer": pl.Int64,
    "decision": pl.String,
    "reason": pl.String,
    "calls": pl.Int64,
}


def depth_rows(collected: Iterable[Collected]) -> list[dict[str, Any]]:
    """A row per layer, decision and reason, in that order."""
    rows = []
    for report in collected:
        for record in report.layers:
            for key, calls in record.decisions.items():
                decision, _, reason = key.partition("/")
                place = {"request": record.request, "step": record.step, "layer": record.layer}
                rows.append({**place, "decision": decision, "reason": reason, "calls": calls})
    return sorted(rows, key=lambda row: tuple(row[name] for name in ("request", "step", "layer", "decision", "reason")))


def write_depth(directory: Path, collected: Iterable[Collected]) -> None:
    """Write the table if anything was decided."""
    rows = depth_rows(collected)
    if rows:
        pl.DataFrame(rows, schema=DEPTH, orient="row").write_parquet(directory / DEPTH_FILE)
