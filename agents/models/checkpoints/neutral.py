"""What stands in where a checkpoint's directory has no prompts or no calibration of its own.

Prompts are random tokens, drawn from a fixed seed: good for timing, and for comparing answers bit by bit, but nobody's
text.  The calibration says that every expert is used alike, and knows of no precision but full.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.models.calibrate import CALIBRATION_FILE, Calibration
from agents.models.prompts import LENGTH, ROWS, Prompts
from agents.models.quantize import FULL
from testbed.errors import TestbedError

DOMAIN = "random"
#: Prompts are stored in 16 bits, and tokens of a larger vocabulary beyond that are not drawn.
MOST_TOKENS = 2**15
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Neutral(Calibration):
    """Nothing has been measured."""

    directory: Path

    def quality_loss(self, layer: int, precision: str) -> float:
        """None for full precision; TestbedError for others, saying how to measure it."""
        if precision == FULL:
            return 0.0
        raise TestbedError(
            f"{self.directory}: what precision {precision} loses in layer {layer} has not been measured (there is no "
            f"{CALIBRATION_FILE}); measure it with `python -m agents.models.checkpoints.calibrate {self.directory}`, "
            "or use full precision only"
        )


def neutral_calibration(directory: Path, *, domains: tuple[str, ...], layers: int, experts: int) -> Neutral:
    """Uniform usage in every domain."""
    return Neutral(
        tokens=0,
        domains=domains,
        usage=np.full((len(domains), layers, experts), 1.0 / experts),
        precision_loss={FULL: (0.0,) * layers},
        precision_loss_total={FULL: 0.0},
        directory=directory,
    )


def random_prompts(vocab: int, *, positions: int | None) -> Prompts:
    """Rows of one domain, the same every time.  Half the positions of a short context are left for answers.

    >>> random_prompts(1000, positions=4096).take("random", 0, 5)
    [509, 850, 921, 636, 840]
    """
    length = LENGTH if positions is None else max(1, min(LENGTH, positions // 2))
    rows = np.random.default_rng(SEED).integers(0, min(vocab, MOST_TOKENS), size=(ROWS, length), dtype=np.int16)
    return Prompts({DOMAIN: rows})
