"""Runs of one offloading machine in virtual time: a cell of a grid is one scheduler at one setting.

Every cell of one model and seed serves the same requests with the same routes.  Cells are independent and go to
processes that are spawned, as sweeps are; each reads the tables of routes from a file once.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from agents.clock import VirtualClock
from agents.models.profile import ModelProfile
from agents.offloading.core import Core
from agents.offloading.machine import Machine
from agents.offloading.player import Arriving, ModelledChannel, Played, Player
from agents.offloading.recording import load
from agents.offloading.tables import Tabled, Text, activations, popularity
from agents.offloading.work import Request
from agents.schedulers.registry import create
from testbed.simulation.loop import VirtualLoop
from testbed.topology import Device

#: Texts between the first ones of two seeds.
SEED_STRIDE = 17
#: One request at a time gains nothing from a longer run.
ALONE_TOKENS = 64
#: Texts at the end of a table that no request reads: what is known of the past.
HISTORY_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    model: str
    scheduler: str
    cache: str
    concurrency: int
    fraction: float
    fault_share: float = 1.0
    row: str = ""  # its name in tables; the scheduler's unless given
    precision: str = "full"
    seed: int = 0
    prompt_tokens: int = 12
    least_output: int = 8
    most_output: int = 24
    warm_tokens: int = 16
    stop_tokens: int = 64
    rate_per_s: float | None = None  # Poisson arrivals instead of a closed loop

    @property
    def positions(self) -> int:
        """The longest text that a request reads."""
        return self.prompt_tokens + self.most_output


def requests(cell: Cell) -> list[Request]:
    """More requests than the run can serve, the same for every scheduler."""
    draw = np.random.default_rng([cell.seed, 3])
    count = cell.stop_tokens // cell.least_output + cell.concurrency + 1
    return [
        Request(number=number, prompt_tokens=cell.prompt_tokens, output_tokens=int(output))
        for number, output in enumerate(draw.integers(cell.least_output, cell.most_output + 1, count))
    ]


def arriving(cell: Cell) -> Arriving:
    """The cell's requests in time."""
    alone = cell.scheduler == "each-alone"
    stop_tokens = min(cell.stop_tokens, ALONE_TOKENS) if alone else cell.stop_tokens
    asked, at_s = requests(cell), None
    if cell.rate_per_s is not None:
        gaps_s = np.random.default_rng([cell.seed, 4]).exponential(1 / cell.rate_per_s, len(asked))
        at_s = gaps_s.cumsum().tolist()
    return Arriving(
        requests=asked,
        at_s=at_s,
        concurrency=cell.concurrency,
        stop_tokens=stop_tokens,
        warm_tokens=min(cell.warm_tokens, stop_tokens // 2),
    )


def core_of(cell: Cell, device: Device, texts: Sequence[Text]) -> Core:
    """A machine with a warm cache, and a past."""
    profile = ModelProfile.load(cell.model)
    machine = Machine(device=device, profile=profile, precision=cell.precision, fault_share=cell.fault_share)
    served, past = _parted(texts)
    first = cell.seed * SEED_STRIDE % len(served)  # another seed begins elsewhere
    served = [*served[first:], *served[:first]]
    core = Core(
        machine=machine,
        scheduler=create(cell.scheduler, {"cache": cell.cache}),
        work=Tabled(served),
        slots=machine.slots(cell.fraction),
        history=[activations(text, profile.experts) for text in past],
    )
    core.warm([int(key) for key in (-popularity(past, profile.experts).ravel()).argsort(kind="stable")])
    return core


def run_cell(cell: Cell, device: Device, texts: Sequence[Text]) -> dict[str, Any]:
    """Play one cell in virtual time; the record of it."""
    core, loop = core_of(cell, device, texts), VirtualLoop()
    clock = VirtualClock(loop)
    try:
        player = Player(core=core, clock=clock, channel=ModelledChannel(clock), arriving=arriving(cell))
        return record(cell, loop.run_until_complete(player.run()), core.machine.expert_bytes)
    finally:
        loop.close()


def record(cell: Cell, played: Played, expert_bytes: int) -> dict[str, Any]:
    """The numbers of a run, as they are stored; docs/bevy.md defines each."""
    counts = played.counts
    first_s = [each.first_token_s - each.arrived_s for each in played.requests if each.first_token_s is not None]
    between_s = [
        (each.finished_s - each.first_token_s) / (each.output_tokens - 1)
        for each in played.requests
        if each.finished_s is not None and each.first_token_s is not None and each.output_tokens > 1
    ]
    return {
        **asdict(cell),
        "row": cell.row or cell.scheduler,
        "tokens_per_s": played.tokens_per_s,
        "window_s": played.window_s,
        "device_busy": _share(played.device_busy_s, played.window_s),
        "channel_busy": _share(played.channel_busy_s, played.window_s),
        "hit_rate": _share(counts.hits, counts.demands),
        "loads_per_token": _share(counts.loads, counts.tokens),
        "mean_group": _share(counts.grouped, counts.groups),
        "guess_accuracy": _share(counts.guesses_right, counts.guesses),
        "absent_guess_accuracy": _share(counts.absent_guesses_right, counts.absent_guesses),
        "prefetches": counts.prefetches,
        "prefetch_precision": _share(counts.prefetches_used, counts.prefetches_used + counts.prefetches_wasted),
        "wasted_bytes": counts.prefetches_wasted * expert_bytes,
        "loaded_bytes": counts.loads * expert_bytes,
        "ttft_mean_s": float(np.mean(first_s)) if first_s else None,
        "tpot_mean_s": float(np.mean(between_s)) if between_s else None,
    }


def run_grid(
    cells: Sequence[Cell],
    device: Device,
    tables: dict[str, Path],
    *,
    workers: int,
    heard: Callable[[int, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """All cells, in their order.  ``tables`` holds every model's file of routes; ``heard`` is told as they end."""
    found: dict[int, dict[str, Any]] = {}
    for number, result in _results(cells, device, tables, workers):
        found[number] = result
        heard(len(found), result)
    return [found[number] for number in range(len(cells))]


def _results(
    cells: Sequence[Cell], device: Device, tables: dict[str, Path], workers: int
) -> Iterable[tuple[int, dict[str, Any]]]:
    if workers == 1:
        for number, cell in enumerate(cells):
            yield number, _run_stored(cell, device, tables[cell.model])
        return
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(_run_stored, cell, device, tables[cell.model]): number for number, cell in enumerate(cells)
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


def _run_stored(cell: Cell, device: Device, table: Path) -> dict[str, Any]:
    return run_cell(cell, device, _stored(table))


@cache
def _stored(table: Path) -> list[Text]:
    return load(table)


def _parted(texts: Sequence[Text]) -> tuple[Sequence[Text], Sequence[Text]]:
    """Texts that requests read, and texts of the past."""
    past = max(1, int(HISTORY_SHARE * len(texts)))
    return (texts[:-past] or texts), texts[-past:]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
