r"""How frameworks take a disturbance, request by request against the same requests on an undisturbed day.

    r_i    latency of request i / its latency in the calm run of the same framework and seed                       (1)
    m(t)   median r of the requests, of all seeds, that arrived in [t, t + W)                                      (2)
    recovery after the change at t0: first t - t0 from which on m stays at or below 1 + TOLERANCE until the        (3)
           next change

The same requests arrive at the same moments in both runs, so what distinguishes requests (home, length, queue) cancels,
and a base level need not be estimated from the few that came before.  W and TOLERANCE are those of
``analysis.recovery``.  A request that failed counts as infinitely slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from analysis import style
from analysis.figures import legend_below, plain_log
from analysis.load import Comparison, Run
from analysis.recovery import WINDOW_S, Floats, medians, recovery_s

#: Beyond this many times the calm latency a line leaves the picture.
MOST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """One framework under one disturbance, all seeds together."""

    framework: str
    requests: int
    arrived_s: Floats
    slower: Floats  # (1)
    calm_s: float  # mean latency of the calm runs
    moments_s: tuple[float, ...]  # of the scenario's changes
    during_s: float  # mean latency of requests that arrived between the first and the last change; failed ones left out
    worst: float  # greatest m(t) from the first change on
    recoveries_s: tuple[float, ...]  # (3), one per moment; infinite: not before the next change


def reactions(disturbed: Comparison, calm: Comparison) -> list[Reaction]:
    """Of every framework that has runs of the same seeds in both comparisons."""
    found = []
    for framework in disturbed.frameworks:
        quiet = {run.manifest.seed: run for run in calm.runs_of(framework)}
        pairs = [(run, quiet[run.manifest.seed]) for run in disturbed.runs_of(framework) if run.manifest.seed in quiet]
        if pairs:
            found.append(_reaction(framework, pairs))
    return found


def table(found: Mapping[str, Sequence[Reaction]]) -> str:
    """Markdown: a row per scenario and framework."""
    heads = ("disturbance", "framework", "calm (ms)", "during (ms)", "worst window", "back after each change (s)")
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for scenario, reactions_ in found.items():
        for each in reactions_:
            back = ", ".join("not" if not np.isfinite(value) else f"{value:.2f}" for value in each.recoveries_s)
            cells = (
                scenario,
                f"`{each.framework}`",
                f"{1e3 * each.calm_s:.0f}",
                f"{1e3 * each.during_s:.0f}",
                f"{each.worst:.2f}x" if np.isfinite(each.worst) else "failed",
                back,
            )
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def time_lines(found: Mapping[str, Sequence[Reaction]]) -> Figure:
    """How much slower than on a calm day is each framework around the changes, and when is it itself again?"""
    figure = style.figure(0.8 + 2.0 * len(found))
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    names = list(dict.fromkeys(each.framework for reactions_ in found.values() for each in reactions_))
    looks = style.looks(names)
    for axes, (scenario, reactions_) in zip(panels, found.items(), strict=True):
        for each in reactions_:
            look = looks[each.framework]
            starts, middle = medians(
                each.arrived_s, each.slower, from_s=float(each.arrived_s.min()), to_s=float(each.arrived_s.max())
            )
            axes.plot(
                starts + WINDOW_S / 2,
                np.minimum(middle, MOST),
                color=look.color,
                linestyle=look.dashes,
                label=f"{each.framework} (n = {each.requests})",
            )
        for moment in reactions_[0].moments_s:
            axes.axvline(moment, color=style.MUTED, linewidth=0.8)
        axes.axhline(1.0, color=style.MUTED, linewidth=0.8)
        plain_log(axes, "y")
        axes.set_title(scenario.replace("_", " "))
        axes.set_ylabel("times its calm latency")
        style.grid(axes)
    panels[-1].set_xlabel("arrival (s, emulated); vertical lines: something changes")
    legend_below(figure, panels[0])
    return figure


def _reaction(framework: str, pairs: Sequence[tuple[Run, Run]]) -> Reaction:
    arrived, slower, ours, base = [], [], [], []
    for run, quiet in pairs:
        both = run.requests.join(quiet.requests, on="request", suffix="_calm", maintain_order="left")
        arrived.append(both["scheduled_s"].to_numpy().astype(np.float64))
        latency_s = both["latency_s"].fill_null(float("inf")).to_numpy().astype(np.float64)
        calm_s = both["latency_s_calm"].fill_null(float("nan")).to_numpy().astype(np.float64)
        slower.append(latency_s / calm_s)
        ours.append(latency_s)
        base.append(calm_s)
    order = np.argsort(np.concatenate(arrived), kind="stable")
    arrived_s, factor, latency_s, calm_s = (np.concatenate(each)[order] for each in (arrived, slower, ours, base))
    known = ~np.isnan(factor)  # a request that failed on a calm day says nothing
    arrived_s, factor, latency_s, calm_s = (each[known] for each in (arrived_s, factor, latency_s, calm_s))
    moments = tuple(sorted({float(at_s) for run, _ in pairs for at_s in run.events["scheduled_s"]}))
    ends = [*moments[1:], float(arrived_s.max())]
    during = latency_s[(arrived_s >= moments[0]) & (arrived_s < moments[-1]) & np.isfinite(latency_s)]
    _, middle = medians(arrived_s, factor, from_s=moments[0], to_s=ends[-1])
    return Reaction(
        framework=framework,
        requests=len(arrived_s),
        arrived_s=arrived_s,
        slower=factor,
        calm_s=float(calm_s.mean()),
        moments_s=moments,
        during_s=float(during.mean()) if len(during) else float("nan"),
        worst=float(middle.max()) if len(middle) else float("nan"),
        recoveries_s=tuple(
            recovery_s(arrived_s, factor, from_s=at_s, to_s=to_s, base_s=1.0)
            for at_s, to_s in zip(moments, ends, strict=True)
        ),
    )
