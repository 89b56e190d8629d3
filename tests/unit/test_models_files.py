"""Loaders refuse files that are missing, cut short or do not fit, and say which file and which tensor."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agents.models.calibrate import Calibration
from agents.models.loader import read_spec, read_weights, tensor_shapes
from agents.models.measure import measure, network_of
from agents.models.prompts import Prompts, cut_rows, read_tokenizer
from agents.models.reference import next_token_nll, score
from agents.models.spec import TWINS, ModelSpec
from agents.models.twin import Twin
from testbed.errors import TestbedError

TINY = ModelSpec(name="tiny", layers=2, experts=3, top_k=2, width=32, heads=2, expert_width=32, vocab=20, context=16)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    tensors = {name: draw.normal(0, 0.3, shape).astype(np.float16) for name, shape in tensor_shapes(TINY).items()}
    save_file(tensors, tmp_path / "weights.safetensors")
    (tmp_path / "model.json").write_text(json.dumps({"spec": asdict(TINY), "training": {"seed": 0}}))
    return tmp_path


def with_tensors(directory: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = dict(load_file(directory / "weights.safetensors"))
    change(tensors)
    save_file(tensors, directory / "weights.safetensors")


def test_a_stored_model_loads(stored: Path) -> None:
    assert Twin.load(stored).spec == TINY


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file_is_named(stored: Path, name: str) -> None:
    (stored / name).unlink()

    with pytest.raises(TestbedError, match=rf"{name}: no such file"):
        Twin.load(stored)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1])
def test_a_truncated_weight_file_is_refused(stored: Path, keep: int) -> None:
    path = stored / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(TestbedError, match=r"weights\.safetensors: not a complete safetensors file"):
        Twin.load(stored)


def test_a_missing_tensor_is_named(stored: Path) -> None:
    with_tensors(stored, lambda tensors: tensors.pop("layers.1.gate"))

    with pytest.raises(TestbedError, match=r"tensor layers\.1\.gate is missing"):
        Twin.load(stored)


def test_a_tensor_of_another_model_is_refused_with_both_shapes(stored: Path) -> None:
    with_tensors(stored, lambda tensors: tensors.update({"layers.0.gate": np.zeros((32, 8), np.float16)}))

    with pytest.raises(TestbedError, match=r"layers\.0\.gate has shape \(32, 8\), model\.json asks for \(32, 3\)"):
        Twin.load(stored)


def test_a_tensor_of_another_type_is_refused(stored: Path) -> None:
    with_tensors(stored, lambda tensors: tensors.update({"final_norm": np.zeros(32, np.int32)}))

    with pytest.raises(TestbedError, match="final_norm has type int32"):
        Twin.load(stored)


def test_a_tensor_with_nan_is_refused(stored: Path) -> None:
    with_tensors(stored, lambda tensors: tensors.update({"final_norm": np.full(32, np.nan, np.float16)}))

    with pytest.raises(TestbedError, match="final_norm holds values that are not finite"):
        Twin.load(stored)


def test_an_unknown_tensor_is_refused(stored: Path) -> None:
    with_tensors(stored, lambda tensors: tensors.update({"bias": np.zeros(1, np.float16)}))

    with pytest.raises(TestbedError, match="unknown tensor bias"):
        Twin.load(stored)


@pytest.mark.parametrize("text", ["{", '{"spec": {}}', '{"spec": {"name": 3}, "training": {}}'])
def test_a_model_description_that_does_not_fit_is_refused(stored: Path, text: str) -> None:
    (stored / "model.json").write_text(text)

    with pytest.raises(TestbedError, match=r"model\.json: "):
        Twin.load(stored)


def test_calibration_survives_saving_and_rates_what_it_measured(stored: Path) -> None:
    rows = {"a": np.zeros((2, 6), np.int16), "b": np.full((2, 6), 7, np.int16)}
    spec = read_spec(stored)
    found = measure(network_of(spec, read_weights(stored, spec)), rows)
    found.save(stored)

    back = Calibration.load(stored)

    assert back.domains == ("a", "b")
    assert back.tokens == 24
    np.testing.assert_allclose(back.usage, found.usage, atol=1e-4)
    np.testing.assert_allclose(back.usage.sum(axis=2), 1, atol=1e-3)
    assert not np.allclose(back.usage[0], back.usage[1])
    assert back.quality_loss(1, "full") == 0.0
    assert back.quality_loss(1, "int4") >= 0.0
    assert back.precision_loss["int4"] != back.precision_loss["int8"]
    with pytest.raises(TestbedError, match="no measured loss of precision 'int5'"):
        back.quality_loss(0, "int5")


def test_a_layers_loss_is_the_divergence_of_a_whole_pass_with_mixed_precisions(stored: Path) -> None:
    spec = read_spec(stored)
    twin, row = Twin.load(stored), np.arange(9, dtype=np.int16)
    found = measure(network_of(spec, read_weights(stored, spec)), {"a": row[None]})

    full, mixed = (score(twin, row, precisions).astype(np.float64) for precisions in ("full", ["full", "int4"]))
    log_p, log_q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (full, mixed))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()

    assert found.precision_loss["int4"][1] == pytest.approx(
        divergence / next_token_nll(score(twin, row), row).mean(), rel=0.02
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"usage": [[[1.0]], [[1.0]]]}, r"usage has shape \(2, 1, 1\), expected \(1, layers, experts\)"),
        ({"usage": [[[1.0], [0.5, 0.5]]]}, "usage is not rectangular"),
        ({"precision_loss": {"int8": [0.1, 0.2]}}, "losses of int8 do not cover 1 layers"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_a_calibration_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file: dict[str, object] = {
        "tokens": 1,
        "domains": ["a"],
        "usage": [[[1.0]]],
        "precision_loss": {"int8": [0.1]},
        "precision_loss_total": {"int8": 0.1},
    }
    (tmp_path / "calibration.json").write_text(json.dumps(file | change))

    with pytest.raises(TestbedError, match=message):
        Calibration.load(tmp_path)


def test_prompts_wrap_around_and_refuse_what_is_not_there(tmp_path: Path) -> None:
    save_file({"a": np.arange(12, dtype=np.int16).reshape(3, 4)}, tmp_path / "heldout.safetensors")
    prompts = Prompts.load(tmp_path)

    assert prompts.take("a", 4, 3) == [4, 5, 6]
    assert prompts.domains == ("a",)
    assert prompts.count == 3
    with pytest.raises(TestbedError, match="no prompts of domain 'b'; known are a"):
        prompts.take("b", 0, 1)
    with pytest.raises(TestbedError, match="1 to 4 tokens, not 5"):
        prompts.take("a", 0, 5)


def test_rows_cut_from_a_text_do_not_overlap() -> None:
    rows = cut_rows(np.arange(25, dtype=np.int16), rows=3, length=8)

    assert len(set(rows.ravel().tolist())) == rows.size
    with pytest.raises(TestbedError, match="too few"):
        cut_rows(np.arange(25, dtype=np.int16), rows=4, length=8)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(TestbedError, match=r"tokenizer\.json: not a tokenizer"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heads": 0}, "heads is 0"),
        ({"heads": 3}, "heads is 3"),
        ({"layers": 10**12}, "layers is 1000000000000"),
        ({"context": 10**8}, "context is 100000000"),
        ({"top_k": 9}, "top_k is 9; there are 8 experts"),
        ({"norm_eps": 0.0}, "norm_eps"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_by_field(change: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(TWINS["mixtral-8x7b"], **change)  # type: ignore[arg-type]
