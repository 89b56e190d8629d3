"""Files beside a twin's weights: what is another twin's, or cannot have been measured, is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agents.models.calibrate import CALIBRATION_FILE
from agents.models.exits import EXITS_FILE
from agents.models.facts import FACTS_FILE
from agents.models.loader import SPEC_FILE
from agents.models.model import Model
from agents.models.prompts import PROMPTS_FILE
from agents.models.spec import model_path, twin_directory
from testbed.errors import TestbedError

Tensors = dict[str, np.ndarray]


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    directory = tmp_path / "twin"
    shutil.copytree(twin_directory("switch-base-8"), directory)
    return directory


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def retensor(path: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refusal(directory: Path) -> str:
    with pytest.raises(TestbedError) as caught:
        Model.load(directory)
    return str(caught.value)


@pytest.mark.parametrize("file", [FACTS_FILE, EXITS_FILE, CALIBRATION_FILE])
def test_a_file_of_another_twin_is_refused(switch: Path, file: str) -> None:
    shutil.copy(twin_directory("mixtral-8x7b") / file, switch / file)

    assert file in refusal(switch)


@pytest.mark.parametrize(("field", "value"), [("name", "mixtral-8x7b"), ("top_k", 2), ("gating", "chosen")])
def test_a_twin_that_is_not_what_it_stands_for_is_refused(switch: Path, field: str, value: object) -> None:
    edit(switch / SPEC_FILE, lambda file: file["spec"].update({field: value}))

    assert SPEC_FILE in refusal(switch)


def test_a_field_that_no_twin_has_is_refused(switch: Path) -> None:
    edit(switch / SPEC_FILE, lambda file: file["spec"].update(colour="red"))

    assert "'colour'" in refusal(switch)


def test_prompts_of_another_vocabulary_are_refused(switch: Path) -> None:
    retensor(switch / PROMPTS_FILE, lambda tensors: tensors["code"].__setitem__((3, 5), 30_000))

    assert "token 30000" in refusal(switch)


@pytest.mark.parametrize("value", [-0.1, 0.0])
def test_importances_that_would_make_every_cut_free_are_refused(switch: Path, value: float) -> None:
    retensor(switch / FACTS_FILE, lambda tensors: tensors["importance"].fill(value))

    assert "tensor importance" in refusal(switch)


def test_importances_of_one_dimension_are_refused(switch: Path) -> None:
    retensor(switch / FACTS_FILE, lambda tensors: tensors.update(importance=np.ones(12, dtype=np.float32)))

    assert "tensor importance" in refusal(switch)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors["wrong"].fill(0.0),
        lambda tensors: tensors["wrong"].__imul__(-1),
        lambda tensors: tensors.update(wrong=np.ascontiguousarray(tensors["wrong"][::-1])),
    ],
    ids=["never wrong", "below 0", "rising"],
)
def test_exits_that_would_certify_anything_are_refused(switch: Path, change: Callable[[Tensors], None]) -> None:
    retensor(switch / EXITS_FILE, change)

    assert "tensor wrong" in refusal(switch)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.update(tokens=0),
        lambda file: file["domains"].__setitem__(0, file["domains"][1]),
        lambda file: file["usage"][0][0].__setitem__(0, -1.0),
        lambda file: file["precision_loss"]["int4"].__setitem__(0, -0.5),
        lambda file: file["precision_loss_total"].update(int8=-0.5),
    ],
    ids=["no tokens", "a domain twice", "a share below 0", "a loss below 0", "a total below 0"],
)
def test_a_calibration_that_cannot_have_been_measured_is_refused(switch: Path, change: Callable[[Any], None]) -> None:
    edit(switch / CALIBRATION_FILE, change)

    assert CALIBRATION_FILE in refusal(switch)


def test_what_was_never_measured_may_be_missing_but_a_broken_link_is_not_missing(switch: Path) -> None:
    (switch / FACTS_FILE).unlink()
    (switch / EXITS_FILE).unlink()
    assert Model.load(switch).facts is None

    (switch / FACTS_FILE).symlink_to(switch / "nowhere")
    assert FACTS_FILE in refusal(switch)


def test_a_directory_that_holds_no_model_says_what_one_holds(tmp_path: Path) -> None:
    assert "model.json" in refusal(tmp_path)
    assert "config.json" in refusal(tmp_path)


def test_a_model_that_is_misspelt_is_guessed() -> None:
    with pytest.raises(TestbedError, match=r"did you mean 'mixtral-8x7b'"):
        model_path(Path("mixtral-8x7"))
