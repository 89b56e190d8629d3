"""The stored twins: they have learnt, all experts work, domains differ, fewer bits cost little."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from agents.models.calibrate import Calibration
from agents.models.evaluate import distance, evaluate
from agents.models.exits import ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts, read_tokenizer
from agents.models.spec import TWINS, twin_directory
from agents.models.twin import Twin

STRIDE = 32  # every how many held-out rows one is scored


STORED = [name for name in TWINS if twin_directory(name).is_dir()]


@pytest.fixture(scope="module", params=STORED)
def directory(request: pytest.FixtureRequest) -> Path:
    return twin_directory(request.param)


@pytest.fixture(scope="module")
def twin(directory: Path) -> Twin:
    return Twin.load(directory)


@pytest.fixture(scope="module")
def prompts(directory: Path) -> Prompts:
    return Prompts.load(directory)


def test_three_twins_are_stored() -> None:
    assert set(STORED) == {"mixtral-8x7b", "qwen1.5-moe-a2.7b", "switch-base-8"}


def test_the_weights_are_small_enough_for_a_repository(directory: Path) -> None:
    assert (directory / "weights.safetensors").stat().st_size < 16e6


def test_it_has_the_layers_and_experts_of_the_model_it_stands_for(twin: Twin) -> None:
    profile = ModelProfile.load(twin.spec.name)

    assert (twin.spec.layers, twin.spec.experts, twin.spec.top_k) == (profile.layers, profile.experts, profile.top_k)


def test_held_out_prompts_are_enough_and_fit_the_model(twin: Twin, prompts: Prompts) -> None:
    assert {"code", "docs", "shakespeare"} <= set(prompts.domains)
    assert prompts.count >= 256
    assert max(int(rows.max()) for rows in prompts.rows.values()) < twin.spec.vocab
    assert min(rows.shape[1] for rows in prompts.rows.values()) <= twin.spec.context


def test_it_predicts_unseen_text_far_better_than_chance_and_uses_experts_by_domain(
    twin: Twin, prompts: Prompts, directory: Path
) -> None:
    tokenizer = read_tokenizer(directory)
    found = {domain: evaluate(twin, tokenizer, prompts.rows[domain][::STRIDE]) for domain in prompts.domains}

    for quality, _ in found.values():
        assert quality.nats_per_token < 0.6 * math.log(twin.spec.vocab)
        assert quality.bits_per_byte < 2.9
    apart = distance({domain: usage for domain, (_, usage) in found.items()})
    assert apart.mean() > 0.15  # 0 would be equal use
    assert np.mean([usage for _, usage in found.values()], axis=0).min() > 0.0


def test_every_expert_has_work_in_the_calibration(twin: Twin, directory: Path) -> None:
    calibration = Calibration.load(directory)

    assert calibration.usage.shape == (len(calibration.domains), twin.spec.layers, twin.spec.experts)
    assert (
        np.count_nonzero(calibration.usage.mean(axis=0) < 0.04 / twin.spec.experts) <= 0.01 * calibration.usage[0].size
    )
    assert distance(dict(zip(calibration.domains, calibration.usage, strict=True))).mean() > 0.15


def test_int8_costs_less_than_int4_and_int4_little(directory: Path) -> None:
    total = Calibration.load(directory).precision_loss_total

    assert 0.0 < total["int8"] < total["int4"] < 0.02


def test_the_facts_of_every_expert_and_exit_lie_beside_the_weights(twin: Twin, directory: Path) -> None:
    facts, exits = ExpertFacts.load(directory), ExitHeads.load(directory)

    assert facts.importance.shape == (twin.spec.layers, twin.spec.experts)
    assert (facts.loss["int8"] < facts.loss["int4"]).mean() > 0.99
    assert np.median(facts.importance) > np.median(facts.loss["int4"])  # leaving out costs more than rounding
    assert len(exits.maps) == twin.spec.layers - 1
    assert exits.rise[-1] < exits.rise[0]
    assert max(exits.calibration_error(layer) for layer in range(len(exits.maps))) < 0.1
