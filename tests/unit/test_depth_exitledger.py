"""Early answers and the ledger: the surest leave first, and never for more than there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.depth import reference
from agents.depth.calm import Calm
from agents.depth.exitledger import EXIT_LOSS, afforded
from agents.depth.registry import check_measured, create
from agents.errors import FrameworkError
from agents.models.mixture import Floats
from agents.models.model import Model
from agents.models.reference import score

MODELS = Path(__file__).parents[2] / "agents" / "models"
ROWS, TOKENS = 8, 64  # per domain


@given(
    sure=st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=40),
    room=st.floats(-0.1, 0.5),
)
def test_who_leaves_fits_the_room_and_is_surer_than_who_stays(sure: list[float], room: float) -> None:
    confident = np.array(sure, dtype=np.float32)

    leaves, loss = afforded(confident, tokens=len(sure), room=room)

    assert not leaves.any() or loss <= room + 1e-12
    assert loss == pytest.approx(EXIT_LOSS * (1.0 - confident[leaves].astype(float)).sum() / len(sure))
    if leaves.any() and not leaves.all():
        assert confident[leaves].min() >= confident[~leaves].max()


def test_with_room_for_everybody_everybody_leaves() -> None:
    leaves, _ = afforded(np.full(5, 0.9, dtype=np.float32), tokens=5, room=EXIT_LOSS)

    assert leaves.all()


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen1.5-moe-a2.7b", "switch-base-8"])
def test_in_every_domain_early_answers_lose_no_more_than_they_are_charged(name: str) -> None:
    model = Model.load(MODELS / f"{name}-twin")
    assert model.exits is not None
    exits, policy = model.exits, Calm({"risk": 0.1})
    policy.begin(None, exits, quality_budget=0.0)  # type: ignore[arg-type]  # it looks at the heads only
    for domain, rows in model.prompts.rows.items():
        lost = nll = charged = 0.0
        tokens = 0

        def leaves(layer: int, stream: Floats) -> np.ndarray:
            nonlocal charged
            gone = policy.leaves(layer, stream, None)  # type: ignore[arg-type]
            if gone.any():
                charged += float((1.0 - exits.confident(layer, stream[gone])).sum())
            return gone

        for row in rows[:: len(rows) // ROWS][:ROWS, :TOKENS].tolist():
            full = log_softmax(score(model.twin, row))
            logits, _ = reference.score(model.twin, exits, leaves, row)
            nll -= full[np.arange(len(row) - 1), row[1:]].sum()
            lost += (np.exp(full) * (full - log_softmax(logits))).sum()
            tokens += len(row)
        assert charged > 0.0
        assert lost / nll <= EXIT_LOSS * charged / tokens, domain


def log_softmax(logits: Floats) -> np.ndarray:
    below = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["calm:2", "exit-only:1", "trimmoe:-0.1", "skip-layers:1.5", "calm:nan"])
def test_a_number_that_is_no_share_is_refused_with_the_policy_s_name(name: str) -> None:
    with pytest.raises(FrameworkError, match=name.partition(":")[0]):
        create(name)


def test_a_policy_without_measurements_to_decide_with_is_refused() -> None:
    check_measured("none", None, None)
    for name in ("trimmoe", "skip-only", "exit-only", "calm:0.1", "skip-layers:0.25"):
        with pytest.raises(FrameworkError, match="has nothing to decide with"):
            check_measured(name, None, None)
