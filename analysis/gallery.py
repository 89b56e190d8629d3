"""The figures of a comparison in the order of the report, each with its question, definition and SVG."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from analysis import depth, figures, maps, style
from analysis.domains import Row
from analysis.load import Comparison
from analysis.metrics import OTHER_DEFINITIONS, metric
from analysis.tables import Summary

#: Name, title, what draws it of what, and what is shown.
Plan = tuple[str, str, Callable[..., Figure], tuple[object, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One figure, drawn."""

    name: str  # of its files
    title: str
    question: str
    definition: str
    svg: str
    png: bytes


def pictures(comparison: Comparison, summary: Summary, quality: Sequence[Row] = ()) -> Iterator[Picture]:
    """Draw every figure, frameworks in the order of the summary; ``quality`` by domain where it was measured."""
    comparison = replace(comparison, frameworks=tuple(summary.estimates))
    budget = comparison.runs[0].manifest.quality_budget
    estimates = summary.estimates
    latency = metric("latency_mean_s").definition
    other = {title: definition for title, _, definition in OTHER_DEFINITIONS}
    per_run = "n in the legend is the number of completed requests."
    plan: list[Plan] = [
        (
            "latency_cdf",
            "Latency distribution",
            figures.latency_cdf,
            (comparison,),
            "Share of all sent requests against latency: planned arrival to result at home. With repeats, all runs "
            "together and a band from the lowest to the highest run.",
        ),
        (
            "latency_bars",
            "Mean and tail latency",
            figures.latency_bars,
            (estimates,),
            f"{latency} P95 and P99: quantiles of the same. Whiskers: {_interval(summary)}.",
        ),
        (
            "time_line",
            "Around the disturbance",
            maps.time_line,
            (comparison,),
            f"Latency of completed requests over their planned arrival. {per_run}",
        ),
        (
            "traffic",
            "Traffic between servers",
            figures.traffic_bars,
            (estimates,),
            metric("traffic_bytes_per_token").definition,
        ),
        (
            "throughput",
            "Throughput",
            figures.throughput_bars,
            (estimates, comparison),
            f"{metric('throughput_requests_per_s').definition} {metric('throughput_tokens_per_s').definition}",
        ),
        (
            "quality",
            "Quality",
            figures.quality_bars,
            (estimates, budget),
            f"{metric('nll_increase').definition} {metric('top1_agreement').definition}",
        ),
        *_by_domain(quality),
        ("where_time_goes", "Where time goes", figures.where_time_goes, (comparison,), other["Where time goes"]),
        (
            "execution_mix",
            "How experts run",
            figures.execution_mix_bars,
            (comparison,),
            other["Execution mix"] + " n counts expert calls.",
        ),
        *_depth(comparison),
        ("device_busy", "Busy devices", maps.busy_heat_map, (comparison,), other["Device busy"]),
        (
            "topology",
            "Topology",
            maps.topology_picture,
            (comparison.runs[0].manifest.topology,),
            "As resolved from the topology file.",
        ),
    ]
    for name, title, draw, arguments, definition in plan:
        question = " ".join((inspect.getdoc(draw) or "").split())
        with style.context(salt=name):
            figure = draw(*arguments)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # keep the layout just found: once for both files, and the same in both
            yield Picture(
                name=name,
                title=title,
                question=question,
                definition=definition,
                svg=_svg(figure, name),
                png=_png(figure),
            )


def _depth(comparison: Comparison) -> list[Plan]:
    names = depth.with_depth(comparison)
    if not names:
        return []
    return [("depth", "Depth decisions", depth.mix_per_layer, (comparison, names), depth.DEFINITION)]


def _by_domain(quality: Sequence[Row]) -> list[Plan]:
    if all(estimate.value is None for row in quality for estimate in row.estimates.values()):
        return []  # nothing was scored
    definition = f"{metric('nll_increase').definition} {metric('kl_divergence').definition}"
    what = f"{definition} Whiskers: 95 % bootstrap interval over the requests of the domain."
    return [("quality_by_domain", "Quality by domain", figures.quality_by_domain, (quality,), what)]


def _interval(summary: Summary) -> str:
    return f"95 % bootstrap interval, {next(iter(summary.estimates.values()))['latency_mean_s'].method}"


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=style.PNG_DPI)
    return out.getvalue()


def _svg(figure: Figure, name: str) -> str:
    """A stand-alone SVG without prolog, date and comments, whose ids cannot meet those of another figure."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return re.sub(r"url\(#", f"url(#{name}-", text)
