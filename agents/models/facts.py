"""What is measured once about every expert of a twin, stored as ``experts.safetensors`` beside the weights.

    coactivation[d, l, e, f]   share of the tokens of domain d that choose e and f together in layer l          (1)
    transition[l, e, f]        share of f among the choices in layer l + 1 of the tokens that chose e in l      (2)
    loss[p][l, e]              KL(full || e in precision p) / NLL / share of e                                  (3)
    importance[l, e]           KL(full || without e's results) / NLL / share of e                               (4)
    similarity[l, e, f]        cosine of the router logits of e and f over the tokens                           (5)
    difference[l, e, f]        |y_f - y_e| / |y_e| over the tokens that chose e                                 (6)

KL is per token and counts what follows in later layers and tokens; NLL is the full model's, per token.  Divided by e's
share of the layer's gate weight, (3) and (4) are rates: what a token loses whose whole gate weight goes to e.  The
Kullback-Leibler divergence is the expected rise of the negative log likelihood where the model is right about the
text; unlike the measured rise it is not drowned by the noise of a few thousand tokens.

A substitute f for e costs about ``importance · difference²`` [reconstruction]: a small change of a layer's result costs
its square, and leaving e out is a change of relative size 1.  ``similarity`` is OrderMoE's measure (arXiv:2607.17154).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from agents.models.loader import read_tensors
from agents.models.quantize import FORMATS
from testbed.errors import TestbedError

FACTS_FILE = "experts.safetensors"
#: A divergence of nearly nothing, in single precision, can come out below 0 by so much.
ROUNDING = 1e-5

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """Equations (1) to (6); an expert that no token chose has the mean rate of its layer."""

    coactivation: Floats  # (domains, layers, experts, experts)
    transition: Floats  # (layers - 1, experts, experts)
    loss: Mapping[str, Floats]  # precision -> (layers, experts)
    importance: Floats  # (layers, experts)
    similarity: Floats  # (layers, experts, experts)
    difference: Floats  # (layers, experts, experts)

    def substitution_loss(self, layer: int, expert: int, substitute: int) -> float:
        """What it costs per gate weight to run ``substitute`` in the place of ``expert``, as a relative rise of NLL.

        Never more than leaving the expert out would: whoever plans may do that instead.
        """
        share = min(1.0, float(self.difference[layer, expert, substitute]) ** 2)
        return float(self.importance[layer, expert]) * share

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file beside the weights; TestbedError naming what is missing or does not fit."""
        path = directory / FACTS_FILE
        tensors = read_tensors(path)
        names = ("coactivation", "transition", "importance", "similarity", "difference")
        for name in (*names, *(f"loss/{precision}" for precision in FORMATS)):
            if name not in tensors:
                raise TestbedError(f"{path}: tensor {name} is missing; measure anew: python -m agents.models.calibrate")
        if tensors["importance"].ndim != 2:
            raise TestbedError(f"{path}: tensor importance must have two dimensions, layers and experts")
        layers, experts = tensors["importance"].shape
        square = (experts, experts)
        expected: dict[str, tuple[int, ...]] = {
            "transition": (layers - 1, *square),
            "similarity": (layers, *square),
            "difference": (layers, *square),
        }
        expected |= {f"loss/{precision}": (layers, experts) for precision in FORMATS}
        for name, shape in expected.items():
            if tensors[name].shape != shape:
                raise TestbedError(f"{path}: tensor {name} has shape {tensors[name].shape}, expected {shape}")
        if tensors["coactivation"].shape[1:] != (layers, *square) or not len(tensors["coactivation"]):
            raise TestbedError(f"{path}: tensor coactivation has shape {tensors['coactivation'].shape}")
        wide = {name: np.asarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
        for name, tensor in wide.items():
            if not np.isfinite(tensor).all():
                raise TestbedError(f"{path}: tensor {name} holds values that are not finite")
            if name != "similarity" and tensor.min(initial=0.0) < -ROUNDING:
                raise TestbedError(f"{path}: tensor {name} holds {tensor.min():g}; shares and rates are never below 0")
        if not wide["importance"].sum(axis=1).all():
            raise TestbedError(
                f"{path}: tensor importance is 0 for a whole layer; nothing can be left out at no cost, so measure "
                f"anew: python -m agents.models.calibrate"
            )
        return cls(
            coactivation=wide["coactivation"],
            transition=wide["transition"],
            loss={precision: wide[f"loss/{precision}"] for precision in FORMATS},
            importance=wide["importance"],
            similarity=wide["similarity"],
            difference=wide["difference"],
        )

    def save(self, directory: Path) -> None:
        """Write the file: rates in single, shares and cosines in half precision."""
        tensors: dict[str, npt.NDArray[Any]] = {
            "coactivation": self.coactivation.astype(np.float16),
            "transition": self.transition.astype(np.float16),
            "similarity": self.similarity.astype(np.float16),
            "difference": self.difference.astype(np.float16),
            "importance": self.importance.astype(np.float32),
        }
        tensors |= {f"loss/{precision}": rates.astype(np.float32) for precision, rates in self.loss.items()}
        save_file(tensors, directory / FACTS_FILE)
        (directory / FACTS_FILE).chmod(0o644)  # safetensors makes files that only their owner reads
