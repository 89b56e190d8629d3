"""What the keys of a direction do to a ``Direction``: the same in a topology file and at run time.

Every key owns some fields of a ``Direction`` and sets all of them, so that sections can be laid over each other key by
key: a link over the defaults, a reverse over its link, a change over what is in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.impairments import CoDel, GilbertElliott, Opportunities, Steps
from testbed.loading.linkformat import (
    BURSTS,
    CODEL,
    CORRUPT,
    DELAY,
    DUPLICATE,
    INTERVAL,
    JITTER,
    JITTER_TABLE,
    LOSS,
    LOSS_BAD,
    LOSS_GOOD,
    QUEUE,
    RATE,
    RECOVERS,
    REORDER,
    TARGET,
    WORSENS,
    QueueLimit,
)
from testbed.loading.problems import Report
from testbed.loading.recordings import Recordings
from testbed.loading.sections import Key, Section
from testbed.topology import BITS_PER_BYTE, Direction
from testbed.units import format_seconds

#: Fields of a ``Direction`` by name.
Fields = dict[str, Any]

#: Keys that are one field.
_PLAIN: tuple[tuple[Key[Any], str], ...] = (
    (JITTER, "jitter_s"),
    (REORDER, "reorder"),
    (LOSS, "loss"),
    (DUPLICATE, "duplicate"),
    (CORRUPT, "corrupt"),
)
#: Keys that need others to have an effect.
CONDITIONAL: tuple[Key[Any], ...] = (JITTER_TABLE, REORDER, CODEL)


def fields_of(section: Section, recordings: Recordings) -> Fields:
    """The fields that the keys of ``section`` set; a key with a mistake, which has been reported, sets none."""
    fields: Fields = {}
    fields |= _rate(section.get(RATE), recordings)
    fields |= _delay(section.get(DELAY), recordings)
    for key, field in _PLAIN:
        if section.get(key) is not None:
            fields[field] = section.get(key)
    fields |= _jitter_shape(section, recordings)
    fields |= _bursts(section.get(BURSTS), recordings.report)
    fields |= _queue(section.get(QUEUE))
    fields |= _codel(section.get(CODEL), recordings.report)
    return fields


def without_effect(direction: Direction) -> Iterator[tuple[Key[Any], str]]:
    """The keys of ``CONDITIONAL`` that are in force and do nothing, with what to write instead."""
    if not direction.jitter_s:
        if direction.jitter_shape is not None:
            yield JITTER_TABLE, "no effect without 'jitter'; write 'jitter: 1 ms' beside it, or leave it out"
        if direction.reorder:
            yield REORDER, "no effect without 'jitter'; write 'jitter: 1 ms' beside it, or leave it out"
    if direction.codel is not None and not direction.recorded_rate:
        longest_s = BITS_PER_BYTE * direction.effective_queue_bytes / direction.rate_bps
        target_s = direction.codel.target_s
        if longest_s <= target_s:
            full = f"a full queue waits {format_seconds(longest_s, digits=3)}"
            yield CODEL, f"no effect: {full}, no longer than the target of {format_seconds(target_s)}; enlarge 'queue'"


def _rate(value: float | Section | None, recordings: Recordings) -> Fields:
    if value is None:
        return {}
    if not isinstance(value, Section):
        return {"rate_bps": value, "rate_trace": None, "opportunities": None}
    found = recordings.rate(value)
    if found is None:
        return {}
    mean_bps, trace = found
    return {
        "rate_bps": mean_bps,
        "rate_trace": trace if isinstance(trace, Steps) else None,
        "opportunities": trace if isinstance(trace, Opportunities) else None,
    }


def _delay(value: float | Section | None, recordings: Recordings) -> Fields:
    if value is None:
        return {}
    if not isinstance(value, Section):
        return {"delay_s": value, "delay_trace": None}
    found = recordings.delay(value)
    return {} if found is None else {"delay_s": found[0], "delay_trace": found[1]}


def _jitter_shape(section: Section, recordings: Recordings) -> Fields:
    entry = section.entry(JITTER_TABLE)
    if entry is None or entry.value is None:
        return {}
    if entry.value is False:
        return {"jitter_shape": None}
    shape = recordings.shape(entry)
    return {} if shape is None else {"jitter_shape": shape}


def _bursts(value: Section | bool | None, report: Report) -> Fields:
    if not isinstance(value, Section):
        return {} if value is None else {"burst_loss": None}
    worsens, recovers = value.get(WORSENS), value.get(RECOVERS)
    bad = value.entry(LOSS_BAD)
    good = value.entry(LOSS_GOOD)
    if worsens is None or recovers is None or (bad and bad.value is None) or (good and good.value is None):
        return {}  # reported where it is written, or missing
    loss_bad = bad.value if bad and bad.value is not None else 1.0
    loss_good = good.value if good and good.value is not None else 0.0
    wrong = bad or good
    if wrong and loss_bad <= loss_good:
        message = "a bad link must lose more than a good one; write 'loss' where both lose the same"
        report.add(wrong.at, wrong.path, message)
        return {}
    bursts = GilbertElliott(worsens=worsens, recovers=recovers, loss_bad=loss_bad, loss_good=loss_good)
    return {"burst_loss": bursts}


def _queue(value: QueueLimit | bool | None) -> Fields:
    if value is None:
        return {}
    limit = value if isinstance(value, QueueLimit) else QueueLimit()
    return {"queue_bytes": limit.size_bytes, "queue_packets": limit.packets}


def _codel(value: bool | Section | None, report: Report) -> Fields:
    if value is None:
        return {}
    if not isinstance(value, Section):
        return {"codel": CoDel() if value else None}
    given = [entry for entry in (value.entry(TARGET), value.entry(INTERVAL)) if entry]
    if any(entry.value is None for entry in given):
        return {}
    target_s, interval_s = value.get(TARGET), value.get(INTERVAL)
    usual = CoDel()
    codel = CoDel(target_s=target_s or usual.target_s, interval_s=interval_s or usual.interval_s)
    if codel.target_s >= codel.interval_s:
        wrong = given[0]
        times = f"{format_seconds(codel.target_s)} and {format_seconds(codel.interval_s)}"
        report.add(wrong.at, wrong.path, f"'target' must be shorter than 'interval', not {times}")
        return {}
    return {"codel": codel}
