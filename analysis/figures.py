"""Figures that compare frameworks.  Each is a function from records to a Figure; its docstring is its question.

No file is read or written here, and no colour chosen (``style`` does).  Rows of horizontal bars keep long framework
names readable whether there are two of them or ten.  Figures of place and time are in ``maps``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis import style
from analysis.bootstrap import Estimate
from analysis.domains import ALL, Row
from analysis.load import Comparison, Run
from analysis.metrics import execution_mix, metric, offered_requests_per_s, time_parts
from analysis.text import number

#: Estimates by framework and metric key, as ``metrics.summarise`` gives them.
Summaries = Mapping[str, Mapping[str, Estimate]]

LEGEND_CHARACTERS, NOTE_CHARACTERS = 105, 115  # that fit in one line of a figure, beside marks and without
WIDE_SPREAD = 20.0  # P99 over P1 of all latencies beyond which an axis is logarithmic


def latency_cdf(comparison: Comparison) -> Figure:
    """What share of the requests was answered within a given time?  The curve ends at the share that completed."""
    figure = style.figure(4.2)
    axes = figure.subplots()
    looks = style.looks(comparison.frameworks)
    for framework in comparison.frameworks:
        runs = comparison.runs_of(framework)
        sent = sum(len(run.requests) for run in runs)
        times = np.sort(np.concatenate([run.completed["latency_s"].to_numpy() for run in runs])) * 1e3
        label = f"{framework} (n = {len(times)} of {sent})"
        look = looks[framework]
        if not len(times):
            axes.plot([], [], color=look.color, linestyle=look.dashes, label=label)
            continue
        share = 100 * np.arange(1, len(times) + 1) / sent
        axes.step(times, share, where="post", color=look.color, linestyle=look.dashes, label=label)
        if len(runs) > 1:
            axes.fill_between(times, *_range_over_runs(runs, times), color=look.color, alpha=0.15, linewidth=0)
    slo_ms = comparison.runs[0].manifest.slo_s * 1e3
    axes.axvline(slo_ms, color=style.LIMIT, linewidth=1, linestyle=":")
    axes.annotate(
        f"SLO {number(slo_ms)} ms",
        (slo_ms, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 2),
        textcoords="offset points",
        color=style.LIMIT,
        fontsize=8.5,
    )
    if wide(comparison):
        plain_log(axes, "x")
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.set_xlabel("latency (ms, emulated)")
    axes.set_ylabel("requests answered (% of sent)")
    style.grid(axes)
    legend_below(figure, axes)
    return figure


def latency_bars(summaries: Summaries) -> Figure:
    """How long do requests take on average and in the tail, and how sure are we?"""
    return _bars(summaries, ("latency_mean_s", "latency_p95_s", "latency_p99_s"))


def traffic_bars(summaries: Summaries) -> Figure:
    """How much activation data crosses links between servers for 1000 tokens?"""
    return _bars(summaries, ("traffic_bytes_per_token",))


def throughput_bars(summaries: Summaries, comparison: Comparison) -> Figure:
    """How much work completes per emulated second of the steady part, and how much was offered?"""
    figure = _bars(summaries, ("throughput_requests_per_s", "throughput_tokens_per_s"))
    offered = [offered_requests_per_s(comparison.runs_of(name)) for name in comparison.frameworks]
    known = [value for value in offered if value]
    if known:
        axes = figure.axes[0]
        mean = sum(known) / len(known)
        axes.axvline(mean, color=style.LIMIT, linewidth=1, linestyle=":")
        axes.set_title(f"{axes.get_title(loc='left')}\ndotted: {number(mean)} offered", loc="left")
        figure.axes[1].set_title(figure.axes[1].get_title(loc="left") + "\n", loc="left")
    return figure


def quality_bars(summaries: Summaries, budget: float | None) -> Figure:
    """What does speed cost in quality against the full-precision reference, and does it stay within the budget?"""
    figure = _bars(summaries, ("nll_increase", "top1_agreement"), from_zero=(True, False))
    axes = figure.axes[0]
    if budget is not None:
        axes.axvline(100 * budget, color=style.LIMIT, linewidth=1, linestyle=":")
        axes.set_title(f"{axes.get_title(loc='left')}\ndotted: budget {number(100 * budget)} %", loc="left")
        figure.axes[1].set_title(figure.axes[1].get_title(loc="left") + "\n", loc="left")
        low, high = axes.get_xlim()
        axes.set_xlim(low, max(high, 130 * budget))
    return figure


def quality_by_domain(rows: Sequence[Row]) -> Figure:
    """Which kind of text does a lossy framework hurt: how much likelihood is lost, and how far do distributions go?"""
    lossy = list(dict.fromkeys(row.framework for row in rows if row.domain is None and not row.exact))
    exact = list(dict.fromkeys(row.framework for row in rows if row.framework not in lossy))
    domains = list(dict.fromkeys(row.domain or ALL for row in rows))
    figure = style.figure(style.rows_in(len(domains) * max(1, len(lossy)) // 2 + 1) + 0.5)
    panels = figure.subplots(1, 2, sharey=True)
    looks = style.looks(dict.fromkeys(row.framework for row in rows))
    for axes, key in zip(panels, ("nll_increase", "kl_divergence"), strict=True):
        entry = metric(key)
        for row in rows:
            found = row.estimates[key]
            if row.framework not in lossy or found.value is None:
                continue
            value = entry.scale * found.value
            low, high = (value if bound is None else entry.scale * bound for bound in (found.low, found.high))
            look = looks[row.framework]
            offset = 0.7 * ((lossy.index(row.framework) + 0.5) / len(lossy) - 0.5)
            axes.errorbar(
                value,
                domains.index(row.domain or ALL) + offset,
                xerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                color=look.color,
                marker=look.marker,
                markersize=5,
                capsize=2.5,
                linewidth=1,
                linestyle="none",
                label=row.framework if row.domain is None else None,
            )
        axes.axvline(0, color=style.MUTED, linewidth=1)
        axes.set_title(entry.title)
        axes.set_xlabel(entry.unit)
        style.grid(axes, "x")
    panels[0].set_yticks(range(len(domains)), domains)
    panels[0].set_ylim(len(domains) - 0.5, -0.5)
    if lossy:
        legend_below(figure, panels[0])
    if exact:
        said = fill(f"bit-exact, so at zero in both: {', '.join(exact)}", NOTE_CHARACTERS)
        figure.suptitle(said, fontsize=8.5, x=0.01, ha="left")
    return figure


def where_time_goes(comparison: Comparison) -> Figure:
    """Which part of a request takes the time: dense parts, experts here, experts elsewhere, moving, or the rest?"""
    parts = {name: time_parts(comparison.runs_of(name)) for name in comparison.frameworks}
    shown = {name: {part: 1e3 * value for part, value in (found or {}).items()} for name, found in parts.items()}
    counts = {name: sum(len(run.completed) for run in comparison.runs_of(name)) for name in comparison.frameworks}
    figure = _stacked(shown, counts, "mean latency of a request (ms, emulated)")
    axes = figure.axes[0]
    for row, found in enumerate(shown.values()):
        total = sum(found.values())
        text = f" {number(total)} ms" if found else " no data"
        axes.text(total, row, text, va="center", fontsize=8.5)
    axes.set_xlim(0, 1.15 * max((sum(found.values()) for found in shown.values()), default=1) or 1)
    return figure


def execution_mix_bars(comparison: Comparison) -> Figure:
    """Where and how do expert calls run: here or elsewhere, at once, after a load, or as a fallback?"""
    mixes = {name: execution_mix(comparison.runs_of(name)) for name in comparison.frameworks}
    shown = {name: {part: 100 * share for part, share in (mix or {}).items()} for name, mix in mixes.items()}
    calls = {
        name: int(sum(run.layers["experts"].sum() for run in comparison.runs_of(name)))
        for name in comparison.frameworks
    }
    figure = _stacked(shown, calls, "expert calls (%)")
    figure.axes[0].set_xlim(0, 100)
    return figure


def wide(comparison: Comparison) -> bool:
    """Whether latencies spread so far that a linear axis would hide the fast ones."""
    times = pl.concat([run.completed["latency_s"] for run in comparison.runs])
    low, high = times.quantile(0.01), times.quantile(0.99)
    return low is not None and high is not None and low > 0 and high / low > WIDE_SPREAD


def _range_over_runs(runs: tuple[Run, ...], times_ms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shares = []
    for run in runs:
        own = np.sort(run.completed["latency_s"].to_numpy()) * 1e3
        shares.append(100 * np.searchsorted(own, times_ms, side="right") / max(1, len(run.requests)))
    return np.min(shares, axis=0), np.max(shares, axis=0)


def _bars(summaries: Summaries, keys: tuple[str, ...], from_zero: tuple[bool, ...] = ()) -> Figure:
    """Panels side by side, a row per framework, value and interval written at the bar's end."""
    figure = style.figure(style.rows_in(len(summaries)) + 0.3)
    panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    looks = style.looks(summaries)
    for column, (axes, key) in enumerate(zip(panels, keys, strict=True)):
        entry = metric(key)
        zero = from_zero[column] if from_zero else True
        ends = []
        for row, (framework, values) in enumerate(summaries.items()):
            found = values[key]
            if found.value is None:
                axes.text(0.02, row, "no data", transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
                continue
            value, low, high = (
                entry.scale * part
                for part in (
                    found.value,
                    found.value if found.low is None else found.low,
                    found.value if found.high is None else found.high,
                )
            )
            error = [[max(0.0, value - low)], [max(0.0, high - value)]]
            look = looks[framework]
            if zero:
                axes.barh(row, value, color=look.color, height=0.62)
            else:
                axes.plot(value, row, color=look.color, marker=look.marker, markersize=7)
            if found.low is not None:
                axes.errorbar(value, row, xerr=error, color=style.INK, capsize=2.5, linewidth=1)
            axes.annotate(
                number(value), (high, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5
            )
            ends.append((low, high))
        _room_for_numbers(axes, ends, zero, len(keys))
        axes.set_title(entry.title)
        axes.set_xlabel(f"{entry.unit}, emulated" if key.endswith("_s") else entry.unit)
        style.grid(axes, "x")
    first = panels[0]
    first.set_yticks(range(len(summaries)), [_row_label(name, values[keys[0]].n) for name, values in summaries.items()])
    first.set_ylim(len(summaries) - 0.4, -0.6)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
    return figure


def _room_for_numbers(axes: Axes, ends: list[tuple[float, float]], zero: bool, panels: int) -> None:
    axes.locator_params(axis="x", nbins=6 if panels < 3 else 4)
    if not ends:
        axes.set_xlim(0, 1)
        return
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    low = min(low, 0.0) if zero else low
    spread = (high - low) or abs(high) or 1.0
    axes.set_xlim(low - (0.05 * spread if low < 0 or not zero else 0.0), high + (0.15 + 0.1 * panels) * spread)


def _stacked(parts: Mapping[str, Mapping[str, float]], counts: Mapping[str, int], xlabel: str) -> Figure:
    figure = style.figure(style.rows_in(len(parts)) + 0.3)
    axes = figure.subplots()
    names = list(dict.fromkeys(part for found in parts.values() for part in found))
    left = np.zeros(len(parts))
    for part in names:
        widths = np.array([found.get(part, 0.0) for found in parts.values()])
        axes.barh(range(len(parts)), widths, left=left, height=0.62, color=style.PART_COLORS[part], label=part)
        left += widths
    axes.set_yticks(range(len(parts)), [_row_label(name, counts[name]) for name in parts])
    axes.set_ylim(len(parts) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(xlabel)
    style.grid(axes, "x")
    if names:
        legend_below(figure, axes)
    return figure


def _row_label(framework: str, n: int) -> str:
    return f"{framework}\n(n = {n})" if len(framework) > 24 else f"{framework} (n = {n})"


def legend_below(figure: Figure, axes: Axes) -> None:
    """The legend under the figure, in as many columns as its longest label leaves room for."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    widest = max(len(label) for label in labels)
    columns = max(1, min(len(labels), LEGEND_CHARACTERS // (widest + 8)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def plain_log(axes: Axes, which: str) -> None:
    """A logarithmic axis, ``x`` or ``y``, that reads 20, 50, 100 instead of powers of ten."""
    axis, scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    scale("log")
    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if high / low < 500 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
