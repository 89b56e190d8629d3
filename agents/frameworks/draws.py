"""Chance for frameworks: numbers that depend on what is decided and on nothing else.

A draw is made from the framework's name, a seed, and the request, pass and layer that it is for.  So it does not matter
in which order requests reach a server, and the same run draws the same numbers in another process, emulated or
simulated.  The run's own seed does not reach frameworks: two repeats differ in what arrives, not in these draws.

>>> draw("random", seed=0, request=7, step=0, layer=3).randrange(100)
40
>>> draw("random", seed=0, request=7, step=0, layer=3).randrange(100)
40
"""

from __future__ import annotations

import random


def draw(name: str, *, seed: int, request: int, step: int, layer: int) -> random.Random:
    """The source of one layer's draws."""
    return random.Random(f"{name} {seed} {request} {step} {layer}")  # noqa: S311 - a baseline's dice, not a secret
