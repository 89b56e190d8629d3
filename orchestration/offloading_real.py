"""The same schedulers with experts really read from this machine's drive: is the gain an artefact of the model?

The file of experts is small, so the machine is scaled to it: one emulated second takes D seconds of the wall,

    D = T(large read of a piece, measured) / T(load of an expert, modelled)                                       (1)

so that the device, which is paced, stands to this drive as the modelled device to the modelled one.  Reads are not
paced: their time, and its variation, is the drive's.  Lockstep touches mapped pages; others read past the page cache.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.clock import WallClock
from agents.offloading.player import Played, Player
from agents.offloading.storage import ExpertFile, Rates, RealChannel, measured
from agents.schedulers.registry import create
from orchestration.bevy_paper import LARGE_READS, cells, texts_of
from orchestration.offloading import Cell, arriving, core_of, record, run_cell
from testbed.topology import Device

if TYPE_CHECKING:
    from agents.offloading.tables import Text
    from scenarios.bevy_paper import Grid

#: Large enough for kernels of some milliseconds, against which Python's own time is small.
PIECE_BYTES = 2**24
PIECES = 32
SCHEDULERS = ("lockstep", "prefetch", "bevy")


def report(grid: Grid, *, directory: Path | None, device: Device) -> str:
    """Run the grid's first model at its largest setting, really and virtually; a table of both.

    TestbedError where the file does not fit.
    """
    model, concurrency = grid.models[0], min(8, max(grid.concurrency))
    grid = replace(
        grid,
        models=(model,),
        concurrency=(concurrency,),
        fractions=(grid.fractions[-1],),
        caches=(grid.caches[-1],),
        warm_per_request=1,
        tokens_per_request=2,
    )
    texts, said = texts_of(model, "auto", positions=grid.prompt_tokens + grid.output_tokens[1], seed=0)
    clock = WallClock(origin_s=time.monotonic())
    with ExpertFile(pieces=PIECES, piece_bytes=PIECE_BYTES, directory=directory) as file:
        rates = measured(file, clock, pieces=PIECES // 2)
        rows = [
            (cell, _really(cell, device, texts, file, rates), run_cell(cell, device, texts))
            for cell in cells(grid, SCHEDULERS, fault_share=rates.fault_share, precision="full", seeds=(0,))
        ]
    return _table(rows, rates, said)


def dilation(cell: Cell, device: Device, texts: list[Text], rates: Rates, piece_bytes: int) -> float:
    """Equation (1)."""
    return piece_bytes / rates.read_bytes_per_s / core_of(cell, device, texts).machine.load_s(faults=False)


def _really(cell: Cell, device: Device, texts: list[Text], file: ExpertFile, rates: Rates) -> dict[str, Any]:
    core = core_of(cell, device, texts)
    faults = create(cell.scheduler).faults and cell.row != LARGE_READS

    async def play() -> Played:
        stretched = dilation(cell, device, texts, rates, file.piece_bytes)
        clock = WallClock(origin_s=time.monotonic(), dilation=stretched)
        channel = RealChannel(clock, file, faults=faults)
        return await Player(core=core, clock=clock, channel=channel, arriving=arriving(cell)).run()

    return record(cell, asyncio.run(play()), core.machine.expert_bytes)


def _table(rows: list[tuple[Cell, dict[str, Any], dict[str, Any]]], rates: Rates, said: str) -> str:
    first = rows[0][0]
    way = "O_DIRECT" if rates.direct else "reads dropped from the page cache (O_DIRECT was refused)"
    lines = [
        f"Pieces of {PIECE_BYTES / 1e6:.1f} MB, random order, by {way}: {rates.read_bytes_per_s / 1e6:.0f} MB/s;",
        f"page faults with read-ahead {rates.fault_bytes_per_s / 1e6:.0f} MB/s ({rates.fault_share:.2f} of it), "
        f"without {rates.small_fault_bytes_per_s / 1e6:.0f} MB/s.",
        f"{first.model}, {first.concurrency} at once, cache {first.fraction:.0%}, {first.cache}; routes {said}.",
        "Tokens per emulated second; virtual: the same cells, with page faults at the share measured above.",
        "",
        "| row | real | virtual | device busy, real | channel busy, real | over lockstep, real | virtual |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = rows[0]
    for cell, real, virtual in rows:
        ratios = [each["tokens_per_s"] / over["tokens_per_s"] for each, over in ((real, base[1]), (virtual, base[2]))]
        lines.append(
            f"| {cell.row or cell.scheduler} | {real['tokens_per_s']:.2f} | {virtual['tokens_per_s']:.2f} "
            f"| {real['device_busy']:.0%} | {real['channel_busy']:.0%} | {ratios[0]:.2f}x | {ratios[1]:.2f}x |"
        )
    return "\n".join(lines)
