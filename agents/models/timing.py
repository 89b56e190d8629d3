"""How long the twin's real arithmetic takes: ``OPENBLAS_NUM_THREADS=1 python -m agents.models.timing --tokens 37``.

An agent computes for real inside the time that its emulated device would need, so these microseconds bound how fast a
device can be emulated without overruns.  Printed is the fastest and the median of many passes, per layer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agents.models.arguments import positive
from agents.models.mixture import Gate, finish
from agents.models.prompts import Prompts
from agents.models.quantize import FULL
from agents.models.reference import mixture, score
from agents.models.spec import model_path
from agents.models.twin import Twin
from testbed.errors import TestbedError

MICROSECONDS = 1e6


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m agents.models.timing", description="Time of the twin's arithmetic."
    )
    parser.add_argument("--model", type=Path, default=Path("mixtral-8x7b"), help="a twin's name or directory")
    parser.add_argument("--tokens", type=positive, default=37)
    parser.add_argument("--passes", type=positive, default=100)
    chosen = parser.parse_args()
    try:
        directory = model_path(chosen.model)
        twin, prompts = Twin.load(directory), Prompts.load(directory)
        prompt = prompts.take(prompts.domains[0], 0, chosen.tokens)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    layers = range(twin.spec.layers)
    before, attended, gates = [], [], list[Gate]()
    x = twin.embed(prompt)
    for layer in layers:
        before.append(x)
        attended.append(twin.attend(layer, x))
        gates.append(twin.gate(layer, attended[-1]))
        x = finish(gates[-1].residual(attended[-1]), mixture(twin, layer, gates[-1], FULL))
    print(f"{chosen.tokens} tokens, per layer{'fastest us':>20}{'median us':>12}")
    for name, work in {
        "attention": lambda: [twin.attend(layer, before[layer]) for layer in layers],
        "gate": lambda: [twin.gate(layer, attended[layer]) for layer in layers],
        "experts, summed": lambda: [mixture(twin, layer, gates[layer], FULL) for layer in layers],
        "whole pass": lambda: score(twin, prompt),
    }.items():
        fastest, median = _seconds(work, chosen.passes)
        print(f"{name:<22}{MICROSECONDS * fastest / len(layers):>20.1f}{MICROSECONDS * median / len(layers):>12.1f}")
    return 0


def _seconds(work: Callable[[], object], passes: int) -> tuple[float, float]:
    taken = []
    for _ in range(passes):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken), statistics.median(taken)


if __name__ == "__main__":
    raise SystemExit(main())
