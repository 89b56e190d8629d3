"""The stored twin: it has learnt, all experts work, domains differ, fewer bits cost little."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agents.models.calibrate import Calibration
from agents.models.corpus import twin_directory
from agents.models.evaluate import distance, evaluate
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts, read_tokenizer
from agents.models.twin import Twin

STRIDE = 32  # every how many held-out rows one is scored


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin.load(twin_directory("mixtral-8x7b"))


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts.load(twin_directory("mixtral-8x7b"))


def test_it_has_the_layers_and_experts_of_the_model_it_stands_for(twin: Twin) -> None:
    profile = ModelProfile.load(twin.spec.name)

    assert (twin.spec.layers, twin.spec.experts, twin.spec.top_k) == (profile.layers, profile.experts, profile.top_k)


def test_held_out_prompts_are_enough_and_fit_the_model(twin: Twin, prompts: Prompts) -> None:
    assert prompts.domains == ("code", "docs", "shakespeare")
    assert prompts.count >= 256
    assert max(int(rows.max()) for rows in prompts.rows.values()) < twin.spec.vocab
    assert min(rows.shape[1] for rows in prompts.rows.values()) <= twin.spec.context


def test_it_predicts_unseen_text_far_better_than_chance_and_uses_experts_by_domain(
    twin: Twin, prompts: Prompts
) -> None:
    tokenizer = read_tokenizer(twin_directory("mixtral-8x7b"))
    found = {domain: evaluate(twin, tokenizer, prompts.rows[domain][::STRIDE]) for domain in prompts.domains}

    for quality, _ in found.values():
        assert quality.nats_per_token < 0.6 * math.log(twin.spec.vocab)
        assert quality.bits_per_byte < 2.9
    apart = distance({domain: usage for domain, (_, usage) in found.items()})
    assert apart.mean() > 0.15  # 0 would be equal use
    assert np.mean([usage for _, usage in found.values()], axis=0).min() > 0.0


def test_every_expert_has_work_in_the_calibration(twin: Twin) -> None:
    calibration = Calibration.load(twin_directory("mixtral-8x7b"))

    assert calibration.usage.shape == (3, twin.spec.layers, twin.spec.experts)
    assert calibration.usage.mean(axis=0).min() > 0.005
    assert distance(dict(zip(calibration.domains, calibration.usage, strict=True))).mean() > 0.15


def test_int8_costs_less_than_int4_and_int4_little() -> None:
    total = Calibration.load(twin_directory("mixtral-8x7b")).precision_loss_total

    assert abs(total["int8"]) < total["int4"] < 0.02
