"""What HetRoute's paper states, each beside what a grid measured, with its interval over seeds.

The paper's figures are those of public explanations (arXiv 2608.00577), on Mixtral at 40 requests/s unless a row says
otherwise.  Throughput is defined here, because those explanations do not define it: the load up to which the mean
latency stays within the objective, interpolated between the loads of the grid (docs/hetroute.md says why).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import polars as pl

from analysis.bootstrap import Estimate
from analysis.papertable import KINDS, Condition, Grid, by_seed, crossing
from analysis.seeds import over_seeds
from analysis.text import change_with_interval, estimate

OURS = "hetroute"
#: The choice alone, over copies that are spread.
SET_LEVEL, EACH_ALONE = "spread-set-level", "spread-each-alone"
#: The latency objective.
SLO_S = 0.300
#: Lower precisions of baselines that stand beside them.
LOWER = ("int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One row of the table."""

    what: str
    paper: str
    measured: str
    lower: tuple[str, ...] = ()  # against the baseline in each of ``LOWER``
    reached: str = ""  # of aims


@dataclass(frozen=True, slots=True)
class Aim:
    """A ratio that the paper states, as a change: -0.59 is 59 % less."""

    base: str
    what: str
    key: str
    paper: float


AIMS = (
    Aim("edgeshard", "mean latency", "mean_s", -0.590),
    Aim("edgeshard", "P99 latency", "p99_s", -0.580),
    Aim("edgeshard", "traffic", "bytes_per_token", -0.721),
    Aim("edgeshard", "throughput", "throughput", 1.13),
    Aim("petals", "mean latency", "mean_s", -0.495),
    Aim("petals", "traffic", "bytes_per_token", -0.575),
    Aim("moe-infinity", "mean latency", "mean_s", -0.386),
    Aim("prism", "mean latency", "mean_s", -0.281),
    Aim("prism", "P99 latency", "p99_s", -0.332),
    Aim("prism", "traffic", "bytes_per_token", -0.248),
    Aim("prism", "throughput", "throughput", 0.35),
)
MOST_LOSS = 0.02
#: At 80 requests/s: mean (ms), P99 (ms), share within the objective.
AT_80 = {OURS: (236, 472, 73), "prism": (359, 711, 51), "edgeshard": (612, 1180, 21)}
MIX = {"local fast": 46, "remote fast": 24, "slow": 14, "substitute": 14, "fallback": 2}


def default_condition(grid: Grid) -> Condition:
    """The condition of the part ``default``, or else of the first row."""
    rows = grid.table.filter(pl.col("part") == "default")
    row = (rows if rows.height else grid.table).row(0, named=True)
    return Condition(**{field.name: row[field.name] for field in fields(Condition)})


def claims(grid: Grid) -> Iterator[Claim]:
    """Every figure of the paper that this grid has a number for."""
    at = default_condition(grid)
    for aim in AIMS:
        yield from _against(grid, at, aim)
    yield from _quality(grid, at)
    yield from _set_level(grid, at)
    yield from _residency(grid, at)
    yield from _redundancy(grid, at)
    yield from _at_80(grid, at)
    yield from _budget(grid, at)
    yield from _mix(grid, at)


def aims_of(grid: Grid, at: Condition) -> Iterator[Claim]:
    """The aims alone, for any model."""
    for aim in AIMS:
        if aim.base in ("edgeshard", "prism"):
            yield from _against(grid, at, aim)
    yield from _loss(grid, at)


def throughputs(grid: Grid, framework: str, at: Condition) -> dict[int, float]:
    """By seed: the load up to which the mean latency stays within the objective."""
    return by_seed(_means(grid, framework, at), lambda means: crossing(means, SLO_S))


def gain(grid: Grid, framework: str, base: str, at: Condition, key: str) -> Estimate:
    """Change of a column, or of the throughput, paired over seeds."""
    if key != "throughput":
        return grid.change(framework, base, at, key)
    ours, theirs = throughputs(grid, framework, at), throughputs(grid, base, at)
    return over_seeds([ours[seed] / theirs[seed] - 1.0 for seed in ours if seed in theirs])


def verdict(found: Estimate, wanted: float, *, more: bool = False) -> str:
    """Whether an aim is reached: by the value, and by the whole interval.

    >>> verdict(Estimate(value=-0.6, low=-0.7, high=-0.5, n=3, method=""), -0.59)
    'yes, but not with the whole interval'
    """
    if found.value is None:
        return ""
    sign = 1.0 if more else -1.0
    if sign * found.value < sign * wanted:
        return "no"
    worst = found.low if more else found.high
    return "yes" if worst is not None and sign * worst >= sign * wanted else "yes, but not with the whole interval"


def _against(grid: Grid, at: Condition, aim: Aim) -> Iterator[Claim]:
    more = aim.paper > 0
    shown: Callable[[Estimate], str] = _factor if more else change_with_interval
    found = gain(grid, OURS, aim.base, at, aim.key)
    lower = [gain(grid, OURS, f"{aim.base}-{precision}", at, aim.key) for precision in LOWER]
    if found.value is None and not grid.values(aim.base, at, "mean_s"):
        return
    measured, reached = shown(found), verdict(found, aim.paper, more=more)
    if found.value is None:
        measured, bound = _at_least(grid, aim.base, at)
        reached = "yes" if bound is not None and bound >= 1 + aim.paper else ""
    yield Claim(
        what=f"{aim.what} against {aim.base}",
        paper=f"{1 + aim.paper:.2f}x" if more else f"{100 * aim.paper:+.1f} %".replace("-", "−"),
        measured=measured,
        lower=tuple("" if each.value is None else shown(each) for each in lower),
        reached=reached,
    )


def _at_least(grid: Grid, base: str, at: Condition) -> tuple[str, float | None]:
    """Where one of two throughputs lies beyond the loads of the grid: both in words, and what their ratio exceeds."""
    said, bounds = [], []
    for framework in (OURS, base):
        means = _means(grid, framework, at)
        if not means:
            return "not measured", None
        inside = throughputs(grid, framework, at)
        least, most = min(means), max(means)
        if inside.keys() == means[most].keys():
            value = sum(inside.values()) / len(inside)
            words = f"{value:.0f}/s"
        elif sum(means[most].values()) / len(means[most]) <= SLO_S:
            value, words = most, f"above {most:g}/s"
        else:
            value, words = least, f"below {least:g}/s"
        said.append(f"{framework} {words}")
        bounds.append((value, words))
    (ours, ours_words), (theirs, their_words) = bounds
    bound = None if ours_words.startswith("below") or their_words.startswith("above") else ours / theirs
    return (f"> {bound:.2f}x: " if bound is not None else "") + ", ".join(said), bound


def _means(grid: Grid, framework: str, at: Condition) -> dict[float, dict[int, float]]:
    """Mean latencies by load and seed."""
    loads = grid.table["rate_per_s"].unique().sort().to_list()
    found = {load: grid.values(framework, replace(at, rate_per_s=load), "mean_s") for load in loads}
    return {load: values for load, values in found.items() if values}


def _loss(grid: Grid, at: Condition) -> Iterator[Claim]:
    loss = grid.mean(OURS, at, "loss")
    if loss.value is not None:
        yield Claim(
            what="loss in the worst domain",
            paper="≤ 2 %",
            measured=_percent(loss, digits=2),
            reached=verdict(loss, MOST_LOSS),
        )


def _quality(grid: Grid, at: Condition) -> Iterator[Claim]:
    yield from _loss(grid, at)
    served, full = grid.mean(OURS, at, "perplexity"), grid.mean(OURS, at, "perplexity_reference")
    rise = _ratio_of(grid, at, "perplexity", "perplexity_reference")
    if served.value is not None and full.value is not None:
        yield Claim(
            what="perplexity, full to served",
            paper="5.32 to 5.39 (+1.3 %)",
            measured=f"{full.value:.3f} to {served.value:.3f} ({change_with_interval(rise)})",
        )


def _set_level(grid: Grid, at: Condition) -> Iterator[Claim]:
    for model, top, paper in ((at.model, "top-2", "−23 %"), ("qwen1.5-moe-a2.7b", "top-4", "−29.8 %")):
        here = replace(at, model=model)
        found = grid.change(OURS, "hetroute-no-set-level", here, "mean_s")
        if found.value is not None:
            yield Claim(what=f"set-level against each alone, {top}", paper=paper, measured=change_with_interval(found))
        for rate in grid.table.filter(pl.col("framework") == SET_LEVEL)["rate_per_s"].unique().sort():
            found = grid.change(SET_LEVEL, EACH_ALONE, replace(here, rate_per_s=rate), "mean_s")
            if found.value is not None:
                yield Claim(
                    what=f"the same over spread copies, gathered at home, {rate:g}/s, {top}",
                    paper=paper,
                    measured=change_with_interval(found),
                )


def _residency(grid: Grid, at: Condition) -> Iterator[Claim]:
    stated = ("mean_s", "mean", "156 to 218 ms (+39.7 %)"), ("p99_s", "P99", "286 to 421 ms (+47.2 %)")
    for key, what, paper in stated:
        found = grid.change("hetroute-no-residency", OURS, at, key)
        if found.value is not None:
            without, ours = grid.common("hetroute-no-residency", OURS, at, key, under=at)
            yield Claim(
                what=f"without residency optimisation, {what}", paper=paper, measured=_from_to(ours, without, found)
            )


def _redundancy(grid: Grid, at: Condition) -> Iterator[Claim]:
    one, three = replace(at, redundancy=1.0), replace(at, redundancy=3.0)
    found = grid.change(OURS, OURS, at, "mean_s", under=one)
    if found.value is not None:
        two_s, one_s = grid.common(OURS, OURS, at, "mean_s", under=one)
        yield Claim(
            what="redundancy 1 to 2, mean", paper="221 to 156 ms (−29.4 %)", measured=_from_to(one_s, two_s, found)
        )
    more = grid.less(OURS, OURS, three, "mean_s", under=at)
    if more.value is not None:
        yield Claim(what="redundancy 2 to 3, mean", paper="−9 ms", measured=f"{estimate(more, 1e3)} ms")


def _at_80(grid: Grid, at: Condition) -> Iterator[Claim]:
    loaded = replace(at, rate_per_s=80.0)
    for framework, (mean_ms, p99_ms, percent) in AT_80.items():
        mean = grid.mean(framework, loaded, "mean_s")
        if mean.value is not None:
            p99, within = grid.mean(framework, loaded, "p99_s"), grid.mean(framework, loaded, "within")
            yield Claim(
                what=f"{framework} at 80/s: mean, P99, within 300 ms",
                paper=f"{mean_ms} ms, {p99_ms} ms, {percent} %",
                measured=f"{estimate(mean, 1e3)} ms, {estimate(p99, 1e3)} ms, {_percent(within)}",
            )


def _budget(grid: Grid, at: Condition) -> Iterator[Claim]:
    small, large = replace(at, budget=0.005), replace(at, budget=0.03)
    found = grid.change(OURS, OURS, large, "mean_s", under=small)
    if found.value is not None:
        large_s, small_s = grid.common(OURS, OURS, large, "mean_s", under=small)
        yield Claim(
            what="budget 0.5 to 3 %, mean", paper="188 to 142 ms (−24.5 %)", measured=_from_to(small_s, large_s, found)
        )
        losses = [grid.mean(OURS, each, "loss") for each in (small, large)]
        yield Claim(
            what="budget 0.5 to 3 %, measured loss",
            paper="0.31 to 2.34 %",
            measured=" to ".join(_percent(loss, digits=2) for loss in losses),
        )


def _mix(grid: Grid, at: Condition) -> Iterator[Claim]:
    shares = {kind: grid.mean(OURS, at, kind) for kind in KINDS}
    if all(share.value is not None for share in shares.values()):
        yield Claim(
            what="expert calls: " + ", ".join(KINDS),
            paper=" / ".join(f"{MIX[kind]}" for kind in KINDS) + " %",
            measured=" / ".join(f"{100 * (share.value or 0.0):.1f}" for share in shares.values()) + " %",
        )


def _ratio_of(grid: Grid, at: Condition, key: str, base: str) -> Estimate:
    ours, theirs = grid.values(OURS, at, key), grid.values(OURS, at, base)
    return over_seeds([ours[seed] / theirs[seed] - 1.0 for seed in ours if seed in theirs])


def _factor(found: Estimate) -> str:
    if found.value is None:
        return ""
    bounds = "" if found.low is None or found.high is None else f" [{1 + found.low:.2f}, {1 + found.high:.2f}]"
    return f"{1 + found.value:.2f}x{bounds}"


def _percent(found: Estimate, digits: int = 0) -> str:
    if found.value is None:
        return ""
    scaled = [None if each is None else f"{100 * each:.{digits}f}" for each in (found.low, found.high)]
    bounds = "" if None in scaled else f" [{scaled[0]}, {scaled[1]}]"
    return f"{100 * found.value:.{digits}f} %{bounds}"


def _from_to(before_s: float, after_s: float, change: Estimate) -> str:
    return f"{1e3 * before_s:.1f} to {1e3 * after_s:.1f} ms ({change_with_interval(change)})"
