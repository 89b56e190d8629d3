"""Do the simulation and the emulation of the same runs agree?

Both played the same requests under the same placements.  Rows that have a bound must hold it; the others are shown.

    difference = simulated / emulated - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from analysis.load import Comparison, Run
from testbed.errors import TestbedError

MEAN_BOUND = 0.10
P95_BOUND = 0.15
EXACT = 0.0


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
            Row(
                framework=framework,
                what=what,
                unit=unit,
                simulated=measure(sides[0]),
                emulated=measure(sides[1]),
                bound=bound,
            )
            for what, unit, measure, bound in MEASURES
        ]
    return tuple(rows)


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
    ("answered", "requests", lambda runs: float(len(_latencies(runs))), EXACT),
    ("tokens", "", _tokens, EXACT),
    ("payload", "bytes", lambda runs: _total(runs, "sent_bytes"), EXACT),
    ("mean latency", "ms", _mean_ms, MEAN_BOUND),
    ("P95 latency", "ms", lambda runs: _quantile_ms(runs, 0.95), P95_BOUND),
    ("P99 latency", "ms", lambda runs: _quantile_ms(runs, 0.99), None),
    ("on the links", "bytes", _link_bytes, None),
)
