"""What scenarios that hold a framework against its paper share: a grid of comparisons, played and kept part by part.

A part is one comparison under one condition.  It is played aside and moved into the grid's directory when it is
finished, so an interrupted grid keeps whole parts, and the same command with ``--out`` naming that directory plays the
rest.

>>> few = Part(name="load-20", model="mixtral-8x7b", frameworks=("edgeshard",), rate_per_s=20.0, duration_s=4.0)
>>> [part.name for part in chosen([few, msgspec.structs.replace(few, name="budget-1")], only="load")]
['load-20']
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from agents.depth.registry import check_measured
from agents.frameworks.registry import parts as name_parts
from agents.models.model import Model
from agents.models.spec import model_path
from agents.protocol import Placement
from orchestration.catalogue import builder
from orchestration.comparison import Candidate, Comparison, prepare
from orchestration.errors import INTERRUPTED
from orchestration.places import Backend, Place, dilated, open_place
from orchestration.recorder import write_json
from orchestration.session import new_directory, play
from orchestration.stage import Watcher
from scenarios.timeline import Scenario, Setting
from testbed.errors import TestbedError

ROOT = Path(__file__).parents[1]
TOPOLOGY = ROOT / "topologies" / "edge10.yaml"
#: Of a grid's directory, and of every part in it.
MARK_FILE, PART_FILE = "grid.json", "part.json"
#: Where parts lie until they are finished.
ASIDE = "unfinished"

Draw = Callable[[Path], str]
T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a grid; ``name`` is its directory.  Frameworks share its arrivals, a repeat per seed."""

    name: str
    model: str
    frameworks: tuple[str, ...]
    rate_per_s: float
    duration_s: float
    scenario: str = "steady_load"
    seeds: tuple[int, ...] = (0,)
    budget: float = 0.02  # relative NLL increase that a request may cost
    redundancy: float = 2.0  # memory, in full-precision copies of all experts
    generate_share: float = 0.0
    backend: str = "sim"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Which grid a directory holds."""

    grid: str
    topology: str


@dataclass(slots=True, kw_only=True)
class Command:
    """A grid from the command line to its tables: ``python scenarios/<name>.py``."""

    name: str
    description: str
    draw: Draw
    parts: Callable[[bool], Sequence[Part]]  # all of them, of the quick grid or of the whole one

    def main(self, argv: Sequence[str], also: Callable[[argparse.ArgumentParser], None] = lambda parser: None) -> int:
        """Play what the arguments ask for, and print what came out; the exit code."""
        parser = argparse.ArgumentParser(prog=f"scenarios/{self.name}.py", description=self.description)
        parser.add_argument("--quick", action="store_true", help="a small grid")
        parser.add_argument("--only", help="comma-separated beginnings of the parts' names")
        parser.add_argument("--topology", type=Path, help=f"in virtual time; default: {TOPOLOGY.name}")
        parser.add_argument("--seed", type=int, default=0, help="added to every seed of the grid")
        parser.add_argument(
            "--out",
            type=Path,
            default=Path("results"),
            help="where the directory of the grid goes; or such a directory itself: what is finished there stays",
        )
        also(parser)
        options = parser.parse_args(argv)
        try:
            return self._run(options)
        except TestbedError as error:
            print(error, file=sys.stderr)
            return error.exit_code

    def _run(self, options: argparse.Namespace) -> int:
        parts = chosen(self.parts(options.quick), only=options.only)
        parts = [msgspec.structs.replace(each, seeds=_shifted(each.seeds, options.seed)) for each in parts]
        backend = getattr(options, "backend", Backend.SIM)
        if backend == Backend.NETNS:
            parts = [each for each in parts if each.backend == Backend.NETNS]
        else:
            parts = [each for each in parts if each.backend == Backend.SIM]
        if not parts:
            raise TestbedError(f"no part of this grid runs on --backend {backend}")
        player = Player(
            topology=options.topology,
            testbed=getattr(options, "testbed", None),
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        topology = "a testbed" if backend == Backend.NETNS else (options.topology or TOPOLOGY).stem
        out = opened(options.out, Mark(grid=self.name, topology=topology))
        try:
            player.play(parts, out)
        except KeyboardInterrupt:
            print(f"interrupted: finished parts are kept; --out {out} goes on", file=sys.stderr)
            return INTERRUPTED
        print(self.draw(out))
        print(f"\n{out}")
        return 0


@dataclass(slots=True, kw_only=True)
class Player:
    """Plays parts one after the other; what they share is loaded and placed once."""

    topology: Path | None
    testbed: str | None
    say: Callable[[str], None]
    _placements: dict[tuple[str, str, float, bytes], Placement] = field(default_factory=dict)

    def play(self, parts: Sequence[Part], out: Path) -> None:
        """Play the parts that are not yet finished in ``out``."""
        todo = [part for part in parts if not finished(out / part.name, part)]
        if len(todo) < len(parts):
            self.say(f"{len(parts) - len(todo)} of {len(parts)} parts are finished in {out}")
        begun_s = time.monotonic()
        places: dict[tuple[str, str], tuple[ExitStack, Place]] = {}
        with ExitStack() as every:
            for number, part in enumerate(todo):
                self.say(
                    f"{number + 1} of {len(todo)}: {part.name}: {', '.join(part.frameworks)} "
                    f"({(time.monotonic() - begun_s) / 60:.1f} min so far)"
                )
                key = part.model, part.backend
                if key not in places:
                    stack = every.enter_context(ExitStack())
                    places[key] = stack, self._place(part, stack)
                self._play(part, places[key][1], out)
                if all((later.model, later.backend) != key for later in todo[number + 1 :]):
                    places.pop(key)[0].close()  # what a model remembers may be a gigabyte

    def _place(self, part: Part, stack: ExitStack) -> Place:
        return stack.enter_context(
            open_place(
                Backend(part.backend),
                Model.load(model_path(Path(part.model))),
                topology=self.topology,
                default_topology=TOPOLOGY,
                testbed=self.testbed,
                say=self.say,
            )
        )

    def _play(self, part: Part, place: Place, out: Path) -> None:
        aside = out / ASIDE / part.name
        if aside.exists():
            shutil.rmtree(aside)  # of an interrupted grid: this directory is ours
        aside.mkdir(parents=True)
        scenarios = {seed: scenario_of(part, place, seed) for seed in part.seeds}
        comparison = dilated(self._compared(part, place, scenarios), None, place.stage, self.say)
        place.loop.run_until_complete(play(comparison, place.stage, aside, Watcher()))
        write_json(aside / PART_FILE, part)
        aside.rename(out / part.name)
        with contextlib.suppress(OSError):  # another part was interrupted: it stays until it is played again
            (out / ASIDE).rmdir()

    def _compared(self, part: Part, place: Place, scenarios: dict[int, Scenario]) -> Comparison:
        def prepared(*frameworks: str) -> Comparison:
            return prepare(
                scenarios=scenarios,
                topology=place.topology,
                model=place.model,
                frameworks=frameworks,
                redundancy=part.redundancy,
                progress=self.say,
            )

        bare = prepared()
        for name in part.frameworks:
            check_measured(name_parts(name).depth or "none", place.model.facts, place.model.exits)
        for routing in dict.fromkeys(name_parts(name).routing for name in part.frameworks):
            key = self._key(routing, part, bare)
            if key not in self._placements:
                self._placements[key] = prepared(routing).candidates[0].placement
        candidates = tuple(
            Candidate(name=name, placement=self._placements[self._key(name_parts(name).routing, part, bare)])
            for name in part.frameworks
        )
        return replace(bare, candidates=candidates)

    def _key(self, routing: str, part: Part, bare: Comparison) -> tuple[str, str, float, bytes]:
        return routing, part.model, part.budget, msgspec.json.encode(bare.cluster)


def chosen(parts: Iterable[Part], *, only: str | None) -> list[Part]:
    """The parts whose names begin with one of these words; TestbedError when none does."""
    every = list(parts)
    found = [part for part in every if part.name.startswith(tuple(only.split(",")) if only else ("",))]
    if not found:
        raise TestbedError(f"--only {only} fits no part: {', '.join(part.name for part in every)}")
    return found


def opened(out: Path, mark: Mark) -> Path:
    """A new directory below ``out``, or ``out`` itself where it already holds this grid."""
    file = out / MARK_FILE
    if not file.is_file():
        made = new_directory(out, mark.grid)
        write_json(made / MARK_FILE, mark)
        return made
    found = _read(file, Mark)
    if found != mark:
        raise TestbedError(
            f"{out} holds {found.grid} on {found.topology}, not {mark.grid} on {mark.topology}: choose another --out"
        )
    return out


def finished(directory: Path, part: Part) -> bool:
    """Whether a part lies there; TestbedError when it is another one of that name."""
    if not directory.exists():
        return False
    found = _read(directory / PART_FILE, Part)
    if found != part:
        raise TestbedError(f"{directory} was played with other values; remove it, or choose another --out")
    return True


def scenario_of(part: Part, place: Place, seed: int) -> Scenario:
    """The part's timeline for one seed."""
    rows = [place.model.prompts.rows[domain] for domain in place.model.prompts.domains]
    setting = Setting(
        topology=place.topology,
        domains=place.model.prompts.domains,
        prompts_per_domain=min(len(table) for table in rows),
        prompt_tokens=min(table.shape[1] for table in rows),
        seed=seed,
        arrival_rate_per_s=part.rate_per_s,
        duration_s=part.duration_s,
        generate_share=part.generate_share,
    )
    return replace(builder(part.scenario)(setting), quality_budget=part.budget)


def _shifted(seeds: Iterable[int], by: int) -> tuple[int, ...]:
    return tuple(seed + by for seed in seeds)


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise TestbedError(f"{file}: {error.strerror}; remove the directory, or choose another --out") from None
    except msgspec.DecodeError as error:
        raise TestbedError(f"{file}: {error}; remove the directory, or choose another --out") from None
