"""Profiles of large models: published sizes, what follows from them, and what a wrong entry is told."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from agents.models.profile import PROFILES_FILE, ModelProfile, read_profiles
from testbed.errors import TestbedError

MIXTRAL = ModelProfile.load("mixtral-8x7b")
ENTRIES = tomllib.loads(PROFILES_FILE.read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "shape", "expert_mb", "hidden_bytes"),
    [
        ("mixtral-8x7b", (32, 8, 2), (352, 176, 94), 8192),
        ("qwen1.5-moe-a2.7b", (24, 60, 4), (17.3, 8.7, 4.6), 4096),
        ("switch-base-8", (12, 8, 1), (9.4, 4.7, 2.5), 1536),
        ("olmoe-1b-7b", (16, 64, 8), (12.6, 6.3, 3.34), 4096),
        ("deepseek-v2-lite", (26, 64, 6), (17.3, 8.7, 4.6), 4096),
        ("qwen3-30b-a3b", (48, 128, 8), (9.4, 4.7, 2.5), 4096),
    ],
)
def test_a_model_has_its_published_shape_and_sizes(
    name: str, shape: tuple[int, int, int], expert_mb: tuple[float, ...], hidden_bytes: int
) -> None:
    profile = ModelProfile.load(name)

    assert (profile.layers, profile.experts, profile.top_k) == shape
    assert [size / 1e6 for size in profile.expert_bytes.values()] == pytest.approx(expert_mb, rel=0.01)
    assert profile.hidden_bytes == hidden_bytes


@pytest.mark.parametrize(
    ("name", "parameters_b"),
    [
        ("mixtral-8x7b", 46.7),
        ("qwen1.5-moe-a2.7b", 14.3),
        ("olmoe-1b-7b", 6.9),
        ("deepseek-v2-lite", 15.7),
        ("qwen3-30b-a3b", 30.5),
    ],
)
def test_all_parts_add_up_to_the_size_that_is_published(name: str, parameters_b: float) -> None:
    assert round(ModelProfile.load(name).parameters / 1e9, 1) == parameters_b


def test_switch_misses_only_the_attention_of_its_decoder_to_its_encoder() -> None:
    switch = ModelProfile.load("switch-base-8")
    across = 12 * 4 * switch.hidden**2

    assert round((switch.parameters + across) / 1e6) == 619


@pytest.mark.parametrize(
    ("name", "active_b"),
    [
        ("mixtral-8x7b", 12.9),  # the papers' own counts of what one token uses, with or without the embedding
        ("qwen1.5-moe-a2.7b", 2.7),
        ("olmoe-1b-7b", 1.3),
        ("deepseek-v2-lite", 2.4),
        ("qwen3-30b-a3b", 3.3),
    ],
)
def test_flops_of_a_token_are_two_per_parameter_that_it_uses(name: str, active_b: float) -> None:
    profile = ModelProfile.load(name)
    layers = profile.layers * (profile.dense_flops_per_token + profile.top_k * profile.expert_flops_per_token)
    embedding = profile.vocab * profile.hidden

    assert (layers + profile.head_flops_per_token) / 2 <= 1.05e9 * active_b
    assert (layers + profile.head_flops_per_token) / 2 + embedding >= 0.95e9 * active_b


def test_the_dense_part_of_mixtral_is_attention_gate_and_norms() -> None:
    assert MIXTRAL.dense_parameters == 2 * 4096**2 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 4096
    assert MIXTRAL.dense_bytes == 2 * MIXTRAL.dense_parameters
    assert MIXTRAL.dense_flops_per_token == 2 * (MIXTRAL.dense_parameters - 2 * 4096)
    assert MIXTRAL.attention_flops(3, 5) == 2 * 2 * 4096 * 3 * 5
    assert MIXTRAL.kv_bytes_per_token == 4096


def test_a_shared_expert_is_part_of_the_dense_part() -> None:
    qwen = ModelProfile.load("qwen1.5-moe-a2.7b")
    without = replace(qwen, shared_ffn=0)

    assert qwen.dense_parameters - without.dense_parameters == 3 * 2048 * 5632
    assert qwen.dense_flops_per_token - without.dense_flops_per_token == 2 * 3 * 2048 * 5632
    assert qwen.expert_bytes == without.expert_bytes


def test_experts_of_two_matrices_have_two_thirds_of_the_weights() -> None:
    two = replace(MIXTRAL, matrices=2)

    assert two.expert_parameters * 3 == MIXTRAL.expert_parameters * 2
    assert two.expert_flops_per_token * 3 == MIXTRAL.expert_flops_per_token * 2


def test_a_block_without_experts_before_every_layer_doubles_attention_and_cache() -> None:
    switch = ModelProfile.load("switch-base-8")
    alone = replace(switch, dense_blocks=0, dense_ffn=0)

    assert switch.dense_parameters == 2 * 4 * 768**2 + 2 * 768 * 3072 + 8 * 768 + 2 * 2 * 768
    assert switch.attention_flops(2, 9) == 2 * alone.attention_flops(2, 9)
    assert switch.kv_bytes_per_token == 2 * alone.kv_bytes_per_token == 2 * 2 * 2 * 768


def test_a_single_block_without_experts_is_spread_over_the_layers() -> None:
    deepseek = ModelProfile.load("deepseek-v2-lite")
    alone = replace(deepseek, dense_blocks=0, dense_ffn=0)
    block = deepseek.attention_parameters + 3 * 2048 * 10944

    more = deepseek.layers * (deepseek.dense_flops_per_token - alone.dense_flops_per_token)
    assert more == pytest.approx(2 * block)
    assert deepseek.layers * (deepseek.dense_parameters - alone.dense_parameters) == pytest.approx(block, rel=1e-3)


def test_heads_may_be_wider_than_their_share_of_the_hidden_state() -> None:
    qwen = ModelProfile.load("qwen3-30b-a3b")

    assert qwen.attention_parameters == 2048 * 32 * 128 + 2 * 2048 * 4 * 128 + 32 * 128 * 2048
    assert qwen.kv_bytes_per_token == 2 * 2 * 4 * 128
    assert qwen.attention_flops(1, 1) == 2 * 2 * 32 * 128


def test_latent_attention_keeps_the_compressed_state_and_the_rotary_key() -> None:
    alone = replace(ModelProfile.load("deepseek-v2-lite"), dense_blocks=0, dense_ffn=0)

    queries, compress, expand, out = 2048 * 16 * 192, 2048 * 576, 512 * 16 * 256, 16 * 128 * 2048
    assert alone.attention_parameters == queries + compress + expand + out
    assert alone.kv_bytes_per_token == 2 * 576
    assert alone.attention_flops(1, 1) == 2 * 16 * (576 + 512)


def test_every_profile_says_where_its_numbers_come_from() -> None:
    for profile in ModelProfile.known():
        assert "config.json" in profile.source


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TestbedError, match=r"no profile of a model 'gpt'; known are deepseek-v2-lite, mixtral-8x7b, "):
        ModelProfile.load("gpt")


def test_the_documented_table_is_what_the_profiles_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models" / "profiles.md").read_text("utf-8")
    for profile in ModelProfile.known():
        sizes = " / ".join(f"{size / 1e6:.1f}" for size in profile.expert_bytes.values())
        dense = f"{profile.dense_bytes / 1e6:.1f}, {profile.dense_flops_per_token / 1e6:.1f}"
        assert (
            f"| {profile.name} | {profile.experts}, {profile.top_k} | {profile.layers} | {profile.hidden} | {sizes} |"
            f" {profile.expert_flops_per_token / 1e6:.1f} | {dense} | {profile.kv_bytes_per_token} |"
            f" {profile.parameters / 1e9:.3f} B |"
        ) in page


# --- what a wrong file is told ----------------------------------------------------------------------------------------


def toml(entries: dict[str, dict[str, object]]) -> str:
    """Tables of numbers, texts and one level of tables; None leaves a key out."""
    lines = []
    for name, entry in entries.items():
        lines.append(f"[{json.dumps(name)}]")
        for key, value in entry.items():
            inner = ", ".join(f"{a} = {b}" for a, b in value.items()) if isinstance(value, dict) else None
            if value is not None:
                lines.append(f"{key} = " + (json.dumps(value) if inner is None else f"{{ {inner} }}"))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layers": 31}, r"adds up to 45,\d+,\d+,\d+ parameters, but states 46702792704"),
        ({"parameters": None}, "adds up to 46,702,792,704 parameters, but states None"),
        ({"kv_head": 8}, r"unknown key 'kv_head'; did you mean 'kv_heads'\?"),
        ({"hidden": "wide"}, r"Expected `int`, got `str` - at `\$\.hidden`"),
        ({"experts": 0}, r"Expected `int` >= 1 - at `\$\.experts`"),
        ({"matrices": 4}, r"Expected `int` <= 3 - at `\$\.matrices`"),
        ({"latent": {"rank": 512}}, r"missing required field `rope_width` - at `\$\.latent`"),
        ({"top_k": 9}, "top_k is 9, but a layer has 8 experts"),
        ({"heads": 33}, "33 heads do not divide hidden 4096; give head_width"),
        ({"dense_blocks": 2}, "dense_blocks and dense_ffn belong together"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(toml({"mixtral-8x7b": ENTRIES["mixtral-8x7b"] | changes}))

    with pytest.raises(TestbedError, match=rf"profiles\.toml: mixtral-8x7b: .*{expected}"):
        read_profiles(path)


def test_an_entry_without_a_required_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(toml({"m": {key: ENTRIES["mixtral-8x7b"][key] for key in ("layers", "source")}}))

    with pytest.raises(TestbedError, match="m: Object missing required field `experts`"):
        read_profiles(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must hold profiles by the names of their models"),
        ("m = 3", "m: must be a table of the model's sizes"),
        ("m = {layers = [", "not TOML: Invalid value"),
        ("m: 3", "not TOML: .*line 1"),
        ("#" * 2**20 + "##", "longer than 1048576 bytes"),
    ],
)
def test_a_file_that_holds_no_profiles_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)

    with pytest.raises(TestbedError, match=rf"profiles\.toml: {expected}"):
        read_profiles(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"none\.toml: No such file"):
        read_profiles(tmp_path / "none.toml")
