"""The exit gate of the stored twins on text that nothing was fitted or calibrated on: what is promised is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.depth import reference
from agents.depth.calm import Calm
from agents.depth.guarantee import calibrate
from agents.depth.leaving import STAYS
from agents.models.model import Model
from agents.models.reference import score

MODELS = Path(__file__).parents[2] / "agents" / "models"
RISK, FAILURE = 0.05, 0.1
ROWS, TOKENS = 8, 64  # per domain


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen1.5-moe-a2.7b", "switch-base-8"])
def test_in_every_domain_fewer_tokens_leave_wrongly_than_was_promised(name: str) -> None:
    model = Model.load(MODELS / f"{name}-twin")
    assert model.exits is not None
    gate = calibrate(model.exits, risk=RISK, failure=FAILURE)
    assert gate.threshold <= 1.0, "there is something to hold against the promise"
    policy = Calm({"risk": RISK, "failure": FAILURE})
    policy.begin(None, model.exits, quality_budget=0.0)  # type: ignore[arg-type]  # it looks at the heads only

    def leaves(layer: int, stream: np.ndarray) -> np.ndarray:
        return policy.leaves(layer, stream, None)  # type: ignore[arg-type]

    left_at_all = 0
    for domain, rows in model.prompts.rows.items():
        wrong = 0
        for row in rows[:: len(rows) // ROWS][:ROWS, :TOKENS]:
            tokens = row.tolist()
            full = score(model.twin, tokens).argmax(axis=1)
            logits, left = reference.score(model.twin, model.exits, leaves, tokens)
            gone = left != STAYS
            left_at_all += int(gone.sum())
            wrong += int((logits.argmax(axis=1)[: len(left)] != full)[gone].sum()) if len(left) else 0
        assert wrong / (ROWS * TOKENS) <= RISK, domain
    assert left_at_all > 0
