"""What the injected events did, as spans of time: from the change of a link until it was as before.

An event record says only what was changed and when.  Whether a link was then better or worse is read from the link
samples: between two of its events a link is disturbed if its rate or delay in force differs from the topology's.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from analysis.load import Run
from testbed.errors import TestbedError

SAME_TIME_S = 0.25  # links changed within this time of each other belong to one event for the eye


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of the timeline during which links were disturbed, or a moment (start = end)."""

    start_s: float
    end_s: float
    links: tuple[str, ...]
    change: str  # what happened, without the link: ``rate=100 Mbit/s``

    @property
    def label(self) -> str:
        """``s1-s5 rate=100 Mbit/s``, or ``3 links rate=100 Mbit/s``."""
        where = f"{len(self.links)} links" if len(self.links) > 1 else "".join(self.links)
        return f"{where} {self.change}".strip()


def spans(run: Run) -> tuple[Span, ...]:
    """The disturbed stretches of a run in order, links that changed together as one."""
    single: list[Span] = []
    for (link,), events in run.events.sort("actual_s").group_by(["link"], maintain_order=True):
        single += _moments(events) if link is None else _of_link(run, str(link), events)
    merged: list[Span] = []
    for span in sorted(single, key=lambda span: (span.start_s, span.end_s)):
        last = merged[-1] if merged else None
        if last and abs(last.start_s - span.start_s) < SAME_TIME_S and abs(last.end_s - span.end_s) < SAME_TIME_S:
            merged[-1] = _joined(last, span)
        else:
            merged.append(span)
    return tuple(merged)


def hit_links(run: Run) -> tuple[str, ...]:
    """The links that an event named, in order of their first event."""
    return tuple(run.events.sort("actual_s")["link"].drop_nulls().unique(maintain_order=True).to_list())


def inside(run: Run, times: pl.Series) -> pl.Series:
    """For every time, whether some link was disturbed then."""
    within = pl.Series([False] * len(times), dtype=pl.Boolean)
    for span in spans(run):
        within |= (times >= span.start_s) & (times < span.end_s)
    return within


def end_s(run: Run) -> float:
    """The end of the observed time: the timeline's, or that of the last record of an interrupted run."""
    if run.manifest.complete:
        return run.manifest.duration_s
    last = [run.requests["finished_s"].max(), run.requests["sent_s"].max()]
    return max((float(value) for value in last if isinstance(value, float)), default=0.0)


def _moments(events: pl.DataFrame) -> list[Span]:
    return [
        Span(start_s=at, end_s=at, links=(), change=text) for text, at in events.select("event", "actual_s").iter_rows()
    ]


def _of_link(run: Run, link: str, events: pl.DataFrame) -> list[Span]:
    samples = run.links.filter(pl.col("link") == link)
    times = events["actual_s"].to_list()
    texts = events["event"].to_list()
    found = []
    for index, (start, text) in enumerate(zip(times, texts, strict=True)):
        last = index + 1 == len(times)
        end = max(start, end_s(run)) if last else times[index + 1]
        within = samples.filter((pl.col("t_s") > start) & (pl.col("t_s") <= end))
        # Without a sample to tell, the last event is taken for the repair and any other for the damage.
        if _disturbed(run, link, within) if len(within) else not last:
            found.append(Span(start_s=start, end_s=end, links=(link,), change=text.removeprefix(link).strip()))
    return found


def _disturbed(run: Run, link: str, samples: pl.DataFrame) -> bool:
    try:
        planned = run.manifest.topology.link(link)
    except KeyError:
        raise TestbedError(f"{run.path}: events.parquet names link '{link}', which the topology lacks") from None
    for source, rate, delay in samples.select("source", "rate_bps", "delay_s").iter_rows():
        direction = planned.forward if source == planned.a else planned.backward
        if abs(rate / direction.rate_bps - 1) > 0.01 or abs(delay - direction.delay_s) > 0.01 * direction.delay_s:
            return True
    return False


def _joined(first: Span, second: Span) -> Span:
    return Span(
        start_s=min(first.start_s, second.start_s),
        end_s=max(first.end_s, second.end_s),
        links=(*first.links, *second.links),
        change=first.change if first.change == second.change else "changed",
    )
