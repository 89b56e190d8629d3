"""Measures a twin once, so that frameworks can plan: who uses which expert, and what fewer bits cost.

``python -m agents.models.calibrate [MODEL]`` writes ``calibration.json`` beside the weights, and what is known of every
expert (:mod:`agents.models.facts`) and of leaving early (:mod:`agents.models.exits`).  The text is the corpus's
calibration part: neither trained on nor used for prompts.

    usage[d, l, e]     share of the (token, choice) pairs of layer l that go to expert e, on text of domain d    (1)
    loss(l, p)         KL(full || all experts of layer l in precision p) / NLL of full                           (2)
    total loss(p)      the same with the experts of all layers in precision p                                    (3)

The Kullback-Leibler divergence is the rise of the negative log likelihood that is to be expected where the model is
right about the text.  The measured rise of a fraction of a percent would drown in the noise of a few thousand tokens,
and come out below zero now and then.
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
from agents.models.quantize import FULL
from testbed.errors import TestbedError

CALIBRATION_FILE = "calibration.json"
#: Relative NLL increase below which nothing is taken to be measurable.
SMALLEST_LOSS = 1e-7
#: A rise of nearly nothing, measured on little text, can come out below 0 by so much.
NOISE = 0.01
ROWS, LENGTH = 12, 128  # per domain, for (1) to (3)
EXPERT_ROWS, MANY_EXPERTS_ROWS = 6, 3  # of them, for every expert; where a layer has more than MANY_EXPERTS
MANY_EXPERTS = 16
EXIT_ROWS = 240  # a quarter for the scale of the gauges, the others for the sample


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
        if file.tokens < 1 or len(set(file.domains)) < len(file.domains):
            raise TestbedError(f"{path}: {file.tokens} tokens of {', '.join(file.domains)}; domains are named once")
        if not (usage >= 0.0).all() or not np.allclose(usage.sum(axis=2), 1.0, atol=0.05):
            raise TestbedError(f"{path}: usage must hold shares that sum to 1 in every layer of every domain")
        for precision, losses in file.precision_loss.items():
            least, most = min(losses), max(*losses, file.precision_loss_total[precision])
            total = file.precision_loss_total[precision]
            if not (min(least, total) >= -NOISE and most < float("inf")):
                raise TestbedError(f"{path}: losses of {precision} must be finite, and not below {-NOISE}")
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


def main() -> int:
    """Measure on the corpus's calibration text and store the result."""
    from agents.models import corpus
    from agents.models.fit_exits import FitRecipe, fit
    from agents.models.loader import read_spec, read_weights
    from agents.models.measure import measure, measure_experts, network_of
    from agents.models.prompts import Prompts, cut_rows, read_tokenizer

    directory = corpus.chosen_twin("python -m agents.models.calibrate", __doc__)

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        spec, tokenizer = read_spec(directory), read_tokenizer(directory)
        network = network_of(spec, read_weights(directory, spec))
        corpus.fetch()
        everything = corpus.documents()
        known = Prompts.load(directory).domains  # what the twin was trained on
        aside = {
            name: corpus.encode(tokenizer, part)
            for name, part in corpus.texts(everything, "calibration").items()
            if name in known
        }
        rows = {name: cut_rows(stream, ROWS, LENGTH) for name, stream in aside.items()}
        found = measure(network, rows)
        training = [
            corpus.encode(tokenizer, part) for name, part in corpus.texts(everything, "train").items() if name in known
        ]
        exits = fit(
            network,
            training,
            [cut_rows(stream, EXIT_ROWS, LENGTH) for stream in aside.values()],
            FitRecipe(),
            progress,
        )
        few = EXPERT_ROWS if spec.experts <= MANY_EXPERTS else MANY_EXPERTS_ROWS
        facts = measure_experts(network, [part[:few] for part in rows.values()], progress)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    found.save(directory)
    exits.save(directory)
    facts.save(directory)
    for name, loss in found.precision_loss_total.items():
        print(f"{name:<6} all layers {100 * loss:+.3f} %   worst layer {100 * max(found.precision_loss[name]):+.3f} %")
    print("exit after layer   agreement   calibration error   rise of NLL")
    for layer in range(spec.layers - 1):
        agreement = (exits.agreement[layer] * exits.count[layer]).sum() / exits.count[layer].sum()
        print(f"{layer:>16}{agreement:>12.1%}{exits.calibration_error(layer):>20.3f}{exits.rise[layer]:>+14.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
