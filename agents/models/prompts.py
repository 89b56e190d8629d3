"""Held-out text as token rows: what users of the emulated servers send.

``heldout.safetensors`` holds, per domain, an int16 matrix of at least 256 rows of 128 tokens from documents that the
twin never saw.  Rows do not overlap.  ``python -m agents.models.prompts`` writes it from the corpus.

>>> prompts = Prompts.load(Path("agents/models/mixtral-8x7b-twin"))  # doctest: +SKIP
>>> prompts.take("docs", 3, 37)  # doctest: +SKIP
[...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from agents.models.loader import TOKENIZER_FILE, read_tensors, require_file
from testbed.errors import TestbedError

PROMPTS_FILE = "heldout.safetensors"
ROWS, LENGTH = 256, 128

Rows = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token rows per domain."""

    rows: Mapping[str, Rows]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the prompts that lie beside the weights."""
        path = directory / PROMPTS_FILE
        tensors = read_tensors(path)
        for domain, rows in tensors.items():
            if rows.dtype != np.int16 or rows.ndim != 2 or not rows.size or rows.min() < 0:
                raise TestbedError(f"{path}: tensor {domain} is not a matrix of token numbers")
        if not tensors:
            raise TestbedError(f"{path}: no domain in it")
        return cls(tensors)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, in alphabetical order."""
        return tuple(sorted(self.rows))

    @property
    def count(self) -> int:
        """How many different prompts every domain has."""
        return min(len(rows) for rows in self.rows.values())

    def take(self, domain: str, index: int, length: int) -> list[int]:
        """The first ``length`` tokens of a row; ``index`` wraps around, so that any request number will do."""
        rows = self.rows.get(domain)
        if rows is None:
            raise TestbedError(f"no prompts of domain {domain!r}; known are {', '.join(self.domains)}")
        if not 1 <= length <= rows.shape[1]:
            raise TestbedError(f"a prompt has 1 to {rows.shape[1]} tokens, not {length}")
        return [int(token) for token in rows[index % len(rows), :length]]


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer stored beside the weights."""
    path = directory / TOKENIZER_FILE
    require_file(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TestbedError(f"{path}: not a tokenizer ({error})") from error


def cut_rows(stream: Rows, rows: int, length: int) -> Rows:
    """Rows that do not overlap, spread evenly over a token stream."""
    if len(stream) < rows * length:
        raise TestbedError(f"{len(stream)} tokens are too few for {rows} rows of {length}")
    starts = np.linspace(0, len(stream) - length, rows).astype(int)
    return np.stack([stream[start : start + length] for start in starts])


def main() -> int:
    """Cut the held-out text into rows and store them."""
    from safetensors.numpy import save_file

    from agents.models import corpus

    directory = corpus.chosen_twin("python -m agents.models.prompts", __doc__)
    try:
        corpus.fetch()
        tokenizer = read_tokenizer(directory)
        heldout = corpus.texts(corpus.documents(), "heldout")
        rows = {name: cut_rows(corpus.encode(tokenizer, text), ROWS, LENGTH) for name, text in heldout.items()}
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    save_file(rows, directory / PROMPTS_FILE)
    (directory / PROMPTS_FILE).chmod(0o644)  # safetensors makes files that only their owner reads
    print(f"{directory / PROMPTS_FILE}: {ROWS} rows of {LENGTH} tokens for each of {', '.join(rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
