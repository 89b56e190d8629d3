"""A small Mixtral checkpoint made by hand, for tests that need one whose every byte is theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LAYERS, EXPERTS, WIDTH, FFN, VOCAB = 2, 4, 16, 32, 40

CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 300,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "sliding_window": None,
}

Tensors = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def tensors() -> Tensors:
    """Random weights of that shape."""
    draw = np.random.default_rng(5)

    def matrix(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (0.3 * draw.standard_normal(shape)).astype(np.float32)

    found: Tensors = {"model.embed_tokens.weight": matrix(VOCAB, WIDTH), "lm_head.weight": matrix(VOCAB, WIDTH)}
    found["model.norm.weight"] = 1 + matrix(WIDTH)
    for layer in range(LAYERS):
        where = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{where}{name}.weight"] = 1 + matrix(WIDTH)
        for name, width in (("q", WIDTH), ("k", WIDTH // 2), ("v", WIDTH // 2), ("o", WIDTH)):
            found[f"{where}self_attn.{name}_proj.weight"] = matrix(width, WIDTH)
        found[f"{where}block_sparse_moe.gate.weight"] = matrix(EXPERTS, WIDTH)
        for expert in range(EXPERTS):
            for name, shape in (("w1", (FFN, WIDTH)), ("w2", (WIDTH, FFN)), ("w3", (FFN, WIDTH))):
                found[expert_name(layer, expert, name)] = matrix(*shape)
    return found


def expert_name(layer: int, expert: int, matrix: str = "w1") -> str:
    return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight"


def write(directory: Path, weights: Tensors | None = None, **fields: Any) -> Path:
    """One file; ``fields`` replace those of the configuration, None leaves null there."""
    directory.mkdir(exist_ok=True)
    write_config(directory, **fields)
    save_file(tensors() if weights is None else weights, directory / "model.safetensors")
    return directory


def write_config(directory: Path, **fields: Any) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | fields))


def write_shards(directory: Path, shards: Mapping[str, Tensors], **fields: Any) -> Path:
    """Several files, and their index."""
    directory.mkdir(exist_ok=True)
    write_config(directory, **fields)
    for file, weights in shards.items():
        save_file(weights, directory / file)
    write_index(directory, {name: file for file, weights in shards.items() for name in weights})
    return directory


def write_index(directory: Path, where: Mapping[str, str]) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": dict(where)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
