"""The cells of a sweep: every combination that was asked for, and what makes two of them the same.

A cell is one run in virtual time.  Its identity holds everything that decides its records, so a cell that was played
once need never be played again: not after an interruption, and not when the grid has grown.  Its name, which is its
directory's, is the identity in short, for people, with a digest that a change of anything changes.

>>> rates_in("4,8,16-32:8", option="--rates"), seeds_in("0-2,7", option="--seeds")
((4.0, 8.0, 16.0, 24.0, 32.0), (0, 1, 2, 7))
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from orchestration.manifest import RESULT_FORMAT, label
from scenarios.timeline import Scenario
from testbed.errors import TestbedError
from testbed.topology import Topology

MAX_CELLS = 100_000
MAX_VALUES = 10_000  # of one list
LEAST_RATE_PER_S, MOST_RATE_PER_S = 0.001, 1e5
MOST_SEED = 2**63 - 1
#: Of a cell's name: so few that nobody minds them, so many that two cells never share them.
DIGEST_CHARACTERS = 10
LONGEST_PART = 40

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?"
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A scenario or a framework as it was asked for: by one of our names, or as a file with the text it had then."""

    asked: str
    text: str | None = None

    @property
    def label(self) -> str:
        """The name that stands in results."""
        return label(self.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What was asked for; every combination is a cell."""

    scenario: Source
    frameworks: tuple[Source, ...]
    topologies: tuple[Topology, ...]
    rates_per_s: tuple[float | None, ...] = (None,)  # None: the scenario's own
    seeds: tuple[int, ...] = (0,)
    generate_share: float | None = None
    model: str
    model_files: str  # digest
    redundancy: float = 2.0

    def __len__(self) -> int:
        """How many cells there are."""
        return len(self.frameworks) * len(self.topologies) * len(self.rates_per_s) * len(self.seeds)

    def __str__(self) -> str:
        """``4 frameworks x 4 loads x 2 topologies x 5 seeds``."""
        sizes = {
            "framework": len(self.frameworks),
            "load": len(self.rates_per_s),
            "topology": len(self.topologies),
            "seed": len(self.seeds),
        }
        return " x ".join(
            f"{n} {name if n == 1 else name.replace('topology', 'topologie') + 's'}" for name, n in sizes.items()
        )


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the records of a cell.  What is long stands here as its digest.

    The code of the testbed itself is not part of it: ``RESULT_FORMAT`` is, and manifests name the versions.
    """

    scenario: str
    scenario_text: str | None  # of a user's file
    timeline: str  # both timelines, objective, deadline and budget
    topology: str
    topology_content: str
    framework: str
    framework_text: str | None  # of a user's file
    rate_per_s: float
    duration_s: float
    generate_share: float | None  # None: the scenario's own
    seed: int
    model: str
    model_files: str
    redundancy: float
    format: int = RESULT_FORMAT

    @property
    def title(self) -> str:
        """``hetroute on edge10, 8/s, seed 0``: for people."""
        return f"{self.framework} on {self.topology}, {self.rate_per_s:g}/s, seed {self.seed}"

    @property
    def name(self) -> str:
        """``steady_load-edge10-hetroute-8rps-seed0-3f2a91c4d0``: of the cell's directory."""
        parts = [_part(text) for text in (self.scenario, self.topology, self.framework)]
        return "-".join([*parts, f"{self.rate_per_s:g}rps", f"seed{self.seed}", digest(self)[:DIGEST_CHARACTERS]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a sweep, with what it takes to play it."""

    name: str
    identity: Identity
    framework: str  # as asked for
    topology: Topology
    rate_per_s: float | None  # as asked for

    @property
    def chain(self) -> tuple[str, int]:
        """Equal for cells that ask the same prompts of the same servers; a higher rate asks more of them."""
        return self.identity.topology_content, self.identity.seed


#: The timeline of a topology, an asked rate and a seed.
Timeline = Callable[[Topology, float | None, int], Scenario]


def cells(grid: Grid, timeline: Timeline) -> tuple[Cell, ...]:
    """All cells, those of a chain and then of a timeline together; TestbedError when two of them would be the same.

    Seeds come first, so that a sweep which is interrupted has seen all loads and networks.
    """
    if len(grid) > MAX_CELLS:
        raise TestbedError(f"these are {len(grid)} cells; a sweep has at most {MAX_CELLS}")
    contents = {digest(topology): topology for topology in grid.topologies}
    if len(contents) < len(grid.topologies):
        raise TestbedError("two of the topologies describe the same network; name it once")
    found = []
    for seed in grid.seeds:
        for content, topology in contents.items():
            rates_of: dict[str, float | None] = {}
            for rate_per_s in grid.rates_per_s:
                scenario = timeline(topology, rate_per_s, seed)
                key = digest(scenario)
                if key in rates_of:
                    raise TestbedError(
                        f"scenario {grid.scenario.asked} plays the same at {rates_of[key]:g} and {rate_per_s:g} "
                        "requests/s: its build() takes no notice of setting.arrival_rate_per_s"
                    )
                rates_of[key] = rate_per_s
                for framework in grid.frameworks:
                    identity = Identity(
                        scenario=scenario.name,
                        scenario_text=digest_of_text(grid.scenario.text),
                        timeline=key,
                        topology=topology.name,
                        topology_content=content,
                        framework=framework.label,
                        framework_text=digest_of_text(framework.text),
                        rate_per_s=scenario.arrival_rate_per_s if rate_per_s is None else rate_per_s,
                        duration_s=scenario.duration_s,
                        generate_share=grid.generate_share,
                        seed=seed,
                        model=grid.model,
                        model_files=grid.model_files,
                        redundancy=grid.redundancy,
                    )
                    found.append(
                        Cell(
                            name=identity.name,
                            identity=identity,
                            framework=framework.asked,
                            topology=topology,
                            rate_per_s=rate_per_s,
                        )
                    )
    return tuple(found)


class Chains:
    """Who plays what next.

    The cells of a chain share their prompts, and so most of their arithmetic, which a worker remembers.  So a chain
    belongs to one worker; only when none is left untouched does a worker without work take the second half of what
    remains of the longest.
    """

    def __init__(self, asked: Iterable[Cell]) -> None:
        chains: dict[tuple[str, int], list[Cell]] = {}
        for cell in asked:
            chains.setdefault(cell.chain, []).append(cell)
        self._untouched = list(reversed(chains.values()))
        self._of_worker: dict[int, list[Cell]] = {}

    def __len__(self) -> int:
        """Cells that nobody has taken yet."""
        return sum(len(chain) for chain in (*self._untouched, *self._of_worker.values()))

    def next_for(self, worker: int) -> Cell | None:
        """The cell that this worker should play; None when there is nothing left."""
        own = self._of_worker.setdefault(worker, [])
        if not own and self._untouched:
            own.extend(self._untouched.pop())
        if not own:
            longest = max(self._of_worker.values(), key=len)
            half = _half(longest)
            own.extend(longest[half:])
            del longest[half:]
        return own.pop(0) if own else None


def rates_in(text: str, *, option: str) -> tuple[float, ...]:
    """Requests per second from a list such as ``4,8`` with ranges such as ``2-8:2``; TestbedError otherwise."""
    found = [float(value) for value in _listed(text, option)]
    for rate in found:
        if not LEAST_RATE_PER_S <= rate <= MOST_RATE_PER_S:
            raise TestbedError(
                f"{option}: {rate:g} requests/s is not between {LEAST_RATE_PER_S:g} and {MOST_RATE_PER_S:g}"
            )
    return tuple(found)


def seeds_in(text: str, *, option: str) -> tuple[int, ...]:
    """Seeds from a list such as ``0,3`` with ranges such as ``0-4``; TestbedError otherwise."""
    found = _listed(text, option)
    for value in found:
        if value > MOST_SEED:
            raise TestbedError(f"{option}: {value} is too large; seeds go up to {MOST_SEED}")
        if value != int(value):
            raise TestbedError(f"{option}: {value} is no seed; seeds are whole numbers")
    return tuple(int(value) for value in found)


def digest(value: Any) -> str:
    """What tells a value from others: a digest of its JSON, keys in order."""
    return hashlib.blake2b(_encoder.encode(value), digest_size=16).hexdigest()


def digest_of_text(text: str | None) -> str | None:
    """The same of a file's text, where there is one."""
    return None if text is None else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def as_plain(value: Any) -> Any:
    """NumPy's numbers, which a user's scenario may draw, as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=as_plain, order="deterministic")


def _listed(text: str, option: str) -> list[Decimal]:
    """The numbers of a list, in its order, ranges written out."""
    found: list[Decimal] = []
    for part in text.split(","):
        entry = part.strip()
        if re.fullmatch(_NUMBER, entry):
            found.append(Decimal(entry))
        elif match := _RANGE.fullmatch(entry):
            found += _written_out(*match.groups(), entry=entry, option=option)
        else:
            what = f"'{entry}' is neither a number nor a range" if entry else f"'{text}' has an empty entry"
            raise TestbedError(f"{option}: {what}; write for example 1,2,4 or 1-4 or 2-8:2")
        if len(found) > MAX_VALUES:
            raise TestbedError(f"{option}: more than {MAX_VALUES} values")
    seen: set[Decimal] = set()
    for value in found:
        if value in seen:
            raise TestbedError(f"{option}: {value.normalize():f} is named twice")
        seen.add(value)
    return found


def _written_out(first: str, last: str, step: str | None, *, entry: str, option: str) -> list[Decimal]:
    low, high, by = Decimal(first), Decimal(last), Decimal(step or 1)
    if high < low:
        raise TestbedError(f"{option}: '{entry}' counts down; write the smaller number first")
    if by == 0:
        raise TestbedError(f"{option}: '{entry}' has no steps; write a step above 0")
    if (high - low) / by >= MAX_VALUES:
        raise TestbedError(f"{option}: '{entry}' has more than {MAX_VALUES} values")
    return [low + number * by for number in range(int((high - low) / by) + 1)]


def _half(chain: Sequence[Cell]) -> int:
    """Where to cut a chain in two: between two timelines near the middle, if there are two."""
    middle = len(chain) // 2
    cuts = [
        place for place in range(1, len(chain)) if chain[place].identity.timeline != chain[place - 1].identity.timeline
    ]
    return min(cuts, key=lambda cut: abs(cut - middle)) if cuts else middle


def _part(text: str) -> str:
    """Of a file name: without what file systems or shells take amiss."""
    return re.sub(r"[^A-Za-z0-9_+.]+", "_", text).strip("._")[:LONGEST_PART] or "unnamed"
