"""The twin's arithmetic: equal to the trained network, and the same bits however its experts are spread."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.models.mixture import Floats, Gate, assign, contribution, finish
from agents.models.network import Network
from agents.models.reference import digest, generate, mixture, next_token_nll, score, through
from agents.models.spec import ModelSpec
from agents.models.twin import KeyValueCache, Twin
from testbed.errors import TestbedError

SMALL = ModelSpec(
    name="small",
    layers=3,
    experts=5,
    top_k=2,
    width=32,
    heads=2,
    expert_width=48,
    vocab=50,
    context=40,
    rope_base=100.0,
)


def small_network(spec: ModelSpec = SMALL) -> Network:
    torch.manual_seed(1)
    network = Network(spec)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("norm"):
                parameter.uniform_(0.5, 1.5)
            elif name == "embedding":
                parameter.mul_(10)
    return network


def twin_of(network: Network) -> Twin:
    return Twin(network.spec, {name: value.detach().numpy() for name, value in network.named_parameters()})


@pytest.fixture(scope="module")
def twin() -> Twin:
    return twin_of(small_network())


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, SMALL.vocab, count)]


KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "every expert": {"top_k": 5},
    "qwen": {"gating": "all", "shared_width": 24},
    "switch": {"top_k": 1, "gating": "all", "activation": "relu", "dense_width": 40},
    "everything": {"gating": "all", "shared_width": 24, "activation": "relu", "dense_width": 40},
}


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_inference_equals_the_torch_network(kind: str) -> None:
    network = small_network(dataclasses.replace(SMALL, **KINDS[kind]))
    prompt = tokens(29)

    with torch.no_grad():
        expected = network(torch.tensor([prompt]))[0][0].numpy()

    np.testing.assert_allclose(score(twin_of(network), prompt), expected, atol=2e-5)


@pytest.mark.parametrize("columns", [10, 5], ids=["swiglu", "relu"])
def test_the_hand_written_backward_pass_is_the_derivative(columns: int) -> None:
    from agents.models.network import Experts

    torch.manual_seed(0)
    chosen = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0]])
    order = chosen.reshape(-1).argsort(stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=4).tolist()  # expert 3 gets no token
    inputs = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in [(4, 3), (4, 2), (4, 3, columns), (4, 5, 3)]
    ]

    assert torch.autograd.gradcheck(lambda *x: Experts.apply(*x, order, counts), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_with_a_cache_equals_a_full_pass(kind: str) -> None:
    twin, prompt = twin_of(small_network(dataclasses.replace(SMALL, **KINDS[kind]))), tokens(12)
    caches = [twin.new_cache(capacity=2) for _ in range(SMALL.layers)]  # has to grow

    rows = [through(twin, twin.embed(prompt[:5]), caches=caches)]
    rows += [
        through(twin, twin.embed([token]), caches=caches, start=position)
        for position, token in enumerate(prompt[5:], start=5)
    ]

    np.testing.assert_allclose(twin.logits(np.concatenate(rows)), score(twin, prompt), atol=2e-5)


def test_a_greedy_continuation_is_what_scoring_it_prefers(twin: Twin) -> None:
    prompt = tokens(6)

    made = generate(twin, prompt, 5)

    whole = score(twin, [*prompt, *made.tokens])
    assert list(made.tokens) == whole[len(prompt) - 1 : -1].argmax(axis=1).tolist()
    np.testing.assert_allclose(made.logits, whole[len(prompt) - 1 : -1], atol=2e-5)


def test_positions_beyond_the_trained_context_still_work(twin: Twin) -> None:
    assert score(twin, tokens(2 * SMALL.context + 3)).shape == (2 * SMALL.context + 3, SMALL.vocab)


def test_a_cache_refuses_a_position_it_has_not_reached(twin: Twin) -> None:
    cache = KeyValueCache(SMALL)
    twin.attend(0, twin.embed([1, 2]), cache, 0)

    with pytest.raises(TestbedError, match="holds 2 positions, so start cannot be 5"):
        twin.attend(0, twin.embed([3]), cache, 5)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), count=st.integers(1, 40), seed=st.integers(0, 1000))
def test_any_spread_of_experts_over_servers_gives_the_same_bits(
    twin: Twin, data: st.DataObject, count: int, seed: int
) -> None:
    x = twin.attend(0, twin.embed(tokens(count, seed)))
    gate = twin.gate(0, x)
    expected = finish(x, mixture(twin, 0, gate, "full"))
    parts = assign(gate.experts, gate.weights)
    server_of = data.draw(st.lists(st.integers(0, 3), min_size=len(parts), max_size=len(parts)))
    arrival = data.draw(st.permutations(range(4)))

    sums = np.zeros((4, count, SMALL.width), np.int64)
    for part, server in data.draw(st.permutations(list(zip(parts, server_of, strict=True)))):
        sent = gate.hidden[part.tokens].copy()  # what crosses the wire
        sums[server][part.tokens] += contribution(twin.expert(0, part.expert, "full", sent), part.weights)
    total = np.zeros((count, SMALL.width), np.int64)
    for server in arrival:
        total += sums[server]

    assert finish(x, total).tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 40), offset=st.integers(0, 15))
def test_bits_do_not_depend_on_where_an_array_lies_in_memory(twin: Twin, count: int, offset: int) -> None:
    x = twin.embed(tokens(count))
    moved = np.empty(x.size + 16, np.float32)[offset : offset + x.size].reshape(x.shape)
    moved[:] = x

    def layer(stream: Floats) -> tuple[bytes, ...]:
        attended, gate = twin.attend(0, stream), twin.gate(0, stream)
        return attended.tobytes(), gate.weights.tobytes(), twin.expert(0, 0, "full", stream).tobytes()

    assert layer(moved) == layer(x)


def test_every_choice_of_the_gate_is_assigned_once_and_in_token_order(twin: Twin) -> None:
    gate = twin.gate(1, twin.embed(tokens(33)))

    parts = assign(gate.experts, gate.weights)

    assert sorted((int(t), p.expert) for p in parts for t in p.tokens) == sorted(
        (t, int(e)) for t, row in enumerate(gate.experts) for e in row
    )
    assert all(np.all(np.diff(part.tokens) > 0) for part in parts)
    for part in parts:
        where = gate.experts[part.tokens] == part.expert
        np.testing.assert_array_equal(gate.weights[part.tokens][where], part.weights)


def test_gate_weights_are_the_softmax_of_the_chosen_scores_alone(twin: Twin) -> None:
    x = twin.embed(tokens(21))
    gate: Gate = twin.gate(0, x)
    scores = gate.hidden @ twin_of(small_network())._weights["layers.0.gate"]

    best = np.sort(scores, axis=1)[:, ::-1][:, :2]

    expected = np.exp(best) / np.exp(best).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gate.weights, expected, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**24])
def test_a_contribution_that_cannot_be_summed_is_refused(value: float) -> None:
    y = np.array([[0.5, value]], np.float32)

    with pytest.raises(TestbedError, match="not finite, or too large"):
        contribution(y, np.ones(1, np.float32))


@given(
    y=st.floats(-1000, 1000, width=32),
    w=st.floats(0, 1, width=32),
    x=st.floats(-1000, 1000, width=32),
)
def test_fixed_point_is_finer_than_float32(y: float, w: float, x: float) -> None:
    total = contribution(np.array([[y]], np.float32), np.array([w], np.float32))

    # half a step of the fixed point, one rounding of the sum to float32, one rounding of the total to float32
    exact, got = x + y * w, float(finish(np.array([[x]], np.float32), total)[0, 0])
    assert abs(got - exact) <= 2.0**-33 + 2.0**-24 * (abs(exact) + abs(y * w))


def test_no_tokens_is_no_work(twin: Twin) -> None:
    nothing = np.empty((0, SMALL.width), np.float32)

    assert twin.expert(0, 0, "full", nothing).shape == nothing.shape
    assert contribution(nothing, np.empty(0, np.float32)).shape == nothing.shape


def test_tokens_outside_the_vocabulary_are_refused(twin: Twin) -> None:
    with pytest.raises(TestbedError, match=r"0\.\.49"):
        twin.embed([3, 50])


def test_an_unknown_precision_is_refused(twin: Twin) -> None:
    with pytest.raises(TestbedError, match="unknown precision 'int5'; known are full, int8, int4"):
        twin.expert(0, 0, "int5", np.ones((1, SMALL.width), np.float32))


def test_nll_is_that_of_the_softmax() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1 / 3] * 3], np.float32))

    np.testing.assert_allclose(next_token_nll(logits, [0, 1, 2]), [-np.log(0.25), -np.log(0.8)], rtol=1e-6)


def test_a_digest_tells_one_changed_bit_and_another_shape(twin: Twin) -> None:
    logits = score(twin, tokens(4))
    changed = logits.copy()
    changed[0, 0] = np.nextafter(changed[0, 0], np.float32(np.inf))

    assert digest(logits) == digest(logits.copy())
    assert len({digest(logits), digest(changed), digest(logits.reshape(2, -1))}) == 3
