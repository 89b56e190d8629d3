"""The five layouts, as ``transformers`` writes them: who hosts what, what their sizes are, what cannot be computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("transformers", reason="transformers is in the test extra")

from agents.models.checkpoints import calibrate
from agents.models.checkpoints.load import is_expert, load_checkpoint
from agents.models.mixture import Totals, assign, finish
from agents.models.model import Model
from agents.models.reference import score
from testbed.errors import TestbedError
from tests.support.transformers_cases import CASES, LAYOUTS, TOKENS, Cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_servers_that_share_the_experts_give_the_bits_of_one_that_has_them_all(name: str, cases: Cases) -> None:
    directory = cases[name].directory
    whole, hosts = load_checkpoint(directory), [load_checkpoint(directory) for _ in range(3)]
    dense = set(whole.tensors.names_read)
    model = whole.arithmetic
    x = model.embed(TOKENS)
    for layer in range(model.spec.layers):
        x = model.attend(layer, x)
        gate = model.gate(layer, x)
        total: Totals = np.zeros(gate.hidden.shape, np.int64)
        for part in reversed(assign(gate.experts, gate.weights)):
            host = hosts[part.expert % 3].arithmetic
            sent = gate.hidden[part.tokens]
            partial: Totals = np.zeros(sent.shape, np.int64)
            calls = [(part.expert, "full", len(part.tokens))]
            host.experts(layer, calls, sent, np.arange(len(sent)), part.weights, partial)
            total[part.tokens] += partial
        x = finish(gate.residual(x), total)

    assert model.logits(x).tobytes() == score(load_checkpoint(directory).arithmetic, TOKENS).tobytes()
    assert set(whole.tensors.names_read) == dense  # the server that aggregates has read no expert
    assert not any(is_expert(each) for each in dense)
    read = [{each for each in host.tensors.names_read if is_expert(each)} for host in hosts]
    assert read[0]
    assert sum(map(len, read)) == len(set.union(*read))  # none by two


COUNTED = [name for name in CASES if name.startswith(("mixtral", "olmoe", "qwen2-moe")) and "dense" not in name]


@pytest.mark.parametrize("name", COUNTED)
def test_the_profile_counts_every_parameter(name: str, cases: Cases) -> None:
    """Where blocks are alike: a profile counts a block's vectors in dense blocks, too."""
    profile = load_checkpoint(cases[name].directory).profile
    assert profile.parameters == sum(each.numel() for each in cases[name].model.parameters())


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_profile_has_the_layers_and_experts_that_servers_see(name: str, cases: Cases) -> None:
    checkpoint = load_checkpoint(cases[name].directory)
    spec, profile = checkpoint.arithmetic.spec, checkpoint.profile
    sizes = [size for each, size in checkpoint.tensors.sizes().items() if is_expert(each)]

    assert (profile.layers, profile.experts, profile.top_k) == (spec.layers, spec.experts, spec.top_k)
    assert len(sizes) == spec.layers * spec.experts * profile.matrices
    assert profile.expert_parameters * spec.layers * spec.experts == sum(sizes)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2-moe", {"decoder_sparse_step": 2}, r"num_hidden_layers is 3, and the last block \(2\) has no experts"),
    ("qwen2-moe", {"mlp_only_layers": ["1"]}, r"mlp_only_layers is .* must be a list of block numbers"),
    ("deepseek-v2-lite", {"norm_topk_prob": True}, r"norm_topk_prob is True; supported: absent, False"),
    ("deepseek-v2-lite", {"topk_method": "noaux_tc"}, r"topk_method is 'noaux_tc'; supported"),
    ("deepseek-v2-lite", {"scoring_func": "sigmoid"}, r"scoring_func is 'sigmoid'"),
    ("deepseek-v2-grouped", {"n_group": 3}, r"n_group is 3, which does not divide 8 experts"),
    ("deepseek-v2-grouped", {"topk_group": 1}, r"topk_group is 1 of 4; a token chooses 3 experts"),
    ("deepseek-v2-lite", {"q_lora_rank": 8}, r"tensor model.layers.0.self_attn.q_b_proj.weight is missing"),
    ("deepseek-v2-yarn", {"rope_parameters": {"rope_type": "llama3"}}, r"rope_parameters is of type 'llama3'"),
    ("switch", {"dense_act_fn": "gelu"}, r"dense_act_fn is 'gelu'"),
    ("switch", {"router_dtype": "bfloat16"}, r"router_dtype is 'bfloat16'"),
    ("switch", {"decoder_sparse_step": 3}, r"num_sparse_decoder_layers leaves the decoder's last block without"),
]


@pytest.mark.parametrize(("name", "fields", "complaint"), REFUSED)
def test_what_a_layout_cannot_compute_is_refused_naming_the_field(
    name: str, fields: dict[str, Any], complaint: str, cases: Cases, tmp_path: Path
) -> None:
    copied(cases[name].directory, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(TestbedError, match=complaint):
        load_checkpoint(tmp_path)


def test_losses_of_precisions_can_be_measured_and_are_used_from_then_on(
    cases: Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(cases["qwen2-moe"].directory, tmp_path)
    monkeypatch.setattr("sys.argv", ["calibrate", str(tmp_path), "--rows", "2"])
    assert calibrate.main() == TestbedError.exit_code
    assert "heldout.safetensors: no such file" in capsys.readouterr().err
    draw = np.random.default_rng(3)
    rows = {domain: draw.integers(0, 64, (5, 24), dtype=np.int16) for domain in ("a", "b")}
    save_file(rows, tmp_path / "heldout.safetensors")

    assert calibrate.main() == 0

    found = Model.load(tmp_path).calibration
    assert (found.tokens, found.domains) == (2 * 2 * 24, ("a", "b"))
    assert np.allclose(found.usage.sum(axis=2), 1, atol=1e-3)
    assert found.precision_loss_total["int4"] != 0
    assert found.quality_loss(1, "int8") > 0


def copied(source: Path, target: Path) -> None:
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
