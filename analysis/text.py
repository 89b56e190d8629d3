"""How numbers are written for people: three significant digits, the unit that keeps them short.

>>> number(1234.5), number(0.03172), quantity(2.5e9, "bit/s"), interval(118.0, 129.2)
('1234', '0.0317', '2.5 Gbit/s', '[118, 129]')
"""

from __future__ import annotations

from math import floor, log10

from analysis.bootstrap import Estimate

NONE = "–"  # where the data give no number


def number(value: float | None, digits: int = 3) -> str:
    """At least ``digits`` significant digits, never an exponent."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - floor(log10(abs(value))))
    if decimals > 6:
        return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
    return f"{value:.{decimals}f}"


def percent_change(value: float | None) -> str:
    """A relative change in per cent with its sign and one decimal: 0.4 is ``+40.0 %``."""
    return NONE if value is None else f"{100 * value:+.1f} %".replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """``[low, high]``, or nothing where there is none."""
    return "" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def change_with_interval(change: Estimate) -> str:
    """``−40.0 % [−43.1, −36.5]``."""
    if change.low is None or change.high is None:
        return percent_change(change.value)
    low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in (change.low, change.high))
    return f"{percent_change(change.value)} [{low}, {high}]"


def estimate(value: Estimate, scale: float = 1.0) -> str:
    """``123 [118, 129]`` in the unit that ``scale`` leads to."""
    if value.value is None:
        return NONE
    if value.low is None or value.high is None:
        return number(scale * value.value)
    if value.low == value.high:  # bit-exact or never failed: an interval would only repeat the number
        return number(scale * value.value)
    return f"{number(scale * value.value)} {interval(scale * value.low, scale * value.high)}"


def quantity(value: float | None, unit: str) -> str:
    """With the prefix that keeps the number between 1 and 1000: ``2.5 Gbit/s``, ``12 ms``."""
    if value is None:
        return NONE
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor * 0.9995 or factor == 1e-6:
            return f"{value / factor:.3g} {prefix}{unit}"
        if value == 0:
            return f"0 {unit}"
    return f"{value:g} {unit}"
