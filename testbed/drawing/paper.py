"""How much paper a layout takes, and where on it the layout lies, between the heading, the legend and the last line."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.drawing.layout import Layout, Point

#: Least and most of what the paper measures.
WIDTHS_IN, HEIGHTS_IN = (6.5, 22.0), (3.6, 18.0)
COLUMN_IN = 1.6  # the legend, on the right
HEAD_IN, FOOT_IN, EDGE_IN = 0.55, 0.3, 0.15
UNIT_IN = (0.6, 0.95)  # paper for one unit of the layout: wanted, and no more than
#: Room for their texts beyond nodes and metros, in units of the layout.
_AROUND_NODE, _AROUND_METRO = 0.8, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Where the layout lies on the paper."""

    width_in: float
    height_in: float
    unit_in: float  # of one unit of the layout
    middle: Point  # of the layout, in its units

    def at(self, point: Point) -> Point:
        """A place of the layout on the paper, in inches."""
        across, up = self.width_in - COLUMN_IN, self.height_in - HEAD_IN - FOOT_IN
        return (
            across / 2 + (point[0] - self.middle[0]) * self.unit_in,
            FOOT_IN + up / 2 + (point[1] - self.middle[1]) * self.unit_in,
        )


def paper_for(placed: Layout, width_in: float | None = None) -> Paper:
    """Paper of that width, or as wide as the layout wants."""
    reaches = [*((point, _AROUND_NODE) for point in placed.places.values())]
    reaches += [(disc.centre, disc.radius + _AROUND_METRO) for disc in placed.discs]
    left, right = min(x - reach for (x, _), reach in reaches), max(x + reach for (x, _), reach in reaches)
    bottom, top = min(y - reach for (_, y), reach in reaches), max(y + reach for (_, y), reach in reaches)
    across, up = right - left, top - bottom
    wide_in = width_in or max(WIDTHS_IN[0], min(WIDTHS_IN[1], across * UNIT_IN[0] + COLUMN_IN + 2 * EDGE_IN))
    unit_in = min(
        UNIT_IN[1],
        (wide_in - COLUMN_IN - 2 * EDGE_IN) / across,
        (HEIGHTS_IN[1] - HEAD_IN - FOOT_IN) / up,
    )
    high_in = max(HEIGHTS_IN[0], up * unit_in + HEAD_IN + FOOT_IN)
    middle = ((left + right) / 2, (bottom + top) / 2)
    return Paper(width_in=wide_in, height_in=high_in, unit_in=unit_in, middle=middle)
