"""What is measured of every expert and exit is what an independent pass of the numpy twin gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from agents.models.exits import THRESHOLDS, ExitHeads
from agents.models.facts import ExpertFacts
from agents.models.fit_exits import FitRecipe, fit
from agents.models.measure import measure_experts
from agents.models.mixture import Floats, Gate, finish
from agents.models.network import Network
from agents.models.quantize import rounded
from agents.models.reference import mixture, next_token_nll, score
from agents.models.spec import ModelSpec
from agents.models.twin import Twin
from testbed.errors import TestbedError

SPEC = ModelSpec(
    name="small",
    layers=3,
    experts=4,
    top_k=2,
    width=32,
    heads=2,
    expert_width=32,
    shared_width=16,
    gating="all",
    vocab=40,
    context=32,
)
LENGTH = 12


def made() -> tuple[Network, Twin]:
    torch.manual_seed(3)
    network = Network(SPEC)
    with torch.no_grad():
        network.embedding.mul_(10)
    return network, Twin(SPEC, {name: value.detach().numpy() for name, value in network.named_parameters()})


def texts(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SPEC.vocab, (rows, LENGTH)).astype(np.int16)


@pytest.fixture(scope="module")
def twin() -> Twin:
    return made()[1]


@pytest.fixture(scope="module")
def domains() -> list[np.ndarray]:
    return [texts(2, 1), texts(3, 2)]


@pytest.fixture(scope="module")
def facts(domains: list[np.ndarray]) -> ExpertFacts:
    return measure_experts(made()[0], domains)


def served(twin: Twin, row: np.ndarray, layer: int, change: Twin | None, without: int | None) -> Floats:
    """Logits when one layer runs on another twin's experts, or without one expert's results."""
    x = twin.embed(row)
    for number in range(SPEC.layers):
        x = twin.attend(number, x)
        gate = twin.gate(number, x)
        if number == layer and without is not None:
            gate.weights[gate.experts == without] = 0.0
        x = finish(gate.residual(x), mixture(change if change and number == layer else twin, number, gate, "full"))
    return twin.logits(x)


def rate(twin: Twin, domains: list[np.ndarray], layer: int, expert: int, precision: str | None) -> float:
    """Equations (3) and (4) of ``agents.models.facts`` the slow way."""
    change = None
    if precision is not None:
        weights = {name: value.copy() for name, value in twin._weights.items()}
        for part in ("experts_in", "experts_out"):
            stack = weights[f"layers.{layer}.{part}"]
            stack[expert] = rounded(stack[expert], precision)
        change = Twin(SPEC, weights)
    divergence, nll, own, whole = [], [], 0.0, 0.0
    for row in np.concatenate(domains):
        gates: list[Gate] = []
        full = score(twin, row, "full", gates)
        other = served(twin, row, layer, change, expert if precision is None else None)
        log_p, log_q = (x - np.log(np.exp(x.astype(float)).sum(axis=1, keepdims=True)) for x in (full, other))
        divergence.append((np.exp(log_p) * (log_p - log_q)).sum(axis=1))
        nll.append(next_token_nll(full, row))
        own += float(gates[layer].weights[gates[layer].experts == expert].sum())
        whole += float(gates[layer].weights.sum())
    return float(np.mean(divergence) / np.mean(nll) / (own / whole))


@pytest.mark.parametrize(("layer", "expert"), [(0, 1), (1, 3), (2, 0)])
def test_what_an_expert_is_worth_is_what_passes_without_it_lose(
    twin: Twin, domains: list[np.ndarray], facts: ExpertFacts, layer: int, expert: int
) -> None:
    assert facts.importance[layer, expert] == pytest.approx(rate(twin, domains, layer, expert, None), rel=1e-3)


def test_what_fewer_bits_cost_is_what_passes_with_that_replica_lose(
    twin: Twin, domains: list[np.ndarray], facts: ExpertFacts
) -> None:
    assert facts.loss["int4"][1, 2] == pytest.approx(rate(twin, domains, 1, 2, "int4"), rel=0.02)
    assert (facts.loss["int8"] < facts.loss["int4"]).all()


def test_who_follows_and_who_goes_together_are_counted_from_the_gates(
    twin: Twin, domains: list[np.ndarray], facts: ExpertFacts
) -> None:
    together, follows = np.zeros((4, 4)), np.zeros((4, 4))
    for row in domains[0]:
        gates: list[Gate] = []
        score(twin, row, "full", gates)
        for chosen in gates[1].experts:
            together[np.ix_(chosen, chosen)] += 1
    for row in np.concatenate(domains):
        gates = []
        score(twin, row, "full", gates)
        for here, there in zip(gates[0].experts, gates[1].experts, strict=True):
            follows[np.ix_(here, there)] += 1

    np.testing.assert_allclose(facts.coactivation[0, 1], together / domains[0].size, atol=1e-6)
    np.testing.assert_allclose(facts.transition[0], follows / follows.sum(axis=1, keepdims=True), atol=1e-6)


def test_how_far_apart_two_experts_are_is_measured_on_the_tokens_of_the_first(
    twin: Twin, domains: list[np.ndarray], facts: ExpertFacts
) -> None:
    own, other, logits = [], [], []
    for row in np.concatenate(domains):
        gates: list[Gate] = []
        score(twin, row, "full", gates)
        hidden = gates[2].hidden[(gates[2].experts == 1).any(axis=1)]
        own.append(twin.expert(2, 1, "full", hidden))
        other.append(twin.expert(2, 3, "full", hidden))
        logits.append(gates[2].hidden @ twin._weights["layers.2.gate"])
    a, b, scores = np.concatenate(own), np.concatenate(other), np.concatenate(logits)

    assert facts.difference[2, 1, 3] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-4)
    assert facts.difference[2, 1, 1] == pytest.approx(0.0, abs=1e-6)
    cosine = scores[:, 1] @ scores[:, 3] / np.linalg.norm(scores[:, 1]) / np.linalg.norm(scores[:, 3])
    assert facts.similarity[2, 1, 3] == pytest.approx(cosine, abs=1e-5)


def test_a_substitute_never_costs_more_than_leaving_the_expert_out(facts: ExpertFacts) -> None:
    for other in range(SPEC.experts):
        assert 0.0 <= facts.substitution_loss(1, 2, other) <= facts.importance[1, 2]
    assert facts.substitution_loss(1, 2, 2) == pytest.approx(0.0, abs=1e-9)


def test_facts_survive_storing_and_a_file_of_another_model_is_refused(facts: ExpertFacts, tmp_path: Path) -> None:
    facts.save(tmp_path)

    back = ExpertFacts.load(tmp_path)

    np.testing.assert_array_equal(back.importance, facts.importance)
    np.testing.assert_allclose(back.transition, facts.transition, atol=1e-3)
    tensors = dict(load_file(tmp_path / "experts.safetensors"))
    tensors["similarity"] = tensors["similarity"][:2]
    save_file(tensors, tmp_path / "experts.safetensors")
    with pytest.raises(TestbedError, match=r"tensor similarity has shape \(2, 4, 4\), expected \(3, 4, 4\)"):
        ExpertFacts.load(tmp_path)
    del tensors["similarity"]
    save_file(tensors, tmp_path / "experts.safetensors")
    with pytest.raises(TestbedError, match="tensor similarity is missing; measure anew"):
        ExpertFacts.load(tmp_path)


@pytest.fixture(scope="module")
def heads() -> ExitHeads:
    streams = [texts(30, seed).ravel() for seed in (5, 6)]
    recipe = FitRecipe(steps=30, rows=4, length=LENGTH)
    return fit(made()[0], streams, [texts(6, 7), texts(6, 8)], recipe)


def after_first_layer(twin: Twin, row: np.ndarray) -> Floats:
    x = twin.attend(0, twin.embed(row))
    gate = twin.gate(0, x)
    return finish(gate.residual(x), mixture(twin, 0, gate, "full"))


def test_a_fitted_exit_is_closer_to_the_full_model_than_the_bare_stream(twin: Twin, heads: ExitHeads) -> None:
    row = texts(1, 9)[0]
    x, full = after_first_layer(twin, row), score(twin, row)

    def divergence(logits: Floats) -> float:
        log_p, log_q = (z - np.log(np.exp(z.astype(float)).sum(axis=1, keepdims=True)) for z in (full, logits))
        return float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean())

    assert divergence(twin.logits(heads.carried(0, x))) < divergence(twin.logits(x))


def test_what_exits_did_on_the_sample_is_what_the_numpy_twin_would_do(twin: Twin, heads: ExitHeads) -> None:
    rows = np.concatenate([texts(6, 7)[2:], texts(6, 8)[2:]])  # without those that scaled the gauges
    sure, agrees, early_nll, full_nll = [], [], 0.0, 0.0
    for row in rows:
        x, full = after_first_layer(twin, row), score(twin, row)
        early = twin.logits(heads.carried(0, x))
        sure.append(heads.confident(0, x))
        agrees.append(early.argmax(axis=1) == full.argmax(axis=1))
        early_nll += next_token_nll(early, row).sum()
        full_nll += next_token_nll(full, row).sum()
    places = (np.concatenate(sure) * 10).astype(int)

    np.testing.assert_allclose(heads.count[0], np.bincount(places, minlength=10), atol=2)
    right = sum(heads.agreement[0] * heads.count[0])
    assert right == pytest.approx(np.concatenate(agrees).sum(), abs=2)
    assert heads.rise[0] == pytest.approx(early_nll / full_nll - 1, abs=1e-3)
    assert heads.domains.tolist() == [0] * 4 + [1] * 4
    confident = [np.where(mine, -1.0, each) for mine, each in zip(agrees, sure, strict=True)]
    level = 40
    at_least = [(row >= THRESHOLDS[level]).mean() for row in confident]
    assert (heads.wrong[level] >= np.array(at_least) - 0.17).all()  # the second exit may be wrong too


def test_the_higher_the_threshold_the_fewer_leave_and_the_fewer_are_wrong(heads: ExitHeads) -> None:
    assert (np.diff(heads.wrong, axis=0) <= 0).all()
    assert (np.diff(heads.left.sum(axis=1)) <= 1e-6).all()
    assert heads.left[0, 0] == pytest.approx(1.0)
    assert heads.wrong[-1].max() == 0.0


def test_exits_survive_storing_and_a_cut_file_is_refused(heads: ExitHeads, tmp_path: Path) -> None:
    heads.save(tmp_path)

    back = ExitHeads.load(tmp_path)

    np.testing.assert_allclose(back.maps, heads.maps, atol=1e-3)
    np.testing.assert_array_equal(back.wrong, heads.wrong)
    assert back.calibration_error(1) == pytest.approx(heads.calibration_error(1))
    tensors = dict(load_file(tmp_path / "exits.safetensors"))
    tensors["wrong"] = np.ascontiguousarray(tensors["wrong"][:, :3])
    save_file(tensors, tmp_path / "exits.safetensors")
    with pytest.raises(TestbedError, match="tensor wrong has shape"):
        ExitHeads.load(tmp_path)
    del tensors["wrong"]
    save_file(tensors, tmp_path / "exits.safetensors")
    with pytest.raises(TestbedError, match="tensor wrong is missing; measure anew"):
        ExitHeads.load(tmp_path)
