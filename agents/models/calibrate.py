"""Measures a twin once, so that frameworks can plan: who uses which expert, and what fewer bits cost.

``python -m agents.models.calibrate`` writes ``calibration.json`` beside the weights.  The text is the corpus's
calibration part: neither trained on nor used for prompts.

    usage[d, l, e]     share of the (token, choice) pairs of layer l that go to expert e, on text of domain d    (1)
    loss(l, p)         NLL with all experts of layer l in precision p / NLL with none, minus 1                   (2)
    total loss(p)      the same with the experts of all layers in precision p                                    (3)

(2) is measured with its sign: the difference is small, and on a finite text it may come out a little below zero.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from agents.models.loader import read_json
from agents.models.quantize import FULL, PRECISIONS
from agents.models.reference import mixture, next_token_nll, through
from agents.models.twin import Gate, Twin, finish
from testbed.errors import TestbedError

CALIBRATION_FILE = "calibration.json"
#: Relative NLL increase below which nothing is taken to be measurable.
SMALLEST_LOSS = 1e-7
ROWS, LENGTH = 12, 128  # per domain


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tokens: int
    domains: list[str]
    usage: list[list[list[float]]]
    precision_loss: dict[str, list[float]]
    precision_loss_total: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured; full precision loses nothing by definition."""

    tokens: int  # how many were scored
    domains: tuple[str, ...]
    usage: npt.NDArray[np.float64]  # (domains, layers, experts); sums to 1 over experts
    precision_loss: Mapping[str, tuple[float, ...]]  # precision -> equation (2) per layer
    precision_loss_total: Mapping[str, float]  # equation (3)

    def quality_loss(self, layer: int, precision: str) -> float:
        """Relative NLL increase to reckon with when layer's experts all run in this precision.

        A lossy precision is never free: one layer's loss is about the noise of its measurement, and where that came out
        low, the layer's share of the total stands in.  So a budget of 0 buys nothing but full precision.
        """
        losses = self.precision_loss.get(precision)
        if losses is None:
            raise TestbedError(
                f"no measured loss of precision {precision!r}; known are {', '.join(self.precision_loss)}"
            )
        if precision == FULL:
            return 0.0
        return max(losses[layer], self.precision_loss_total[precision] / len(losses), SMALLEST_LOSS)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file that lies beside the weights."""
        path = directory / CALIBRATION_FILE
        file = read_json(path, _File)
        try:
            usage = np.array(file.usage, dtype=np.float64)
        except ValueError as error:
            raise TestbedError(f"{path}: usage is not rectangular") from error
        if usage.ndim != 3 or len(usage) != len(file.domains):
            raise TestbedError(
                f"{path}: usage has shape {usage.shape}, expected ({len(file.domains)}, layers, experts)"
            )
        for precision, losses in file.precision_loss.items():
            if len(losses) != usage.shape[1] or precision not in file.precision_loss_total:
                raise TestbedError(
                    f"{path}: losses of {precision} do not cover {usage.shape[1]} layers and their total"
                )
        return cls(
            tokens=file.tokens,
            domains=tuple(file.domains),
            usage=usage,
            precision_loss={name: tuple(losses) for name, losses in file.precision_loss.items()},
            precision_loss_total=file.precision_loss_total,
        )

    def save(self, directory: Path) -> None:
        """Write the file, rounded to what the measurement can tell."""
        file = _File(
            tokens=self.tokens,
            domains=list(self.domains),
            usage=self.usage.round(4).tolist(),
            precision_loss={name: [round(x, 7) for x in losses] for name, losses in self.precision_loss.items()},
            precision_loss_total={name: round(loss, 7) for name, loss in self.precision_loss_total.items()},
        )
        (directory / CALIBRATION_FILE).write_bytes(msgspec.json.encode(file) + b"\n")


def measure(twin: Twin, rows: Mapping[str, npt.NDArray[np.int16]]) -> Calibration:
    """Equations (1) to (3) on token rows of every domain."""
    layers, lossy = twin.spec.layers, [name for name in PRECISIONS if name != FULL]
    usage = np.zeros((len(rows), layers, twin.spec.experts))
    base = 0.0
    each = {name: np.zeros(layers) for name in lossy}
    total = dict.fromkeys(lossy, 0.0)
    for domain, texts in enumerate(rows.values()):
        for tokens in texts:
            attended, gates, x = _trace(twin, tokens)
            usage[domain] += [np.bincount(gate.experts.ravel(), minlength=twin.spec.experts) for gate in gates]
            base += _nll(twin, x, tokens)
            for name in lossy:
                total[name] += _nll(twin, through(twin, twin.embed(tokens), precision=name), tokens)
                for layer in range(layers):
                    x = finish(attended[layer], mixture(twin, layer, gates[layer], name))
                    each[name][layer] += _nll(twin, through(twin, x, first=layer + 1), tokens)
    return Calibration(
        tokens=sum(texts.size for texts in rows.values()),
        domains=tuple(rows),
        usage=usage / usage.sum(axis=2, keepdims=True),
        precision_loss={FULL: (0.0,) * layers} | {name: tuple((each[name] / base - 1).tolist()) for name in lossy},
        precision_loss_total={FULL: 0.0} | {name: total[name] / base - 1 for name in lossy},
    )


def _trace(
    twin: Twin, tokens: npt.NDArray[np.int16]
) -> tuple[list[npt.NDArray[np.float32]], list[Gate], npt.NDArray[np.float32]]:
    """A full-precision pass that keeps what each layer's experts got, so that a change in one layer starts there."""
    attended, gates, x = [], [], twin.embed(tokens)
    for layer in range(twin.spec.layers):
        attended.append(twin.attend(layer, x))
        gates.append(twin.gate(layer, attended[-1]))
        x = finish(attended[-1], mixture(twin, layer, gates[-1], FULL))
    return attended, gates, x


def _nll(twin: Twin, x: npt.NDArray[np.float32], tokens: npt.NDArray[np.int16]) -> float:
    return float(next_token_nll(twin.logits(x), tokens).sum())


def main() -> int:
    """Measure on the corpus's calibration text and store the result."""
    from agents.models import corpus
    from agents.models.prompts import cut_rows, read_tokenizer

    directory = corpus.TWIN_DIRECTORY
    try:
        twin, tokenizer = Twin.load(directory), read_tokenizer(directory)
        corpus.fetch()
        text = corpus.texts(corpus.documents(), "calibration")
        rows = {name: cut_rows(corpus.encode(tokenizer, part), ROWS, LENGTH) for name, part in text.items()}
        found = measure(twin, rows)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    found.save(directory)
    for name, loss in found.precision_loss_total.items():
        print(f"{name:<6} all layers {100 * loss:+.3f} %   worst layer {100 * max(found.precision_loss[name]):+.3f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
