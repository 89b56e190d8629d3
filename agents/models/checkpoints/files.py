"""One safetensors file: what is in it, from its header alone, and one tensor at a time as float32.

    8 bytes    length of the header, little-endian
    header     JSON: name -> {dtype, shape, data_offsets}, and perhaps "__metadata__"
    data       offsets count from here; rows before columns

Why not ``safetensors.safe_open``: it hands numpy no bfloat16, which most checkpoints are stored in, and of a file that
was cut short it names no tensor.  The format is theirs (https://huggingface.co/docs/safetensors); tests hold this
reader against files that the library has written.

Nothing is allocated before the header, and then the file's length, have said that the bytes are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from agents.models.mixture import Floats
from testbed.errors import TestbedError

LENGTH_BYTES = 8
#: What the format's own reader allows.
MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"

#: Types of weights that are read; a quantised checkpoint has others.
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Described(msgspec.Struct):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a tensor lies, and as what."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    size_bytes: int

    def floats(self) -> Floats:
        """The tensor as float32.  TestbedError naming file and tensor when it cannot be read or is not finite."""
        buffer = bytearray(self.size_bytes)
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                read_bytes = file.readinto(buffer)
        except OSError as error:
            raise TestbedError(f"{self.path}: tensor {self.name} cannot be read: {error.strerror}") from error
        if read_bytes != self.size_bytes:
            raise TestbedError(f"{self.path}: tensor {self.name} was cut short after the model was loaded")
        values = _as_float32(buffer, self.dtype).reshape(self.shape)
        if not np.isfinite(values).all():
            raise TestbedError(f"{self.path}: tensor {self.name} holds values that are not finite")
        return values


def read_header(path: Path) -> dict[str, Stored]:
    """Every tensor of a file, none of them read.

    TestbedError naming the file, and the tensor where there is one: no such file, no safetensors, cut short, a type
    that is not read here, offsets that do not fit shape and type.
    """
    if not path.is_file():
        raise TestbedError(f"{path}: no such file; it belongs to the checkpoint")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            file_bytes = path.stat().st_size
            if not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
                raise TestbedError(f"{path}: not a safetensors file, or cut short in its header")
            text = file.read(length)
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from error
    described = _described(path, text)
    data_start = LENGTH_BYTES + length
    found: dict[str, Stored] = {}
    for name, entry in sorted(described.items(), key=lambda item: item[1].data_offsets):
        found[name] = _placed(path, name, entry, data_start=data_start, file_bytes=file_bytes)
    return found


def _described(path: Path, text: bytes) -> Mapping[str, _Described]:
    try:
        entries: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        entries.pop(METADATA, None)
        return msgspec.convert(entries, dict[str, _Described])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TestbedError(f"{path}: its header is not that of a safetensors file: {error}") from error


def _placed(path: Path, name: str, entry: _Described, *, data_start: int, file_bytes: int) -> Stored:
    where = f"{path}: tensor {name}"
    if entry.dtype not in ITEM_BYTES:
        raise TestbedError(
            f"{where} has type {entry.dtype}; only {', '.join(ITEM_BYTES)} are read: get the checkpoint unquantised"
        )
    first, end = entry.data_offsets
    size_bytes = ITEM_BYTES[entry.dtype] * math.prod(entry.shape)
    if end - first != size_bytes:
        raise TestbedError(f"{where} takes {end - first} bytes; {entry.dtype} of shape {entry.shape} has {size_bytes}")
    if data_start + end > file_bytes:
        missing_bytes = data_start + end - file_bytes
        raise TestbedError(f"{where} ends {missing_bytes} bytes after the file does: it was cut short; fetch it again")
    return Stored(
        path=path,
        name=name,
        dtype=entry.dtype,
        shape=tuple(entry.shape),
        start=data_start + first,
        size_bytes=size_bytes,
    )


def _as_float32(buffer: bytearray, dtype: str) -> Floats:
    """Exact: every value of the shorter types is one of float32.

    >>> _as_float32(bytearray(b"\\x80\\x3f\\x00\\xc0"), "BF16").tolist()
    [1.0, -2.0]
    """
    if dtype == "F32":
        return np.frombuffer(buffer, "<f4").astype(np.float32, copy=False)
    if dtype == "F16":
        return np.frombuffer(buffer, "<f2").astype(np.float32)
    halves = np.frombuffer(buffer, "<u2").astype(np.uint32)  # bfloat16 is the upper half of a float32
    halves <<= 16
    return halves.view(np.float32)
