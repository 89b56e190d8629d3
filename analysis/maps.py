"""Figures of time and place: what happened when, on which server, over which link.

Functions from records to a Figure, like ``figures``; each docstring is the question the figure answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.events import SAME_TIME_S, Span, end_s, hit_links, spans
from analysis.figures import legend_below, plain_log, wide
from analysis.load import Comparison, Run
from analysis.metrics import device_busy
from testbed.drawing.picture import picture
from testbed.drawing.view import View
from testbed.topology import Topology

MEDIAN_REQUESTS = 25  # length of the rolling median at most
NAMED_LINKS = 6  # rate lines that get a name of their own


def time_line(comparison: Comparison) -> Figure:
    """How does latency react while links are disturbed, and when does it recover?

    Points are requests at their planned arrival, lines the rolling median, centred and therefore a little early.
    Below: the rate in force of the links that were hit, as the first run saw it.
    """
    first = comparison.runs[0]
    hit = hit_links(first)
    figure = style.figure((5.0 if hit else 3.6) + 0.1 * len(comparison.frameworks))
    grid = figure.subplots(2 if hit else 1, 1, sharex=True, squeeze=False, height_ratios=(3, 1) if hit else (1,))[:, 0]
    axes = grid[0]
    looks = style.looks(comparison.frameworks)
    points = sum(len(run.completed) for run in comparison.runs)
    for framework in comparison.frameworks:
        runs = comparison.runs_of(framework)
        done = pl.concat([run.completed.select("scheduled_s", "latency_s") for run in runs]).sort("scheduled_s")
        at, latency = done["scheduled_s"].to_numpy(), 1e3 * done["latency_s"].to_numpy()
        look = looks[framework]
        axes.scatter(
            at,
            latency,
            s=7,
            color=look.color,
            marker=look.marker,
            alpha=max(0.12, min(0.4, 600 / (points + 1))),
            linewidths=0,
            rasterized=points > style.MANY_POINTS,
        )
        window = max(3, min(MEDIAN_REQUESTS * len(runs), len(done) // 8))
        median = done["latency_s"].rolling_median(window, min_samples=1, center=True).to_numpy() * 1e3
        label = f"{framework} (n = {len(done)})"
        axes.plot(at, median, color=look.color, linestyle=look.dashes, label=label)
    if wide(comparison):
        plain_log(axes, "y")
    else:
        axes.set_ylim(bottom=0)
    if not points:
        axes.text(0.5, 0.5, "no request completed", ha="center", transform=axes.transAxes)
    axes.set_ylabel("latency (ms, emulated)")
    style.grid(axes, "y")
    found = spans(first)
    for panel in grid:
        for span in found:
            _shade(panel, span)
    until_s = max(end_s(run) for run in comparison.runs) or 1.0
    _label_spans(axes, found, until_s)
    if hit:
        _rates(grid[1], first, hit)
    grid[-1].set_xlabel("planned arrival (s, emulated)")
    grid[-1].set_xlim(0, until_s)
    legend_below(figure, axes)
    return figure


def busy_heat_map(comparison: Comparison) -> Figure:
    """Which servers carry the work under each framework, and which stand idle?"""
    busy = {name: device_busy(comparison.runs_of(name)) for name in comparison.frameworks}
    servers = [node.name for node in comparison.runs[0].manifest.topology.servers]
    table = np.array([[100 * values.get(server, np.nan) for server in servers] for values in busy.values()])
    figure = style.figure(style.rows_in(len(busy)) + 0.4)
    axes = figure.subplots()
    colors = mpl.colormaps[style.HEAT_MAP]
    image = axes.imshow(table, cmap=colors, vmin=0, vmax=100, aspect="auto")
    if len(servers) <= 20:
        for row, column in np.argwhere(np.isfinite(table)):
            ink = "white" if table[row, column] > 60 else style.INK
            axes.text(column, row, f"{table[row, column]:.0f}", ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xticks(range(len(servers)), servers, rotation=90 if len(servers) > 14 else 0)
    runs = {name: len(comparison.runs_of(name)) for name in busy}
    axes.set_yticks(range(len(busy)), [f"{name} (n = {runs[name]} run{'s' * (runs[name] > 1)})" for name in busy])
    axes.set_xlabel("server")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="device busy (% of time)", pad=0.01)
    return figure


def topology_picture(topology: Topology) -> Figure:
    """Who is near whom?  Metros are grouped, thick links are fast, dark links are far."""
    return picture(View(topology=topology), width_in=style.WIDTH_IN)


def _shade(axes: Axes, span: Span) -> None:
    if span.end_s > span.start_s:
        axes.axvspan(span.start_s, span.end_s, color=style.SPAN, linewidth=0, zorder=0)
    else:
        axes.axvline(span.start_s, color=style.LIMIT, linewidth=1, linestyle=":", zorder=0)


def _label_spans(axes: Axes, found: Sequence[Span], until_s: float) -> None:
    """Labels above the panel, each on a line of its own, so that spans close in time cannot collide."""
    shown = list(found[:4])
    for line, span in enumerate(reversed(shown)):
        late = span.start_s > 0.6 * until_s
        axes.annotate(
            span.label if len(span.label) < 60 else span.label[:57] + "...",
            (span.end_s if late else span.start_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 11 * line),
            ha="right" if late else "left",
            textcoords="offset points",
            fontsize=8.5,
            color=style.LIMIT,
        )
    if len(found) > len(shown):
        axes.set_title(f"and {len(found) - len(shown)} more disturbances", loc="right", fontsize=8.5)


def _rates(axes: Axes, run: Run, hit: Sequence[str]) -> None:
    named = hit[:NAMED_LINKS]
    for index, link in enumerate(named):
        at, rate_bps = _rate_steps(run, link)
        axes.step(
            at,
            np.array(rate_bps) / 1e6,
            where="post",
            color=style.LINK_COLORS[index % len(style.LINK_COLORS)],
            linewidth=1.2 + 4 * (len(named) - 1 - index) / len(named),  # equal rates stay visible under one another
            label=link,
        )
    axes.margins(y=0.15)
    plain_log(axes, "y")
    axes.set_ylabel("rate (Mbit/s)")
    more = f"\n+ {len(hit) - len(named)} more" if len(hit) > len(named) else ""
    axes.legend(title=f"links hit{more}", loc="center left", bbox_to_anchor=(1.0, 0.5), title_fontsize=8.5)
    style.grid(axes, "y")


def _rate_steps(run: Run, link: str) -> tuple[list[float], list[float]]:
    """When the slower direction of a link took which rate.  Samples see a change late; its event knows the moment."""
    samples = run.links.filter(pl.col("link") == link).group_by("t_s").agg(pl.col("rate_bps").min()).sort("t_s")
    moments = run.events.filter(pl.col("link") == link)["actual_s"].to_list()
    at: list[float] = []
    rates: list[float] = []
    before = 0.0
    for t, rate in samples.iter_rows():
        changed = bool(rates) and rate != rates[-1]
        cause = [moment for moment in moments if before - SAME_TIME_S <= moment <= t + SAME_TIME_S]
        at.append(cause[-1] if changed and cause else t)
        rates.append(rate)
        before = t
    return at, rates
