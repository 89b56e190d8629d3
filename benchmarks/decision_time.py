"""How long HetRoute takes to decide, and how far from the best decision it is.

    python benchmarks/decision_time.py                 # decision time for k = 2..8 experts and for merged demand
    python benchmarks/decision_time.py --gap           # and the gap to the exact optimum of the same cost and state
    python benchmarks/decision_time.py --run           # and what share of a simulated run's time planning is

Decisions are drawn at random, on edge10: k of Mixtral's experts, 37 tokens, copies of each on one to three servers of a
metro in one or two precisions, waits of up to 10 ms.  Merged demand is what 37 tokens ask of Qwen1.5-MoE in one pass:
four experts each, some 55 of 60 in all.  Time is CPU time of the thread from the demand to the plan, with beliefs as
they are between two rounds of gossip; what these cost is printed besides, it is outside of any request.
  Bounds: 200 us at the median, 1 ms at the 99th percentile, for k = 2..8.

CPU time depends on what else the machine does (caches, and two threads on one core), so a loop of 2,000 additions is
timed between the decisions: the last column is the median in units of that loop, to compare two machines, or two hours
of one.

The optimum is found by going through all teams and next servers, leaving out only what cannot be better
(``agents.frameworks.hetroute_exact``); merged demand has too many.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.cluster import Cluster, cluster_of
from agents.frameworks.base import Demand, ExpertDemand, Plan, View
from agents.frameworks.hetroute import HetRoute
from agents.frameworks.hetroute_exact import exact
from agents.models.calibrate import Calibration
from agents.models.model import Model
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica
from orchestration.catalogue import builder
from scenarios.timeline import Setting
from testbed.load import load_topology

TOPOLOGY = Path(__file__).parents[1] / "topologies/edge10.yaml"
TWIN = Path(__file__).parents[1] / "agents/models/qwen1.5-moe-a2.7b-twin"
TOKENS, HOME, BUDGET, RATE_PER_S = 37, "s7", 0.02, 20.0
LOSSES = {FULL: 0.0, "int8": 3e-4, "int4": 3e-3}
#: Decisions under one placement and state.
PER_STATE = 50
MEDIAN_US, TAIL_US = 200.0, 1000.0


class Drawn:
    """A live state at random, which stays as it is."""

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self._cluster = cluster
        self._wait_s = {name: draw.choice((0.0, draw.uniform(0.0, 0.010))) for name in cluster.names}

    def now_s(self) -> float:
        """It is always the same moment."""
        return 0.0

    def alive(self, server: str) -> bool:  # noqa: ARG002
        """All are."""
        return True

    def load(self, server: str) -> tuple[float, float, float]:
        """Backlog, wait, load backlog."""
        return self._wait_s[server], self._wait_s[server], 0.0

    def path(self, source: str, target: str) -> tuple[float, float]:
        """Nominal."""
        a, b = self._cluster.index(source), self._cluster.index(target)
        return self._cluster.delay_s[a][b], self._cluster.rate_bps[a][b]


def placement(cluster: Cluster, profile: ModelProfile, draw: random.Random) -> Placement:
    """One full-precision copy of every expert and up to two more of any precision, on random servers of one metro."""
    metros = (cluster.names[:4], cluster.names[4:7], cluster.names[7:])
    replicas = set()
    for layer in range(profile.layers):
        near = draw.choice(metros)
        for expert in range(profile.experts):
            copies = {(draw.choice(near), FULL)}
            copies |= {(draw.choice(near), draw.choice((FULL, "int8", "int4"))) for _ in range(draw.randrange(3))}
            for server, precision in sorted(copies):
                replicas.add((layer, expert, server, precision, draw.random() < 0.9))
    unique = {entry[:4]: entry for entry in sorted(replicas)}.values()
    return Placement(
        replicas=tuple(
            Replica(layer=layer, expert=expert, server=server, precision=precision, fast=fast)
            for layer, expert, server, precision, fast in unique
        )
    )


def demand(layer: int, k: int, experts: int, home: str, draw: random.Random, number: int) -> Demand:
    """37 tokens, each of which goes to two of k experts."""
    chosen = sorted(draw.sample(range(experts), k))
    return _asked(layer, chosen, min(2, k), home, draw, number)


def merged_demand(layer: int, profile: ModelProfile, home: str, draw: random.Random, number: int) -> Demand:
    """37 tokens, each of which goes to ``top_k`` of all experts."""
    return _asked(layer, list(range(profile.experts)), profile.top_k, home, draw, number)


def _asked(layer: int, chosen: list[int], each: int, home: str, draw: random.Random, number: int) -> Demand:
    rows = dict.fromkeys(chosen, 0)
    for token in range(TOKENS):
        for expert in draw.sample(chosen, each):
            rows[expert] |= 1 << token
    entries = tuple(
        ExpertDemand(expert=e, rows=mask, tokens=mask.bit_count(), gate_share=mask.bit_count() / (TOKENS * each))
        for e, mask in rows.items()
        if mask
    )
    return Demand(
        request=number,
        kind="score",
        step=0,
        layer=layer,
        home=home,
        tokens=TOKENS,
        experts=entries,
        quality_spent=0.0,
        quality_budget=BUDGET,
        next_server=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table."""

    took_us: list[float]
    loop_us: list[float]
    gaps: list[float]
    first_us: list[float]  # beliefs and tables, per server


def measured(
    profile: ModelProfile, draw: random.Random, asked: Callable[[int, int], Demand], *, decisions: int, gap: bool
) -> Measured:
    """Decide so often; ``asked`` makes a demand of a layer and a number."""
    calibration = Calibration(
        tokens=1,
        domains=("any",),
        usage=np.full((1, profile.layers, profile.experts), 1 / profile.experts),
        precision_loss={name: (total / profile.layers,) * profile.layers for name, total in LOSSES.items()},
        precision_loss_total=LOSSES,
    )
    cluster = cluster_of(load_topology(str(TOPOLOGY)), arrival_rate_per_s=20, tokens_per_request=TOKENS)
    row = Measured(took_us=[], loop_us=[], gaps=[], first_us=[])
    for start in range(0, decisions, PER_STATE):
        seen = View(
            server=draw.choice(cluster.names),
            cluster=cluster,
            profile=profile,
            calibration=calibration,
            placement=placement(cluster, profile, draw),
            live=Drawn(cluster, draw),
        )
        framework = HetRoute()
        started_ns = time.thread_time_ns()
        framework.begin(seen)
        for layer in range(profile.layers):  # the tables that a refresh makes when first asked for
            framework.plan(asked(layer, -1), seen)
        row.first_us.append((time.thread_time_ns() - started_ns) / 1e3)
        for number in range(start, min(start + PER_STATE, decisions)):
            wanted = asked(draw.randrange(profile.layers), number)
            started_ns = time.thread_time_ns()
            framework.plan(wanted, seen)
            row.took_us.append((time.thread_time_ns() - started_ns) / 1e3)
            row.loop_us.append(loop_us())
            if gap:
                best = exact(framework.problem(wanted, seen))
                assert best is not None
                assert framework.terms is not None
                row.gaps.append(framework.terms.total_s / best.cost_s - 1)
    return row


def loop_us() -> float:
    """The yardstick."""
    total = 0
    started_ns = time.thread_time_ns()
    for number in range(2000):
        total += number & 7
    return (time.thread_time_ns() - started_ns) / 1e3


def show(label: str, row: Measured) -> tuple[float, float]:
    """Print a row; its median and 99th percentile."""
    p50, p99 = (float(np.percentile(row.took_us, q)) for q in (50, 99))
    cells = f"{p50:>9.0f}{p99:>9.0f}{p50 / float(np.median(row.loop_us)):>9.1f}"
    if row.gaps:
        optimal = float(np.mean([gap < 1e-9 for gap in row.gaps]))
        middle, tail, most = (100 * float(np.percentile(row.gaps, q)) for q in (50, 99, 100))
        cells += f"{optimal:>10.1%}{middle:>8.2f}%{tail:>7.2f}%{most:>7.2f}%"
    print(f"{label:>8}{cells}", flush=True)
    return p50, p99


def share_of_a_run(duration_s: float) -> None:
    """Play a steady load in virtual time and print what planning took of it."""
    from orchestration.comparison import prepare
    from orchestration.simulation import Simulation
    from orchestration.stage import Watcher
    from testbed.simulation.loop import VirtualLoop

    topology, model = load_topology(str(TOPOLOGY)), Model.load(TWIN).remembering()
    rows = list(model.prompts.rows.values())
    setting = Setting(
        topology=topology,
        domains=model.prompts.domains,
        prompts_per_domain=min(len(each) for each in rows),
        prompt_tokens=min(each.shape[1] for each in rows),
        seed=0,
        arrival_rate_per_s=RATE_PER_S,
        duration_s=duration_s,
    )
    scenario = builder("steady_load")(setting)
    comparison = prepare(
        scenarios={0: scenario}, topology=topology, model=model, frameworks=["hetroute"], redundancy=2.0
    )
    took_us: list[float] = []
    plan = HetRoute.plan

    def timed(self: HetRoute, demand: Demand, view: View) -> Plan:
        started_ns = time.thread_time_ns()
        found = plan(self, demand, view)
        took_us.append((time.thread_time_ns() - started_ns) / 1e3)
        return found

    HetRoute.plan = timed  # type: ignore[method-assign]
    loop = VirtualLoop()
    stage = Simulation(topology, comparison.model, loop)
    watcher = Watcher(interrupted=asyncio.Event())
    started_s = time.process_time()
    played, _ = loop.run_until_complete(
        stage.play(comparison, comparison.candidates[0], comparison.episodes[0], "benchmark", watcher)
    )
    run_s = time.process_time() - started_s
    loop.close()
    layers = [record for report in played.collected.values() for record in report.layers]
    layer_s = float(np.mean([record.duration_s for record in layers]))
    p50, p99 = (float(np.percentile(took_us, q)) for q in (50, 99))
    print(
        f"simulated run of {comparison.model.profile.name}, {RATE_PER_S:g} requests/s: {len(took_us)} decisions, "
        f"p50 {p50:.0f} us, p99 {p99:.0f} us; {sum(took_us) / 1e6 / run_s:.0%} of the simulator's time, "
        f"{np.mean(took_us) / 1e6 / layer_s:.0%} of the {1e3 * layer_s:.1f} ms that a layer takes"
    )


def main() -> int:
    """Print a row per k, and say whether the bounds hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decisions", type=int, default=300, help="per k")
    parser.add_argument("--gap", action="store_true", help="solve every decision of k = 2..8 exactly, too")
    parser.add_argument("--run", action="store_true", help="measure planning in a simulated run, too")
    parser.add_argument("--duration", type=float, default=6.0, help="emulated seconds of that run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mixtral, qwen = ModelProfile.load("mixtral-8x7b"), ModelProfile.load("qwen1.5-moe-a2.7b")
    draw = random.Random(arguments.seed)  # noqa: S311 - draws of a benchmark, not a secret
    print(f"{'k':>8}{'p50 us':>9}{'p99 us':>9}{'p50 loops':>11}{'optimal':>8}{'gap p50':>9}{'p99':>8}{'max':>8}")
    met, first_us, loops_us = True, [], []
    for k in range(2, 9):
        row = measured(
            mixtral,
            draw,
            lambda layer, number, k=k: demand(layer, k, mixtral.experts, HOME, draw, number),  # type: ignore[misc]
            decisions=arguments.decisions,
            gap=arguments.gap,
        )
        p50, p99 = show(str(k), row)
        met = met and p50 < MEDIAN_US and p99 < TAIL_US
        first_us += row.first_us
        loops_us += row.loop_us
    row = measured(
        qwen,
        draw,
        lambda layer, number: merged_demand(layer, qwen, HOME, draw, number),
        decisions=arguments.decisions // 3,
        gap=False,
    )
    show("merged", row)
    print(f"a loop of 2,000 additions: {np.median(loops_us):.0f} us")
    print(f"first beliefs and tables of a server: {np.median(first_us) / 1e3:.1f} ms")
    print(f"bounds of {MEDIAN_US:g} us (p50) and {TAIL_US:g} us (p99): {'met' if met else 'missed'}")
    if arguments.run:
        share_of_a_run(arguments.duration)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
