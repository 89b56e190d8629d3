"""The command behind ``scenarios/bevy_paper.py``: makes routes, runs the grid, keeps the records, has them drawn."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agents.models.profile import ModelProfile
from agents.offloading.drawn import Drawing
from agents.offloading.recording import save, trace_texts, twin_texts
from agents.offloading.tables import Text
from agents.schedulers.registry import SCHEDULERS
from orchestration.offloading import Cell, run_grid
from testbed.errors import TestbedError
from testbed.load import load_topology
from testbed.topology import Device

if TYPE_CHECKING:
    from scenarios.bevy_paper import Grid

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "agents" / "models"
TEXTS = 64
#: Page faults against large reads on the drive of a development machine: 0.29 to 0.51 (docs/bevy.md).
FAULT_SHARE = 0.4
#: Of drawn guesses, where nothing was recorded of a model.
DRAWN_ACCURACY = 0.85
RECORDS_FILE = "offloading.json"
#: Lockstep with the same reads as everybody else: what is left of a gain then comes from scheduling.
LARGE_READS = "lockstep, large reads"

Draw = Callable[[Path], str]


def main(argv: Sequence[str], *, default: Grid, quick: Grid, draw: Draw) -> int:
    """Run the experiment; the exit code."""
    options = _parser().parse_args(argv)
    try:
        grid = _grid(options, quick if options.quick else default)
        if options.real:
            from orchestration.offloading_real import report

            print(report(grid, directory=options.directory, device=_device(options.topology)))
            return 0
        return _run(options, grid, draw)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def cells(
    grid: Grid, schedulers: Sequence[str], *, fault_share: float, precision: str, seeds: Sequence[int]
) -> Iterator[Cell]:
    """Every combination; lockstep twice, by page faults and by large reads."""
    for model, seed in product(grid.models, seeds):
        for concurrency in grid.concurrency:
            for fraction in grid.fractions:
                for cache in grid.caches:
                    for scheduler in schedulers:
                        cell = Cell(
                            model=model,
                            scheduler=scheduler,
                            cache=cache,
                            concurrency=concurrency,
                            fraction=fraction,
                            fault_share=fault_share,
                            precision=precision,
                            seed=seed,
                            prompt_tokens=grid.prompt_tokens,
                            least_output=grid.output_tokens[0],
                            most_output=grid.output_tokens[1],
                            warm_tokens=8 + grid.warm_per_request * concurrency,
                            stop_tokens=30 + grid.tokens_per_request * concurrency,
                        )
                        yield cell
                        if scheduler == "lockstep":
                            yield replace(cell, fault_share=1.0, row=LARGE_READS)


def texts_of(model: str, source: str, *, positions: int, seed: int) -> tuple[list[Text], str]:
    """Routes of a model, and what to say of them: ``auto``, ``drawn``, a twin's directory or a trace."""
    own = MODELS / f"{model}-twin"
    if source == "auto":
        source = str(own) if own.is_dir() else "drawn"
    if source == "drawn":
        profile = ModelProfile.load(model)
        drawing = Drawing(
            layers=profile.layers,
            experts=profile.experts,
            top_k=profile.top_k,
            accuracy=DRAWN_ACCURACY,
            seed=seed,
        )
        return drawing.texts(TEXTS, positions), f"drawn (seed {seed}); guesses right with {DRAWN_ACCURACY:.0%}"
    path = Path(source)
    if path.is_dir():
        profile, texts = twin_texts(path, count=TEXTS, positions=positions)
        said = "recorded from its twin"
    else:
        profile, texts = trace_texts(path, count=TEXTS, positions=positions, accuracy=DRAWN_ACCURACY, seed=seed)
        said = f"a trace, {path.name}; guesses drawn, right with {DRAWN_ACCURACY:.0%}"
    if profile.name != model:
        raise TestbedError(f"{source} holds routes of {profile.name}, not of {model}")
    return texts, said


def _run(options: argparse.Namespace, grid: Grid, draw: Draw) -> int:
    device = _device(options.topology)
    out = options.out / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-bevy_paper"
    out.mkdir(parents=True)
    positions, tables, sources = grid.prompt_tokens + grid.output_tokens[1], {}, {}
    asked = dict(pair.split("=", 1) if "=" in pair else (pair, "auto") for pair in options.routes)
    for name in asked:
        if name not in grid.models:
            raise TestbedError(f"--routes names {name}, which is not among the models: {', '.join(grid.models)}")
    for model in grid.models:
        texts, sources[model] = texts_of(model, asked.get(model, "auto"), positions=positions, seed=options.seeds[0])
        tables[model] = out / f"routes-{model}.safetensors"
        save(tables[model], ModelProfile.load(model), texts)
        print(f"routes of {model}: {sources[model]}")
    todo = list(
        cells(
            grid,
            options.schedulers,
            fault_share=options.fault_share,
            precision=options.precision,
            seeds=options.seeds,
        )
    )
    began_s = time.monotonic()

    def heard(done: int, _: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            print(f"\r{done} of {len(todo)} runs", end="", file=sys.stderr, flush=True)
        elif 10 * done // len(todo) > 10 * (done - 1) // len(todo):
            print(f"{done} of {len(todo)} runs", file=sys.stderr, flush=True)

    results = run_grid(todo, device, tables, workers=options.workers, heard=heard)
    kept = {
        "format": 1,
        "topology": options.topology.stem,
        "device": asdict(device),
        "fault_share": options.fault_share,
        "sources": sources,
        "results": results,
    }
    (out / RECORDS_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    print(f"\n{len(todo)} runs in {time.monotonic() - began_s:.0f} s\n")
    print(draw(out))
    print(f"\n{out}")
    return 0


def _device(path: Path) -> Device:
    servers = load_topology(path).servers
    if len(servers) != 1 or servers[0].device is None:
        raise TestbedError(f"{path}: this experiment is about one machine; the topology has {len(servers)} servers")
    return servers[0].device


def _grid(options: argparse.Namespace, grid: Grid) -> Grid:
    return replace(
        grid,
        models=tuple(options.models or grid.models),
        concurrency=tuple(options.concurrency or grid.concurrency),
        fractions=tuple(options.fractions or grid.fractions),
        caches=tuple(options.caches or grid.caches),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scenarios/bevy_paper.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid, for a look")
    parser.add_argument("--real", action="store_true", help="read experts from a real file; no virtual time")
    parser.add_argument("--directory", type=Path, help="with --real: where the temporary file goes")
    parser.add_argument("--topology", type=Path, default=ROOT / "topologies" / "local-thor.yaml")
    parser.add_argument("--models", nargs="+", metavar="MODEL")
    parser.add_argument("--concurrency", nargs="+", type=int, metavar="N")
    parser.add_argument("--fractions", nargs="+", type=float, metavar="SHARE", help="of all experts, 0 to 1")
    parser.add_argument("--caches", nargs="+", metavar="POLICY")
    parser.add_argument("--schedulers", nargs="+", default=list(SCHEDULERS), help="names, or Python files of your own")
    parser.add_argument(
        "--routes",
        nargs="+",
        default=[],
        metavar="MODEL=SOURCE",
        help="drawn, a twin's directory or a trace (.jsonl); otherwise the model's twin, drawn where it has none",
    )
    parser.add_argument("--fault-share", type=float, default=FAULT_SHARE, help="of storage bandwidth, by page faults")
    parser.add_argument("--precision", default="full")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="who reads which text, how far"
    )
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    return parser
