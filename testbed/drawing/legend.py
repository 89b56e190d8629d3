"""What colours and widths of a picture mean, and the legend that says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log10
from statistics import median_low
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.drawing.view import View, Way
from testbed.units import format_rate

INK, MUTED, GROUP, NODE, ROUTER, ALERT = "#222222", "#666666", "#F1F1F1", "#FFFFFF", "#D5DBE3", "#C8102E"
#: Green is near, dark violet is far; the yellow end of the map would not be seen on paper.
DELAY_COLORS = LinearSegmentedColormap.from_list(
    "delay", mpl.colormaps["viridis_r"]([0.22 + 0.78 * step / 63 for step in range(64)])
)
UNSHAPED = (0, (2, 2))  # dashes
_LEAST_WIDTH, _MOST_WIDTH = 0.8, 5.0  # of lines, in points
_BY_MAGNITUDE = 10  # times between the shortest and the longest delay


class Scales:
    """Delay as colour and rate as width, between the least and the most of one picture."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self._rates = [way.direction.rate_bps for way in ways]
        delays_ms = [1e3 * way.direction.delay_s for way in ways]
        least, most = min(delays_ms, default=0.0), max(delays_ms, default=0.0)
        self.norm = LogNorm(least, most) if 0 < _BY_MAGNITUDE * least < most else Normalize(0, most or 1.0)

    def color(self, way: Way) -> Any:
        """The colour of a direction."""
        return DELAY_COLORS(self.norm(1e3 * way.direction.delay_s)) if way.shaped else ALERT

    def width(self, rate_bps: float) -> float:
        """Line width in points, by the logarithm of the rate between the slowest and the fastest."""
        low, high = log10(min(self._rates)), log10(max(self._rates))
        share = (log10(rate_bps) - low) / (high - low) if high > low else 0.5
        return _LEAST_WIDTH + (_MOST_WIDTH - _LEAST_WIDTH) * share

    def draw_bar(self, figure: Figure, bar: Axes) -> None:
        """The scale of delays."""
        made = figure.colorbar(
            ScalarMappable(norm=self.norm, cmap=DELAY_COLORS), cax=bar, ticks=self._ticks(), format="{x:g}"
        )
        made.set_label("one-way delay (ms)", fontsize=8)
        made.minorticks_off()
        made.ax.tick_params(labelsize=7)
        made.outline.set_visible(False)

    def samples(self) -> Iterator[Line2D]:
        """The slowest, a middle and the fastest rate as lines."""
        for rate in sorted({min(self._rates), median_low(self._rates), max(self._rates)}) if self._rates else ():
            yield Line2D([], [], color=MUTED, linewidth=self.width(rate), label=format_rate(rate, digits=3))

    def _ticks(self) -> list[float] | None:
        if not isinstance(self.norm, LogNorm):
            return None
        least, most = float(self.norm.vmin or 1), float(self.norm.vmax or 1)
        powers = range(int(log10(least)) - 2, int(log10(most)) + 2)
        steps = (1, 2, 5) if most / least < 1e3 else (1,)
        return [step * 10.0**power for power in powers for step in steps if least <= step * 10.0**power <= most]


def handles(view: View, scales: Scales) -> list[Line2D]:
    """The entries of the legend: what is in the picture, and nothing else."""
    pairs = [view.ways(link) for link in view.topology.links]
    kinds = {node.kind for node in view.topology.nodes}
    made = list(scales.samples())
    if any(forward.words != backward.words for forward, backward in pairs):
        label = "each way, where\nthey differ"
        made.append(Line2D([], [], color=MUTED, linewidth=1.5, marker=(3, 0, -90), markersize=6, label=label))
    if "server" in kinds:
        made.append(_mark("o", NODE, INK, "server"))
    if "router" in kinds:
        made.append(_mark("s", ROUTER, INK, "router"))
    if view.broken:
        made.append(_mark("x", ALERT, ALERT, "broken"))
    if any(way.changed for pair in pairs for way in pair):
        made.append(Line2D([], [], color=ALERT, alpha=0.3, linewidth=8, label="changed since up"))
    if not all(way.shaped for pair in pairs for way in pair):
        made.append(Line2D([], [], color=ALERT, linewidth=1.5, linestyle=UNSHAPED, label="not shaped"))
    return made


def _mark(marker: Any, fill: str, edge: str, label: str) -> Line2D:
    return Line2D([], [], linestyle="", marker=marker, markersize=8, color=fill, markeredgecolor=edge, label=label)
