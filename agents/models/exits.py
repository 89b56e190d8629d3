"""Leaving a twin early: a light head after every layer, and a gauge that says how far it can be trusted.

    z_l = x_l + x_l A_l + b_l                          the stream after layer l, carried to the end           (1)
    c_l = sigmoid(relu(norm(x_l) V_l + u_l) · w_l + v_l)    confidence that z_l says what the full model would  (2)

(1) is the tuned lens (N. Belrose et al., arXiv:2303.08112, section 3): one affine map per layer, fitted to the full
model's distribution with the model frozen; z_l goes through the model's own output projection.  (2) costs a few
thousand operations where the output projection would cost as much as an expert; it is fitted to whether the most
likely token after z_l is the full model's, and shifted and scaled on other text until it is right on average (J. Platt,
1999).  ``exits.safetensors`` also holds what exits do on calibration text that none of this was fitted on:

    wrong[g, r]    share of the tokens of row r for which some exit with c_l >= threshold g disagrees           (3)

(3) bounds whatever a policy does that leaves only where the gauge passes the threshold, whichever of those exits it
takes; a gate is calibrated from it (``agents.depth.guarantee``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from agents.models.attention import normed
from agents.models.loader import read_tensors
from agents.models.mixture import Floats
from testbed.errors import TestbedError

EXITS_FILE = "exits.safetensors"
NORM_EPS = 1e-5
#: Thresholds of (3); at the last one nothing leaves.
THRESHOLDS: Floats = np.linspace(0.0, 1.0, 201, dtype=np.float32)
#: Confidence is compared with agreement in so many bins.
BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitHeads:
    """Equations (1) and (2) for the e = layers - 1 exits before the last layer's end, and how they did."""

    maps: Floats  # (e, width, width) A_l
    shifts: Floats  # (e, width) b_l
    gauge_in: Floats  # (e, width, h) V_l
    gauge_bias: Floats  # (e, h) u_l
    gauge_out: Floats  # (e, h) w_l
    gauge_shift: Floats  # (e,) v_l
    wrong: Floats  # (len(THRESHOLDS), rows) equation (3)
    left: Floats  # (len(THRESHOLDS), e) share of the tokens whose first exit that passes is this one
    domains: npt.NDArray[np.int16]  # (rows,) which domain a row is from
    count: Floats  # (e, BINS) tokens by confidence
    confidence: Floats  # (e, BINS) their mean confidence
    agreement: Floats  # (e, BINS) share that agrees with the full model
    rise: Floats  # (e,) NLL if all tokens left there / NLL of the full model, minus 1

    def carried(self, layer: int, x: Floats) -> Floats:
        """Equation (1): what stands in for the stream after the last layer, (n, width)."""
        out: Floats = x + x @ self.maps[layer] + self.shifts[layer]
        return out

    def confident(self, layer: int, x: Floats) -> Floats:
        """Equation (2), (n,)."""
        inner = normed(x, NORM_EPS) @ self.gauge_in[layer] + self.gauge_bias[layer]
        score = np.maximum(inner, np.float32(0)) @ self.gauge_out[layer] + self.gauge_shift[layer]
        found: Floats = np.float32(0.5) * (np.tanh(np.float32(0.5) * score) + np.float32(1))
        return found

    def calibration_error(self, layer: int) -> float:
        """Expected calibration error of c_l: mean |confidence - agreement| over its bins."""
        gaps = np.abs(self.confidence[layer] - self.agreement[layer]) * self.count[layer]
        return float(gaps.sum() / self.count[layer].sum())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file beside the weights; TestbedError naming what is missing or does not fit."""
        path = directory / EXITS_FILE
        tensors = read_tensors(path)
        for field in fields(cls):
            if field.name not in tensors:
                raise TestbedError(
                    f"{path}: tensor {field.name} is missing; measure anew: python -m agents.models.calibrate"
                )
            if not np.isfinite(tensors[field.name]).all():
                raise TestbedError(f"{path}: tensor {field.name} holds values that are not finite")
        if tensors["maps"].ndim != 3 or tensors["gauge_in"].ndim != 3:
            raise TestbedError(f"{path}: tensors maps and gauge_in must have three dimensions")
        (exits, width, _), gauge, rows = tensors["maps"].shape, tensors["gauge_in"].shape[2], len(tensors["domains"])
        expected: dict[str, tuple[int, ...]] = {
            "maps": (exits, width, width),
            "shifts": (exits, width),
            "gauge_in": (exits, width, gauge),
            "gauge_bias": (exits, gauge),
            "gauge_out": (exits, gauge),
            "gauge_shift": (exits,),
            "wrong": (len(THRESHOLDS), rows),
            "left": (len(THRESHOLDS), exits),
            "domains": (rows,),
            "rise": (exits,),
        } | dict.fromkeys(("count", "confidence", "agreement"), (exits, BINS))
        for name, shape in expected.items():
            if tensors[name].shape != shape:
                raise TestbedError(f"{path}: tensor {name} has shape {tensors[name].shape}, expected {shape}")
        for name in ("wrong", "left", "agreement", "confidence"):
            lowest, highest = tensors[name].min(initial=0.0), tensors[name].max(initial=0.0)
            if lowest < 0.0 or highest > 1.0:
                raise TestbedError(f"{path}: tensor {name} holds {lowest:g} to {highest:g}; shares lie in 0 to 1")
        if (np.diff(tensors["wrong"].astype(np.float32), axis=0) > 0.0).any() or not tensors["wrong"][0].any():
            raise TestbedError(
                f"{path}: tensor wrong must fall as thresholds rise, and cannot be 0 where everybody leaves; "
                f"measure anew: python -m agents.models.calibrate"
            )
        if tensors["domains"].min(initial=0) < 0:
            raise TestbedError(f"{path}: tensor domains holds {tensors['domains'].min()}; domains count from 0")
        wide: dict[str, Any] = {name: np.ascontiguousarray(tensors[name], dtype=np.float32) for name in expected}
        return cls(**wide | {"domains": tensors["domains"].astype(np.int16)})

    def save(self, directory: Path) -> None:
        """Write the file; what is large in half precision."""
        tensors: dict[str, npt.NDArray[Any]] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("maps", "shifts", "gauge_in", "gauge_bias", "gauge_out", "left"):
            tensors[name] = tensors[name].astype(np.float16)
        save_file(tensors, directory / EXITS_FILE)
        (directory / EXITS_FILE).chmod(0o644)  # safetensors makes files that only their owner reads
