"""A checkpoint's directory as a model: what is refused, what is read when; who hosts an expert does not matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import orchestrator
from agents.models.checkpoints.experts import Experts
from agents.models.checkpoints.load import Checkpoint, is_expert, load_checkpoint
from agents.models.checkpoints.tensors import Tensors
from agents.models.mixture import Totals, assign, finish
from agents.models.model import Model
from agents.models.reference import generate, score
from testbed.errors import TestbedError
from tests.support import checkpoints
from tests.support.checkpoints import EXPERTS, FFN, LAYERS, VOCAB, WIDTH, expert_name

TOKENS = [3, 17, 2, 5, 31, 9, 9, 30]
EXPERT_BYTES = 4 * 3 * WIDTH * FFN


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("checkpoint"))


def experts_read(checkpoint: Checkpoint) -> list[str]:
    return [name for name in checkpoint.tensors.names_read if is_expert(name)]


# --- what is read, and when -------------------------------------------------------------------------------------------


def test_loading_reads_everything_once_but_the_experts(directory: Path) -> None:
    checkpoint = load_checkpoint(directory)

    everything = checkpoints.tensors()
    dense = {name: weights.nbytes for name, weights in everything.items() if not is_expert(name)}
    assert sorted(checkpoint.tensors.names_read) == sorted(dense)
    assert checkpoint.tensors.bytes_read == sum(dense.values())


def test_an_agent_that_hosts_three_experts_reads_three(directory: Path) -> None:
    checkpoint = load_checkpoint(directory)
    before = checkpoint.tensors.bytes_read
    rows = np.ones((1, WIDTH), np.float32)

    for _ in range(2):  # the second time nothing is read
        for expert in (0, 2, 3):
            checkpoint.arithmetic.outputs(1, [(expert, "full", 1)], rows)

    assert sorted(experts_read(checkpoint)) == sorted(
        expert_name(1, expert, matrix) for expert in (0, 2, 3) for matrix in ("w1", "w2", "w3")
    )
    assert checkpoint.tensors.bytes_read - before == 3 * EXPERT_BYTES


def test_an_expert_that_had_to_make_room_is_read_again_with_the_same_result(directory: Path) -> None:
    tensors = Tensors.open(directory)
    experts = Experts(
        tensors,
        lambda layer, expert: tuple(expert_name(layer, expert, matrix) for matrix in ("w1", "w3", "w2")),
        layers=LAYERS,
        experts=EXPERTS,
        width=WIDTH,
        ffn=FFN,
        memory_bytes=2 * EXPERT_BYTES,
    )
    rows = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    first = experts.outputs(0, [(0, "full", 3)], rows)
    for expert in (1, 2, 3):
        experts.outputs(0, [(expert, "full", 3)], rows)
        assert experts.held_bytes <= 2 * EXPERT_BYTES

    again = experts.outputs(0, [(0, "full", 3)], rows)

    assert again.tobytes() == first.tobytes()
    assert tensors.names_read.count(expert_name(0, 0)) == 2


def test_servers_that_share_the_experts_give_the_bits_of_one_that_has_them_all(directory: Path) -> None:
    whole = load_checkpoint(directory).arithmetic
    hosts = [load_checkpoint(directory), load_checkpoint(directory)]  # odd experts, even experts
    x = whole.embed(TOKENS)
    for layer in range(LAYERS):
        x = whole.attend(layer, x)
        gate = whole.gate(layer, x)
        total: Totals = np.zeros(gate.hidden.shape, np.int64)
        for part in reversed(assign(gate.experts, gate.weights)):
            host = hosts[part.expert % 2].arithmetic
            sent = gate.hidden[part.tokens]
            calls = [(part.expert, "full", len(part.tokens))]
            partial: Totals = np.zeros(sent.shape, np.int64)
            host.experts(layer, calls, sent, np.arange(len(sent)), part.weights, partial)
            total[part.tokens] += partial
        x = finish(gate.residual(x), total)

    assert whole.logits(x).tobytes() == score(load_checkpoint(directory).arithmetic, TOKENS).tobytes()
    for place, host in enumerate(hosts):
        assert {int(name.split(".experts.")[1].split(".")[0]) % 2 for name in experts_read(host)} == {place}


def test_several_files_give_the_bits_of_one(directory: Path, tmp_path: Path) -> None:
    everything = checkpoints.tensors()
    names = sorted(everything)
    shards = {
        f"model-{number + 1:05}-of-00003.safetensors": {name: everything[name] for name in names[number::3]}
        for number in range(3)
    }
    cut = load_checkpoint(checkpoints.write_shards(tmp_path / "cut", shards)).arithmetic

    assert score(cut, TOKENS).tobytes() == score(load_checkpoint(directory).arithmetic, TOKENS).tobytes()


def test_decoding_is_refused_for_a_cache_that_lacks_positions(directory: Path) -> None:
    model = load_checkpoint(directory).arithmetic
    cache = model.new_cache()
    model.attend(0, model.embed(TOKENS), cache)
    with pytest.raises(TestbedError, match="layer 0: the cache holds 8 positions, so start cannot be 7"):
        model.attend(0, model.embed(TOKENS[:1]), cache, 7)


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_that_the_model_does_not_have_is_refused(directory: Path, token: int) -> None:
    with pytest.raises(TestbedError, match=rf"token numbers must be in 0\.\.{VOCAB - 1}"):
        load_checkpoint(directory).arithmetic.embed([token])


# --- precisions -------------------------------------------------------------------------------------------------------


def test_fewer_bits_change_the_logits_a_little(directory: Path) -> None:
    model = load_checkpoint(directory).arithmetic
    full, int8, int4 = (score(model, TOKENS, precision) for precision in ("full", "int8", "int4"))
    assert 0 < np.abs(int8 - full).max() < np.abs(int4 - full).max() < np.abs(full).max()


def test_rows_that_a_precision_cannot_group_are_refused_naming_the_tensor(tmp_path: Path) -> None:
    weights = checkpoints.tensors()
    for name, tensor in weights.items():
        if ".w2." in name:
            weights[name] = np.ascontiguousarray(np.repeat(tensor, 2, axis=1)[:, :48])
        elif is_expert(name):
            weights[name] = np.ascontiguousarray(np.repeat(tensor, 2, axis=0)[:48])
    model = load_checkpoint(checkpoints.write(tmp_path / "x", weights, intermediate_size=48)).arithmetic
    with pytest.raises(TestbedError, match=r"tensor \S+experts.1.w2.weight cannot be used in int4: .* not divide 48"):
        model.outputs(0, [(1, "int4", 1)], np.ones((1, WIDTH), np.float32))


def test_an_unknown_precision_is_refused(directory: Path) -> None:
    with pytest.raises(TestbedError, match="unknown precision 'int3'; known are full, int8, int4"):
        load_checkpoint(directory).arithmetic.outputs(0, [(1, "int3", 1)], np.ones((1, WIDTH), np.float32))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model_type": "mixtrel"}, r"model_type is 'mixtrel'; did you mean 'mixtral'\?; known are deepseek_v2, "),
        ({"model_type": None}, "model_type is None; known are"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "16"}, "hidden_size is '16'; it must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number from 1 to 10000"),
        ({"model_type": ["mixtral"]}, r"model_type is \['mixtral'\]"),
        ({"rope_theta": 1}, "rope_theta is 1; it must be above 1"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*; it must be a number above 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number from 1"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5; there are 4 experts"),
        ({"num_local_experts": 40_000}, "num_local_experts is 40000; supported are up to 32767"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide 2 heads"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3, which does not divide hidden_size 16"),
        ({"head_dim": 7}, "rotary width is 7; it must be even"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: absent, 'silu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is of type 'dynamic'; supported: default"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": 3}, "rope_scaling is 3; it must be a table"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; supported: absent, 1.0"),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config is .*: get the|quantization_config is .*unquantised",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number above 0"),
    ],
)
def test_a_configuration_that_cannot_be_computed_is_refused_naming_the_field(
    tmp_path: Path, fields: dict[str, Any], complaint: str
) -> None:
    directory = checkpoints.write(tmp_path / "x", **fields)
    with pytest.raises(TestbedError, match=complaint) as refused:
        load_checkpoint(directory)
    assert "config.json" in str(refused.value)


def test_a_request_beyond_the_window_or_the_positions_is_refused_and_up_to_them_it_is_not(tmp_path: Path) -> None:
    windowed = load_checkpoint(checkpoints.write(tmp_path / "x", sliding_window=8)).arithmetic
    score(windowed, TOKENS)
    with pytest.raises(TestbedError, match=r"a request of 9 positions is too long: .*sliding_window .* is 8"):
        score(windowed, [*TOKENS, 1])
    with pytest.raises(TestbedError, match="a request of 9 positions is too long"):
        generate(windowed, TOKENS, 2)
    short = load_checkpoint(checkpoints.write(tmp_path / "y", max_position_embeddings=8)).arithmetic
    with pytest.raises(TestbedError, match=r"too long: .*max_position_embeddings is 8"):
        score(short, [*TOKENS, 1])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    for name in (expert_name(1, 3, "w2"), "model.layers.1.self_attn.k_proj.weight", "lm_head.weight"):
        weights = checkpoints.tensors()
        del weights[name]
        with pytest.raises(TestbedError, match=f"tensor {name} is missing"):
            load_checkpoint(checkpoints.write(tmp_path / "x", weights))


def test_a_tensor_of_another_shape_is_named_with_both_before_an_expert_is_read(tmp_path: Path) -> None:
    weights = checkpoints.tensors()
    weights[expert_name(1, 2)] = weights[expert_name(1, 2)][:-1].copy()
    with pytest.raises(
        TestbedError, match=r"experts.2.w1.weight has shape \(31, 16\); config.json asks for \(32, 16\)"
    ):
        load_checkpoint(checkpoints.write(tmp_path / "x", weights))


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    weights: dict[str, Any] = checkpoints.tensors()
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.float64)
    with pytest.raises(TestbedError, match=r"tensor model.norm.weight has type F64; only F32, F16, BF16"):
        load_checkpoint(checkpoints.write(tmp_path / "x", weights))


def test_a_tensor_that_would_go_unused_is_refused_unless_it_follows_from_the_configuration(tmp_path: Path) -> None:
    weights = checkpoints.tensors()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    load_checkpoint(checkpoints.write(tmp_path / "x", weights))
    weights["model.layers.0.self_attn.q_proj.bias"] = np.ones(WIDTH, np.float32)
    with pytest.raises(TestbedError, match=r"tensor model.layers.0.self_attn.q_proj.bias is no part of this arch"):
        load_checkpoint(checkpoints.write(tmp_path / "x", weights))


def test_a_truncated_checkpoint_is_refused_naming_a_tensor(tmp_path: Path) -> None:
    file = checkpoints.write(tmp_path / "x") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(TestbedError, match=r"model.safetensors: tensor \S+ ends 5 bytes after the file does"):
        load_checkpoint(tmp_path / "x")


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
def test_a_configuration_that_is_no_table_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(TestbedError, match=r"config.json: "):
        load_checkpoint(tmp_path)


# --- as a model of the testbed ----------------------------------------------------------------------------------------


def test_what_a_checkpoint_lacks_is_stood_in_for_and_said(directory: Path) -> None:
    model = Model.load(directory)

    assert model.prompts.domains == ("random",)
    assert model.prompts.rows["random"].max() < VOCAB
    assert model.prompts.take("random", 7, 20) == Model.load(directory).prompts.take("random", 7, 20)
    assert model.calibration.usage.shape == (1, LAYERS, EXPERTS)
    assert np.allclose(model.calibration.usage, 1 / EXPERTS)
    assert model.calibration.quality_loss(1, "full") == 0.0
    assert "prompts are random tokens" in model.summary
    assert model.remembering().summary == model.summary


def test_a_precision_whose_loss_nobody_measured_is_refused_saying_how_to_measure_it(directory: Path) -> None:
    command = f"python -m agents.models.checkpoints.calibrate {directory}"
    with pytest.raises(TestbedError, match=f"precision int8 loses .* has not been measured .*`{command}`"):
        Model.load(directory).calibration.quality_loss(0, "int8")


def test_prompts_beside_a_checkpoint_are_taken_if_the_model_has_their_tokens(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path / "x")
    rows = np.full((4, 12), VOCAB - 1, np.int16)
    save_file({"docs": rows}, directory / "heldout.safetensors")
    assert Model.load(directory).prompts.domains == ("docs",)
    save_file({"docs": rows + 1}, directory / "heldout.safetensors")
    with pytest.raises(TestbedError, match=f"tensor docs holds token {VOCAB}; the model has {VOCAB}"):
        Model.load(directory)


def test_a_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path / "x")
    other = {
        "tokens": 1,
        "domains": ["a"],
        "usage": [[[0.5, 0.5]]],
        "precision_loss": {"full": [0.0]},
        "precision_loss_total": {"full": 0.0},
    }
    (directory / "calibration.json").write_text(json.dumps(other))
    with pytest.raises(TestbedError, match=r"usage covers \(1, 2\) layers and experts, the model has \(2, 4\)"):
        Model.load(directory)


def test_the_profile_counts_every_parameter_of_the_file(directory: Path) -> None:
    assert Model.load(directory).profile.parameters == sum(each.size for each in checkpoints.tensors().values())


def test_a_run_in_virtual_time_gives_every_request_the_bits_of_one_process(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        orchestrator.main(
            f"compare steady_load --backend sim --model {directory} --frameworks edgeshard,local-first "
            f"--duration 1 --rate 8 --results {tmp_path / 'results'}".split()
        )
    assert not ended.value.code
    said = [line for line in capsys.readouterr().out.splitlines() if "answered" in line]
    assert len(said) == 2
    for line in said:
        answered, sent = (int(word) for word in line.split(": ")[1].split(" answered")[0].split(" of "))
        assert answered == sent > 0
        assert f"{sent} bit-exact" in line
