"""Do the simulation and the emulation of the same runs agree?

Both played the same requests under the same placements.  Rows that have a bound must hold it; the others are shown.

    difference = simulated / emulated - 1

A framework that reads measured delays and queues decides near ties otherwise where these differ by microseconds, and
some have hundreds of ties per request.  So how many requests were routed alike is counted: through the same servers,
layer by layer, with as many experts elsewhere.  Where all were, bytes must be equal; else they must agree within 1 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis.load import Comparison, Run
from testbed.errors import TestbedError

MEAN_BOUND = 0.10
P95_BOUND = 0.15
PAYLOAD_BOUND = 0.01  # of frameworks whose ties fell otherwise
EXACT = 0.0
WAY = ("step", "layer", "server", "servers", "remote_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of one framework, from both sides."""

    framework: str
    what: str
    unit: str
    simulated: float
    emulated: float
    bound: float | None  # on the absolute difference; None: shown only

    @property
    def difference(self) -> float:
        """Simulated against emulated, relative."""
        if self.emulated == 0:
            return 0.0 if self.simulated == 0 else float("inf")
        return self.simulated / self.emulated - 1

    @property
    def ok(self) -> bool:
        """Whether the bound holds."""
        return self.bound is None or abs(self.difference) <= self.bound


def agreement(simulated: Comparison, emulated: Comparison) -> tuple[Row, ...]:
    """All rows, by framework.

    TestbedError when the two sides did not play the same requests.
    """
    rows: list[Row] = []
    for framework in emulated.frameworks:
        sides = simulated.runs_of(framework), emulated.runs_of(framework)
        planned = [
            pl.concat([run.requests.select("request", "home", "scheduled_s", "prompt_tokens") for run in runs])
            if runs
            else pl.DataFrame()
            for runs in sides
        ]
        if not planned[0].equals(planned[1]):
            raise TestbedError(f"{framework}: the two sides did not play the same requests, so they cannot be compared")
        rows += [
            Row(framework=framework, what=what, unit=unit, simulated=ours, emulated=theirs, bound=bound)
            for what, unit, ours, theirs, bound in _numbers(*sides)
        ]
    return tuple(rows)


def _numbers(
    simulated: Sequence[Run], emulated: Sequence[Run]
) -> Iterator[tuple[str, str, float, float, float | None]]:
    """What is compared, its unit, both sides, the bound."""
    alike, answered = _routed_alike(simulated, emulated), _answered(emulated)
    yield "routed as emulated", "requests", alike, answered, None
    ours, theirs = _total(simulated, "sent_bytes"), _total(emulated, "sent_bytes")
    yield "payload", "bytes", ours, theirs, EXACT if alike == answered else PAYLOAD_BOUND
    for what, unit, measure, bound in MEASURES:
        yield what, unit, measure(simulated), measure(emulated), bound


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| framework | | simulated | emulated | difference | bound | |", "|---|---|---:|---:|---:|---:|---|"]
    for row in rows:
        bound = "" if row.bound is None else "exact" if row.bound == EXACT else f"±{row.bound:.0%}"
        verdict = "" if row.bound is None else "ok" if row.ok else "**off**"
        difference = f"{row.difference:+.2%}" if row.difference else "0"
        lines.append(
            f"| {row.framework} | {row.what} | {row.simulated:,.6g} {row.unit} | {row.emulated:,.6g} {row.unit} "
            f"| {difference} | {bound} | {verdict} |"
        )
    return "\n".join(lines)


def _ways(runs: Sequence[Run]) -> dict[tuple[int, int], list[tuple[Any, ...]]]:
    """How every answered request was routed, by repeat and number."""
    ways = {}
    for run in runs:
        answered = set(run.completed["request"].to_list())
        layers = run.layers.sort("request", "step", "layer")
        for (request,), rows in layers.group_by(["request"], maintain_order=True):
            if request in answered:
                ways[run.manifest.repeat, int(request)] = rows.select(WAY).rows()
    return ways


def _routed_alike(simulated: Sequence[Run], emulated: Sequence[Run]) -> int:
    ours, theirs = _ways(simulated), _ways(emulated)
    return sum(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())


def _answered(runs: Sequence[Run]) -> float:
    return float(len(_latencies(runs)))


def _latencies(runs: Sequence[Run]) -> pl.Series:
    return pl.concat([run.completed["latency_s"] for run in runs])


def _mean_ms(runs: Sequence[Run]) -> float:
    return 1e3 * float(_latencies(runs).mean() or 0.0)  # type: ignore[arg-type]


def _quantile_ms(runs: Sequence[Run], share: float) -> float:
    return 1e3 * float(_latencies(runs).quantile(share, "linear") or 0.0)


def _total(runs: Sequence[Run], column: str) -> float:
    return float(sum(int(run.completed[column].sum()) for run in runs))


def _tokens(runs: Sequence[Run]) -> float:
    return _total(runs, "prompt_tokens") + _total(runs, "output_tokens")


def _link_bytes(runs: Sequence[Run]) -> float:
    return float(sum(int(run.links["bytes"].sum()) for run in runs))


MEASURES = (
    ("answered", "requests", _answered, EXACT),
    ("tokens", "", _tokens, EXACT),
    ("mean latency", "ms", _mean_ms, MEAN_BOUND),
    ("P95 latency", "ms", lambda runs: _quantile_ms(runs, 0.95), P95_BOUND),
    ("P99 latency", "ms", lambda runs: _quantile_ms(runs, 0.99), None),
    ("on the links", "bytes", _link_bytes, None),
)
