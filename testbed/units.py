"""Quantities as people write them, and as the rest of the testbed sees them.

People write ``20 ms`` or ``1.5 Gbit/s`` in a file or on a command line.  This module turns such text into plain
numbers in SI base units, once, at the boundary.  Everywhere else a name carries its unit (``delay_s``,
``queue_bytes``, ``rate_bps``) and no suffix is parsed again.

>>> seconds("20 ms"), bits_per_second("1.5 Gbit/s"), size_bytes("64 KiB"), fraction("2 %")
(0.02, 1500000000.0, 65536, 0.02)
>>> format_seconds(0.02), format_rate(1.5e9), format_size(65536), format_fraction(0.02)
('20 ms', '1.5 Gbit/s', '64 KiB', '2 %')

Text that could mean two things is an error that names both, because the wrong guess is off by a factor of eight or of
sixty thousand and nobody notices:

>>> bits_per_second("100 mbps")
Traceback (most recent call last):
testbed.units.UnitError: '100 mbps' is ambiguous: write '100 Mbit/s' or '100 MB/s'
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from testbed.errors import TestbedError

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?"
#: Longer text is no quantity; exact arithmetic on it could take for ever.
MAX_TEXT = 40

_QUANTITY = re.compile(rf"(?P<sign>[+-]?)(?P<number>{NUMBER})\s*(?P<unit>\S.*)?", re.ASCII | re.DOTALL)
_PLAIN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_SPELLED_OUT = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "msec": "ms",
    "milliseconds": "ms",
    "usec": "us",
    "microseconds": "us",
    "minute": "min",
    "minutes": "min",
    "hours": "h",
    "percent": "%",
    "pct": "%",
    "bytes": "b",
}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


class UnitError(TestbedError, ValueError):
    """A text that is not a quantity of the wanted kind; the message says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One kind of quantity: its units as multiples of the SI base unit, and how to help when the text has none."""

    name: str  # as in "expected a delay such as ..."
    units: Mapping[str, Fraction]
    examples: tuple[str, ...]  # units to offer for a bare number, most likely first

    def parse(self, text: str) -> Fraction:
        """The exact value of ``text`` in the base unit."""
        text = text.strip()
        match = _QUANTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
        if match is None:
            raise UnitError(f"{_quoted(text)} is not {self.name}: write a number and a unit, such as {self.example}")
        number, unit = match["number"], (match["unit"] or "")
        value = Fraction(number)
        if match["sign"] == "-":
            raise UnitError(f"{_quoted(text)} is negative; {self.name} is zero or more")
        if not unit and not value:
            return value  # nothing is nothing in every unit
        if unit not in self.units:
            raise UnitError(self._help(text, number, unit))
        return value * self.units[unit]

    @property
    def example(self) -> str:
        """A correct text, quoted."""
        return f"'10 {self.examples[0]}'" if self.examples[0] else "'0.1'"

    def _help(self, text: str, number: str, unit: str) -> str:
        if re.match(r",[0-9]", unit):
            return f"{_quoted(text)}: write a decimal point instead of the comma, and no thousands separators"
        if not unit:
            return f"{_quoted(text)} has no unit: write {_either(number, self.examples)}"
        readings = self._readings(unit)
        if len(readings) > 1:
            return f"{_quoted(text)} is ambiguous: write {_either(number, readings)}"
        if readings:
            return f"{_quoted(text)} has an unknown unit; did you mean '{number} {readings[0]}'?"
        shown = ", ".join(self._distinct(known for known in self.units if known))
        return f"{_quoted(text)} has an unknown unit; {self.name} is written in {shown}"

    def _readings(self, unit: str) -> list[str]:
        """The units of this dimension that someone who wrote ``unit`` may have had in mind, each value once."""
        compact = unit.replace(" ", "")
        lower = compact.casefold()
        for sibling in (f"{compact}/s", compact.removesuffix("/s")):  # a rate for a size, or the other way round
            if sibling in self.units:
                return [sibling]
        if len(compact) == 1:  # "10m", "5 G": a prefix that could belong to anything
            candidates = [known for known in self.units if known.casefold().startswith(lower)]
        elif match := re.fullmatch(r"([kKmMgGtTpP]?)(i?)(bps|Bps|b/s|B/s|b|B)", compact):
            prefix, binary, symbol = match.groups()
            decimal = _thousands(prefix)
            if binary:  # "gib"
                candidates = [f"{prefix.upper()}iB", f"{prefix.upper()}iB/s"]
            elif symbol in ("B", "B/s"):  # "KB": thousands or 1024s?
                candidates = [f"{decimal}{symbol}", f"{prefix.upper()}i{symbol}"]
            else:  # "mbps", "Gb/s", "gb": bits or bytes?
                candidates = [f"{decimal}bit/s", f"{decimal}B/s", f"{decimal}B", f"{prefix.upper()}iB"]
        else:
            spelled = _SPELLED_OUT.get(lower, lower)
            near = difflib.get_close_matches(spelled, [known.casefold() for known in self.units], n=1, cutoff=0.7)
            candidates = [known for known in self.units if near and known.casefold() == near[0]]
        return self._distinct(known for known in candidates if known in self.units)

    def _distinct(self, known: Iterable[str]) -> list[str]:
        """The first of the units that mean the same (``us``, ``µs``)."""
        by_value: dict[Fraction, str] = {}
        for unit in known:
            by_value.setdefault(self.units[unit], unit)
        return list(by_value.values())


def _decimal(symbol: str, prefixes: str = "kMGTP") -> dict[str, Fraction]:
    return {prefix + symbol: Fraction(10) ** _DECIMAL[prefix] for prefix in ("", *prefixes)}


def _binary(symbol: str) -> dict[str, Fraction]:
    return {prefix + symbol: Fraction(2) ** power for prefix, power in _BINARY.items()}


def _times(units: Mapping[str, Fraction], factor: Fraction | int) -> dict[str, Fraction]:
    return {unit: value * factor for unit, value in units.items()}


# The unit table.  docs/topology-files.md shows it; a test holds the two together.
TIME = Dimension(
    name="a time",
    units={
        "ns": Fraction(1, 10**9),
        "us": Fraction(1, 10**6),
        "µs": Fraction(1, 10**6),
        "ms": Fraction(1, 10**3),
        "s": Fraction(1),
        "min": Fraction(60),
        "h": Fraction(3600),
    },
    examples=("ms", "us", "s"),
)
SIZE = Dimension(name="a size", units=_decimal("B") | _binary("B"), examples=("MB", "GB", "B"))
RATE = Dimension(
    name="a rate",
    units=_decimal("bit/s") | _times(_decimal("B/s") | _binary("B/s"), 8),
    examples=("Mbit/s", "Gbit/s", "MB/s"),
)
BANDWIDTH = Dimension(
    name="a bandwidth",
    units=_decimal("B/s") | _binary("B/s") | _times(_decimal("bit/s"), Fraction(1, 8)),
    examples=("GB/s", "MB/s", "Gbit/s"),
)
COMPUTE = Dimension(
    name="a compute speed",
    units=_decimal("FLOP/s", "MGTP") | _decimal("FLOPS", "MGTP"),
    examples=("TFLOP/s", "GFLOP/s"),
)
SHARE = Dimension(name="a share", units={"": Fraction(1), "%": Fraction(1, 100)}, examples=("%",))


def plain_number(text: str) -> float | None:
    """A finite decimal number, such as other tools write into their files; None where it is none.

    float() alone would take 'nan', 'inf', '1_000' and digits of other scripts.

    >>> plain_number("-2.5e9"), plain_number("1_000"), plain_number("1e999")
    (-2500000000.0, None, None)
    """
    number = float(text) if _PLAIN.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def seconds(text: str) -> float:
    """A time in seconds."""
    return float(TIME.parse(text))


def bits_per_second(text: str) -> float:
    """A link's rate in bits per second."""
    return float(RATE.parse(text))


def size_bytes(text: str) -> int:
    """A size in whole bytes."""
    value = SIZE.parse(text)
    if value.denominator != 1:
        raise UnitError(f"{_quoted(text.strip())} is not a whole number of bytes")
    return int(value)


def bytes_per_second(text: str) -> float:
    """A memory's or a bus's bandwidth in bytes per second."""
    return float(BANDWIDTH.parse(text))


def flops_per_second(text: str) -> float:
    """A device's speed in floating-point operations per second."""
    return float(COMPUTE.parse(text))


def fraction(text: str) -> float:
    """A share: ``2 %`` or ``0.02``."""
    return float(SHARE.parse(text))


def format_seconds(value_s: float, *, digits: int = 6) -> str:
    """A time for people: ``20 ms``."""
    return _format(value_s, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}, digits)


def format_rate(value_bps: float, *, digits: int = 6) -> str:
    """A link's rate for people: ``1.5 Gbit/s``."""
    return _format(value_bps, {f"{prefix}bit/s": 10.0**power for prefix, power in _DECIMAL.items()}, digits)


def format_bandwidth(value_bytes_per_s: float, *, digits: int = 6) -> str:
    """A memory's bandwidth for people: ``936 GB/s``."""
    return _format(value_bytes_per_s, {f"{prefix}B/s": 10.0**power for prefix, power in _DECIMAL.items()}, digits)


def format_flops(value_flops_per_s: float, *, digits: int = 6) -> str:
    """A device's speed for people: ``71 TFLOP/s``."""
    scale = {f"{prefix}FLOP/s": 10.0**power for prefix, power in _DECIMAL.items() if prefix != "k"}
    return _format(value_flops_per_s, scale, digits)


def format_size(value_bytes: int, *, digits: int = 6) -> str:
    """A size for people, in the unit that shows it exactly and shortest: ``24 GB``, ``64 KiB``."""
    decimal = _format(value_bytes, {f"{prefix}B": 10.0**power for prefix, power in _DECIMAL.items()}, digits)
    binary = _format(value_bytes, {"B": 1.0} | {f"{prefix}B": 2.0**power for prefix, power in _BINARY.items()}, digits)
    exact = [text for text in (decimal, binary) if SIZE.parse(text) == value_bytes]
    return min(exact, key=len, default=decimal)


def format_fraction(value: float, *, digits: int = 6) -> str:
    """A share for people: ``2 %``."""
    return f"{100 * value:.{digits}g} %"


def _format(value: float, scale: Mapping[str, float], digits: int) -> str:
    """``value`` in the largest unit of ``scale`` (ascending) that leaves at least one before the point."""
    if not math.isfinite(value):
        return str(value)
    fitting = [unit for unit, size in scale.items() if abs(value) >= size * (1 - 10.0**-digits)]
    base = next(unit for unit, size in scale.items() if size == 1.0)
    unit = (fitting[-1] if fitting else next(iter(scale))) if value else base
    return f"{value / scale[unit]:.{digits}g} {unit}"


def _thousands(prefix: str) -> str:
    return prefix.lower() if prefix in "kK" else prefix.upper()


def _either(number: str, units: list[str] | tuple[str, ...]) -> str:
    quoted = [f"'{number} {unit}'" for unit in units]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "...")
