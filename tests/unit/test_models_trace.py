"""Reading a routing trace: what is refused and how it is said, and whose trace it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.models import trace
from agents.models.model import Model
from agents.models.profile import ModelProfile
from agents.models.replay import Replay
from testbed.errors import TestbedError

from .trace_cases import MIXTRAL, TINY, Line, lines, replayed, without

# --- what is refused --------------------------------------------------------------------------------------------------


def changed(place: int, **values: Any) -> Callable[[list[Line]], list[Line | str]]:
    return lambda found: [*found[:place], found[place] | values, *found[place + 1 :]]


MISTAKES: dict[str, tuple[Callable[[list[Line]], list[Line | str]], str]] = {
    "nothing": (lambda found: [], ": no line in it"),
    "cut short": (lambda found: [*found, '{"dataset": "maths", "problem'], ":16: JSON is malformed"),
    "no JSON": (lambda found: ["layer,expert", *found], ":1: JSON is malformed"),
    "blank line": (lambda found: [found[0], "", *found[1:]], ":2: Input data was truncated"),
    "another format": (lambda found: ['{"type": "meta"}'], ":1: Object contains unknown field `type`"),
    "missing key": (lambda found: ['{"dataset": "maths"}'], ":1: Object missing required field `problem_id`"),
    "text for a number": (changed(3, layer="0"), r":4: Expected `int`, got `str` - at `\$.layer`"),
    "negative": (changed(3, token_idx=-1), r":4: Expected `int` >= 0 - at `\$.token_idx`"),
    "not a number": (changed(3, gating_probs=[float("nan"), 0.1]), ":4: JSON is malformed"),
    "negative weight": (changed(3, gating_probs=[0.5, -0.1]), r":4: Expected `float` >= 0.0 - at `\$.gating_probs"),
    "no expert": (changed(3, experts=[], gating_probs=[]), ":4: Expected `array` of length >= 1"),
    "no weight": (changed(3, gating_probs=[0.0, 0.0]), ":4: gating_probs sum to 0"),
    "fewer weights": (changed(3, gating_probs=[1.0]), ":4: 1 gating_probs for 2 experts"),
    "other top-k": (changed(3, experts=[0], gating_probs=[1.0]), ":4: 1 experts, but line 1 has 2"),
    "expert twice": (changed(3, experts=[2, 2]), r":4: experts \[2, 2\] name one expert twice"),
    "worst first": (changed(3, gating_probs=[0.2, 0.8]), ":4: experts must stand best first, but gating_probs rise"),
    "expert out of range": (
        changed(3, experts=[1, 4]),
        r":4: experts \[1, 4\] are not all in 0\.\.3, the experts of tiny",
    ),
    "layer out of range": (changed(3, layer=3), r":4: layer 3 is not in 0\.\.2, the layers of tiny"),
    "line twice": (lambda found: [*found, found[3]], ":16: this problem's token has a line of layer 0 already"),
    "last layer missing": (
        lambda found: list(without(found, layer=2)),
        r": no line of layer 2; tiny has layers 0\.\.2",
    ),
    "middle layer missing": (lambda found: list(without(found, layer=1)), ": no line of layer 1"),
    "no complete token": (
        lambda found: [each for each in found if (each["token_idx"] + each["layer"]) % 2],
        ": no token has a line in each of the 3 layers",
    ),
    "fewer experts": (
        lambda found: [each | {"experts": [0, 1]} for each in found],
        ": no token chose an expert above 1; tiny has 4",
    ),
    "long line": (lambda found: [" " * trace.MAX_LINE_BYTES + "{}"], f":1: longer than {trace.MAX_LINE_BYTES} bytes"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_its_line(tmp_path: Path, mistake: str) -> None:
    change, expected = MISTAKES[mistake]
    with pytest.raises(TestbedError, match=rf"trace\.jsonl{expected}"):
        replayed(tmp_path, change(lines(5)))


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"dataset": "\xff"}\n')
    with pytest.raises(TestbedError, match=r"trace\.jsonl:1: "):
        Replay.load(path, (TINY,))


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("MAX_LINES", 14, ":15: more than 14 lines; cut the trace"),
        ("MAX_TOKENS", 4, ": 5 complete tokens, more than 4"),
    ],
)
def test_a_trace_beyond_a_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, expected: str
) -> None:
    monkeypatch.setattr(trace, limit, value)
    with pytest.raises(TestbedError, match=expected):
        replayed(tmp_path, lines(5))


@pytest.mark.parametrize("name", ["nowhere.jsonl", "directory.jsonl"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory.jsonl").mkdir()
    with pytest.raises(TestbedError, match=rf"{name}: (No such file|Is a directory)"):
        Model.load(tmp_path / name)


# --- whose trace it is ------------------------------------------------------------------------------------------------


def test_the_profile_is_the_one_of_the_trace_s_shape(tmp_path: Path) -> None:
    others = [replace(TINY, name="deeper", layers=5), replace(TINY, name="wider", experts=6), MIXTRAL]
    assert replayed(tmp_path, lines(9), *others, TINY).profile is TINY


def test_a_trace_of_top_1_is_replayed(tmp_path: Path) -> None:
    switch = replace(TINY, name="switch", top_k=1)
    recorded = [each | {"experts": each["experts"][:1], "gating_probs": [1.0]} for each in lines(9)]
    assert replayed(tmp_path, recorded, switch, TINY).profile is switch


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (
            [replace(TINY, name="t3", top_k=3)],
            r"no known model has 3 layers, 4 experts, top-2; known are t3 \(3 layers",
        ),
        ([replace(TINY, name="a", experts=6), replace(TINY, name="b", experts=5)], "no known model has 3 layers, 4"),
        ([TINY, replace(TINY, name="other")], "a trace of 3 layers, 4 experts, top-2 may be of tiny or other"),
    ],
)
def test_a_trace_of_no_model_or_of_several_is_refused(
    tmp_path: Path, others: list[ModelProfile], expected: str
) -> None:
    with pytest.raises(TestbedError, match=rf"trace\.jsonl: {expected}"):
        replayed(tmp_path, lines(9), *others)
