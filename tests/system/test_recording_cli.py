"""The commands that make routing traces, and a run on what they made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orchestrator
from agents.models.model import Model
from agents.models.reference import through
from tests.support.simulated import ROOT

SMALL = str(ROOT / "topologies" / "small3.yaml")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        orchestrator.main(list(arguments))
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        orchestrator.main(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_routing_of_the_twin_is_recorded_and_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "own.jsonl"
    said = told(capsys, "record-routing", str(trace), "--domains", "code,docs", "--texts", "2", "--tokens", "40")
    assert "160 tokens of 4 texts" in said

    twin, replay = Model.load(orchestrator.DEFAULT_MODEL), Model.load(trace)
    assert replay.profile == twin.profile
    assert replay.prompts.domains == ("code", "docs")
    gates: list[object] = []
    tokens = twin.prompts.take("docs", 1, 40)
    through(twin.twin, twin.twin.embed(tokens), gates=gates)  # type: ignore[arg-type]
    for layer, gate in enumerate(gates):
        replayed = replay.twin.gate(layer, replay.twin.embed(range(120, 160)))
        assert (replayed.experts == gate.experts).all()  # type: ignore[attr-defined]
        assert (replayed.weights == gate.weights).all()  # type: ignore[attr-defined]

    options = ["--model", str(trace), "--backend", "sim", "--topology", SMALL, "--duration", "2"]
    assert "as recorded" in told(
        capsys, "run", "steady_load", "--framework", "greedy", *options, "--results", str(tmp_path / "results")
    )


def test_what_a_scenario_asks_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "asked.jsonl"
    options = ["--scenario", "generation", "--topology", SMALL, "--duration", "2", "--rate", "2"]
    told(capsys, "record-routing", str(trace), *options)

    found = [json.loads(line) for line in trace.read_text().splitlines()]
    assert {each["layer"] for each in found} == set(range(Model.load(orchestrator.DEFAULT_MODEL).profile.layers))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--rate", "3"], "--rate has no meaning without --scenario"),
        (["--scenario", "generation", "--tokens", "3"], "--tokens has no meaning with --scenario"),
        (["--domains", "cod"], "did you mean 'code'?"),
        (["--texts", "257"], "not 257"),
    ],
)
def test_a_mistake_makes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    trace = tmp_path / "own.jsonl"

    assert expected in refused(capsys, "record-routing", str(trace), *options)
    assert not trace.exists()


def test_a_log_of_one_layer_is_converted_only_if_it_may_be_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, trace = tmp_path / "x.vllm_routes.jsonl", tmp_path / "t.jsonl"
    meta = {"type": "meta", "model_id": "mistralai/Mixtral-8x7B-v0.1", "layers_logged": [0], "top_k": 2}
    rows = [
        {"type": "route", "req_id": "r", "token_idx": n, "layer": 0, "topk_ids": [n % 8, 7 - n % 8], "topk_weights": w}
        for n, w in enumerate([[0.75, 0.25]] * 20)
    ]
    log.write_text("".join(f"{json.dumps(each)}\n" for each in [meta, *rows]))

    assert "--spread" in refused(capsys, "convert-routing", str(log), str(trace))
    assert "20 tokens in 1 steps, layer 0 of mixtral-8x7b" in told(
        capsys, "convert-routing", str(log), str(trace), "--spread"
    )
    assert Model.load(trace).profile.name == "mixtral-8x7b"
