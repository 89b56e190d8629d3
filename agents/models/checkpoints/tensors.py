"""All tensors of a checkpoint by name, in one file or many, read one by one when somebody asks.

``model.safetensors``, or ``model.safetensors.index.json`` that says which file holds which tensor.  Opening looks at
headers only; ``bytes_read`` and ``names_read`` tell what has been read since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import msgspec

from agents.models.checkpoints.files import Stored, read_header
from agents.models.mixture import Floats
from testbed.errors import TestbedError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 2**20
FLOAT32_BYTES = 4
#: How many unknown tensors a message names.
SHOWN = 3


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Tensors:
    """The tensors of one checkpoint."""

    def __init__(self, directory: Path, stored: Mapping[str, Stored]) -> None:
        self.directory = directory
        self._stored = stored
        self._expected: set[str] = set()
        self.bytes_read = 0
        self.names_read: list[str] = []

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Look at the headers.  TestbedError naming file and tensor where something is missing or does not fit."""
        index = directory / INDEX_FILE
        if index.is_file():
            return cls(directory, _indexed(directory, index))
        single = directory / SINGLE_FILE
        if not single.is_file():
            raise TestbedError(
                f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; checkpoints of other formats are not read "
                "(pickled ones never): convert it to safetensors"
            )
        return cls(directory, read_header(single))

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse, without reading it, a tensor that is missing or has another shape."""
        found = self._stored.get(name)
        if found is None:
            raise TestbedError(f"{self.directory}: tensor {name} is missing")
        if found.shape != shape:
            raise TestbedError(f"{found.path}: tensor {name} has shape {found.shape}; config.json asks for {shape}")
        self._expected.add(name)

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A tensor of that shape, as float32."""
        self.expect(name, shape)
        stored = self._stored[name]
        self.bytes_read += stored.size_bytes
        self.names_read.append(name)
        return stored.floats()

    def place(self, name: str) -> str:
        """The file that holds a tensor, and its name: for messages."""
        return f"{self._stored[name].path}: tensor {name}"

    def sizes(self) -> dict[str, int]:
        """Parameters of every tensor that the model needs."""
        return {name: _parameters(stored) for name, stored in self._stored.items() if name in self._expected}

    def check_memory(self, is_lazy: Callable[[str], bool], *, machine_bytes: int | None = None) -> None:
        """Refuse a checkpoint whose parts that are read at once, all but ``is_lazy``, are larger than the memory."""
        limit_bytes = _machine_bytes() if machine_bytes is None else machine_bytes
        at_once = {name: FLOAT32_BYTES * _parameters(each) for name, each in self._stored.items() if not is_lazy(name)}
        needed_bytes = sum(at_once.values())
        if needed_bytes > limit_bytes:
            largest = max(at_once, key=lambda name: at_once[name])
            raise TestbedError(
                f"{self.directory}: what every server holds (all but the experts) takes {needed_bytes / 1e9:.1f} GB as "
                f"float32; this machine has {limit_bytes / 1e9:.1f} GB; the largest is tensor {largest}"
            )

    def refuse_unknown(self, *, idle: Iterable[str] = ()) -> None:
        """Refuse tensors that nothing asked for: they would change the result elsewhere.  ``idle`` ones may be there.

        Tables of rotary frequencies, which old checkpoints carry, follow from config.json.
        """
        unknown = sorted(self._stored.keys() - self._expected - set(idle))
        unknown = [name for name in unknown if not name.endswith("rotary_emb.inv_freq")]
        if unknown:
            more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
            raise TestbedError(
                f"{self.place(unknown[0])} is no part of this architecture as config.json describes it "
                f"(unknown: {', '.join(unknown[:SHOWN])}{more})"
            )


def _indexed(directory: Path, index: Path) -> dict[str, Stored]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise TestbedError(f"{index}: longer than {MAX_INDEX_BYTES} bytes, which no index is")
    try:
        where = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TestbedError(f"{index}: {error}") from error
    headers: dict[str, dict[str, Stored]] = {}
    found = {}
    for name, file in where.items():
        if Path(file).name != file:
            raise TestbedError(
                f"{index}: tensor {name} is said to be in {file!r}, which is not a file beside the index"
            )
        if file not in headers:
            if not (directory / file).is_file():
                raise TestbedError(f"{index}: tensor {name} is said to be in {file}, which is missing")
            headers[file] = read_header(directory / file)
        if name not in headers[file]:
            raise TestbedError(f"{index}: tensor {name} is said to be in {file}, which does not hold it")
        found[name] = headers[file][name]
    for file, header in headers.items():
        for name in header:
            if where.get(name) != file:
                raise TestbedError(f"{directory / file}: tensor {name} is not in {INDEX_FILE}")
    return found


def _parameters(stored: Stored) -> int:
    count = 1
    for size in stored.shape:
        count *= size
    return count


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
