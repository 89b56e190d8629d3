"""Tables and figures of ``scenarios/trimmoe_paper.py``: one directory of comparisons, one page of Markdown.

What the columns mean stands in ``analysis.paperlines``.  Where a part has several seeds, the loss is that of the worst
domain of the worst seed; all else are means, and changes are made seed by seed, with Student's 95 % interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from analysis import depth, style
from analysis.load import Comparison, load
from analysis.paperlines import Line, line
from analysis.seeds import over_seeds
from analysis.text import change_with_interval

BASELINE = "edgeshard"
#: The paper's figures against its weakest baseline, in percent (abstract and public explanation).
PAPER_LATENCY, PAPER_TRAFFIC, PAPER_LOSS = -62.8, -77.2, 2.0
PAGE = "trimmoe_paper.md"


def draw(directory: Path) -> str:
    """Write page and figures of a directory of comparisons; the page."""
    comparisons = {path.parent.name: load(path.parent) for path in sorted(directory.glob("*/comparison.json"))}
    lines = {name: [line(run) for run in comparison.runs] for name, comparison in comparisons.items()}
    page = "\n\n".join(_page(comparisons, lines))
    (directory / PAGE).write_text(page + "\n")
    with style.context(salt="trimmoe_paper"):
        budgets = {float(name.split("-", 1)[1]): found for name, found in lines.items() if name.startswith("budget-")}
        if budgets:
            quality_against_latency(budgets).savefig(directory / "budgets.svg")
        for name, comparison in comparisons.items():
            names = depth.with_depth(comparison)
            if names and not name.startswith("budget-"):
                depth.mix_per_layer(comparison, names).savefig(directory / f"depth-{name}.svg")
    return page


def quality_against_latency(budgets: dict[float, list[Line]]) -> Figure:
    """How much latency does a budget buy, and how much quality is really lost in the worst domain?"""
    figure = style.figure(3.6)
    axes = figure.subplots()
    names = list(dict.fromkeys(each.framework for found in budgets.values() for each in found))
    for name, look in style.looks(names).items():
        points = [
            (100 * (each.loss or 0.0), 1e3 * each.mean_s, budget)
            for budget, found in sorted(budgets.items())
            for each in found
            if each.framework == name
        ]
        axes.plot(
            [x for x, _, _ in points],
            [y for _, y, _ in points],
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            label=name,
        )
        for x, y, budget in points:
            axes.annotate(f"{100 * budget:g} %", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7.5)
    axes.set_xlabel("measured loss in the worst domain (% of NLL); labels: budget")
    axes.set_ylabel("mean latency (ms)")
    axes.set_ylim(bottom=0)
    style.grid(axes)
    axes.legend(fontsize=8.5)
    return figure


def _page(comparisons: dict[str, Comparison], lines: dict[str, list[Line]]) -> Iterable[str]:
    for name, found in lines.items():
        yield f"## {name}\n\n" + _table(found)
        policies = depth.with_depth(comparisons[name])
        if policies and not name.startswith(("budget-", "load-")):
            yield depth.table(comparisons[name], policies)
    yield (
        f"The paper: latency up to {PAPER_LATENCY} %, traffic {PAPER_TRAFFIC} % against its weakest baseline, "
        f"loss below {PAPER_LOSS:g} %."
    )


def _table(lines: list[Line]) -> str:
    """A row per framework: means over its runs, and changes seed by seed; lines are in the order of runs."""
    by_name: dict[str, list[Line]] = {}
    for each in lines:
        by_name.setdefault(each.framework, []).append(each)
    base = by_name.get(BASELINE) or next(iter(by_name.values()))
    heads = ["framework", "answered", "mean (ms)", "P99 (ms)", f"mean against {base[0].framework}", "within SLO"]
    heads += ["GB per 1000 tokens", "traffic", "calls elsewhere", "loss, worst domain", "measured rise", "top-1"]
    generates = any(each.ttft_s is not None for each in lines)
    heads += ["TTFT (ms)", "TPOT (ms)"] if generates else []
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, runs in by_name.items():
        worst = max(runs, key=lambda each: each.loss or 0.0)
        cells = [
            f"`{name}`",
            f"{sum(each.answered for each in runs)} of {sum(each.sent for each in runs)}",
            _mean([each.mean_s for each in runs], 1e3, ".1f"),
            _mean([each.p99_s for each in runs], 1e3, ".1f"),
            _change([each.mean_s for each in runs], [each.mean_s for each in base]),
            _mean([each.within_slo for each in runs], 100, ".0f") + " %",
            _mean([each.bytes_per_token for each in runs], 1e-6, ".4f"),
            _change([each.bytes_per_token for each in runs], [each.bytes_per_token for each in base]),
            _mean([each.elsewhere for each in runs], 100, ".1f") + " %",
            "" if worst.loss is None else f"{100 * worst.loss:.2f} % ({worst.worst})" if worst.loss else "0",
            _mean([each.rise for each in runs], 100, "+.2f", " %"),
            _mean([each.agreement for each in runs], 100, ".1f", " %"),
        ]
        if generates:
            for seconds in ([each.ttft_s for each in runs], [each.tpot_s for each in runs]):
                cells.append(_mean(seconds, 1e3, ".1f"))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _mean(values: Sequence[float | None], scale: float, form: str, unit: str = "") -> str:
    known = [value for value in values if value is not None]
    return f"{scale * sum(known) / len(known):{form}}{unit}" if known else ""


def _change(values: list[float], base: list[float]) -> str:
    """Mean over pairs, and Student's interval where there are several."""
    if len(values) != len(base) or not all(base):
        return ""
    return change_with_interval(over_seeds([value / other - 1.0 for value, other in zip(values, base, strict=True)]))
