"""Tables and figures of ``scenarios/bevy_paper.py``: reads the records of one result directory.

A *point* is a model, a concurrency and a cache size.  At a point every scheduler is compared under the same cache
policy, and once more each under the policy that suits it best, so that no scheduler wins by another's cache.  Where
there are several seeds, ratios are taken seed by seed, and their means have intervals.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.figure import Figure

from analysis import style
from analysis.bootstrap import Estimate
from analysis.seeds import over_seeds
from analysis.text import number
from testbed.errors import TestbedError

RECORDS_FILE = "offloading.json"
BEVY, BOTH, LOCKSTEP, LARGE = "bevy", "bevy+prefetch", "lockstep", "lockstep, large reads"
OVERLAP = "lockstep-overlap"
PREDICTORS = ("prefetch", "prefetch-matrix")
#: Bevy's maxima (docs/bevy.md): tokens/s over the standard way, and over the fastest predictor.
PAPER_OVER_LOCKSTEP, PAPER_OVER_PREDICTOR = 3.46, 1.55
#: Each scheduler under its own best policy.
BEST = "each its best"

Point = tuple[str, int, float]  # model, concurrency, fraction


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run; docs/bevy.md defines the columns."""

    model: str
    row: str
    cache: str
    concurrency: int
    fraction: float
    seed: int = 0
    tokens_per_s: float
    device_busy: float | None
    channel_busy: float | None
    hit_rate: float | None
    loads_per_token: float | None
    mean_group: float | None
    guess_accuracy: float | None
    absent_guess_accuracy: float | None
    prefetch_precision: float | None
    wasted_bytes: int
    loaded_bytes: int
    ttft_mean_s: float | None
    tpot_mean_s: float | None

    @property
    def point(self) -> Point:
        """Where it was measured."""
        return self.model, self.concurrency, self.fraction


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """One result directory."""

    format: int
    topology: str
    fault_share: float
    sources: dict[str, str]
    results: list[Result]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one point and seed under one policy, or each under its best."""

    point: Point
    seed: int
    cache: str
    rows: dict[str, Result]

    def gain(self, over: Iterable[str], of: str = BEVY) -> float | None:
        """Tokens/s of one row relative to the fastest of others; None where either is missing."""
        others = [self.rows[name].tokens_per_s for name in over if name in self.rows]
        return self.rows[of].tokens_per_s / max(others) if of in self.rows and others and max(others) > 0 else None


def read(directory: Path) -> Records:
    """The records of a directory; TestbedError where they are missing or not ours."""
    path = directory / RECORDS_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Records)
    except (OSError, msgspec.DecodeError) as error:
        raise TestbedError(f"{path}: {error}") from None
    if found.format != 1:
        raise TestbedError(f"{path}: format {found.format} is not known")
    return found


def compared(results: Sequence[Result]) -> list[Compared]:
    """All points and seeds under every policy, and under each row's best."""
    caches = list(dict.fromkeys(each.cache for each in results))
    found = []
    for point in dict.fromkeys(each.point for each in results):
        here = [each for each in results if each.point == point]
        best = _best_caches(here)
        for seed in dict.fromkeys(each.seed for each in here):
            ours = [each for each in here if each.seed == seed]
            for cache in caches:
                rows = {each.row: each for each in ours if each.cache == cache}
                found.append(Compared(point=point, seed=seed, cache=cache, rows=rows))
            if len(caches) > 1:
                rows = {each.row: each for each in ours if each.cache == best[each.row]}
                found.append(Compared(point=point, seed=seed, cache=BEST, rows=rows))
    return found


def _best_caches(results: Sequence[Result]) -> dict[str, str]:
    """Row -> the policy under which it makes most tokens/s, over all seeds."""
    rates: dict[tuple[str, str], list[float]] = {}
    for each in results:
        rates.setdefault((each.row, each.cache), []).append(each.tokens_per_s)
    best: dict[str, str] = {}
    for (row, cache), values in rates.items():
        known = rates.get((row, best.get(row, "")), [float("-inf")])
        if sum(values) / len(values) > sum(known) / len(known):
            best[row] = cache
    return best


def gains_at(points: Iterable[Compared], over: Iterable[str], of: str = BEVY) -> dict[Point, Estimate]:
    """The ratio at every point where both rows are: mean and interval over its seeds."""
    found: dict[Point, list[float]] = {}
    for each in points:
        if (gain := each.gain(over, of)) is not None:
            found.setdefault(each.point, []).append(gain)
    return {point: over_seeds(values) for point, values in found.items()}


def draw(directory: Path) -> str:
    """Write tables and figures beside the records; the text that people read first."""
    records = read(directory)
    points = compared(records.results)
    text = summary(records, points)
    (directory / "summary.md").write_text(text + "\n")
    _write_csv(directory / "summary.csv", records.results)
    for name, make in FIGURES.items():
        with style.context(name):
            make(records.results).savefig(directory / f"{name}.svg")
    return text


def summary(records: Records, points: Sequence[Compared]) -> str:
    """Paper and measured, claim by claim, then every row of the best points."""
    lines = [f"# Interleaved requests on {records.topology}", ""]
    lines += [f"Routes of {model}: {said}." for model, said in records.sources.items()]
    lines += [f"Lockstep faults pages in at {records.fault_share:.0%} of the storage bandwidth.", ""]
    lines += ["| claim | paper | cache | measured | where |", "|---|---:|---|---:|---|"]
    caches = list(dict.fromkeys(each.cache for each in points))
    for cache in caches:
        here = [each for each in points if each.cache == cache]
        for claim, paper, over, of in (
            ("over lockstep", f"{PAPER_OVER_LOCKSTEP}x", (LOCKSTEP,), BEVY),
            ("of it by interleaving (lockstep with large reads)", "", (LARGE,), BEVY),
            ("of that without overlap inside a layer (lockstep-overlap)", "", (OVERLAP,), BEVY),
            ("over the best predictor", f"{PAPER_OVER_PREDICTOR}x", PREDICTORS, BEVY),
            ("Bevy with prefetch over Bevy, at most", "no better", (BEVY,), BOTH),
        ):
            gains = gains_at(here, over, of)
            if gains:
                at = max(gains, key=lambda point: gains[point].value or 0)
                lines.append(f"| {claim} | {paper} | {cache} | {_times(gains[at])} | {_where(at)} |")
        for others, over in (("lockstep with large reads", (LARGE,)), ("the best predictor", PREDICTORS)):
            alone = {point: gain for point, gain in gains_at(here, over).items() if point[1] == 1}
            if alone:
                at = min(alone, key=lambda point: alone[point].value or 0)
                claim = f"one request: over {others}, at least"
                lines.append(f"| {claim} | about 1x | {cache} | {_times(alone[at])} | {_where(at)} |")
    lines += ["", *_by_fraction(records.results), "", *_best_points(points)]
    return "\n".join(lines)


def _by_fraction(results: Sequence[Result]) -> list[str]:
    """How right predictions are, and how they pay, over cache size."""
    lines = [
        "| cache | guesses right | of absent experts | prefetches used | Bevy over best predictor "
        "| with prefetch over Bevy |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    points = [each for each in compared(results) if each.cache != BEST]
    for fraction in sorted({each.fraction for each in results}):
        rows = [each for each in results if each.fraction == fraction and each.row == "prefetch"]
        here = [each for each in points if each.point[2] == fraction]
        lines.append(
            f"| {fraction:.0%} | {_mean_percent(each.guess_accuracy for each in rows)} "
            f"| {_mean_percent(each.absent_guess_accuracy for each in rows)} "
            f"| {_mean_percent(each.prefetch_precision for each in rows)} "
            f"| {_geometric(each.gain(PREDICTORS) for each in here)} "
            f"| {_geometric(each.gain((BEVY,), BOTH) for each in here)} |"
        )
    return [*lines, "", "Means over models, concurrency and policies; ratios are geometric means."]


def _best_points(points: Sequence[Compared]) -> list[str]:
    """Every row where Bevy gains most over the best predictor, for each model; numbers of the first seed."""
    lines = [
        "| point | cache | row | tokens/s | device busy | channel busy | hit rate | loads/token | group | wasted GB |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    caches = list(dict.fromkeys(each.cache for each in points))
    for model in dict.fromkeys(each.point[0] for each in points):
        for cache in caches:
            here = [each for each in points if each.cache == cache and each.point[0] == model]
            gains = gains_at(here, PREDICTORS)
            if not gains:
                continue
            at = max(gains, key=lambda point: gains[point].value or 0)
            best = next(each for each in here if each.point == at)
            for name, each in best.rows.items():
                lines.append(
                    f"| {_where(best.point)} | {each.cache} | {name} | {number(each.tokens_per_s)} "
                    f"| {_percent(each.device_busy)} | {_percent(each.channel_busy)} | {_percent(each.hit_rate)} "
                    f"| {number(each.loads_per_token or 0)} | {number(each.mean_group or 0)} "
                    f"| {number(each.wasted_bytes / 1e9)} |"
                )
    return lines


# --- figures ----------------------------------------------------------------------------------------------------------


def over_concurrency(results: Sequence[Result]) -> Figure:
    """How do tokens/s grow with the number of requests, at each cache size?  Every row under its best policy."""
    return _panels(results, lambda each: each.tokens_per_s, "tokens/s, emulated")


def device_busy(results: Sequence[Result]) -> Figure:
    """How much of the time does the device work?"""
    return _panels(results, lambda each: 100 * (each.device_busy or 0), "device busy (%)")


def channel_busy(results: Sequence[Result]) -> Figure:
    """How much of the time does the load channel read?"""
    return _panels(results, lambda each: 100 * (each.channel_busy or 0), "load channel busy (%)")


def accuracy_over_cache(results: Sequence[Result]) -> Figure:
    """Does the next layer's gate, asked too early, still name what is missing when the cache grows?"""
    figure = style.figure(3.2)
    panels = figure.subplots(1, 2, sharey=True)
    models = list(dict.fromkeys(each.model for each in results))
    looks = style.looks(models)
    kinds: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
        ("all guesses", lambda each: each.guess_accuracy),
        ("guesses of experts that are absent", lambda each: each.absent_guess_accuracy),
    )
    for axes, (title, value) in zip(panels, kinds, strict=True):
        for model in models:
            rows = [each for each in results if each.model == model and each.row == "prefetch"]
            fractions = sorted({each.fraction for each in rows})
            means = [_mean(value(each) for each in rows if each.fraction == fraction) for fraction in fractions]
            look = looks[model]
            axes.plot(
                [100 * fraction for fraction in fractions],
                [float("nan") if mean is None else 100 * mean for mean in means],
                color=look.color,
                linestyle=look.dashes,
                marker=look.marker,
                markersize=4.5,
                label=f"{model} (n = {len(rows)} runs)",
            )
        axes.set_title(title)
        axes.set_xlabel("cache (% of all experts)")
        axes.set_ylim(0, 101)
        style.grid(axes)
    panels[0].set_ylabel("right (%)")
    panels[0].legend()
    return figure


FIGURES: dict[str, Callable[[Sequence[Result]], Figure]] = {
    "tokens_over_concurrency": over_concurrency,
    "device_busy": device_busy,
    "channel_busy": channel_busy,
    "accuracy_over_cache": accuracy_over_cache,
}


def _shown(results: Sequence[Result], value: Callable[[Result], float]) -> float:
    """The mean over seeds under the row's best policy."""
    (best,) = _best_caches(results).values()
    values = [value(each) for each in results if each.cache == best]
    return sum(values) / len(values)


def _panels(results: Sequence[Result], value: Callable[[Result], float], label: str) -> Figure:
    """A row of panels per model, a column per cache size, a line per row of the table."""
    models = list(dict.fromkeys(each.model for each in results))
    fractions = sorted({each.fraction for each in results})
    rows = list(dict.fromkeys(each.row for each in results))
    looks = style.looks(rows)
    figure = style.figure(2.3 * len(models) + 0.8)
    panels = figure.subplots(len(models), len(fractions), squeeze=False, sharex=True, sharey="row")
    for line, model in zip(panels, models, strict=True):
        for axes, fraction in zip(line, fractions, strict=True):
            here = [each for each in results if (each.model, each.fraction) == (model, fraction)]
            for row in rows:
                counts = sorted({each.concurrency for each in here if each.row == row})
                look = looks[row]
                axes.plot(
                    counts,
                    [
                        _shown([each for each in here if (each.row, each.concurrency) == (row, n)], value)
                        for n in counts
                    ],
                    color=look.color,
                    linestyle=look.dashes,
                    marker=look.marker,
                    markersize=4,
                    label=row,
                )
            axes.set_title(f"{model}, {fraction:.0%}", fontsize=8.5)
            style.grid(axes)
        line[0].set_ylim(bottom=0)  # after all of the row: the panels share the axis, and this ends its scaling
        line[0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("requests at once")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


# --- parts ------------------------------------------------------------------------------------------------------------


def _times(gain: Estimate) -> str:
    """``1.31x [1.25, 1.37]``."""
    bounds = f" [{gain.low:.2f}, {gain.high:.2f}]" if gain.low is not None and gain.high is not None else ""
    return f"{gain.value:.2f}x{bounds}"


def _where(point: Point) -> str:
    model, concurrency, fraction = point
    return f"{model}, {concurrency} at once, cache {fraction:.0%}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean_percent(values: Iterable[float | None]) -> str:
    return _percent(_mean(values))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _geometric(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    product = 1.0
    for value in known:
        product *= value
    return f"{product ** (1 / len(known)):.2f}x" if known else ""


def _write_csv(path: Path, results: Sequence[Result]) -> None:
    columns = Result.__struct_fields__
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for each in results:
            values: list[Any] = [getattr(each, column) for column in columns]
            writer.writerow(["" if value is None else value for value in values])
