"""The command behind ``scenarios/trimmoe_paper.py``: plays the grid in virtual time, keeps the runs, has them drawn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agents.models.model import Model
from orchestration.comparison import prepare
from orchestration.session import play
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Scenario, Setting
from scenarios.workload import poisson
from testbed.errors import TestbedError
from testbed.load import load_topology
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology

if TYPE_CHECKING:
    from scenarios.trimmoe_paper import Grid

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "agents" / "models"
REDUNDANCY = 2.0

Draw = Callable[[Path], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One comparison of the grid; ``name`` is its directory."""

    name: str
    model: str
    frameworks: tuple[str, ...]
    rate_per_s: float
    duration_s: float
    budget: float
    generates: bool = False


def parts(grid: Grid) -> Iterator[Part]:
    """All comparisons, the one that decides most first."""
    first = grid.models[0]
    usual = Part(
        name="", model=first, frameworks=(), rate_per_s=grid.rate_per_s, duration_s=grid.duration_s, budget=grid.budget
    )
    for model in grid.models:
        yield replace(usual, name=f"frameworks-{model}", model=model, frameworks=grid.frameworks)
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
        yield replace(part, duration_s=grid.generate_s, generates=True)


def main(argv: Sequence[str], *, default: Grid, quick: Grid, draw: Draw) -> int:
    """Run the experiment; the exit code."""
    parser = argparse.ArgumentParser(prog="scenarios/trimmoe_paper.py", description="TrimMoE's question, measured.")
    parser.add_argument("--quick", action="store_true", help="a small grid")
    parser.add_argument("--only", help="comma-separated beginnings of the parts' names: frameworks, depths, load ...")
    parser.add_argument("--topology", type=Path, default=ROOT / "topologies" / "edge10.yaml")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"), help="where the directory of runs goes")
    options = parser.parse_args(argv)
    try:
        return _run(options, quick if options.quick else default, draw)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace, grid: Grid, draw: Draw) -> int:
    topology = load_topology(options.topology)
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    todo = [part for part in parts(grid) if part.name.startswith(wanted)]
    if not todo:
        raise TestbedError(f"--only {options.only} fits no part: {', '.join(part.name for part in parts(grid))}")
    out = options.out / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-trimmoe_paper"
    out.mkdir(parents=True)
    models: dict[str, Model] = {}
    for number, part in enumerate(todo, start=1):
        print(f"{number} of {len(todo)}: {part.name}: {', '.join(part.frameworks)}", file=sys.stderr, flush=True)
        if part.model not in models:
            models[part.model] = Model.load(MODELS / f"{part.model}-twin").remembering()
        _play(part, topology, models[part.model], options.seed, out / part.name)
    print(draw(out))
    print(f"\n{out}")
    return 0


def _play(part: Part, topology: Topology, model: Model, seed: int, directory: Path) -> None:
    comparison = prepare(
        scenarios={seed: _scenario(part, topology, model, seed)},
        topology=topology,
        model=model,
        frameworks=part.frameworks,
        redundancy=REDUNDANCY,
    )
    directory.mkdir()
    loop = VirtualLoop()
    try:
        loop.run_until_complete(play(comparison, Simulation(topology, model, loop), directory, Watcher()))
    finally:
        loop.close()


def _scenario(part: Part, topology: Topology, model: Model, seed: int) -> Scenario:
    rows = [model.prompts.rows[domain] for domain in model.prompts.domains]
    setting = Setting(
        topology=topology,
        domains=model.prompts.domains,
        prompts_per_domain=min(len(table) for table in rows),
        prompt_tokens=min(table.shape[1] for table in rows),
        seed=seed,
    )
    share = 1.0 if part.generates else 0.0
    return Scenario(
        name="trimmoe_paper",
        question="Does doing less beat delivering faster?",
        duration_s=part.duration_s,
        arrival_rate_per_s=part.rate_per_s,
        requests=poisson(setting, rate_per_s=part.rate_per_s, duration_s=part.duration_s, generate_share=share),
        quality_budget=part.budget,
    )
