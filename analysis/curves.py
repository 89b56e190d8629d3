"""Figures of a sweep, over load.  Each is a function from means over seeds to a Figure; its docstring is its question.

A row of panels per network, a line per framework, a band for the 95 % interval over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, MaxNLocator, NullLocator

from analysis import style
from analysis.figures import WIDE_SPREAD, legend_below, plain_log
from analysis.metrics import metric
from analysis.seeds import Point
from analysis.sweep import OFFERED
from analysis.text import number

PANEL_IN = 2.6  # height of a row of panels
MANY_LOADS = 8  # more are not each labelled
OUT_OF_SIGHT = 0.1  # of the least value on a logarithmic axis, which begins above that
WIDE_LOADS = 4.0  # highest over lowest load beyond which their axis is logarithmic


def latency_over_load(points: Sequence[Point], slo_s: float | None) -> Figure:
    """How do mean and tail latency grow with load, on each network?"""
    keys = ("latency_mean_s", "latency_p99_s")
    values = [value for point in points for key in keys if (value := point.estimates[key].value)]
    logarithmic = bool(values) and max(values) / min(values) > WIDE_SPREAD
    figure, panels = _panels(points, keys, least=OUT_OF_SIGHT * min(values) if logarithmic else 0.0)
    for row in panels:
        for axes in row:
            if slo_s is not None:
                axes.axhline(1e3 * slo_s, color=style.LIMIT, linewidth=1, linestyle=":")
            if logarithmic:
                axes.set_ylim(0.7e3 * min(values), 1.5e3 * max(values))
                plain_log(axes, "y")
            else:
                axes.set_ylim(bottom=0)
            _log_axis_of_load(axes, _loads(points))
    if slo_s is not None:
        _explain(panels[0], f"dotted: SLO {number(1e3 * slo_s)} ms")
    return figure


def throughput_over_load(points: Sequence[Point]) -> Figure:
    """Up to which load does each framework keep up, and what share of the requests fails beyond?"""
    figure, panels = _panels(points, ("throughput_requests_per_s", "failed_share"))
    for (throughput, failed), topology in zip(panels, _topologies(points), strict=True):
        offered = {
            point.rate_per_s: value
            for point in points
            if point.topology == topology and (value := point.estimates[OFFERED].value) is not None
        }
        loads = sorted(offered)
        throughput.plot(loads, [offered[load] for load in loads], color=style.LIMIT, linewidth=1, linestyle=":")
        throughput.set_ylim(0, 1.1 * max(_loads(points)))
        failed.set_ylim(-2, 102)
    _explain(panels[0], "dotted: offered")
    return figure


def _panels(points: Sequence[Point], keys: tuple[str, ...], least: float = 0.0) -> tuple[Figure, list[list[Axes]]]:
    """``least``: where bands end that reach below, in SI units."""
    topologies = _topologies(points)
    frameworks = list(dict.fromkeys(point.framework for point in points))
    looks = style.looks(frameworks)
    figure = style.figure(PANEL_IN * len(topologies) + 0.7)
    panels = figure.subplots(len(topologies), len(keys), squeeze=False, sharex=True, sharey="col")
    for row, topology in zip(panels, topologies, strict=True):
        for axes, key in zip(row, keys, strict=True):
            entry = metric(key)
            for framework in frameworks:
                own = [point for point in points if (point.topology, point.framework) == (topology, framework)]
                _line(axes, own, key, looks[framework], framework, least)
            axes.set_title(f"{entry.title}, {topology}")
            axes.set_ylabel(f"{entry.unit}, emulated" if key.endswith("_s") and entry.scale != 1 else entry.unit)
            axes.xaxis.set_major_locator(_ticks(_loads(points)))
            style.grid(axes)
    for axes in panels[-1]:
        axes.set_xlabel("load (requests/s, emulated)")
    legend_below(figure, panels[0][0])
    return figure, [list(row) for row in panels]


def _line(axes: Axes, own: Sequence[Point], key: str, look: style.Look, framework: str, least: float) -> None:
    """One framework's values; its label says over how many seeds."""
    scale = metric(key).scale
    known = [(point.rate_per_s, point.estimates[key]) for point in own if point.estimates[key].value is not None]
    seeds = sorted({point.seeds for point in own})
    label = f"{framework} (no data)" if not seeds else f"{framework} ({_counted(seeds[0], seeds[-1])})"
    axes.plot(
        [rate for rate, _ in known],
        [scale * float(estimate.value or 0.0) for _, estimate in known],
        color=look.color,
        linestyle=look.dashes,
        marker=look.marker,
        markersize=4.5,
        label=label,
    )
    banded = [
        (rate, max(each.low, least), each.high)
        for rate, each in known
        if each.low is not None and each.high is not None
    ]
    if len(banded) > 1:
        rates, lows, highs = zip(*banded, strict=True)
        axes.fill_between(
            rates, [scale * low for low in lows], [scale * high for high in highs], color=look.color, alpha=0.15, lw=0
        )
    elif banded:
        rate, low, high = banded[0]
        axes.vlines(rate, scale * low, scale * high, color=look.color, linewidth=1)


def _counted(fewest: int, most: int) -> str:
    many = f"{fewest}" if fewest == most else f"{fewest}-{most}"
    return f"n = {many} seed" + ("" if most == 1 else "s")


def _ticks(loads: Sequence[float]) -> Locator:
    return FixedLocator(list(loads)) if len(loads) <= MANY_LOADS else MaxNLocator(MANY_LOADS)


def _log_axis_of_load(axes: Axes, loads: Sequence[float]) -> None:
    if max(loads) / min(loads) < WIDE_LOADS:
        return
    plain_log(axes, "x")
    if len(loads) <= MANY_LOADS:
        axes.xaxis.set_major_locator(FixedLocator(list(loads)))
        axes.xaxis.set_minor_locator(NullLocator())


def _explain(row: Sequence[Axes], what: str) -> None:
    """A second line under the first title; the others stay on a level with it."""
    for place, axes in enumerate(row):
        axes.set_title(f"{axes.get_title(loc='left')}\n{'' if place else what}", loc="left")


def _topologies(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.topology for point in points))


def _loads(points: Sequence[Point]) -> list[float]:
    return sorted({point.rate_per_s for point in points})
