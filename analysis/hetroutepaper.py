"""Page and figures of ``scenarios/hetroute_paper.py``: the paper beside what was measured, and what lies behind it.

Numbers are means over seeds with Student's 95 % interval; ratios are made seed by seed (``analysis.papertable``).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from analysis import paperfigures, reaction, style
from analysis.hetrouteclaims import LOWER, OURS, Claim, aims_of, claims, default_condition, throughputs
from analysis.load import load
from analysis.papertable import KINDS, PART_FILE, TERMS, Condition, Grid, part_of, read
from analysis.seeds import over_seeds
from analysis.text import estimate
from testbed.errors import TestbedError

PAGE, ROWS, CLAIMS = "hetroute_paper.md", "runs.csv", "claims.csv"
CALM = "calm"


def draw(directory: Path) -> str:
    """Write page, tables and figures of a grid's directory; the page."""
    grid = read(directory)
    grid.table.write_csv(directory / ROWS)
    found = list(claims(grid))
    _write_claims(directory / CLAIMS, found)
    reacted = reactions(directory)
    page = "\n\n".join(_page(grid, found, reacted)) + "\n"
    (directory / PAGE).write_text(page)
    with style.context(salt="hetroute_paper"):
        for name, figure in paperfigures.figures(grid, default_condition(grid), reacted):
            figure.savefig(directory / f"{name}.svg")
            figure.savefig(directory / f"{name}.png", dpi=style.PNG_DPI)
    return page


def reactions(directory: Path) -> dict[str, list[reaction.Reaction]]:
    """By scenario: the parts with a disturbance, against the calm part."""
    if not (directory / CALM / PART_FILE).is_file():
        return {}
    calm = load(directory / CALM)
    found = {}
    for file in sorted(directory.glob(f"*/{PART_FILE}")):
        part = part_of(file)
        if part.scenario != "steady_load":
            found[part.scenario] = reaction.reactions(load(file.parent), calm)
    return found


def _page(grid: Grid, found: Sequence[Claim], reacted: Mapping[str, Sequence[reaction.Reaction]]) -> Iterator[str]:
    at = default_condition(grid)
    seeds = grid.mean(OURS, at, "mean_s").n
    yield "# hetroute_paper"
    yield "\n".join(f"Note: {note}" for note in notes(grid)) or ("Every run is complete and kept its fidelity bounds.")
    yield (
        f"## The paper and this grid: {at.model}, {at.rate_per_s:g} requests/s, {100 * at.budget:g} % budget, "
        f"redundancy {at.redundancy:g}, {seeds} seeds"
    )
    yield claims_table(found)
    others = [model for model in grid.table["model"].unique(maintain_order=True) if model != at.model]
    for model in others:
        condition = Condition(model=model, rate_per_s=at.rate_per_s, budget=at.budget, redundancy=at.redundancy)
        yield f"## The aims on {model}\n\n" + claims_table(list(aims_of(grid, condition)))
    for title, part_rows in grid.table.group_by("part", maintain_order=True):
        yield f"## {title[0]}\n\n" + runs_table(part_rows)
    if text := load_table(grid, at):
        yield "## Throughput\n\n" + text
    if text := terms_table(grid, at):
        yield "## Predicted cost of a decision, term by term\n\n" + text
    if reacted:
        yield "## Reaction\n\n" + reaction.table(reacted)


def notes(grid: Grid) -> list[str]:
    """What makes these numbers doubtful, in words."""
    said = []
    for row in grid.table.iter_rows(named=True):
        where = f"{row['part']}/{row['framework']}, seed {row['seed']}"
        if not row["complete"]:
            said.append(f"{where} was interrupted.")
        if row["verdict"] != "PASS":
            said.append(f"{where}: fidelity verdict {row['verdict']}.")
    return said


def claims_table(found: Sequence[Claim]) -> str:
    """Paper beside measured."""
    lower = any(any(claim.lower) for claim in found)
    heads = ["what", "paper", "measured"]
    heads += [f"against its {precision}" for precision in LOWER] if lower else []
    rows = []
    for claim in found:
        cells = [claim.what, claim.paper, claim.measured]
        cells += (list(claim.lower) or [""] * len(LOWER)) if lower else []
        rows.append([*cells, claim.reached])
    return markdown([*heads, "aim reached"], rows)


def runs_table(rows: pl.DataFrame) -> str:
    """All frameworks of one part: means over seeds."""
    heads = ["framework", "answered", "mean (ms)", "P99 (ms)", "within SLO (%)", "goodput/s", "drained/s"]
    heads += ["GB per 1000 tokens", "calls elsewhere (%)", "moves", "loss, worst domain (%)", "perplexity"]
    scaled = [("mean_s", 1e3), ("p99_s", 1e3), ("within", 100), ("goodput_per_s", 1), ("drained_per_s", 1)]
    scaled += [("bytes_per_token", 1e-6), ("elsewhere", 100), ("moves", 1), ("loss", 100), ("perplexity", 1)]
    cells = []
    for (framework,), own in rows.group_by("framework", maintain_order=True):
        numbers = [estimate(over_seeds(own[key].drop_nulls().to_list()), scale) for key, scale in scaled]
        cells.append([f"`{framework}`", f"{own['answered'].sum()} of {own['sent'].sum()}", *numbers])
    return markdown(heads, cells)


def load_table(grid: Grid, at: Condition) -> str:
    """Three ways to say how much a framework gets done."""
    loaded = grid.table.filter((pl.col("model") == at.model) & (pl.col("scenario") == "steady_load"))
    most = max(loaded["rate_per_s"].to_list(), default=at.rate_per_s)
    names = loaded.filter(pl.col("rate_per_s") == most)["framework"].unique(maintain_order=True).to_list()
    if most == at.rate_per_s:
        return ""
    rows = []
    for framework in names:
        overload = Condition(model=at.model, rate_per_s=most, budget=at.budget, redundancy=at.redundancy)
        rows.append(
            [
                f"`{framework}`",
                estimate(over_seeds(list(throughputs(grid, framework, at).values()))),
                estimate(grid.mean(framework, at, "goodput_per_s")),
                estimate(grid.mean(framework, overload, "drained_per_s")),
            ]
        )
    heads = ["framework", "mean within SLO up to (requests/s)", f"within SLO at {at.rate_per_s:g}/s (requests/s)"]
    return markdown([*heads, f"answered under {most:g}/s (requests/s)"], rows)


def terms_table(grid: Grid, at: Condition) -> str:
    """What HetRoute expected of its decisions on average, and what layers took."""
    rows = []
    names = [name for name in grid.table["framework"].unique(maintain_order=True) if name.startswith(OURS)]
    for name in names:
        terms = [grid.mean(name, at, f"predicted_{term}_s") for term in TERMS]
        if all(term.value is not None for term in terms):
            shown = [estimate(term, 1e3) for term in (*terms, grid.mean(name, at, "layer_s"))]
            mix = " / ".join(f"{100 * (grid.mean(name, at, kind).value or 0.0):.0f}" for kind in KINDS)
            rows.append([f"`{name}`", *shown, mix])
    heads = ["framework", *(f"{term} (ms)" for term in TERMS), "layer took (ms)", " / ".join(KINDS) + " (% of calls)"]
    return markdown(heads, rows) if rows else ""


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _write_claims(file: Path, found: Sequence[Claim]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        names = ("what", "paper", "measured", *(f"against_{precision}" for precision in LOWER), "reached")
        writer.writerow(names)
        for claim in found:
            row = asdict(claim)
            lower = list(claim.lower) or [""] * len(LOWER)
            writer.writerow([row["what"], row["paper"], row["measured"], *lower, row["reached"]])


def main() -> int:
    """``python -m analysis.hetroutepaper DIRECTORY``: draw what is finished of a grid, also while it plays."""
    parser = argparse.ArgumentParser(prog="python -m analysis.hetroutepaper", description="Page and figures of a grid.")
    parser.add_argument("directory", type=Path)
    try:
        print(draw(parser.parse_args().directory))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
