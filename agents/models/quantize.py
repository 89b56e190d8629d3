"""Experts in fewer bits: real integers and scales, and the float32 weights that they stand for.

    int8   one scale per output channel, integers in [-127, 127]
    int4   one scale per output channel and group of 32 inputs (all, where there are fewer), integers in [-7, 7]

    v = rint(w / s),  s = max |w| / levels,  w' = v · s        so |w - w'| <= s / 2

The arithmetic stays float32 on w', as on devices that store few bits and multiply in half precision.  The model's
dense part is never quantised.

>>> matrix = quantize(np.array([[0.5], [-1.0]], np.float32), "int8")
>>> matrix.values.ravel().tolist(), round(float(matrix.scales[0, 0]), 4)
([64, -127], 0.0079)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.errors import TestbedError

FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a precision stores a matrix."""

    levels: int  # largest integer
    bits: int
    group: int | None  # inputs that share a scale; None means all


FORMATS = {"int8": Format(levels=127, bits=8, group=None), "int4": Format(levels=7, bits=4, group=32)}
PRECISIONS = (FULL, *FORMATS)  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """Integers and scales of a matrix (inputs, outputs)."""

    precision: str
    values: npt.NDArray[np.int8]  # (inputs, outputs)
    scales: npt.NDArray[np.float32]  # (groups, outputs)

    @property
    def stored_bytes(self) -> int:
        """Size when packed, with scales in half precision."""
        return -(-self.values.size * FORMATS[self.precision].bits // 8) + 2 * self.scales.size

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The float32 matrix that it stands for."""
        groups, outputs = self.scales.shape
        grouped = self.values.reshape(groups, -1, outputs).astype(np.float32)
        return (grouped * self.scales[:, None]).reshape(self.values.shape)


def quantize(matrix: npt.NDArray[np.float32], precision: str) -> QuantizedMatrix:
    """Round a matrix (inputs, outputs) to the integers of a precision."""
    form = FORMATS.get(precision)
    if form is None:
        raise TestbedError(f"unknown integer precision {precision!r}; known are {', '.join(FORMATS)}")
    inputs, outputs = matrix.shape
    group = min(form.group or inputs, inputs)
    if inputs % group:
        raise TestbedError(f"{precision} groups {group} inputs, which does not divide {inputs}")
    grouped = matrix.reshape(inputs // group, group, outputs)
    scales = (np.abs(grouped).max(axis=1) / np.float32(form.levels)).astype(np.float32)  # (groups, outputs)
    divisor = np.where(scales > 0, scales, np.float32(1))
    values = np.rint(grouped / divisor[:, None]).astype(np.int8).reshape(inputs, outputs)
    return QuantizedMatrix(precision=precision, values=values, scales=scales)


def rounded(matrix: npt.NDArray[np.float32], precision: str) -> npt.NDArray[np.float32]:
    """The float32 weights that a replica in this precision computes with."""
    return matrix if precision == FULL else quantize(matrix, precision).dequantize()
