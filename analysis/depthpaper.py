"""Tables and figures of ``scenarios/trimmoe_paper.py``: one directory of comparisons, one page of Markdown.

    traffic     activation payload on links, all requests / tokens of their prompts                               (1)
    elsewhere   calls that ran on another server / calls that ran                                                  (2)
    loss        Σ KL(full || served) / Σ NLL of full, over the tokens of a domain; the worst domain               (3)

(3) is the rise of NLL that is to be expected; the measured rise, which is noisier, stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from analysis import depth, style
from analysis.load import Comparison, Run, load

BASELINE = "edgeshard"
#: The paper's figures against its weakest baseline, in percent (abstract and public explanation).
PAPER_LATENCY, PAPER_TRAFFIC, PAPER_LOSS = -62.8, -77.2, 2.0
PAGE = "trimmoe_paper.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run of one framework."""

    framework: str
    answered: int
    sent: int
    mean_s: float
    p99_s: float
    within_slo: float
    bytes_per_token: float  # (1)
    elsewhere: float  # (2)
    loss: float | None  # (3)
    worst: str | None  # its domain
    rise: float | None  # largest measured rise of NLL of any domain
    ttft_s: float | None
    tpot_s: float | None
    agreement: float | None


def line(run: Run) -> Line:
    """Equations (1) to (3) of a run."""
    done, layers = run.completed, run.layers
    tokens = int((done["prompt_tokens"] + done["output_tokens"]).sum())
    experts = int(layers["experts"].sum())
    worst = _domains(done)
    latency = done["latency_s"]
    return Line(
        framework=run.manifest.framework,
        answered=done.height,
        sent=run.requests.height,
        mean_s=_number(latency.mean()),
        p99_s=_number(latency.quantile(0.99, "linear")),
        within_slo=int((latency <= run.manifest.slo_s).sum()) / max(1, run.requests.height),
        bytes_per_token=int(done["sent_bytes"].sum()) / max(1, tokens),
        elsewhere=int(layers["remote_experts"].sum()) / max(1, experts),
        loss=None if worst is None else _number(worst["loss"].max()),
        worst=None if worst is None else str(worst.sort("loss")["domain"][-1]),
        rise=None if worst is None else _number(worst["rise"].max()),
        ttft_s=_some(done["ttft_s"].mean()),
        tpot_s=_some(done["tpot_s"].mean()),
        agreement=_some(done["top1_agreement"].mean()),
    )


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
    base = next((each for each in lines if each.framework == BASELINE), lines[0])
    heads = ["framework", "answered", "mean (ms)", "P99 (ms)", f"mean against {base.framework}", "within SLO"]
    heads += ["GB per 1000 tokens", "traffic", "calls elsewhere", "loss, worst domain", "measured rise", "top-1"]
    generates = any(each.ttft_s is not None for each in lines)
    heads += ["TTFT (ms)", "TPOT (ms)"] if generates else []
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for each in lines:
        cells = [
            f"`{each.framework}`",
            f"{each.answered} of {each.sent}",
            f"{1e3 * each.mean_s:.1f}",
            f"{1e3 * each.p99_s:.1f}",
            _change(each.mean_s, base.mean_s),
            f"{100 * each.within_slo:.0f} %",
            f"{each.bytes_per_token * 1e-6:.4f}",
            _change(each.bytes_per_token, base.bytes_per_token),
            f"{100 * each.elsewhere:.1f} %",
            "" if each.loss is None else f"{100 * each.loss:.2f} % ({each.worst})",
            "" if each.rise is None else f"{100 * each.rise:+.2f} %",
            "" if each.agreement is None else f"{100 * each.agreement:.1f} %",
        ]
        if generates:
            cells += ["" if value is None else f"{1e3 * value:.1f}" for value in (each.ttft_s, each.tpot_s)]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _domains(done: pl.DataFrame) -> pl.DataFrame | None:
    scored = done.filter((pl.col("kind") == "score") & pl.col("nll").is_not_null() & pl.col("kl").is_not_null())
    if scored.is_empty():
        return None
    following = pl.col("prompt_tokens") - 1
    full = (pl.col("reference_nll") * following).sum()
    return scored.group_by("domain").agg(
        ((pl.col("kl") * following).sum() / full).alias("loss"),
        ((pl.col("nll") * following).sum() / full - 1.0).alias("rise"),
    )


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1.0):+.1f} %" if base > 0 else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _some(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
