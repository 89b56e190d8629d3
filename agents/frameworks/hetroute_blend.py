r"""Which precision each layer of a pipeline has, so that a budget is spent.  HetRoute, offline part [reconstruction].

    L(x) = sum_l loss(l, x_l)                 the most that a pass over a pipeline of recipe x can lose           (1)
    minimise  bytes(x)   subject to   L(x) <= budget,  x_l in {p, q}                                              (2)

    p  the smallest precision that a whole pass can afford       q  the next smaller one, which it cannot

(1) is a bound because the ledger charges each call gate share x loss, and the gate shares of a layer add up to 1.  All
layers of a model have the same size, so the answer to (2) is the largest number of layers in q, and those are the
layers whose loss rises least: exact, and never more bytes for a larger budget.

Ours: loss per byte saved, not per second.  A second saved belongs to one server, and who will own a layer is not
known yet; bytes decide where a layer fits, and a device that is bound by its memory reads them at a constant rate.

>>> from types import SimpleNamespace
>>> measured = SimpleNamespace(quality_loss=lambda layer, name: {"int8": 0.001, "int4": 0.006}[name] / (layer + 1))
>>> blend("int8", "int4", 4, measured, budget=0.006).precisions
('int8', 'int8', 'int4', 'int4')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agents.frameworks.expected import Floats
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The precision of every layer of a pipeline."""

    name: str  # what a placement's notes call it
    precisions: tuple[str, ...]  # by layer

    @classmethod
    def uniform(cls, precision: str, layers: int) -> Recipe:
        """One precision throughout."""
        return cls(name=precision, precisions=(precision,) * layers)

    def pick(self, table: Callable[[str], Floats]) -> Floats:
        """Of tables (..., layers), one for each precision: every layer as in its own precision."""
        tables = {precision: table(precision) for precision in dict.fromkeys(self.precisions)}
        return np.stack([tables[name][..., layer] for layer, name in enumerate(self.precisions)], axis=-1)

    def layer_bytes(self, profile: ModelProfile) -> Floats:
        """All experts of every layer (layers,), bytes; whole numbers."""
        expert_bytes = profile.expert_bytes  # made anew at every look
        return np.array([float(profile.experts * expert_bytes[name]) for name in self.precisions])

    def total_bytes(self, profile: ModelProfile) -> int:
        """The experts of all layers."""
        return int(self.layer_bytes(profile).sum())

    def loss(self, calibration: Calibration) -> float:
        """L of (1), relative."""
        return sum(calibration.quality_loss(layer, name) for layer, name in enumerate(self.precisions))


def recipes(
    precisions: Sequence[str], profile: ModelProfile, calibration: Calibration, *, budget: float
) -> tuple[Recipe, ...]:
    """What pipelines beside the guarantee may be made of: every lower precision that a whole pass can afford, and the
    blend (2) where it is none of them.  ``budget``: relative loss.

    A recipe that a whole pass cannot afford would send passes to full-precision copies far away.  So where no lower
    precision is affordable throughout, there is nothing.
    """
    lower = [Recipe.uniform(name, profile.layers) for name in precisions if name != FULL]
    affordable = [recipe for recipe in lower if recipe.loss(calibration) <= budget]
    if not affordable:
        return ()
    size_bytes = profile.expert_bytes
    base = min(affordable, key=lambda recipe: size_bytes[recipe.name]).name
    smaller = [recipe.name for recipe in lower if size_bytes[recipe.name] < size_bytes[base]]
    if not smaller:
        return tuple(affordable)
    blended = blend(base, max(smaller, key=size_bytes.__getitem__), profile.layers, calibration, budget=budget)
    return (*affordable, blended) if len(set(blended.precisions)) > 1 else tuple(affordable)


def blend(base: str, lower: str, layers: int, calibration: Calibration, *, budget: float) -> Recipe:
    """Equation (2) with p = ``base``, which must be affordable, and q = ``lower``."""
    rises = [calibration.quality_loss(layer, lower) - calibration.quality_loss(layer, base) for layer in range(layers)]
    found = Recipe.uniform(base, layers)
    for layer in sorted(range(layers), key=rises.__getitem__):
        chosen = (*found.precisions[:layer], lower, *found.precisions[layer + 1 :])
        tried = Recipe(name=f"{base}/{lower}", precisions=chosen)
        if tried.loss(calibration) > budget:
            break
        found = tried
    return found
