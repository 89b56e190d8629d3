"""What may be said of a comparison: sentences computed from the data, each with the numbers that support it.

A difference is stated only where its interval lies on one side of zero.  Several frameworks are compared at once, so
the intervals here are widened (Bonferroni): with m comparisons each has level 1 - 0.05/m, and all sentences of one
kind hold together with 95 %.  What cannot be told apart is said too, because silence would be read as equality.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.bootstrap import Bootstrap, Estimate, quantile
from analysis.events import spans
from analysis.load import Comparison
from analysis.measure import Runs
from analysis.metrics import disturbed_change, paired_change
from analysis.tables import Summary
from analysis.text import change_with_interval, number

FAMILY_ERROR = 0.05
RESAMPLES = 4000  # the tails of widened intervals need more of them
MIN_PAIRS = 30  # fewer common requests support no sentence


def findings(comparison: Comparison, summary: Summary, *, seed: int = 0) -> tuple[str, ...]:
    """The key findings, most important first; none about speed where the runs are in doubt and not allowed."""
    if not summary.ranked:
        return ("No finding about speed is stated, because runs are in doubt: " + "; ".join(summary.doubts) + ".",)
    others = [name for name in summary.estimates if name != summary.reference]
    said = [*_fastest(comparison, summary, seed), *_against_reference(comparison, summary.reference, others, seed)]
    return (*said, *_disturbance(comparison, list(summary.estimates), seed), *_quality(comparison, summary))


def _fastest(comparison: Comparison, summary: Summary, seed: int) -> list[str]:
    names = [name for name, found in summary.estimates.items() if found["latency_mean_s"].value is not None]
    if len(names) < 2:
        return []
    best, second = names[0], names[1]
    bootstrap = _widened(seed, len(names) - 1)
    slower = [paired_change(comparison.runs_of(best), comparison.runs_of(name), bootstrap) for name in names[1:]]
    if all(_supported(change) and (change.value or 0) < 0 for change in slower):
        numbers = "" if summary.reference in (best, second) else f"; against the next, {second}: {_support(slower[0])}"
        return [f"{best} has the lowest mean latency of all{numbers}."]
    close = [name for name, change in zip(names[1:], slower, strict=True) if not _supported(change)]
    if not close:
        return []
    return [
        f"No single framework is shown to have the lowest mean latency: {best} cannot be told from {_listed(close)}."
    ]


def _against_reference(comparison: Comparison, reference: str, others: list[str], seed: int) -> list[str]:
    bootstrap = _widened(seed, len(others))
    base = comparison.runs_of(reference)
    kinds: tuple[tuple[str, Callable[[Runs], Estimate]], ...] = (
        ("Mean latency", lambda runs: paired_change(runs, base, bootstrap)),
        ("P99 latency", lambda runs: paired_change(runs, base, bootstrap, statistic=quantile(0.99))),
        ("Traffic between servers", lambda runs: paired_change(runs, base, bootstrap, column="sent_bytes")),
    )
    said = []
    for title, measure in kinds:
        changes = {name: measure(comparison.runs_of(name)) for name in others}
        for direction, sign in (("lower", -1), ("higher", 1)):
            told = [
                f"{name} {_support(change)}"
                for name, change in changes.items()
                if _supported(change) and sign * (change.value or 0) > 0
            ]
            if told:
                said.append(f"{title} {direction} than {reference}: {'; '.join(told)}.")
        untold = [name for name, change in changes.items() if not _supported(change) and change.value is not None]
        if untold:
            said.append(f"{title}: no difference from {reference} is shown for {_listed(untold)}.")
    return said


def _disturbance(comparison: Comparison, names: list[str], seed: int) -> list[str]:
    if not any(span.links for run in comparison.runs for span in spans(run)):
        return []
    bootstrap = _widened(seed, len(names))
    changes = {name: disturbed_change(comparison.runs_of(name), bootstrap) for name in names}
    slower = [f"{name} {_support(change)}" for name, change in changes.items() if _supported(change)]
    steady = [name for name, change in changes.items() if change.value is not None and not _supported(change)]
    said = []
    if slower:
        said.append(f"Mean latency of requests that arrived while links were disturbed: {'; '.join(slower)}.")
    if steady:
        said.append(f"While links were disturbed, no change of mean latency is shown for {_listed(steady)}.")
    return said


def _quality(comparison: Comparison, summary: Summary) -> list[str]:
    said = []
    # The logits of a replayed trace are bit for bit the same in any precision: they say nothing of quality.
    estimates = {name: found for name, found in summary.estimates.items() if found["exact_share"].value is not None}
    measured = {name: found for name, found in estimates.items() if found["top1_agreement"].value is not None}
    if estimates and not measured:
        said.append("Quality was not measured: the model's routing was replayed from a trace, without its arithmetic.")
    exact = [name for name, found in measured.items() if found["exact_share"].value == 1.0]
    if exact:
        said.append(
            f"Bit for bit the logits of the full-precision reference in every completed request: {_listed(exact)}."
        )
    said += _budget(summary, comparison.runs[0].manifest.quality_budget, exact)
    failed = {name: sum(run.manifest.counts.failed for run in comparison.runs_of(name)) for name in summary.estimates}
    if any(failed.values()):
        counts = ", ".join(f"{name} {count}" for name, count in failed.items() if count)
        said.append(f"Failed requests, which latencies leave out: {counts}.")
    return said


def _budget(summary: Summary, budget: float | None, exact: list[str]) -> list[str]:
    if budget is None:
        return []
    within, beyond = [], []
    for name, found in summary.estimates.items():
        loss = found["nll_increase"]
        if name in exact or loss.value is None or loss.low is None or loss.high is None:
            continue
        numbers = f"{name} {number(100 * loss.value)} % [{number(100 * loss.low)}, {number(100 * loss.high)}]"
        if loss.high < budget:
            within.append(numbers)
        elif loss.low > budget:
            beyond.append(numbers)
    limit = f"the quality budget of {number(100 * budget)} % NLL increase"
    said = [f"Within {limit}: {'; '.join(within)}."] if within else []
    return said + ([f"Beyond {limit}: {'; '.join(beyond)}."] if beyond else [])


def _widened(seed: int, comparisons: int) -> Bootstrap:
    return Bootstrap(seed=seed, resamples=RESAMPLES, level=1 - FAMILY_ERROR / max(1, comparisons))


def _supported(change: Estimate) -> bool:
    return change.excludes_zero and change.n >= MIN_PAIRS


def _support(change: Estimate) -> str:
    return f"{change_with_interval(change)} (n = {change.n})"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
