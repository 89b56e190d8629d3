"""Expert weights, read from the checkpoint when an expert is first used, and prepared in the precision asked for.

An agent that hosts three experts of a layer reads three.  What was prepared stays, up to a limit: then what was not
used for the longest goes, and is read again when it is needed; the bits are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from agents.models.checkpoints.feedforward import activated
from agents.models.checkpoints.tensors import Tensors
from agents.models.mixture import Call, Floats
from agents.models.quantize import PRECISIONS, rounded
from agents.models.spec import Activation
from testbed.errors import TestbedError

#: Prepared weights that one process keeps.  Each agent of a testbed has a process of its own.
MEMORY_BYTES = 4 * 2**30

#: Names of an expert's tensors, each stored (outputs, inputs): with SwiGLU gate, value and output, else inner, output.
ExpertNames = Callable[[int, int], tuple[str, ...]]


class Experts:
    """The experts of all layers."""

    def __init__(
        self,
        tensors: Tensors,
        names: ExpertNames,
        *,
        layers: int,
        experts: int,
        width: int,
        ffn: int,
        activation: Activation = "swiglu",
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Checks that all tensors are there in the right shape, and reads none."""
        self._tensors = tensors
        self._names = names
        self._width = width
        self._ffn = ffn
        self._activation = activation
        self._memory_bytes = memory_bytes
        self._prepared: OrderedDict[tuple[int, int, str], tuple[Floats, Floats]] = OrderedDict()
        self.held_bytes = 0
        for layer in range(layers):
            for expert in range(experts):
                *inner, outer = names(layer, expert)
                for name in inner:
                    tensors.expect(name, (ffn, width))
                tensors.expect(outer, (width, ffn))

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Of several calls, call after call, (m, width); each multiplies its own rows only."""
        out: Floats = np.empty((len(rows), self._width), np.float32)
        start = 0
        for expert, precision, count in calls:
            inner, outer = self._weights(layer, expert, precision)
            end = start + count
            active = activated(rows[start:end] @ inner, self._activation)
            np.matmul(active, outer, out=out[start:end])
            start = end
        return out

    def _weights(self, layer: int, expert: int, precision: str) -> tuple[Floats, Floats]:
        key = (layer, expert, precision)
        found = self._prepared.get(key)
        if found is not None:
            self._prepared.move_to_end(key)
            return found
        if precision not in PRECISIONS:
            raise TestbedError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
        *inner, outer = self._names(layer, expert)
        parts = [self._tensors.read(name, (self._ffn, self._width)).T for name in inner]
        found = (
            self._rounded(inner[0], np.concatenate(parts, axis=1), precision),
            self._rounded(outer, self._tensors.read(outer, (self._width, self._ffn)).T, precision),
        )
        self._keep(key, found)
        return found

    def _rounded(self, name: str, matrix: Floats, precision: str) -> Floats:
        try:
            return np.ascontiguousarray(rounded(np.ascontiguousarray(matrix), precision))
        except TestbedError as error:
            raise TestbedError(f"{self._tensors.place(name)} cannot be used in {precision}: {error}") from error

    def _keep(self, key: tuple[int, int, str], weights: tuple[Floats, Floats]) -> None:
        self._prepared[key] = weights
        self.held_bytes += sum(part.nbytes for part in weights)
        while self.held_bytes > self._memory_bytes and len(self._prepared) > 1:
            _, oldest = self._prepared.popitem(last=False)
            self.held_bytes -= sum(part.nbytes for part in oldest)
