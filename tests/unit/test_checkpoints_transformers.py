"""Random checkpoints written by ``transformers`` itself: our logits are its logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is in the test extra")

from agents.models.checkpoints.load import load_checkpoint
from agents.models.reference import generate, score, through
from tests.support.transformers_cases import CASES, DECODED, LAYOUTS, TOKENS, TOLERANCE, Case, Cases, torch


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_prompt_are_those_of_transformers(name: str, cases: Cases) -> None:
    case = cases[name]
    model = load_checkpoint(case.directory).arithmetic
    expected = case.logits(TOKENS)

    found = score(model, TOKENS)

    assert np.abs(expected).max() > 0.05  # there is something to agree on
    assert np.abs(found - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", DECODED)
def test_decoding_with_caches_gives_the_logits_of_whole_passes(name: str, cases: Cases) -> None:
    case = cases[name]
    model = load_checkpoint(case.directory).arithmetic

    answer = generate(model, TOKENS[:10], 6)

    whole = [*TOKENS[:10], *answer.tokens]
    assert np.abs(answer.logits - case.logits(whole, prompt=10)[9:-1]).max() < TOLERANCE


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "switch"])
def test_decoding_a_token_gives_the_row_that_it_has_as_part_of_the_prompt(name: str, cases: Cases) -> None:
    """Not of Switch: its encoder reads the prompt as a whole, so a longer prompt is another question."""
    model = load_checkpoint(cases[name].directory).arithmetic
    caches = [model.new_cache() for _ in range(model.spec.layers)]
    through(model, model.embed(TOKENS[:-1]), caches=caches)

    last = model.logits(through(model, model.embed(TOKENS[-1:]), caches=caches, start=len(TOKENS) - 1))

    assert np.abs(last[0] - score(model, TOKENS)[-1]).max() < TOLERANCE


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_in_many_files_and_half_precision_is_the_same_model(name: str, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    case.model.to(torch.bfloat16)
    case.save(max_shard_size="30KB")
    case.reload()

    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert np.abs(score(load_checkpoint(tmp_path).arithmetic, TOKENS) - case.logits(TOKENS)).max() < TOLERANCE
