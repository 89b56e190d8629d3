"""Route logs of vLLM: dummy rows, steps, weights, and what a log of few layers can become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.models.model import Model
from agents.models.profile import ModelProfile
from agents.models.replay import Replay
from agents.models.routelog import DUMMY_ROWS, read_route_log
from agents.models.trace import read_trace
from orchestration.routing import convert_log
from testbed.errors import TestbedError

QWEN = ModelProfile.load("qwen1.5-moe-a2.7b")
META = {"type": "meta", "model_id": "Qwen/Qwen1.5-MoE-A2.7B-Chat", "layers_logged": [12], "top_k": 4, "device": "any"}
SHARED = Path(__file__).parents[3] / "shared" / "data" / "moe"

Row = dict[str, Any]


def row(token: int, experts: list[int], weights: list[float] | None = None, layer: int = 12) -> Row:
    return {
        "type": "route",
        "req_id": "r1",
        "token_idx": token,
        "layer": layer,
        "topk_ids": experts,
        "topk_weights": weights or [0.07, 0.05, 0.04, 0.03],
    }


def step(tokens: int, *, seed: int = 0, layer: int = 12) -> list[Row]:
    """One step of the engine on tokens that all differ."""
    draw = np.random.default_rng(seed)
    return [row(token, draw.permutation(60)[:4].tolist(), layer=layer) for token in range(tokens)]


def dummies(count: int, first: int = 13) -> list[Row]:
    return [row(token, [first, 15, 56, 34]) for token in range(count)]


def logged(path: Path, rows: list[Row], **meta: Any) -> Path:
    file = path / "x.vllm_routes.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in [META | meta, *rows]))
    return file


# --- what is read -----------------------------------------------------------------------------------------------------


def test_runs_of_equal_rows_at_the_start_are_left_out_and_counted(tmp_path: Path) -> None:
    log = read_route_log(logged(tmp_path, [*dummies(200), *dummies(DUMMY_ROWS, first=14), *step(7), *step(3, seed=1)]))

    assert log.summary == f"10 tokens in 2 steps, layer 12 of qwen1.5-moe-a2.7b; {200 + DUMMY_ROWS} dummy rows left out"
    assert log.layers[12].experts.tolist() == [each["topk_ids"] for each in [*step(7), *step(3, seed=1)]]
    assert log.layers[12].step.tolist() == [0] * 7 + [1] * 3


def test_equal_rows_that_are_few_or_come_later_stay(tmp_path: Path) -> None:
    few = [*dummies(DUMMY_ROWS - 1), *step(2)]
    later = [*step(2), *dummies(200)]

    assert (read_route_log(logged(tmp_path, few)).dummies, read_route_log(logged(tmp_path, few)).rows) == (0, 33)
    assert (read_route_log(logged(tmp_path, later)).dummies, read_route_log(logged(tmp_path, later)).rows) == (0, 202)


def test_a_step_may_begin_within_the_counting_of_dummy_rows(tmp_path: Path) -> None:
    counted_on = [each | {"token_idx": place} for place, each in enumerate([*dummies(50), *step(6)])]

    log = read_route_log(logged(tmp_path, counted_on))

    assert log.layers[12].step.tolist() == [0] * 6


def test_experts_are_sorted_best_first_with_their_weights(tmp_path: Path) -> None:
    log = read_route_log(logged(tmp_path, [row(0, [1, 2, 3, 59], [0.1, 0.3, 0.2, 0.3])]))

    assert log.layers[12].experts.tolist() == [[2, 59, 3, 1]]
    assert log.layers[12].weights[0] == pytest.approx([0.3, 0.3, 0.2, 0.1])


# --- what becomes of it -----------------------------------------------------------------------------------------------


def test_a_log_of_all_layers_becomes_their_trace(tmp_path: Path) -> None:
    layers = range(24)
    rows = [each for layer in layers for each in [*step(40, seed=layer, layer=layer), *step(5, seed=99, layer=layer)]]
    into = tmp_path / "t.jsonl"

    _, trace = convert_log(logged(tmp_path, rows, layers_logged=list(layers)), into, spread=False)

    assert [(each.dataset, each.number, each.tokens) for each in trace.problems] == [("vllm", 0, 40), ("vllm", 1, 5)]
    for layer in layers:
        assert trace.experts[layer, :40].tolist() == [each["topk_ids"] for each in step(40, seed=layer)]


def test_weights_stay_what_they_are_where_the_model_s_do_not_sum_to_one(tmp_path: Path) -> None:
    trace = convert_log(logged(tmp_path, step(40)), tmp_path / "t.jsonl", spread=True)[1]

    assert trace.rescaled == 0
    assert trace.weights[12, 0] == pytest.approx([0.07, 0.05, 0.04, 0.03])


def test_spread_gives_every_layer_the_logged_choices_of_other_tokens_on_other_experts(tmp_path: Path) -> None:
    rows = step(48)
    trace = convert_log(logged(tmp_path, rows), tmp_path / "t.jsonl", spread=True)[1]
    chosen = np.array([each["topk_ids"] for each in rows])

    assert (trace.experts[12] == chosen).all()
    assert (trace.experts[9] == (np.roll(chosen, -6, axis=0) - 3) % 60).all()
    assert trace.problems[0].dataset == "vllm-layer-12-spread"
    for layer in range(24):
        assert sorted(np.bincount(trace.experts[layer].ravel(), minlength=60)) == sorted(
            np.bincount(chosen.ravel(), minlength=60)
        )


def test_layers_that_were_logged_are_not_touched_by_spreading(tmp_path: Path) -> None:
    rows = [*step(48, seed=3, layer=3), *step(48, seed=20, layer=20)]
    trace = convert_log(logged(tmp_path, rows, layers_logged=[3, 20]), tmp_path / "t.jsonl", spread=True)[1]

    for layer in (3, 20):
        assert trace.experts[layer].tolist() == [each["topk_ids"] for each in step(48, seed=layer)]
    low, high = (np.array([each["topk_ids"] for each in step(48, seed=seed)]) for seed in (3, 20))
    assert (trace.experts[11] == (np.roll(low, -16, axis=0) + 8) % 60).all()
    assert (trace.experts[12] == (np.roll(high, -16, axis=0) - 8) % 60).all()


def test_a_model_without_a_twin_borrows_losses_and_says_so(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [row(t, draw.permutation(64)[:8].tolist(), [0.125] * 8, layer=0) for t in range(60)]
    into = tmp_path / "t.jsonl"
    meta = {"model_id": "allenai/OLMoE-1B-7B-0924", "layers_logged": [0], "top_k": 8, "num_experts": 64}
    convert_log(logged(tmp_path, rows, **meta), into, spread=True)

    model = Model.load(into)

    assert model.profile.name == "olmoe-1b-7b"
    assert "it has no twin, so what fewer bits lose is that of mixtral-8x7b's" in model.summary
    assert len(model.calibration.precision_loss["int4"]) == 16
    assert model.calibration.quality_loss(0, "int4") == pytest.approx(
        model.calibration.precision_loss_total["int4"] / 16
    )


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_log_of_one_layer_is_not_spread_unasked(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"holds layer 12 of qwen1\.5-moe-a2\.7b, and .* needs all 24; --spread"):
        convert_log(logged(tmp_path, step(5)), tmp_path / "t.jsonl", spread=False)
    assert not (tmp_path / "t.jsonl").exists()


def test_a_log_in_the_place_of_a_trace_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r":1: .*a vLLM route log becomes a trace by `.* convert-routing`"):
        read_trace(logged(tmp_path, step(5)), ModelProfile.known())


@pytest.mark.parametrize(
    ("meta", "rows", "expected"),
    [
        ({}, [], ": without dummy rows layer 12 has 0 rows"),
        ({}, dummies(100), ": without dummy rows layer 12 has 0 rows"),
        ({"layers_logged": [3, 12]}, step(5), ": without dummy rows layer 3 has 0, layer 12 has 5 rows"),
        ({"layers_logged": [24]}, [], r":1: layer 24 is not in 0\.\.23"),
        ({"model_id": "openai/gpt"}, [], ":1: no profile of openai/gpt; known are deepseek-v2-lite, "),
        ({"top_k": 2}, [], ":1: top_k is 2, but qwen1.5-moe-a2.7b has 4"),
        ({"num_experts": 64}, [], ":1: num_experts is 64, but qwen1.5-moe-a2.7b has 60"),
        ({"layers_logged": []}, [], r":1: Expected `array` of length >= 1 - at `\$\.layers_logged`"),
        ({"type": "route"}, [], ":1: Object contains unknown field"),
        ({}, [META], ":2: another recording begins; cut the log here"),
        ({}, [row(0, [1, 2, 3, 4], layer=11)], ":2: layer 11 is not among layers_logged"),
        ({}, [row(0, [1, 2, 3, 60])], r":2: experts \[1, 2, 3, 60\] are not all in 0\.\.59"),
        ({}, [row(0, [1, 2, 3, 3])], r":2: experts \[1, 2, 3, 3\] name one expert twice"),
        ({}, [row(0, [1, 2, 3])], ":2: 3 experts and 4 weights, but top_k is 4"),
        ({}, [row(0, [1, 2, 3, 4], [0.0] * 4)], ":2: topk_weights sum to 0"),
        ({}, [row(-1, [1, 2, 3, 4])], ":2: Expected `int` >= 0"),
    ],
)
def test_a_mistake_is_refused_with_its_line(
    tmp_path: Path, meta: dict[str, Any], rows: list[Row], expected: str
) -> None:
    with pytest.raises(TestbedError, match=rf"x\.vllm_routes\.jsonl{expected}"):
        read_route_log(logged(tmp_path, rows, **meta))


def test_an_empty_log_and_one_without_meta_are_refused(tmp_path: Path) -> None:
    empty, headless = tmp_path / "empty.jsonl", tmp_path / "headless.jsonl"
    empty.write_text("")
    headless.write_text(json.dumps(row(0, [1, 2, 3, 4])))

    with pytest.raises(TestbedError, match=r"empty\.jsonl: no line in it"):
        read_route_log(empty)
    with pytest.raises(TestbedError, match=r"headless\.jsonl:1: the first line must be of type meta"):
        read_route_log(headless)


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the recorded logs are not there: {SHARED}")
@pytest.mark.parametrize(
    ("name", "summary", "layer"),
    [
        (
            "olmoe_layer0",
            "4471 tokens in 1 steps, layer 0 of olmoe-1b-7b; 2048 dummy rows left out",
            0,
        ),
        (
            "qwen1.5-moe_layer12",
            "4357 tokens in 129 steps, layer 12 of qwen1.5-moe-a2.7b; 8448 dummy rows left out",
            12,
        ),
    ],
)
def test_a_real_log_is_read_and_its_trace_replays(tmp_path: Path, name: str, summary: str, layer: int) -> None:
    path = SHARED / f"{name}.vllm_routes.jsonl"
    into = tmp_path / "t.jsonl"

    held, trace = convert_log(path, into, spread=True)

    assert held == summary
    assert (trace.incomplete, trace.rescaled) == (0, 0)
    rows = [json.loads(line) for line in path.read_text().splitlines()[-trace.rows :]]
    replay = Replay(trace)
    for place in (0, trace.rows // 2, trace.rows - 1):
        gate = replay.gate(layer, replay.embed([place]))
        assert gate.experts.tolist() == [rows[place]["topk_ids"]]
        assert gate.weights[0] == pytest.approx(rows[place]["topk_weights"], abs=2e-4)
