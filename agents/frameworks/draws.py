"""Chance for frameworks: numbers that depend on what is decided and on nothing else.

A draw is made from the framework's name and its ``seed`` option, the seed of the run, and the request, pass and layer
that it is for.  So it does not matter in which order requests reach a server, the same run draws the same numbers in
another process, emulated or simulated, and two repeats draw different ones.

>>> draw("random", seed=0, run=1, request=7, step=0, layer=3).randrange(100)
60
>>> draw("random", seed=0, run=2, request=7, step=0, layer=3).randrange(100)
65
"""

from __future__ import annotations

import random


def draw(name: str, *, seed: int, run: int, request: int, step: int, layer: int) -> random.Random:
    """The source of one layer's draws; ``run`` is the seed of the run (``View.seed``)."""
    return random.Random(f"{name} {seed} {run} {request} {step} {layer}")  # noqa: S311 - a baseline's dice, not a secret
