"""A topology as a figure: who is near whom, over how fast a line, and what is not as its file says.

Colour is delay, width is rate; a link whose directions differ is two lines with arrows.  Texts never cover each other:
what finds no room is left out, and a line below the picture says how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import atan2, cos, degrees, hypot, pi, sin
from typing import Any, BinaryIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle

from testbed.drawing.labels import Box, Page
from testbed.drawing.layout import Layout, Point, layout
from testbed.drawing.legend import ALERT, GROUP, INK, MUTED, NODE, ROUTER, UNSHAPED, Scales, handles
from testbed.drawing.paper import COLUMN_IN, EDGE_IN, FOOT_IN, HEAD_IN, paper_for
from testbed.drawing.view import View, Way, details
from testbed.topology import Link, Node
from testbed.words import counted

PNG_DPI = 150
MOST_DETAILED = 30  # servers; beyond, devices and users are left out
MOST_WORDED = 80  # links; beyond, and in a dense mesh, rates and delays are only drawn

#: Text stays text in SVG; the families are those that readers have if ours is not there.
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "text.color": INK,
    "text.hinting": "none",
    "text.parse_math": False,  # names come from users: a dollar is a dollar
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "testbed",
}
_POINTS_PER_IN = 72


def picture(view: View, *, width_in: float | None = None) -> Figure:
    """Draw it, on paper of that width or of as much as it takes; TestbedError where there is too much to arrange."""
    placed = layout(view.topology)
    with mpl.rc_context(RC):
        return _Drawing(view, placed, width_in).figure


def save(figure: Figure, file: BinaryIO, form: str) -> None:
    """Write a picture as ``svg`` or ``png``, the same bytes for the same picture."""
    with mpl.rc_context(RC):
        metadata = {"Date": None, "Creator": None} if form == "svg" else {}
        figure.savefig(file, format=form, dpi=PNG_DPI, metadata=metadata)


@dataclass(slots=True, kw_only=True)
class _Left:
    """What found no room."""

    names: int = 0
    worded: int = 0
    notes: list[str] = field(default_factory=list)


class _Drawing:
    """One figure in the making; coordinates are inches of paper, so that text can be placed as it will be drawn."""

    def __init__(self, view: View, placed: Layout, width_in: float | None) -> None:
        self._view = view
        self._ways = [view.ways(link) for link in view.topology.links]
        self._paper = paper_for(placed, width_in)
        self._places = {name: self._paper.at(point) for name, point in placed.places.items()}
        self._discs = [(disc.name, self._paper.at(disc.centre), disc.radius) for disc in placed.discs]
        self._node_in = max(0.06, min(0.3, 0.5 * self._paper.unit_in))  # across
        self._scales = Scales([way for ways in self._ways for way in ways])
        paper = self._paper
        self.figure = Figure(figsize=(paper.width_in, paper.height_in), dpi=PNG_DPI, facecolor="white")
        self._renderer = FigureCanvasAgg(self.figure).get_renderer()  # type: ignore[no-untyped-call]
        self._axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, paper.width_in), ylim=(0, paper.height_in))
        self._axes.axis("off")
        inner = (EDGE_IN / 2, FOOT_IN, paper.width_in - COLUMN_IN, paper.height_in - HEAD_IN + 0.1)
        self._page = Page(box=inner, lines=[(*self._places[link.a], *self._places[link.b]) for link in self._links])
        self._draw()

    @property
    def _links(self) -> Sequence[Link]:
        return self._view.topology.links

    def _draw(self) -> None:
        left = _Left()
        for _, centre, radius in self._discs:
            self._axes.add_patch(Circle(centre, radius * self._paper.unit_in, facecolor=GROUP, zorder=0))
        # Near links on top: they are short and would vanish under the others.
        for number in sorted(range(len(self._links)), key=lambda each: -self._ways[each][0].direction.delay_s):
            self._link(*self._ways[number])
        for node in self._view.topology.nodes:
            self._node(node)
        self._metro_names()
        self._names(left)
        self._words(
            [n for n, ways in enumerate(self._ways) if any(way.changed or not way.shaped for way in ways)], left
        )
        self._details(left)
        if len(self._links) <= MOST_WORDED and len(self._links) <= 2 * len(self._places):
            self._words([n for n, ways in enumerate(self._ways) if all(w.shaped > w.changed for w in ways)], left)
        self._margins(left)

    def _link(self, forward: Way, backward: Way) -> None:
        (x0, y0), (x1, y1) = self._places[forward.source], self._places[forward.target]
        alike = (forward.direction, forward.shaped) == (backward.direction, backward.shaped)
        if alike or (forward.words == backward.words and forward.shaped == backward.shaped):
            self._line(forward, (x0, y0), (x1, y1), marked=forward.changed or backward.changed)
            return
        length = hypot(x1 - x0, y1 - y0) or 1.0
        for way, start, stop, sign in ((forward, (x0, y0), (x1, y1), 1), (backward, (x1, y1), (x0, y0), -1)):
            # Each keeps to the right, as on a road.
            aside = sign * (self._scales.width(way.direction.rate_bps) / 2 + 1.0) / _POINTS_PER_IN / length
            dx, dy = aside * (y1 - y0), -aside * (x1 - x0)
            a, b = (start[0] + dx, start[1] + dy), (stop[0] + dx, stop[1] + dy)
            self._line(way, a, b, marked=way.changed)
            spot = (a[0] + 0.78 * (b[0] - a[0]), a[1] + 0.78 * (b[1] - a[1]))
            heading = degrees(atan2(b[1] - a[1], b[0] - a[0]))
            self._axes.plot(
                *spot,
                marker=(3, 0, heading - 90),
                markersize=5 + self._scales.width(way.direction.rate_bps),
                color=self._scales.color(way),
                markeredgecolor="white",
                markeredgewidth=0.5,
                zorder=1.6,
            )

    def _line(self, way: Way, start: Point, stop: Point, *, marked: bool) -> None:
        xs, ys = (start[0], stop[0]), (start[1], stop[1])
        if marked:
            self._axes.plot(
                xs,
                ys,
                color=ALERT,
                linewidth=self._scales.width(way.direction.rate_bps) + 6,
                alpha=0.3,
                zorder=0.9,
                solid_capstyle="butt",
            )
        dashes = "-" if way.shaped else UNSHAPED
        self._axes.plot(
            xs,
            ys,
            color=self._scales.color(way),
            linewidth=self._scales.width(way.direction.rate_bps),
            linestyle=dashes,
            zorder=1.5,
        )

    def _node(self, node: Node) -> None:
        x, y = self._places[node.name]
        router, broken = node.kind == "router", node.name in self._view.broken
        size = self._node_in * _POINTS_PER_IN
        self._axes.plot(
            x,
            y,
            marker="s" if router else "o",
            markersize=0.82 * size if router else size,
            color=ROUTER if router else NODE,
            markeredgecolor=ALERT if broken else INK,
            markeredgewidth=2 if broken else 0.9,
            zorder=3,
        )
        if broken:
            self._axes.plot(x, y, marker="x", markersize=1.4 * size, color=ALERT, markeredgewidth=1.5, zorder=2.9)
        half = self._node_in / 2 + 0.01
        self._page.block((x - half, y - half, x + half, y + half))

    def _metro_names(self) -> None:
        for name, (x, y), radius in self._discs:
            width, height = self._measured(name, 9, bold=True)
            reach = radius * self._paper.unit_in
            outward = atan2(y - self._paper.height_in / 2, x - (self._paper.width_in - COLUMN_IN) / 2)
            # Just outside the disc, up if nothing speaks against it; else inside.
            turns = [pi / 2, -pi / 2, outward, *(pi / 2 + step * pi / 8 for step in range(16))]
            boxes = [
                _box(
                    x + cos(turn) * (reach + out) + cos(turn) * width / 2,
                    y + sin(turn) * (reach + out + height / 2),
                    width,
                    height,
                )
                for out in (0.05, 0.2)
                for turn in turns
            ]
            box = self._page.take(boxes)
            if box is not None:
                self._text(name, box, 9, color=MUTED, weight="bold")

    def _names(self, left: _Left) -> None:
        inside = {node.name: self._fitting(node.name) for node in self._view.topology.nodes}
        size = min(filter(None, inside.values()), default=8)
        for node in self._view.topology.nodes:
            color = ALERT if node.name in self._view.broken else INK
            box: Box | None
            if inside[node.name]:
                box = _box(*self._places[node.name], 0, 0)
                self._text(node.name, box, size, color=color)
                continue
            box = self._page.take(list(self._beside(self._places[node.name], *self._measured(node.name, 7))))
            if box is None:
                left.names += 1
            else:
                self._text(node.name, box, 7, color=color, backed=True)

    def _fitting(self, name: str) -> float | None:
        """The largest size at which a name fits into its node."""
        for size in (8, 7, 6):
            width, height = self._measured(name, size)
            if hypot(width, 0.6 * height) < 0.92 * self._node_in:
                return size
        return None

    def _details(self, left: _Left) -> None:
        servers = self._view.topology.servers
        if len(servers) > MOST_DETAILED:
            left.notes.append("devices and users")
            return
        told = 0
        for node in servers:
            text = "\n".join(details(node))
            width, height = self._measured(text, 6.2)
            near = list(self._beside(self._places[node.name], width, height, outs=(0.02, 0.08)))
            box = self._page.take(near, most_lines=2)
            if box is not None:
                told += 1
                self._text(text, box, 6.2, color=MUTED, backed=self._page.crossing(box) > 0)
        if told < len(servers):
            left.notes.append(f"device and users of {len(servers) - told} of {counted(len(servers), 'server')}")

    def _words(self, numbers: Iterable[int], left: _Left) -> None:
        for number in numbers:
            link, ways = self._links[number], self._ways[number]
            words = self._view.words(link)
            (x0, y0), (x1, y1) = self._places[link.a], self._places[link.b]
            # In the order in which the two lines lie on the paper.
            text = "\n".join(words[::-1] if x1 > x0 else words)
            odd = any(way.changed or not way.shaped for way in ways)
            if any(not way.shaped for way in ways):
                text = f"{link.name} is not shaped"
            width, height = self._measured(text, 6.2)
            shares = (0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74)
            boxes = [_box(x0 + share * (x1 - x0), y0 + share * (y1 - y0), width, height) for share in shares]
            # Beside a link that is short for its words: above or below, where it lies flat.
            aside = height / 2 + 0.06 + abs(y1 - y0) / max(hypot(x1 - x0, y1 - y0), 0.01) * width / 2
            boxes += [_box((x0 + x1) / 2, (y0 + y1) / 2 + side * aside, width, height) for side in (1, -1)]
            aside += self._node_in / 2
            boxes += [_box((x0 + x1) / 2, (y0 + y1) / 2 + side * aside, width, height) for side in (1, -1)]
            # On another link it would be read as that one's.
            box = self._page.take(boxes, most_lines=None if odd else 0, own=number, aside=0.05)
            if box is not None:
                left.worded += 1
                self._text(text, box, 6.2, color=ALERT if odd else INK, backed=True, opaque=0.92)

    def _beside(
        self, at: Point, width: float, height: float, outs: Sequence[float] = (0.02, 0.1, 0.2)
    ) -> Iterator[Box]:
        x, y = at
        for out in outs:
            reach = self._node_in / 2 + out
            for turn in (0, pi, -pi / 2, pi / 2, pi / 4, 3 * pi / 4, -pi / 4, -3 * pi / 4):
                across = 0.0 if abs(cos(turn)) < 0.1 else width / 2 * (1 if cos(turn) > 0 else -1)
                along = 0.0 if abs(sin(turn)) < 0.1 else height / 2 * (1 if sin(turn) > 0 else -1)
                yield _box(x + cos(turn) * reach + across, y + sin(turn) * reach + along, width, height)

    def _margins(self, left: _Left) -> None:
        """Heading, legend, and what was left out."""
        paper = self._paper
        top = paper.height_in - 0.1
        self._axes.text(EDGE_IN, top, self._view.title, fontsize=10.5, fontweight="bold", va="top")
        description = self._view.topology.description
        while description and self._measured(description, 8)[0] > paper.width_in - 2 * EDGE_IN:
            description = description[: -4 if description.endswith("...") else -1].rstrip() + "..."
        self._axes.text(EDGE_IN, top - 0.2, description, fontsize=8, color=MUTED, va="top")
        said = list(left.notes)
        if left.names:
            said.insert(0, f"names of {left.names} of {counted(len(self._view.topology.nodes), 'node')}")
        if left.worded < len(self._links):
            some = f"{len(self._links) - left.worded} of" if left.worded else "all"
            said.append(f"rate and delay of {some} {counted(len(self._links), 'link')}")
        if said:
            text = f"Left out for lack of room: {'; '.join(said)}."
            self._axes.text(EDGE_IN, 0.08, text, fontsize=7, color=MUTED, va="bottom")
        bar_in = min(2.2, 0.36 * paper.height_in)
        left_in, upper_in = paper.width_in - COLUMN_IN + 0.15, paper.height_in - HEAD_IN
        if self._links:
            bar = self.figure.add_axes(
                (
                    left_in / paper.width_in,
                    (upper_in - bar_in) / paper.height_in,
                    0.13 / paper.width_in,
                    bar_in / paper.height_in,
                )
            )
            self._scales.draw_bar(self.figure, bar)
        self.figure.legend(
            handles=handles(self._view, self._scales),
            loc="upper left",
            bbox_to_anchor=((left_in - 0.12) / paper.width_in, (upper_in - bar_in - 0.12) / paper.height_in),
            fontsize=7.5,
            borderaxespad=0,
            handlelength=1.6,
        )

    def _text(
        self, text: str, box: Box, size: float, *, backed: bool = False, opaque: float = 0.7, **looks: Any
    ) -> None:
        patch = {"facecolor": "white", "edgecolor": "none", "alpha": opaque, "pad": 0.6} if backed else None
        self._axes.text(
            (box[0] + box[2]) / 2,
            (box[1] + box[3]) / 2,
            text,
            ha="center",
            va="center",
            fontsize=size,
            linespacing=1.1,
            bbox=patch,
            zorder=4,
            **looks,
        )

    def _measured(self, text: str, size: float, *, bold: bool = False) -> tuple[float, float]:
        """Width and height in inches, with a little room."""
        font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
        lines = text.split("\n")
        width = max(self._renderer.get_text_width_height_descent(line, font, ismath=False)[0] for line in lines)
        return width / PNG_DPI + 0.04, 1.15 * size * len(lines) / _POINTS_PER_IN + 0.02


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
