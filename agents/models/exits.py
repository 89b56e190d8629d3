"""Leaving a twin early: a light head after every layer, and how far its confidence can be trusted.

    z_l   = x_l + x_l A_l + b_l               the stream after layer l, carried to where the last layer would end  (1)
    p_l   = softmax(logits(z_l) / T_l)        the twin's own output projection; T_l calibrates the confidence      (2)
    c_l   = max p_l                           confidence of an exit after layer l                                  (3)

(1) is the tuned lens (N. Belrose et al., arXiv:2303.08112, section 3): one affine map per layer, fitted to the full
model's distribution with the model frozen.  (2) is temperature scaling (C. Guo et al., arXiv:1706.04599, section 4.2),
fitted so that c_l is the probability that the exit says what the full model would.  ``exits.safetensors`` also holds
what every exit did on each token of calibration text that neither was fitted on, so that whoever gates exits can
choose a threshold with a guarantee: confidence, agreement with the full model's choice, and the rise of the NLL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from agents.models.arithmetic import Arithmetic
from agents.models.loader import read_tensors
from agents.models.mixture import Floats
from testbed.errors import TestbedError

EXITS_FILE = "exits.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitHeads:
    """Equations (1) and (2) for every layer but the last, and the calibration sample of m tokens."""

    maps: Floats  # (layers - 1, width, width) A_l
    shifts: Floats  # (layers - 1, width) b_l
    temperatures: Floats  # (layers - 1,)
    confidence: Floats  # (layers - 1, m)
    agrees: npt.NDArray[np.bool_]  # (layers - 1, m) whether the most likely token is the full model's
    rise: Floats  # (layers - 1, m) NLL of the next token minus the full model's, nats
    full_nll: float  # of the full model on these tokens, nats per token

    def carried(self, layer: int, x: Floats) -> Floats:
        """Equation (1): what stands in for the stream after the last layer, (n, width)."""
        out: Floats = x + x @ self.maps[layer] + self.shifts[layer]
        return out

    def logits(self, twin: Arithmetic, layer: int, x: Floats) -> Floats:
        """Scores of the next token when the streams ``x`` leave after ``layer``, (n, vocab)."""
        return twin.logits(self.carried(layer, x))

    def confident(self, layer: int, logits: Floats) -> Floats:
        """Equations (2) and (3) of these scores, (n,)."""
        scaled = (logits - logits.max(axis=1, keepdims=True)) / self.temperatures[layer]
        found: Floats = 1.0 / np.exp(scaled).sum(axis=1)
        return found

    def calibration_error(self, layer: int, bins: int = 10) -> float:
        """Expected calibration error of c_l on the sample: mean |confidence - agreement| over bins of confidence."""
        confidence, agrees = self.confidence[layer], self.agrees[layer]
        place = np.minimum((confidence * bins).astype(int), bins - 1)
        gaps = [abs(float((confidence - agrees)[place == each].sum())) for each in range(bins)]
        return sum(gaps) / len(confidence)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file beside the weights; TestbedError naming what is missing or does not fit."""
        path = directory / EXITS_FILE
        tensors = read_tensors(path)
        for name in ("maps", "shifts", "temperatures", "confidence", "agrees", "rise", "full_nll"):
            if name not in tensors:
                raise TestbedError(f"{path}: tensor {name} is missing; measure anew: python -m agents.models.calibrate")
            if not np.isfinite(tensors[name]).all():
                raise TestbedError(f"{path}: tensor {name} holds values that are not finite")
        exits, tokens = tensors["confidence"].shape
        width = tensors["maps"].shape[-1]
        expected = {"maps": (exits, width, width), "shifts": (exits, width), "temperatures": (exits,)}
        expected |= {"agrees": (exits, tokens), "rise": (exits, tokens)}
        for name, shape in expected.items():
            if tensors[name].shape != shape:
                raise TestbedError(f"{path}: tensor {name} has shape {tensors[name].shape}, expected {shape}")
        return cls(
            maps=_wide(tensors["maps"]),
            shifts=_wide(tensors["shifts"]),
            temperatures=_wide(tensors["temperatures"]),
            confidence=_wide(tensors["confidence"]),
            agrees=tensors["agrees"].astype(bool),
            rise=_wide(tensors["rise"]),
            full_nll=float(tensors["full_nll"][0]),
        )

    def save(self, directory: Path) -> None:
        """Write the file, in half precision."""
        tensors: dict[str, npt.NDArray[Any]] = {
            name: getattr(self, name).astype(np.float16) for name in ("maps", "shifts", "confidence", "rise")
        }
        tensors |= {
            "temperatures": self.temperatures,
            "agrees": self.agrees.astype(np.uint8),
            "full_nll": np.array([self.full_nll], np.float32),
        }
        save_file(tensors, directory / EXITS_FILE)
        (directory / EXITS_FILE).chmod(0o644)  # safetensors makes files that only their owner reads


def _wide(tensor: npt.NDArray[Any]) -> Floats:
    return np.ascontiguousarray(tensor, dtype=np.float32)
