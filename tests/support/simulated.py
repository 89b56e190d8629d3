"""Whole runs in virtual time for tests: prepared, played and written by the code of the command line, then read back.

Placements and the twin's arithmetic are the same in many tests and are computed once in a session.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from agents.models.model import Model
from analysis.load import Run, load
from orchestration.comparison import Candidate, Comparison, prepare
from orchestration.session import play
from orchestration.simulation import Simulation
from orchestration.stage import Watcher
from scenarios.timeline import Request, Scenario
from testbed.load import load_topology
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Topology

ROOT = Path(__file__).parents[2]
TWIN = ROOT / "agents" / "models" / "mixtral-8x7b-twin"
#: What placements are made for, whatever a test sends.
PLACED_FOR_PER_S = 5.0

#: The ``plan`` of a framework that takes the first copy of every expert and gathers at home.
FIRST_COPY = """
def plan(self, demand, view):
    choices = [Choice.of(view.replicas(demand.layer, entry.expert)[0]) for entry in demand.experts]
    return Plan(choices=tuple(choices), next_server=demand.next_server or view.server)
"""


@cache
def twin() -> Model:
    """The real twin, which remembers across tests."""
    return Model.load(TWIN).remembering()


@cache
def topology(name: str) -> Topology:
    return load_topology(ROOT / "topologies" / f"{name}.yaml")


def requests(
    homes: Sequence[str], moments_s: Iterable[float], *, tokens: int = 16, output_tokens: int = 0
) -> tuple[Request, ...]:
    """A request at each moment, at the homes in turn, each with a text of its own."""
    domains = twin().prompts.domains
    return tuple(
        Request(
            number=number,
            at_s=at_s,
            home=homes[number % len(homes)],
            kind="generate" if output_tokens else "score",
            domain=domains[number % len(domains)],
            prompt=number,
            tokens=tokens + number % 5,
            output_tokens=output_tokens,
        )
        for number, at_s in enumerate(moments_s)
    )


def every(step_s: float, *, from_s: float = 0.5, to_s: float) -> list[float]:
    """Moments from ``from_s`` to before ``to_s``."""
    return [from_s + number * step_s for number in range(round((to_s - from_s) / step_s))]


def scenario(asked: tuple[Request, ...]) -> Scenario:
    """These requests and nothing else; ``dataclasses.replace`` adds to it."""
    return Scenario(
        name="test",
        question="?",
        duration_s=max((request.at_s for request in asked), default=0.0),
        arrival_rate_per_s=PLACED_FOR_PER_S,
        requests=asked,
    )


def compared(played: Scenario, frameworks: Sequence[str], on: Topology, *, seed: int = 0) -> Comparison:
    """What ``prepare`` makes of it."""
    own = [framework for framework in frameworks if framework.endswith(".py")]
    comparison = _prepared(played, own, on, seed)
    placed = {candidate.name: candidate for candidate in comparison.candidates}
    return replace(comparison, candidates=tuple(placed.get(name) or placed_once(name, on) for name in frameworks))


@cache
def placed_once(framework: str, on: Topology) -> Candidate:
    """A registered framework's placement."""
    (candidate,) = _prepared(scenario(()), [framework], on, 0).candidates
    return candidate


def _prepared(played: Scenario, frameworks: Sequence[str], on: Topology, seed: int) -> Comparison:
    return prepare(scenarios={seed: played}, topology=on, model=twin(), frameworks=frameworks, redundancy=2.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a comparison left behind."""

    runs: tuple[Run, ...]
    said: str  # what a person would have read
    payload_bytes: int  # of all messages but gossip

    @property
    def run(self) -> Run:
        """The only one."""
        (run,) = self.runs
        return run


def simulate(comparison: Comparison, directory: Path, watcher: Watcher | None = None) -> Outcome:
    """Play everything into ``directory`` and read it back."""
    said: list[str] = []
    watcher = watcher or Watcher()
    watcher.say = said.append
    loop = VirtualLoop()
    stage = Simulation(comparison.topology, comparison.model, loop)
    directory.mkdir(parents=True)
    try:
        loop.run_until_complete(play(comparison, stage, directory, watcher))
        assert asyncio.all_tasks(loop) == set(), "a run has left work behind"
    finally:
        loop.close()
    return Outcome(runs=load(directory).runs, said="\n".join(said), payload_bytes=stage.payload_bytes)


def run(played: Scenario, framework: str, on: Topology, tmp_path: Path) -> Run:
    """One scenario under one framework."""
    return simulate(compared(played, [framework], on), tmp_path / "results").run


def errors(of: Run) -> dict[int, str]:
    """Why requests failed, by number."""
    return {row["request"]: row["error"] for row in of.requests.iter_rows(named=True) if row["error"] is not None}


def ended_s(of: Run) -> float:
    """When the last sample of the links was taken: at the end of the run."""
    return float(of.links["t_s"].max())  # type: ignore[arg-type]


def user_framework(path: Path, body: str) -> str:
    """A framework in a file of the user's, with these methods."""
    path.write_text(
        "from agents.frameworks.base import BaseFramework, Choice, Plan\n\n\n"
        + "class Mine(BaseFramework):\n    name = 'mine'\n\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + "\n"
    )
    return str(path)
