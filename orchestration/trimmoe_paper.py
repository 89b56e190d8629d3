"""The command behind ``scenarios/trimmoe_paper.py``: its grid as parts; ``papergrid`` plays them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestration.papergrid import Command, Draw, Part

if TYPE_CHECKING:
    from scenarios.trimmoe_paper import Grid


def parts(grid: Grid) -> Iterator[Part]:
    """All comparisons, the one that decides most first."""
    first = grid.models[0]
    usual = Part(
        name="", model=first, frameworks=(), rate_per_s=grid.rate_per_s, duration_s=grid.duration_s, budget=grid.budget
    )
    for model in grid.models:
        yield replace(usual, name=f"frameworks-{model}", model=model, frameworks=grid.frameworks, seeds=grid.seeds)
    for routing in grid.routing:
        policies = tuple(f"{routing}+{depth}" for depth in (*grid.depths, "trimmoe"))
        yield replace(usual, name=f"depths-{routing}", frameworks=policies)
    for rate in grid.loads_per_s:
        part = replace(usual, name=f"load-{rate:g}", frameworks=grid.loaded, rate_per_s=rate)
        yield replace(part, duration_s=grid.loaded_s)
    for budget in grid.budgets:
        yield replace(usual, name=f"budget-{budget:g}", frameworks=grid.budgeted, budget=budget)
    if grid.generating:
        part = replace(usual, name="generation", frameworks=grid.generating, rate_per_s=grid.generate_rate_per_s)
        yield replace(part, duration_s=grid.generate_s, generate_share=1.0)


def main(argv: Sequence[str], *, default: Grid, quick: Grid, draw: Draw) -> int:
    """Run the experiment; the exit code."""
    command = Command(
        name="trimmoe_paper",
        description="TrimMoE's question, measured.",
        draw=draw,
        parts=lambda small: list(parts(quick if small else default)),
    )
    return command.main(argv)
