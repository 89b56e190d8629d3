"""The command behind ``scenarios/hetroute_paper.py``: its grid as parts; ``papergrid`` plays them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestration.papergrid import Command, Draw, Part
from orchestration.places import Backend

if TYPE_CHECKING:
    from scenarios.hetroute_paper import Grid

CALM = "calm"


def parts(grid: Grid) -> Iterator[Part]:
    """All comparisons, the ones that decide most first; models one after the other, which are loaded once."""
    return (part for part in _every(grid) if part.frameworks)


def _every(grid: Grid) -> Iterator[Part]:
    usual = Part(
        name="default",
        model=grid.models[0],
        frameworks=grid.frameworks,
        rate_per_s=grid.rate_per_s,
        duration_s=grid.duration_s,
        seeds=grid.seeds,
        budget=grid.budget,
        redundancy=grid.redundancy,
    )
    fewer = replace(usual, seeds=grid.fewer)
    yield usual
    yield replace(fewer, name="lower", frameworks=grid.lower)
    yield from _swept(grid, fewer)
    yield from _overloaded(grid, fewer)
    yield replace(fewer, name="ablations", frameworks=grid.ablations)
    yield from _spread(grid, fewer)
    yield replace(fewer, name="at-home", frameworks=grid.at_home)
    for model in grid.models[1:]:
        other = replace(fewer, name=f"model-{model}", model=model, frameworks=grid.elsewhere)
        yield other
        yield from _overloaded(grid, other)
        yield from _spread(grid, other)
    yield from _disturbed(grid, fewer)
    yield replace(fewer, name="exact", frameworks=grid.exact)
    yield replace(usual, name="emulated", frameworks=grid.emulated, seeds=grid.fewer[:2], backend=Backend.NETNS.value)


def main(argv: Sequence[str], *, default: Grid, quick: Grid, draw: Draw) -> int:
    """Run the experiment; the exit code."""
    command = Command(
        name="hetroute_paper",
        description="HetRoute's experiments, measured.",
        draw=draw,
        parts=lambda small: list(parts(quick if small else default)),
    )
    return command.main(argv, also=_where)


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=[Backend.SIM.value, Backend.NETNS.value],
        default=Backend.SIM.value,
        help="netns: the default point on the packets of a testbed that is up (`testbed up topologies/edge10.yaml`)",
    )
    parser.add_argument("--testbed", help="which testbed, if several are up")


def _swept(grid: Grid, usual: Part) -> Iterator[Part]:
    for rate in grid.loads_per_s:
        yield replace(usual, name=f"load-{rate:g}", frameworks=grid.loaded, rate_per_s=rate)
    ours = replace(usual, frameworks=("hetroute",))
    for redundancy in grid.redundancies:
        yield replace(ours, name=f"redundancy-{redundancy:g}", redundancy=redundancy)
    for budget in grid.budgets:
        yield replace(ours, name=f"budget-{100 * budget:g}", budget=budget)


def _disturbed(grid: Grid, usual: Part) -> Iterator[Part]:
    if not grid.disturbances:
        return
    calm = replace(
        usual,
        name=CALM,
        frameworks=grid.disturbed,
        rate_per_s=grid.disturbed_rate_per_s,
        duration_s=grid.disturbed_s,
    )
    yield calm
    for scenario in grid.disturbances:
        yield replace(calm, name=scenario, scenario=scenario)


def _spread(grid: Grid, usual: Part) -> Iterator[Part]:
    if usual.model in grid.spread_models:
        part = replace(usual, name=f"spread-{usual.model}", frameworks=grid.spread)
        yield replace(part, rate_per_s=grid.spread_rate_per_s, duration_s=grid.spread_s)


def _overloaded(grid: Grid, usual: Part) -> Iterator[Part]:
    for overload in grid.overloads:
        if overload.model == usual.model:
            part = replace(usual, name=f"overload-{usual.model}", frameworks=grid.overloaded)
            yield replace(part, rate_per_s=overload.rate_per_s, duration_s=overload.duration_s)
