"""Figures of ``scenarios/hetroute_paper.py``: functions from a grid to a Figure, whose docstrings are their questions.

Points are means over seeds; bands and whiskers are their 95 % intervals (Student's t).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import reaction, style
from analysis.bootstrap import Estimate
from analysis.curves import latency_over_load
from analysis.figures import WIDE_SPREAD, legend_below, plain_log
from analysis.hetrouteclaims import AIMS, LOWER, OURS, SLO_S, gain
from analysis.papertable import Condition, Grid
from analysis.seeds import Point

#: Of the load curves, the columns by the metric's key.
CURVES = {"latency_mean_s": "mean_s", "latency_p99_s": "p99_s"}
#: Per cent beyond which a change leaves the picture: against a baseline that sends next to nothing.
MOST_CHANGE = 120.0


def figures(
    grid: Grid, at: Condition, reacted: Mapping[str, Sequence[reaction.Reaction]]
) -> Iterator[tuple[str, Figure]]:
    """All figures that this grid has data for, by name."""
    if any(gain(grid, OURS, aim.base, at, aim.key).value is not None for aim in AIMS):
        yield "paper_and_measured", paper_and_measured(grid, at)
    points = load_points(grid, at)
    if len({point.rate_per_s for point in points}) > 1:
        yield "load", latency_over_load(points, SLO_S)
    if len(_along(grid, at, "redundancy")) > 1 or len(_along(grid, at, "budget")) > 1:
        yield "parameters", parameters(grid, at)
    names = ablations(grid, at)
    if names:
        yield "ablations", without_each_part(grid, at, names)
    if reacted:
        yield "reaction", reaction.time_lines(reacted)


def paper_and_measured(grid: Grid, at: Condition) -> Figure:
    """How much less does HetRoute take than each baseline: in the paper, here, and at equal precision?"""
    aims = [aim for aim in AIMS if aim.paper < 0 and gain(grid, OURS, aim.base, at, aim.key).value is not None]
    figure = style.figure(style.rows_in(len(aims)) + 0.6)
    axes = figure.subplots()
    marks = {"": ("o", "#0072B2"), "int8": ("s", "#D55E00"), "int4": ("^", "#009E73")}
    shown: dict[str, str] = {}
    for row, aim in enumerate(aims):
        axes.plot(100 * aim.paper, row, marker="|", markersize=16, markeredgewidth=2, color=style.INK, linestyle="none")
        for place, precision in enumerate(("", *LOWER)):
            base = f"{aim.base}-{precision}" if precision else aim.base
            found = gain(grid, OURS, base, at, aim.key)
            if found.value is not None:
                marker, color = marks[precision]
                _whisker(axes, found, row + 0.22 * (place - 1), scale=100.0, marker=marker, color=color)
                shown[precision] = f"against its {precision}" if precision else "against the baseline in full precision"
    for precision, label in shown.items():
        marker, color = marks[precision]
        axes.plot([], [], marker=marker, color=color, linestyle="none", label=label)
    axes.plot([], [], marker="|", markersize=12, markeredgewidth=2, color=style.INK, linestyle="none", label="paper")
    axes.set_yticks(range(len(aims)), [f"{aim.base}: {aim.what}" for aim in aims])
    axes.set_ylim(len(aims) - 0.4, -0.6)
    axes.axvline(0.0, color=style.MUTED, linewidth=0.8)
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -120.0), min(high, MOST_CHANGE))
    seeds = grid.mean(OURS, at, "mean_s").n
    axes.set_xlabel(f"change by hetroute (%), {at.model}, {at.rate_per_s:g} requests/s (n = {seeds} seeds at most)")
    style.grid(axes, "x")
    legend_below(figure, axes)
    return figure


def parameters(grid: Grid, at: Condition) -> Figure:
    """What do more memory and a larger quality budget buy?"""
    figure = style.figure(3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    look = style.looks([OURS])[OURS]
    for axes, key, scale in ((left, "redundancy", 1.0), (right, "budget", 100.0)):
        values = _along(grid, at, key)
        for what, column, dashes in (("mean", "mean_s", look.dashes), ("P99", "p99_s", (0, (1.2, 1.2)))):
            found = [grid.mean(OURS, _at(at, key, value), column) for value in values]
            shown = [1e3 * (each.value or 0.0) for each in found]
            axes.plot([scale * v for v in values], shown, color=look.color, linestyle=dashes, marker="o", label=what)
            for value, each in zip(values, found, strict=True):
                if each.low is not None and each.high is not None:
                    axes.vlines(scale * value, 1e3 * each.low, 1e3 * each.high, color=look.color, linewidth=1)
        style.grid(axes)
    for value in _along(grid, at, "budget"):
        here = replace(at, budget=value)
        loss, p99 = grid.mean(OURS, here, "loss"), grid.mean(OURS, here, "p99_s")
        if loss.value is not None and p99.value is not None:
            right.annotate(
                f"{100 * loss.value:.2f} %",
                (100 * value, 1e3 * p99.value),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7.5,
            )
    left.set_ylabel("latency (ms, emulated)")
    left.set_ylim(bottom=0)
    left.set_xlabel("memory (full-precision copies of all experts)")
    right.set_xlabel("quality budget (% of NLL); labels: measured loss")
    left.set_title(f"hetroute, {at.model}, {at.rate_per_s:g}/s")
    legend_below(figure, left)
    return figure


def without_each_part(grid: Grid, at: Condition, names: Sequence[str]) -> Figure:
    """What does HetRoute lose without each of its parts?"""
    figure = style.figure(style.rows_in(len(names)) + 0.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, title in zip(panels, ("mean_s", "p99_s"), ("Mean latency", "P99 latency"), strict=True):
        for row, name in enumerate(names):
            found = grid.change(name, OURS, at, key)
            if found.value is not None:
                _whisker(axes, found, row, scale=1.0, offset=1.0, marker="o", color=style.looks([OURS])[OURS].color)
        axes.axvline(1.0, color=style.MUTED, linewidth=0.8)
        most = axes.get_xlim()[1]
        axes.set_xlim(0.0, max(2.0, most))
        if most > WIDE_SPREAD:
            axes.set_xlim(0.5, most)
            plain_log(axes, "x")
        axes.set_title(title)
        axes.set_xlabel(f"times that of hetroute (n = {grid.change(names[0], OURS, at, key).n} seeds)")
        style.grid(axes, "x")
    panels[0].set_yticks(range(len(names)), [name.removeprefix("hetroute-") for name in names])
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def ablations(grid: Grid, at: Condition) -> list[str]:
    """HetRoute without each of its parts."""
    return [
        str(name)
        for name in grid.table.filter(pl.col("part").is_in(["ablations", "at-home"]))["framework"].unique(
            maintain_order=True
        )
        if grid.change(str(name), OURS, at, "mean_s").value is not None
    ]


def load_points(grid: Grid, at: Condition) -> list[Point]:
    """The load curves' points: frameworks that were played at more than one load."""
    found = []
    every = grid.table.filter(
        (pl.col("model") == at.model)
        & (pl.col("scenario") == at.scenario)
        & (pl.col("budget") == at.budget)
        & (pl.col("redundancy") == at.redundancy)
        & (pl.col("backend") == at.backend)
        & (pl.col("part") != "calm")
    )
    loads = every["rate_per_s"].unique().sort().to_list()
    for framework in every["framework"].unique(maintain_order=True):
        own = [load for load in loads if grid.values(framework, replace(at, rate_per_s=load), "mean_s")]
        for load in own if len(own) > 1 else []:
            here = replace(at, rate_per_s=load)
            estimates = {key: grid.mean(framework, here, column) for key, column in CURVES.items()}
            found.append(
                Point(
                    topology=at.model,
                    framework=framework,
                    rate_per_s=load,
                    seeds=estimates["latency_mean_s"].n,
                    estimates=estimates,
                )
            )
    return found


def _along(grid: Grid, at: Condition, key: str) -> list[float]:
    """The values of one parameter that HetRoute was played with, everything else as in ``at``."""
    return [
        value for value in grid.table[key].unique().sort().to_list() if grid.values(OURS, _at(at, key, value), "mean_s")
    ]


def _at(condition: Condition, key: str, value: float) -> Condition:
    return replace(condition, budget=value) if key == "budget" else replace(condition, redundancy=value)


def _whisker(
    axes: Axes, found: Estimate, row: float, *, scale: float, marker: str, color: str, offset: float = 0.0
) -> None:
    value = scale * (float(found.value or 0.0) + offset)
    axes.plot(value, row, marker=marker, markersize=5, color=color, linestyle="none")
    if found.low is not None and found.high is not None:
        low, high = scale * (found.low + offset), scale * (found.high + offset)
        axes.hlines(row, max(low, 1e-3) if offset else low, high, color=color, linewidth=1)
