"""Quality as whole runs record it, against the same answers computed here by other means."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.models.cloze import cloze_items, pieces_beside
from agents.models.mixture import Floats
from agents.models.quantize import FULL
from agents.models.reference import score
from agents.protocol import Logits
from orchestration import session
from orchestration.divergences import Divergences
from tests.support.simulated import TWIN, compared, errors, every, requests, run, scenario, simulate, topology, twin

SMALL = topology("small3")
HOMES = ["s2", "s3", "s1"]
PLAYED = scenario(requests(HOMES, every(0.1, to_s=1.1), tokens=100))


def divergence(reference: Floats, served: Floats) -> float:
    """Σ p ln(p / q) / n, with probabilities from a plain softmax."""
    p, q = (np.exp(logits.astype(np.float64)) for logits in (reference, served))
    p, q = p / p.sum(axis=1)[:, None], q / q.sum(axis=1)[:, None]
    return float(np.sum(p * np.log(p / q))) / len(p)


def nll(logits: Floats, tokens: list[int]) -> float:
    """Mean over the predicted tokens."""
    rows = [[float(value) for value in row] for row in logits]
    wanted = [math.log(sum(map(math.exp, row))) - row[token] for row, token in zip(rows, tokens[1:], strict=False)]
    return sum(wanted) / len(wanted)


def test_what_a_lossy_framework_records_is_what_an_independent_computation_finds(tmp_path: Path) -> None:
    found = run(PLAYED, "edgeshard-int4", SMALL, tmp_path)

    assert errors(found) == {}
    pieces = pieces_beside(TWIN)
    assert pieces is not None
    items = 0
    for row, request in zip(found.requests.iter_rows(named=True), PLAYED.requests, strict=True):
        tokens = twin().prompts.take(request.domain, request.prompt, request.tokens)
        reference, served = (score(twin().twin, tokens, precision) for precision in (FULL, "int4"))
        guesses, others = served.argmax(axis=1).tolist(), reference.argmax(axis=1).tolist()
        words = cloze_items(tokens, pieces)
        items += len(words)
        assert row["exact"] is False
        assert row["kl"] == pytest.approx(divergence(reference, served), rel=1e-9)
        assert row["kl"] > 0
        assert row["nll"] == pytest.approx(nll(served, tokens), rel=1e-5)
        assert row["reference_nll"] == pytest.approx(nll(reference, tokens), rel=1e-5)
        assert row["correct"] == sum(guesses[i - 1] == tokens[i] for i in range(1, len(tokens)))
        assert row["reference_correct"] == sum(others[i - 1] == tokens[i] for i in range(1, len(tokens)))
        assert row["top1_agreement"] == pytest.approx(np.mean(np.array(guesses) == np.array(others)))
        assert row["cloze_items"] == len(words)
        assert row["cloze_hits"] == sum(guesses[a - 1 : b - 1] == tokens[a:b] for a, b in words)
        assert row["reference_cloze_hits"] == sum(others[a - 1 : b - 1] == tokens[a:b] for a, b in words)
    assert items > 10


def test_an_exact_framework_loses_exactly_nothing(tmp_path: Path) -> None:
    table = run(replace(PLAYED, quality_budget=0.0), "edgeshard", SMALL, tmp_path).requests

    assert table["kl"].to_list() == [0.0] * len(PLAYED.requests)
    assert table["top1_agreement"].to_list() == [1.0] * len(PLAYED.requests)
    for name in ("nll", "correct", "cloze_hits"):
        assert table[name].to_list() == table[f"reference_{name}"].to_list()


def test_generated_text_has_no_divergence_and_no_items(tmp_path: Path) -> None:
    played = scenario(requests(HOMES, every(0.2, to_s=1.1), output_tokens=2))

    table = run(played, "edgeshard-int4", SMALL, tmp_path).requests

    for name in ("kl", "correct", "reference_correct", "cloze_items", "cloze_hits", "reference_cloze_hits"):
        assert table[name].null_count() == table.height
    assert table["top1_agreement"].null_count() == 0


def test_only_logits_that_the_orchestrator_lacks_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[list[int]] = []

    class Counted(Divergences):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            heard.append([])

        def hear(self, report: Logits) -> None:
            heard[-1].append(report.request)
            super().hear(report)

    monkeypatch.setattr(session, "Divergences", Counted)
    frameworks = ["edgeshard", "edgeshard-int4", "greedy"]

    simulate(compared(PLAYED, frameworks, SMALL), tmp_path / "results")

    everyone = [request.number for request in PLAYED.requests]
    first, lossy, exact = heard
    # In virtual time references are computed as requests end, so the first framework cannot know them yet.
    assert sorted(first) == everyone
    assert sorted(lossy) == everyone
    assert exact == []
