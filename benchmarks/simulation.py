"""How fast virtual time passes: with the twin's arithmetic, and without it from ten to a thousand servers.

    python benchmarks/simulation.py [--quick] [--trace FILE]

1. The default setting of the papers: edge10, 40 requests/s for 60 s, the twin's arithmetic on.
2. Generated topologies (``testbed generate``, seed 1) of 10, 100 and 1,000 servers, 40 requests/s until 100,000 layers
   were played, gate decisions from a trace.  Without ``--trace`` one of the same shape is made up.
3. Many messages: edge10 under a framework that asks other servers for every expert.

Prints simulated seconds per wall second, delivered messages and events per wall second, and how the cost of a simulated
second grows with the number of servers.  One process, one core; no root.  ``--quick`` plays a twentieth.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agents.models.model import Model
from orchestration.catalogue import builder
from orchestration.comparison import Comparison, prepare
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Setting
from testbed.generate import generate
from testbed.load import load_topology
from testbed.simulation.loop import VirtualLoop

ROOT = Path(__file__).parent.parent
EDGE10 = ROOT / "topologies" / "edge10.yaml"
TWIN = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
RATE_PER_S = 40.0
LAYER_STEPS = 105_000  # drawn arrivals are a little fewer than planned
COLUMNS = ("case", "servers", "set up s", "layers", "messages", "sim s", "wall s", "sim/wall", "messages/s", "events/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one run took."""

    case: str
    servers: int
    set_up_s: float
    layers: int
    messages: int
    sim_s: float
    wall_s: float
    events: int

    def cells(self) -> tuple[str, ...]:
        """As printed."""
        wall_s = self.wall_s
        return (
            self.case,
            str(self.servers),
            f"{self.set_up_s:.1f}",
            f"{self.layers:,}",
            f"{self.messages:,}",
            f"{self.sim_s:.1f}",
            f"{wall_s:.1f}",
            f"{self.sim_s / wall_s:.2f}",
            f"{self.messages / wall_s:,.0f}",
            f"{self.events / wall_s:,.0f}",
        )


def planned(topology: Path, model: Model, framework: str, *, rate_per_s: float, duration_s: float) -> Comparison:
    """A steady load."""
    network = load_topology(topology)
    rows = list(model.prompts.rows.values())
    scenario = builder("steady_load")(
        Setting(
            topology=network,
            domains=model.prompts.domains,
            prompts_per_domain=min(len(each) for each in rows),
            prompt_tokens=min(each.shape[1] for each in rows),
            seed=0,
            arrival_rate_per_s=rate_per_s,
            duration_s=duration_s,
        )
    )
    return prepare(
        scenarios={0: scenario},
        topology=network,
        model=model,
        frameworks=[framework],
        redundancy=2.0,
    )


def played(case: str, topology: Path, model: Model, framework: str, *, rate_per_s: float, duration_s: float) -> Row:
    """Prepare and play one run; RuntimeError if a request failed."""
    started_s = time.perf_counter()
    comparison = planned(topology, model, framework, rate_per_s=rate_per_s, duration_s=duration_s)
    loop = VirtualLoop()
    stage = Simulation(comparison.topology, comparison.model, loop)
    began_s = time.perf_counter()
    watcher = Watcher(interrupted=asyncio.Event())
    run = stage.play(comparison, comparison.candidates[0], comparison.episodes[0], "benchmark", watcher)
    found, _ = loop.run_until_complete(run)
    ended_s = time.perf_counter()
    sim_s = loop.time()
    loop.close()
    failed = [done.error for done in found.done.values() if done.error]
    if failed or len(found.done) < len(comparison.scenario.requests):
        raise RuntimeError(f"{len(failed)} requests failed: {failed[:1]}")
    return Row(
        case=case,
        servers=len(comparison.topology.servers),
        set_up_s=began_s - started_s,
        layers=sum(len(report.layers) for report in found.collected.values()),
        messages=stage.delivered,
        sim_s=sim_s,
        wall_s=ended_s - began_s,
        events=loop.events,
    )


def made_up_trace(path: Path, *, tokens: int = 244, layers: int = 32, experts: int = 8) -> Path:
    """A trace of the shape of Mixtral's on GSM8K: two experts per token and layer, some more popular than others."""
    draw = random.Random("trace")  # noqa: S311 - a benchmark's draws
    with path.open("w") as file:
        for layer in range(layers):
            popularity = [draw.uniform(0.5, 1.5) for _ in range(experts)]
            for token in range(tokens):
                first = draw.choices(range(experts), popularity)[0]
                second = draw.choice([expert for expert in range(experts) if expert != first])
                share = draw.uniform(0.5, 0.9)
                row = {
                    "dataset": "made-up",
                    "problem_id": token * 2 // tokens,
                    "layer": layer,
                    "experts": [first, second],
                    "gating_probs": [share, 1 - share],
                    "token_idx": token % (tokens // 2),
                }
                file.write(json.dumps(row) + "\n")
    return path


def show(cells: tuple[str, ...]) -> None:
    """One line of the table, at once."""
    print("".join(f"{cell:>12}" if place else f"{cell:<26}" for place, cell in enumerate(cells)), flush=True)


def main() -> None:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    parser.add_argument("--trace", type=Path, help="gate decisions of a real model")
    options = parser.parse_args()
    share = 1 / 20 if options.quick else 1.0
    show(COLUMNS)
    twin = Model.load(TWIN)
    for framework in ("edgeshard", "hetroute"):
        # Anew for each: nothing that the other computed is remembered.
        row = played(
            f"twin, {framework}", EDGE10, twin.remembering(), framework, rate_per_s=RATE_PER_S, duration_s=60.0 * share
        )
        show(row.cells())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        replay = Model.load(options.trace or made_up_trace(directory / "trace.jsonl"))
        duration_s = LAYER_STEPS / replay.profile.layers / RATE_PER_S * share
        grown: list[Row] = []
        for servers in (10, 100, 1000):
            topology = directory / f"{servers}.yaml"
            topology.write_text(generate(servers=servers, seed=1))
            grown.append(
                played("replay, edgeshard", topology, replay, "edgeshard", rate_per_s=RATE_PER_S, duration_s=duration_s)
            )
            show(grown[-1].cells())
        show(played("replay, greedy", EDGE10, replay, "greedy", rate_per_s=8.0, duration_s=60.0 * share).cells())
        for before, after in itertools.pairwise(grown):
            cost = (after.wall_s / after.sim_s) / (before.wall_s / before.sim_s)
            print(f"{before.servers} -> {after.servers} servers: a simulated second costs {cost:.1f} times as much")


if __name__ == "__main__":
    main()
