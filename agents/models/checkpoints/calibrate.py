"""Measures a checkpoint as ``agents.models.calibrate`` measures a twin, and stores ``calibration.json`` beside it.

    python -m agents.models.checkpoints.calibrate DIRECTORY [--rows N]

The text is ``heldout.safetensors``, which must be there: of random tokens no loss means anything.  Its last rows are
taken, so that runs, which begin with the first, do not ask for what was calibrated on, unless they are long.

What is measured, its equations and its signs: ``agents.models.calibrate``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agents.models.arithmetic import Arithmetic
from agents.models.calibrate import Calibration
from agents.models.checkpoints.load import load_checkpoint
from agents.models.mixture import Floats, Gate, finish
from agents.models.prompts import PROMPTS_FILE, Prompts
from agents.models.quantize import FULL, PRECISIONS
from agents.models.reference import mixture, next_token_nll, through
from testbed.errors import TestbedError

ROWS = 4  # per domain


def measure(model: Arithmetic, rows: Mapping[str, npt.NDArray[np.int16]]) -> Calibration:
    """Usage of the experts and losses of the precisions, on token rows of every domain."""
    layers, lossy = model.spec.layers, [name for name in PRECISIONS if name != FULL]
    usage = np.zeros((len(rows), layers, model.spec.experts))
    base, total = 0.0, dict.fromkeys(lossy, 0.0)
    each = {name: np.zeros(layers) for name in lossy}
    for domain, texts in enumerate(rows.values()):
        for tokens in texts:
            seen, gates, x = _trace(model, tokens)
            usage[domain] += [np.bincount(gate.experts.ravel(), minlength=model.spec.experts) for gate in gates]
            base += _nll(model, x, tokens)
            for name in lossy:
                total[name] += _nll(model, through(model, model.embed(tokens), precision=name), tokens)
                for layer in range(layers):
                    x = finish(seen[layer], mixture(model, layer, gates[layer], name))
                    each[name][layer] += _nll(model, through(model, x, first=layer + 1), tokens)
    return Calibration(
        tokens=sum(texts.size for texts in rows.values()),
        domains=tuple(rows),
        usage=usage / usage.sum(axis=2, keepdims=True),
        precision_loss={FULL: (0.0,) * layers} | {name: tuple((each[name] / base - 1).tolist()) for name in lossy},
        precision_loss_total={FULL: 0.0} | {name: total[name] / base - 1 for name in lossy},
    )


def calibrate(directory: Path, rows_per_domain: int = ROWS) -> Calibration:
    """Measure the checkpoint of a directory; TestbedError where it has no text to measure on."""
    if not (directory / PROMPTS_FILE).is_file():
        raise TestbedError(
            f"{directory / PROMPTS_FILE}: no such file; losses are measured on text, as token numbers of the model"
        )
    checkpoint, prompts = load_checkpoint(directory), Prompts.load(directory)
    rows = {domain: prompts.rows[domain][-rows_per_domain:] for domain in prompts.domains}
    return measure(checkpoint.arithmetic, rows)


def _trace(model: Arithmetic, tokens: npt.NDArray[np.int16]) -> tuple[list[Floats], list[Gate], Floats]:
    """A full-precision pass that keeps what each layer's results are added to: a change in one layer starts there."""
    seen, gates, x = [], [], model.embed(tokens)
    for layer in range(model.spec.layers):
        x = model.attend(layer, x)
        gates.append(model.gate(layer, x))
        seen.append(gates[-1].residual(x))
        x = finish(seen[-1], mixture(model, layer, gates[-1], FULL))
    return seen, gates, x


def _nll(model: Arithmetic, x: Floats, tokens: npt.NDArray[np.int16]) -> float:
    return float(next_token_nll(model.logits(x), tokens).sum())


def main() -> int:
    """Measure and store."""
    parser = argparse.ArgumentParser(prog="python -m agents.models.checkpoints.calibrate")
    parser.add_argument("directory", type=Path, help="where the checkpoint lies")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of every domain; default: %(default)s")
    chosen = parser.parse_args()
    try:
        found = calibrate(chosen.directory, max(1, chosen.rows))
        found.save(chosen.directory)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for name, loss in found.precision_loss_total.items():
        print(f"{name:<6} all layers {100 * loss:+.3f} %   worst layer {100 * max(found.precision_loss[name]):+.3f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
