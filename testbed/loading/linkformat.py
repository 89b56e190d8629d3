"""The keys of one direction of a link: what a topology file and ``testbed set`` may say about it.

``rate`` and ``delay`` are quantities, or recordings whose other keys depend on the format of their file.  What the keys
do to a ``Direction`` says ``testbed.loading.directions``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from testbed import units
from testbed.loading.kinds import Either, Flag, Or, Quantity, Text, Unit, Word
from testbed.loading.sections import Key, Section, Table, Variants
from testbed.topology import MTU_BYTES

#: Of the file system; a longer text is no path.
MAX_PATH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """A drop-tail limit, in one of the two ways to count."""

    size_bytes: int | None = None
    packets: int | None = None


#: A full packet's bytes let both ways be compared with the limits of the format.
QUEUE_SIZE = units.Dimension(
    name="a queue",
    units={**units.SIZE.units, "packets": Fraction(MTU_BYTES), "packet": Fraction(MTU_BYTES)},
    examples=("packets", "kB", "KiB"),
)


def queue_limit(text: str) -> QueueLimit:
    """A limit such as ``256 KiB`` or ``100 packets``.

    >>> queue_limit("100 packets")
    QueueLimit(size_bytes=None, packets=100)
    """
    if not text.strip().endswith(("packets", "packet")):
        return QueueLimit(size_bytes=units.size_bytes(text))
    packets = QUEUE_SIZE.parse(text) / MTU_BYTES
    if packets.denominator != 1:
        raise units.UnitError(f"'{text.strip()}' is not a whole number of packets")
    return QueueLimit(packets=int(packets))


# --- recordings -------------------------------------------------------------------------------------------------------

FORMAT = "format"
MAHIMAHI, STEPS, CSV = "mahimahi", "steps", "csv"
#: Pensieve's files have no unit; everybody reads them as megabits.
STEPS_UNIT = "Mbit/s"

TRACE = Key("trace", Text(MAX_PATH), "file, relative to this one", also_called=("file", "path", "filename"))
COLUMN = Key("value", Text(200), "name of the column of the values", also_called=("column", "col", "field"))
TIME = Key("time", Text(200), "name of the column of the times", also_called=("timestamp", "date"))
TIME_UNIT = Key("time_unit", Unit(units.TIME), "unit of that column's numbers")
TIME_FORMAT = Key("time_format", Text(200), "how that column's dates are written, in the words of strptime")
EVERY = Key(
    "every",
    Quantity(parse=units.seconds, dimension=units.TIME, least="1 us", most="24 h"),
    "time from row to row, where no column has it",
    also_called=("interval", "step", "period", "resolution"),
)
MISSING = Key(
    "missing",
    Word(("hold",), "a way to treat missing values"),
    "hold: an empty value or '-' keeps the one before; without it that is a mistake",
)
ROUND_TRIP = Key(
    "round_trip", Flag(), "true: the values are round trips, of which one way is half", also_called=("rtt",)
)
UNIT = "unit"
RATE_UNIT = Key(UNIT, Unit(units.RATE), "unit of the values")
DELAY_UNIT = Key(UNIT, Unit(units.TIME), "unit of the values")
_CSV_TIMES = ((EVERY.name,), (TIME.name, TIME_FORMAT.name), (TIME.name, TIME_UNIT.name))


def _format_of(word: str) -> Key[str]:
    return Key(FORMAT, Word((word,)), "how the file is written", also_called=("type", "kind"))


def _csv_table(*more: Key[Any]) -> Table:
    times: tuple[Key[Any], ...] = (TIME, TIME_UNIT, TIME_FORMAT, EVERY)
    always = (TRACE.name, FORMAT, COLUMN.name, UNIT)
    needs = tuple((*always, *group) for group in _CSV_TIMES)
    return Table((TRACE, _format_of(CSV), COLUMN, *times, MISSING, *more), needs=needs)


RATE_TRACES = Variants(
    FORMAT,
    {
        MAHIMAHI: Table((TRACE, _format_of(MAHIMAHI)), needs=((TRACE.name, FORMAT),)),
        STEPS: Table((TRACE, _format_of(STEPS), RATE_UNIT), needs=((TRACE.name, FORMAT),)),
        CSV: _csv_table(RATE_UNIT),
    },
)
DELAY_TRACES = Variants(
    FORMAT,
    {
        STEPS: Table((TRACE, _format_of(STEPS), DELAY_UNIT, ROUND_TRIP), needs=((TRACE.name, FORMAT, UNIT),)),
        CSV: _csv_table(DELAY_UNIT, ROUND_TRIP),
    },
)

# --- keys of a direction ----------------------------------------------------------------------------------------------


def _share(least: str, why: str = "") -> Quantity[float]:
    return Quantity(parse=units.fraction, dimension=units.SHARE, least=least, most="100 %", why=why)


RATE_VALUE = Quantity(parse=units.bits_per_second, dimension=units.RATE, least="1 kbit/s", most="10 Tbit/s")
RATE: Key[float | Section] = Key(
    "rate",
    Either(RATE_VALUE, RATE_TRACES),
    "how fast bits leave; faster arrivals queue",
    also_called=("bandwidth", "bw", "speed", "capacity", "throughput"),
)
DELAY_VALUE = Quantity(parse=units.seconds, dimension=units.TIME, least="0 s", most="60 s")
DELAY: Key[float | Section] = Key(
    "delay",
    Either(DELAY_VALUE, DELAY_TRACES),
    "one-way propagation time",
    also_called=("latency", "rtt", "ping"),
)
JITTER = Key(
    "jitter",
    Quantity(parse=units.seconds, dimension=units.TIME, least="0 s", most="60 s"),
    "standard deviation of the extra delay; packets keep their order unless 'reorder' is true",
)
JITTER_TABLE = Key(
    "jitter_table",
    Or("false", Text(MAX_PATH)),
    "iproute2's file of the distribution of the extra delay; false or absent: normal",
    also_called=("distribution", "dist", "jitter_distribution"),
)
REORDER = Key(
    "reorder",
    Flag(),
    "true: jitter lets packets overtake each other",
    also_called=("reordering", "reorder_packets", "allow_reordering"),
)
LOSS = Key(
    "loss",
    _share("0 %"),
    "share of the packets that are lost, each by itself",
    also_called=("drop", "plr", "packet_loss", "loss_rate", "loss_ratio"),
)
WORSENS = Key(
    "worsens",
    _share("0.00001 %", "without it there are no bursts"),
    "chance, before each packet, that a good link turns bad",
    also_called=("p", "p13", "good_to_bad"),
)
RECOVERS = Key(
    "recovers",
    _share("0.00001 %", "a link that never recovers has no bursts; write 'loss'"),
    "chance, before each packet, that a bad link turns good",
    also_called=("r", "p31", "bad_to_good"),
)
LOSS_BAD = Key(
    "loss_bad",
    _share("0.00001 %", "without it there are no bursts"),
    "share of the packets that a bad link loses; 100 %",
    also_called=("1-h", "h"),
)
LOSS_GOOD = Key("loss_good", _share("0 %"), "share of the packets that a good link loses; 0", also_called=("1-k", "k"))
BURSTS: Key[Section | bool] = Key(
    "bursts",
    Or("false", Table((WORSENS, RECOVERS, LOSS_BAD, LOSS_GOOD), needs=((WORSENS.name, RECOVERS.name),))),
    "loss in bursts, besides 'loss'",
    also_called=("gemodel", "gilbert", "gilbert_elliott", "burst", "burst_loss", "bursty"),
)
DUPLICATE = Key(
    "duplicate",
    _share("0 %"),
    "share of the packets that arrive twice",
    also_called=("duplicates", "duplication", "dup"),
)
CORRUPT = Key(
    "corrupt",
    _share("0 %"),
    "share of the packets in which one bit is flipped",
    also_called=("corruption", "bit_errors", "ber"),
)
QUEUE: Key[QueueLimit | bool] = Key(
    "queue",
    Or(
        "auto",
        Quantity(
            parse=queue_limit,
            dimension=QUEUE_SIZE,
            least=f"{MTU_BYTES} B",
            most="100 GB",
            why=f"a packet has up to {MTU_BYTES} bytes",
        ),
    ),
    "bytes or packets that may wait; auto or absent: sized from rate and delay",
    also_called=("buffer", "limit", "queue_size", "max_queue_size", "qlen", "queue_length"),
)


def _timer(least: str) -> Quantity[float]:
    return Quantity(parse=units.seconds, dimension=units.TIME, least=least, most="60 s")


TARGET = Key("target", _timer("1 us"), "how long packets may wait for good; 5 ms")
INTERVAL = Key("interval", _timer("1 us"), "how long they may wait longer than that; 100 ms")
CODEL: Key[bool | Section] = Key(
    "codel",
    Either(Flag(), Table((TARGET, INTERVAL))),
    "true, or its two times: drop early where packets wait too long",
    also_called=("aqm", "fq_codel", "ecn", "red", "pie", "qdisc"),
)

DIRECTION_KEYS: tuple[Key[Any], ...] = (
    RATE,
    DELAY,
    JITTER,
    JITTER_TABLE,
    REORDER,
    LOSS,
    BURSTS,
    DUPLICATE,
    CORRUPT,
    QUEUE,
    CODEL,
)
