"""One direction of a link in words: the cells of tables, and one line for what is unusual about it.

``~`` stands before the mean of what follows a recording.

>>> DIRECTION_COLUMNS["queue"](Direction(rate_bps=1e9, delay_s=0.002))
'2.5 MB (auto)'
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.impairments import CoDel
from testbed.topology import Direction
from testbed.units import format_fraction, format_rate, format_seconds, format_size


def impairments(direction: Direction) -> str:
    """What a direction does to packets beyond its rate and its delay, in words; nothing where there is nothing.

    >>> from testbed.impairments import CoDel
    >>> impairments(Direction(rate_bps=1e9, delay_s=0.002, jitter_s=0.001, loss=0.01, codel=CoDel()))
    'jitter 1 ms (normal), loss 1 %, codel 5 ms'
    """
    rate = direction.recorded_rate
    said = [
        f"rate follows {rate.name}" if rate else "",
        f"delay follows {direction.delay_trace.name}" if direction.delay_trace else "",
        *(
            f"{name} {cell(direction)}"
            for name, cell in _IMPAIRMENT_COLUMNS.items()
            if name != "queue" and cell(direction) != "-"
        ),
        "" if _is_auto(direction) else f"queue {_queue(direction)}",
    ]
    return ", ".join(filter(None, said))


def _chance(share: float) -> str:
    return format_fraction(share, digits=4) if share else "-"


def _rate(direction: Direction) -> str:
    if direction.recorded_rate:
        return f"~ {format_rate(direction.rate_bps, digits=4)}"
    return format_rate(direction.rate_bps)


def _delay(direction: Direction) -> str:
    if direction.delay_trace:
        return f"~ {format_seconds(direction.delay_s, digits=4)}"
    return format_seconds(direction.delay_s)


def _jitter(direction: Direction) -> str:
    if not direction.jitter_s:
        return "-"
    shape = direction.jitter_shape.name if direction.jitter_shape else "normal"
    return f"{format_seconds(direction.jitter_s)} ({shape}{', reorders' if direction.reorder else ''})"


def _bursts(direction: Direction) -> str:
    bursts = direction.burst_loss
    if bursts is None:
        return "-"
    return f"{format_fraction(bursts.mean_loss, digits=3)} ({bursts.mean_burst_packets:.3g} packets)"


def _is_auto(direction: Direction) -> bool:
    return direction.queue_bytes is None and direction.queue_packets is None


def _queue(direction: Direction) -> str:
    if direction.queue_in_packets:
        return f"{direction.queue_packets} packets"
    # What was left to us is marked, so that nobody takes it for a value of the file.
    return format_size(direction.effective_queue_bytes, digits=4) + (" (auto)" if _is_auto(direction) else "")


def _codel(direction: Direction) -> str:
    codel = direction.codel
    if codel is None:
        return "-"
    interval = "" if codel.interval_s == CoDel().interval_s else f" in {format_seconds(codel.interval_s)}"
    return f"{format_seconds(codel.target_s)}{interval}"


_IMPAIRMENT_COLUMNS: dict[str, Callable[[Direction], str]] = {
    "jitter": _jitter,
    "loss": lambda direction: _chance(direction.loss),
    "bursts": _bursts,
    "duplicate": lambda direction: _chance(direction.duplicate),
    "corrupt": lambda direction: _chance(direction.corrupt),
    "queue": _queue,
    "codel": _codel,
}
#: The columns of a table of directions: what each shows, ``-`` where there is nothing to show.
DIRECTION_COLUMNS: dict[str, Callable[[Direction], str]] = {"rate": _rate, "delay": _delay, **_IMPAIRMENT_COLUMNS}
