"""A model that computes nothing twice: pieces of the forward pass, remembered by what went into them.

The pieces of a twin are pure, and a placement moves them to other servers without touching a bit.  So where many runs
and their reference answers are computed in one process, most of their arithmetic is the same arithmetic.  Whoever asks
again for an expert on the same rows gets the bits of the first time.

Passes with a cache (generation) change that cache, and are computed each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from agents.models.arithmetic import Arithmetic, Cache, Shape
from agents.models.mixture import Call, Floats, Gate, Totals, add_experts

#: What is remembered at most, keys included; what was not asked for the longest goes first.
MEMORY_BYTES = 2**30
#: A key and the dictionary's entry, roughly.
ENTRY_BYTES = 300

Key = tuple[str, int, int, str, int, bytes]  # piece, layer, expert, precision, rows, digest of the input
Value = TypeVar("Value", bound="Floats | Gate")


class Remembering:
    """``Arithmetic`` that asks another one once for each distinct piece of work."""

    def __init__(self, model: Arithmetic, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._model = model
        self._memory_bytes = memory_bytes
        self._known: OrderedDict[Key, tuple[Floats | Gate, int]] = OrderedDict()
        self.held_bytes = 0
        self.asked = 0
        self.computed = 0

    @property
    def spec(self) -> Shape:
        """The model's shape."""
        return self._model.spec

    @property
    def measures_quality(self) -> bool:
        """Whether the model's logits mean something."""
        return self._model.measures_quality

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """The model's."""
        return self._model.embed(tokens)

    def new_cache(self, capacity: int = 64) -> Cache:
        """The model's."""
        return self._model.new_cache(capacity)

    def attend(self, layer: int, x: Floats, cache: Cache | None = None, start: int = 0) -> Floats:
        """The model's, remembered where there is no cache to fill."""
        if cache is not None or start:
            return self._model.attend(layer, x, cache, start)
        return self._recall(("attend", layer, 0, "", len(x), _digest(x)), lambda: self._model.attend(layer, x))

    def gate(self, layer: int, x: Floats) -> Gate:
        """The model's, remembered."""
        return self._recall(("gate", layer, 0, "", len(x), _digest(x)), lambda: self._model.gate(layer, x))

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """The model's; what is not remembered of several calls is computed together."""
        found: list[Floats | None] = []
        keys, missing, gaps = [], [], []
        start = 0
        for expert, precision, count in calls:
            key = ("expert", layer, expert, precision, count, _digest(rows[start : start + count]))
            known = self._known.get(key)
            self.asked += 1
            if known is None:
                keys.append(key)
                missing.append((expert, precision, count))
                gaps.append((len(found), start, start + count))
                found.append(None)
            else:
                self._known.move_to_end(key)
                found.append(known[0])  # type: ignore[arg-type]  # an expert's key holds an expert's rows
            start += count
        if missing:
            self.computed += len(missing)
            wanted = rows if len(missing) == len(calls) else np.concatenate([rows[a:b] for _, a, b in gaps])
            computed = self._model.outputs(layer, missing, wanted)
            start = 0
            for key, (place, first, end) in zip(keys, gaps, strict=True):
                part = computed[start : start + end - first]
                start += end - first
                # A part of its own, or remembering one expert would keep all the others alive.
                found[place] = part = part.copy()
                self._keep(key, part)
        return np.concatenate([part for part in found if part is not None])

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """The model's, with remembered outputs."""
        add_experts(calls, self.outputs(layer, calls, hidden[index]), weights, index, total)

    def logits(self, x: Floats) -> Floats:
        """The model's: large, and asked for rarely."""
        return self._model.logits(x)

    def _recall(self, key: Key, compute: Callable[[], Value]) -> Value:
        self.asked += 1
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found[0]  # type: ignore[return-value]  # what a key's piece returns is always the same type
        value = compute()
        self.computed += 1
        self._keep(key, value)
        return value

    def _keep(self, key: Key, value: Floats | Gate) -> None:
        arrays = _arrays(value) if isinstance(value, Gate) else (value,)
        for array in arrays:
            array.flags.writeable = False
        size_bytes = ENTRY_BYTES + sum(array.nbytes for array in arrays)
        self._known[key] = value, size_bytes
        self.held_bytes += size_bytes
        while self.held_bytes > self._memory_bytes:
            self.held_bytes -= self._known.popitem(last=False)[1][1]


def _arrays(gate: Gate) -> tuple[npt.NDArray[Any], ...]:
    arrays = (gate.hidden, gate.experts, gate.weights)
    return arrays if gate.shared is None else (*arrays, gate.shared)


def _digest(rows: Floats) -> bytes:
    """Sixteen bytes that name these bits: among 10^9 pieces, two alike by accident are as likely as 10^-21."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(rows).data)
