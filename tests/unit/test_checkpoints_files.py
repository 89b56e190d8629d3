"""Reading safetensors files: only what is asked for, and nothing that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agents.models.checkpoints.files import read_header
from agents.models.checkpoints.tensors import Tensors
from testbed.errors import TestbedError
from tests.support import checkpoints


def raw(path: Path, header: dict[str, Any] | bytes, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_tensors_that_the_library_wrote_are_read_as_they_were(tmp_path: Path) -> None:
    full = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    stored = {"full": full, "half": full.astype(np.float16), "empty": np.zeros((0, 3), np.float32)}
    save_file(stored, tmp_path / "x.safetensors", metadata={"format": "pt"})

    header = read_header(tmp_path / "x.safetensors")

    assert set(header) == set(stored)
    for name, wanted in stored.items():
        found = header[name].floats()
        assert found.dtype == np.float32
        assert found.tobytes() == wanted.astype(np.float32).tobytes()
        assert found.shape == wanted.shape


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    values = np.array([[1.5, -0.0078125], [3.0e38, 0.0]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    described = {"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}

    found = read_header(raw(tmp_path / "x.safetensors", described, upper.tobytes()))["a"].floats()

    assert found.tobytes() == (upper.astype(np.uint32) << 16).tobytes()
    assert found[0].tolist() == [1.5, -0.0078125]


@pytest.mark.parametrize(
    ("header", "data", "complaint"),
    [
        (b"{a", b"", "its header is not that of a safetensors file"),
        (b"[1]", b"", "its header is not that of a safetensors file"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"", "its header is not that of a safetensors file"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, b"", "not that of a safetensors file"),
        ({"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}, b"12", "tensor a has type I8"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678", "tensor a takes 8 bytes"),
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, b"", "tensor a ends"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(
    tmp_path: Path, header: dict[str, Any] | bytes, data: bytes, complaint: str
) -> None:
    path = raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(TestbedError, match=complaint) as refused:
        read_header(path)
    assert str(path) in str(refused.value)


def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(TestbedError, match="not a safetensors file, or cut short in its header"):
        read_header(path)


def test_a_file_that_was_cut_short_is_refused_naming_the_first_tensor_that_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(4, np.float32), "b": np.ones(4, np.float32), "c": np.ones(4, np.float32)}, path)
    path.write_bytes(path.read_bytes()[: -(16 + 3)])

    with pytest.raises(TestbedError, match="tensor b ends 3 bytes after the file does"):
        read_header(path)


def test_a_file_that_shrinks_while_it_is_in_use_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(4, np.float32)}, path)
    header = read_header(path)
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(TestbedError, match="tensor a was cut short after the model was loaded"):
        header["a"].floats()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    save_file({"a": np.array([1.0, value], np.float32)}, tmp_path / "x.safetensors")
    with pytest.raises(TestbedError, match="tensor a holds values that are not finite"):
        read_header(tmp_path / "x.safetensors")["a"].floats()


def test_opening_reads_no_tensor_and_asking_reads_one(tmp_path: Path) -> None:
    tensors = Tensors.open(checkpoints.write(tmp_path / "x"))
    assert (tensors.bytes_read, tensors.names_read) == (0, [])

    tensors.read("model.norm.weight", (checkpoints.WIDTH,))

    assert (tensors.bytes_read, tensors.names_read) == (4 * checkpoints.WIDTH, ["model.norm.weight"])


def halves() -> dict[str, checkpoints.Tensors]:
    everything = checkpoints.tensors()
    names = list(everything)
    return {
        "model-00001-of-00002.safetensors": {name: everything[name] for name in names[::2]},
        "model-00002-of-00002.safetensors": {name: everything[name] for name in names[1::2]},
    }


def where(shards: dict[str, checkpoints.Tensors]) -> dict[str, str]:
    return {name: file for file, weights in shards.items() for name in weights}


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    directory = checkpoints.write_shards(tmp_path / "x", halves())
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(TestbedError, match=r"tensor \S+ is said to be in model-00002-of-00002\S+, which is missing"):
        Tensors.open(directory)


def test_an_index_that_names_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    shards = halves()
    directory = checkpoints.write_shards(tmp_path / "x", shards)
    checkpoints.write_index(directory, where(shards) | {"model.norm.bias": "model-00001-of-00002.safetensors"})
    with pytest.raises(TestbedError, match=r"tensor model.norm.bias is said to be in .* which does not hold it"):
        Tensors.open(directory)


def test_an_index_that_forgets_a_tensor_is_refused(tmp_path: Path) -> None:
    shards = halves()
    directory = checkpoints.write_shards(tmp_path / "x", shards)
    kept = where(shards)
    del kept["model.norm.weight"]
    checkpoints.write_index(directory, kept)
    with pytest.raises(TestbedError, match=r"tensor model.norm.weight is not in model.safetensors.index.json"):
        Tensors.open(directory)


@pytest.mark.parametrize("file", ["../model-00001-of-00002.safetensors", "/etc/hostname", ""])
def test_an_index_reaches_no_file_elsewhere(tmp_path: Path, file: str) -> None:
    shards = halves()
    directory = checkpoints.write_shards(tmp_path / "x", shards)
    checkpoints.write_index(directory, where(shards) | {"model.norm.weight": file})
    with pytest.raises(TestbedError, match=r"not a file beside the index|which is missing"):
        Tensors.open(directory)


def test_a_directory_of_another_format_is_refused_saying_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(TestbedError, match=r"holds neither model.safetensors nor .*: convert it to safetensors"):
        Tensors.open(tmp_path)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    tensors = Tensors.open(checkpoints.write(tmp_path / "x"))
    with pytest.raises(TestbedError, match=r"what every server holds .* the largest is tensor (lm_head|model.embed)"):
        tensors.check_memory(lambda name: ".experts." in name, machine_bytes=1000)
    assert tensors.bytes_read == 0
