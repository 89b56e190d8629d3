"""The only place that knows colours, marks, line styles and sizes.

Every framework has one look that is the same in every figure and every comparison.  Colours are told apart with
the common colour vision deficiencies (Okabe and Ito's set, extended by dark tones of Paul Tol's); lines also differ
in their dashes and points in their shape, so a black-and-white print still reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one framework is drawn."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


_DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
)

_KNOWN: dict[str, Look] = {
    "hetroute": Look(color="#0072B2", dashes=_DASHES[0], marker="o"),
    "edgeshard": Look(color="#D55E00", dashes=_DASHES[1], marker="s"),
    "greedy": Look(color="#009E73", dashes=_DASHES[2], marker="^"),
    "local-first": Look(color="#E69F00", dashes=_DASHES[3], marker="D"),
    "prism": Look(color="#CC79A7", dashes=_DASHES[0], marker="v"),
    "petals": Look(color="#56B4E9", dashes=_DASHES[1], marker="P"),
    "moe-infinity": Look(color="#882255", dashes=_DASHES[2], marker="X"),
    "bevy": Look(color="#332288", dashes=_DASHES[0], marker="<"),
    "bevy+prefetch": Look(color="#AA4499", dashes=_DASHES[1], marker="8"),
    "lockstep": Look(color="#7F7F7F", dashes=_DASHES[1], marker="h"),
    "lockstep, large reads": Look(color="#222222", dashes=_DASHES[2], marker="p"),
    "lockstep-overlap": Look(color="#56B4E9", dashes=_DASHES[3], marker="P"),
    "bevy-split": Look(color="#0072B2", dashes=_DASHES[2], marker=">"),
    "each-alone": Look(color="#E69F00", dashes=_DASHES[3], marker="D"),
    "prefetch": Look(color="#009E73", dashes=_DASHES[0], marker="^"),
    "prefetch-matrix": Look(color="#D55E00", dashes=_DASHES[1], marker="s"),
    "trimmoe": Look(color="#8A8A00", dashes=_DASHES[0], marker=">"),
    "oracle": Look(color="#000000", dashes=_DASHES[1], marker="*"),
}
_SPARE: tuple[Look, ...] = (
    Look(color="#7F7F7F", dashes=_DASHES[1], marker="h"),
    Look(color="#661100", dashes=_DASHES[2], marker="p"),
    Look(color="#117733", dashes=_DASHES[3], marker="d"),
    Look(color="#AA4499", dashes=_DASHES[0], marker="8"),
    Look(color="#6699CC", dashes=_DASHES[2], marker="H"),
    Look(color="#BBA000", dashes=_DASHES[1], marker="o"),
)

PART_COLORS = {
    "dense": "#4477AA",
    "own experts": "#77AADD",
    "other servers": "#EE8866",
    "moves": "#BBCC33",
    "rest": "#BBBBBB",
    "local fast": "#4477AA",
    "remote fast": "#77AADD",
    "slow": "#EE8866",
    "fallback": "#882255",
    "run here": "#4477AA",
    "run elsewhere": "#77AADD",
    "substituted": "#BBCC33",
    "left out": "#EE8866",
    "token has left": "#882255",
}
INK = "#222222"
MUTED = "#666666"
GRID = "#DDDDDD"
SPAN = "#F3D9D9"
LIMIT = "#AA3344"  # objectives and budgets
HEAT_MAP = "Blues"
LINK_COLORS = ("#222222", "#AA3344", "#4477AA", "#8A8A00", "#882255", "#117733")

WIDTH_IN = 8.0
PNG_DPI = 150
MANY_POINTS = 2000  # above this a cloud of points is stored as pixels inside the SVG

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # names come from users: a dollar is a dollar
    "text.hinting": "none",  # text as wide in the file as when the layout was found
    "figure.facecolor": "white",
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # the same picture on machines without our font
}


def context(salt: str = "") -> AbstractContextManager[None]:
    """The settings a figure is made and saved under; ``salt`` keeps the ids of two SVG files apart."""
    return mpl.rc_context({**_RC, "svg.hashsalt": salt})


def looks(frameworks: Iterable[str]) -> dict[str, Look]:
    """The look of every framework: its own, or for a new one the next spare one, taken in order of name."""
    names = list(frameworks)
    spare = dict(zip(sorted(set(names) - _KNOWN.keys()), _SPARE * 8, strict=False))
    return {name: _KNOWN.get(name) or spare[name] for name in names}


def figure(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """An empty figure whose parts make room for each other."""
    made = Figure(figsize=(width_in, height_in), dpi=PNG_DPI, layout="constrained")
    FigureCanvasAgg(made)  # measures text as it will be drawn
    return made


def rows_in(count: int) -> float:
    """Height that ``count`` labelled rows need, with their axis."""
    return 1.0 + 0.3 * max(count, 2)


def grid(axes: Axes, axis: str = "both") -> None:
    """A quiet grid behind the data."""
    axes.grid(True, axis=axis)  # type: ignore[arg-type]
