"""What depth policies decided: calls run, replaced, left out and ended early, layer by layer, and for which reasons.

A call is one token's use of one expert, so a layer has tokens x top-k of them whatever is decided.  Runs without a
depth policy have no such table and appear nowhere here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from analysis import style
from analysis.load import Comparison, Run
from testbed.errors import TestbedError

DEPTH_FILE = "depth.parquet"
COLUMNS = ("request", "step", "layer", "decision", "reason", "calls")
#: Decisions in the order in which they stand on each other, and how they are called.
DECISIONS = {
    "exact-local": "run here",
    "exact-remote": "run elsewhere",
    "substitute": "substituted",
    "skip": "left out",
    "exit": "token has left",
}
DEFINITION = (
    "Share of a layer's calls (one token's use of one expert) by what became of them: run on the aggregation server, "
    "run elsewhere, run by another expert, left out, or not asked for because the token had left the pass before."
)


def decided(run: Run) -> pl.DataFrame | None:
    """The table of a run, None where its framework has no depth policy; TestbedError where columns are missing."""
    path = run.path / DEPTH_FILE
    if not path.is_file():
        return None
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TestbedError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise TestbedError(f"{path}: column '{missing[0]}' is missing; docs/results.md lists the columns of depth")
    return frame.select(COLUMNS)


def with_depth(comparison: Comparison) -> tuple[str, ...]:
    """The frameworks whose runs have a depth policy."""
    return tuple(
        name
        for name in comparison.frameworks
        if any((run.path / DEPTH_FILE).is_file() for run in comparison.runs_of(name))
    )


def mix(comparison: Comparison, framework: str, by: Sequence[str] = ("decision",)) -> pl.DataFrame:
    """Calls of all runs of a framework and their ``share``, by these columns; shares are of each layer if it is one."""
    tables = [table for run in comparison.runs_of(framework) if (table := decided(run)) is not None]
    frame = pl.concat(tables).group_by(by).agg(pl.col("calls").sum())
    of = ["layer"] if "layer" in by else []
    total = pl.col("calls").sum().over(of) if of else pl.col("calls").sum()
    return frame.with_columns((pl.col("calls") / total).alias("share")).sort(by)


def mix_per_layer(comparison: Comparison, frameworks: Sequence[str]) -> Figure:
    """In which layers is work saved, and how: by leaving experts out, by others in their place, or by early ends?"""
    figure = style.figure(0.6 + 1.9 * len(frameworks))
    panels = np.atleast_1d(figure.subplots(len(frameworks), 1, sharex=True))
    for axes, framework in zip(panels, frameworks, strict=True):
        frame = mix(comparison, framework, ("layer", "decision"))
        layers = np.arange(int(frame["layer"].max()) + 1)  # type: ignore[arg-type]  # a table that is written has rows
        bottom = np.zeros(len(layers))
        for decision, label in DECISIONS.items():
            found = frame.filter(pl.col("decision") == decision)
            share = np.zeros(len(layers))
            share[found["layer"].to_numpy()] = 100 * found["share"].to_numpy()
            axes.bar(layers, share, bottom=bottom, width=1.0, color=style.PART_COLORS[label], label=label)
            bottom += share
        calls = int(frame["calls"].sum())
        axes.set_title(f"{framework} (n = {calls} calls)", loc="left")
        axes.set_ylim(0, 100)
        axes.set_ylabel("calls (%)")
    panels[-1].set_xlabel("layer")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8.5)
    return figure


def table(comparison: Comparison, frameworks: Sequence[str]) -> str:
    """Markdown: every decision with its reason and its share of all calls, a column per framework."""
    frames = {name: mix(comparison, name, ("decision", "reason")) for name in frameworks}
    shares = {
        name: {(row["decision"], row["reason"]): row["share"] for row in frame.iter_rows(named=True)}
        for name, frame in frames.items()
    }
    order = list(DECISIONS)
    keys = sorted({key for each in shares.values() for key in each}, key=lambda key: (order.index(key[0]), key[1]))
    lines = ["| decision | reason | " + " | ".join(frameworks) + " |", "|---|---|" + "---|" * len(frameworks)]
    for decision, reason in keys:
        cells = (f"{100 * shares[name].get((decision, reason), 0.0):.1f} %" for name in frameworks)
        lines.append(f"| {DECISIONS[decision]} | {reason} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
