"""Recording a twin's routing: what is written, that a replay of it decides the same, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.models import record
from agents.models.calibrate import Calibration
from agents.models.loader import tensor_shapes
from agents.models.mixture import Gate
from agents.models.model import Model
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.record import Text, check_size, recorded, write_trace
from agents.models.reference import generate, through
from agents.models.replay import Replay
from agents.models.spec import ModelSpec
from agents.models.trace import Trace
from agents.models.twin import Twin
from orchestration.routing import prompt_texts, record_routing, scenario_texts
from scenarios.timeline import Request
from testbed.errors import TestbedError
from tests.support.simulated import scenario

from .trace_cases import TINY, lines, written

SPEC = ModelSpec(
    name="tiny", layers=3, experts=4, top_k=2, width=16, heads=2, expert_width=24, vocab=40, context=64, rope_base=100.0
)
WEIGHING_ALL = replace(TINY, gating="all")


def twin_of(spec: ModelSpec) -> Twin:
    draw = np.random.default_rng(5)
    shapes = tensor_shapes(spec)
    return Twin(spec, {name: draw.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()})


TWIN = twin_of(SPEC)
TEXTS = [
    Text(dataset="prose", number=0, tokens=(3, 1, 4, 1, 5, 9, 2, 6)),
    Text(dataset="maths", number=4, tokens=(5, 3, 5, 8)),
    Text(dataset="maths", number=7, tokens=(2, 7, 1), output_tokens=5),
]


def same_decisions(replay: Replay, row: int, gates: list[Gate]) -> bool:
    """Whether the replay's rows from ``row`` decide in every layer as these gates, one per layer, did."""
    rows = range(row, row + len(gates[0].experts))
    replayed = [replay.gate(layer, replay.embed(rows)) for layer in range(len(gates))]
    return all(
        (ours.experts == theirs.experts).all() and (ours.weights == theirs.weights).all()
        for ours, theirs in zip(replayed, gates, strict=True)
    )


# --- what a replay of it does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "profile"), [(SPEC, TINY), (replace(SPEC, gating="all"), WEIGHING_ALL)], ids=["chosen", "all"]
)
def test_a_recorded_trace_replays_to_the_same_gate_decisions_bit_for_bit(
    tmp_path: Path, spec: ModelSpec, profile: ModelProfile
) -> None:
    twin = twin_of(spec)
    path = tmp_path / "own.jsonl"
    write_trace(path, recorded(twin, TEXTS), profile)

    replay = Replay.load(path, (profile,))

    assert [(each.dataset, each.number, each.tokens) for each in replay.trace.problems] == [
        ("maths", 4, 4),
        ("maths", 7, 3 + 5 - 1),
        ("prose", 0, 8),
    ]
    assert (replay.trace.incomplete, replay.trace.rescaled) == (0, 0)
    for text, row in ((TEXTS[0], 4 + 7), (TEXTS[1], 0)):
        gates: list[Gate] = []
        through(twin, twin.embed(text.tokens), gates=gates)
        assert same_decisions(replay, row, gates)
    caches = [twin.new_cache() for _ in range(spec.layers)]
    through(twin, twin.embed([2, 7, 1]), caches=caches)
    for place, token in enumerate(generate(twin, [2, 7, 1], 5).tokens[:-1]):
        gates = []
        through(twin, twin.embed([token]), caches=caches, start=3 + place, gates=gates)
        assert same_decisions(replay, 4 + 3 + place, gates)


def test_a_trace_that_was_recorded_is_in_the_documented_format(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_trace(path, recorded(TWIN, TEXTS), TINY)

    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 3 * (8 + 4 + 7)
    assert set(found[0]) == {"dataset", "problem_id", "layer", "experts", "gating_probs", "token_idx"}
    assert {each["token_idx"] for each in found if each["problem_id"] == 7} == set(range(7))


def test_a_text_that_is_continued_by_one_token_has_the_decisions_of_its_prompt() -> None:
    prompt = Text(dataset="a", number=0, tokens=(3, 1, 4))

    assert list(recorded(TWIN, [prompt])) == list(recorded(TWIN, [replace(prompt, output_tokens=1)]))


# --- which texts ------------------------------------------------------------------------------------------------------


def model_of(tmp_path: Path) -> Model:
    draw = np.random.default_rng(2)
    rows = {name: draw.integers(0, SPEC.vocab, (5, 12)).astype(np.int16) for name in ("maths", "prose")}
    calibration = Calibration(
        tokens=1,
        domains=("maths", "prose"),
        usage=np.full((2, 3, 4), 0.25),
        precision_loss={"full": (0.0,) * 3},
        precision_loss_total={"full": 0.0},
    )
    return Model(directory=tmp_path, twin=TWIN, profile=TINY, calibration=calibration, prompts=Prompts(rows))


def test_held_out_texts_keep_their_numbers_and_are_cut_where_asked(tmp_path: Path) -> None:
    model = model_of(tmp_path)

    whole = prompt_texts(model, domains=[], texts=2, tokens=None)
    cut = prompt_texts(model, domains=["prose", "prose"], texts=1, tokens=4)

    assert [(each.dataset, each.number, len(each.tokens)) for each in whole] == [
        ("maths", 0, 12),
        ("maths", 1, 12),
        ("prose", 0, 12),
        ("prose", 1, 12),
    ]
    assert [each.tokens for each in cut] == [tuple(model.prompts.take("prose", 0, 4))]


def request(number: int, domain: str, prompt: int, tokens: int, output_tokens: int) -> Request:
    return Request(
        number=number,
        at_s=float(number),
        home="s1",
        kind="generate" if output_tokens else "score",
        domain=domain,
        prompt=prompt,
        tokens=tokens,
        output_tokens=output_tokens,
    )


def test_requests_of_a_scenario_are_recorded_once_each(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    asked = [("prose", 6, 4, 0), ("maths", 1, 5, 0), ("prose", 6, 4, 0), ("prose", 6, 9, 0), ("prose", 6, 4, 3)]
    requests = tuple(request(number, *each) for number, each in enumerate(asked))

    texts = scenario_texts(model, scenario(requests))

    assert [(each.dataset, each.number, len(each.tokens), each.output_tokens) for each in texts] == [
        ("prose", 0, 4, 0),
        ("maths", 0, 5, 0),
        ("prose", 1, 9, 0),
        ("prose", 2, 4, 3),
    ]
    assert texts[0].tokens == tuple(model.prompts.take("prose", 6, 4))
    assert isinstance(record_routing(model, texts, tmp_path / "own.jsonl"), Trace)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"domains": ["prosa"]}, r"no domain 'prosa'; did you mean 'prose'\?; the model has maths, prose"),
        ({"texts": 6}, "domain maths has 5 texts, not 6"),
        ({"tokens": 13}, "a prompt has 1 to 12 tokens, not 13"),
    ],
)
def test_texts_that_the_model_does_not_have_are_refused(
    tmp_path: Path, options: dict[str, object], expected: str
) -> None:
    wanted: dict[str, object] = {"domains": [], "texts": 1, "tokens": None}
    with pytest.raises(TestbedError, match=expected):
        prompt_texts(model_of(tmp_path), **(wanted | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("MAX_TOKENS", 18, "19 tokens are more than the 18 that a trace of 3 layers may hold"),
        ("MAX_LINES", 50, "19 tokens are more than the 16 that"),
    ],
)
def test_what_no_trace_may_hold_is_refused_before_it_is_computed(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, expected: str
) -> None:
    monkeypatch.setattr(record, limit, value)
    with pytest.raises(TestbedError, match=expected):
        check_size(TEXTS, 3)


def test_nothing_to_record_is_refused() -> None:
    with pytest.raises(TestbedError, match="nothing to record"):
        check_size([], 3)


def test_a_trace_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("mine")

    with pytest.raises(TestbedError, match=r"own\.jsonl: is there already"):
        write_trace(path, recorded(TWIN, TEXTS), TINY)
    assert path.read_text() == "mine"


def test_a_recording_too_short_to_tell_whose_it_is_leaves_nothing(tmp_path: Path) -> None:
    few = [each for each in recorded(TWIN, TEXTS[:1]) if 3 not in each.experts]

    with pytest.raises(TestbedError, match=r"own\.jsonl: the trace could not be played, record more text: "):
        write_trace(tmp_path / "own.jsonl", few, TINY)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"token numbers must be in 0\.\.39"):
        write_trace(tmp_path / "own.jsonl", recorded(TWIN, [*TEXTS, Text(dataset="a", number=0, tokens=(40,))]), TINY)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"nowhere/own\.jsonl: cannot be written: No such file"):
        write_trace(tmp_path / "nowhere" / "own.jsonl", recorded(TWIN, TEXTS), TINY)


def test_a_trace_is_not_recorded_again(tmp_path: Path) -> None:
    replay = Replay.load(written(tmp_path / "t.jsonl", lines(6)), (TINY,))
    model = replace(model_of(tmp_path), twin=replay)

    with pytest.raises(TestbedError, match="is a trace already; record the routing of a twin"):
        record_routing(model, TEXTS, tmp_path / "own.jsonl")


def test_a_name_that_no_model_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"own\.json: a trace's name ends in \.jsonl"):
        record_routing(model_of(tmp_path), TEXTS, tmp_path / "own.json")
