"""Reads a twin's files and refuses what does not fit, naming the file and the tensor.

A directory holds ``model.json`` (shape and training facts), ``weights.safetensors`` (float16) and ``tokenizer.json``.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from agents.models.spec import ModelSpec
from testbed.errors import TestbedError

Kind = TypeVar("Kind")

SPEC_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "model.json", "weights.safetensors", "tokenizer.json"


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    spec: ModelSpec
    training: dict[str, Any]


def read_spec(directory: Path) -> ModelSpec:
    """The shape stored in ``model.json``."""
    return _model_file(directory).spec


def read_weights(directory: Path, spec: ModelSpec) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors of the model as float32; every name and shape must be the one that ``spec`` asks for."""
    path = directory / WEIGHTS_FILE
    tensors = read_tensors(path)
    expected = tensor_shapes(spec)
    for name, shape in expected.items():
        if name not in tensors:
            raise TestbedError(f"{path}: tensor {name} is missing")
        if tensors[name].shape != shape:
            raise TestbedError(f"{path}: tensor {name} has shape {tensors[name].shape}, {SPEC_FILE} asks for {shape}")
        if tensors[name].dtype not in (np.float16, np.float32):
            raise TestbedError(f"{path}: tensor {name} has type {tensors[name].dtype}, expected float16 or float32")
    unknown = sorted(set(tensors) - set(expected))
    if unknown:
        raise TestbedError(f"{path}: unknown tensor {unknown[0]}")
    weights = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
    for name, tensor in weights.items():
        if not np.isfinite(tensor).all():
            raise TestbedError(f"{path}: tensor {name} holds values that are not finite")
    return weights


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of this shape."""
    width, hidden, shared, dense = spec.width, spec.expert_width, spec.shared_width, spec.dense_width
    shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab, width), "final_norm": (width,)}
    for layer in range(spec.layers):
        shapes |= {
            f"layers.{layer}.attention_norm": (width,),
            f"layers.{layer}.expert_norm": (width,),
            f"layers.{layer}.qkv": (width, 3 * width),
            f"layers.{layer}.attention_out": (width, width),
            f"layers.{layer}.gate": (width, spec.experts),
            f"layers.{layer}.experts_in": (spec.experts, width, spec.inner_width),
            f"layers.{layer}.experts_out": (spec.experts, hidden, width),
        }
        if shared:
            shapes |= {
                f"layers.{layer}.shared_in": (width, 2 * shared),
                f"layers.{layer}.shared_out": (shared, width),
                f"layers.{layer}.shared_gate": (width, 1),
            }
        if dense:
            shapes |= {
                f"layers.{layer}.dense_attention_norm": (width,),
                f"layers.{layer}.dense_norm": (width,),
                f"layers.{layer}.dense_qkv": (width, 3 * width),
                f"layers.{layer}.dense_attention_out": (width, width),
                f"layers.{layer}.dense_in": (width, dense),
                f"layers.{layer}.dense_out": (dense, width),
            }
    return shapes


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """A safetensors file, or one clear message."""
    require_file(path)
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise TestbedError(f"{path}: not a complete safetensors file ({error})") from error


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file of known structure, or one clear message."""
    require_file(path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise TestbedError(f"{path}: {error}") from error


def require_file(path: Path) -> None:
    """Refuse a path that is not a file, saying where it comes from."""
    if not path.is_file():
        raise TestbedError(
            f"{path}: no such file; it belongs to the stored model (git checkout, or agents.models.train)"
        )


def _model_file(directory: Path) -> _ModelFile:
    path = directory / SPEC_FILE
    file = read_json(path, _ModelFile)
    given = msgspec.json.decode(path.read_bytes())["spec"]
    unknown = sorted(set(given) - {field.name for field in fields(ModelSpec)})
    if unknown:
        raise TestbedError(f"{path}: spec has no field {unknown[0]!r}")
    return file
