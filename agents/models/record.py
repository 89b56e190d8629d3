"""Writes a routing trace: which experts a model chooses, token by token, on texts that it reads or continues.

The pieces of the forward pass are those that servers run (:mod:`agents.models.reference`), in full precision: a prompt
in one pass, then one token at a time.  So a trace holds the decisions that a run under a lossless framework would make,
and a replay of it makes them again (``docs/models/routing-traces.md``).  The last token of a continuation was chosen
but never read: it has no decisions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.models.arithmetic import Arithmetic
from agents.models.mixture import Gate
from agents.models.profile import ModelProfile
from agents.models.reference import through
from agents.models.trace import MAX_LINES, MAX_TOKENS, Line, Trace, read_trace
from testbed.errors import TestbedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What a model reads, and how many tokens it adds by itself."""

    dataset: str  # the domain
    number: int  # within its dataset
    tokens: tuple[int, ...]
    output_tokens: int = 0

    @property
    def positions(self) -> int:
        """Tokens that have decisions."""
        return len(self.tokens) + max(0, self.output_tokens - 1)


def check_size(texts: Sequence[Text], layers: int) -> None:
    """TestbedError where a trace of these texts would be larger than one may be."""
    tokens = sum(text.positions for text in texts)
    if not tokens:
        raise TestbedError("nothing to record: no text has a token")
    if tokens > MAX_TOKENS or tokens * layers > MAX_LINES:
        most = min(MAX_TOKENS, MAX_LINES // layers)
        raise TestbedError(f"{tokens} tokens are more than the {most} that a trace of {layers} layers may hold")


def recorded(twin: Arithmetic, texts: Iterable[Text]) -> Iterator[Line]:
    """A line for every token and layer, text after text."""
    for text in texts:
        for start, gates in _passes(twin, text):
            for layer, gate in enumerate(gates):
                rows = zip(gate.experts.tolist(), gate.weights.tolist(), strict=True)
                for place, (experts, weights) in enumerate(rows):
                    yield Line(
                        dataset=text.dataset,
                        problem_id=text.number,
                        layer=layer,
                        experts=experts,
                        gating_probs=weights,
                        token_idx=start + place,
                    )


def _passes(twin: Arithmetic, text: Text) -> Iterator[tuple[int, list[Gate]]]:
    """First position and gates by layer of every forward pass."""
    caches = [twin.new_cache(text.positions) for _ in range(twin.spec.layers)]
    tokens, start = list(text.tokens), 0
    while start < text.positions:
        gates: list[Gate] = []
        x = through(twin, twin.embed(tokens), caches=caches, start=start, gates=gates)
        yield start, gates
        start += len(tokens)
        tokens = [int(twin.logits(x[-1:])[0].argmax())]


def write_trace(path: Path, lines: Iterable[Line], profile: ModelProfile) -> Trace:
    """Write a new trace and read it back; nothing stays of one that is not complete or cannot be played.

    TestbedError where the file is there already, cannot be written, or holds too little to tell whose it is.
    """
    if path.exists():
        raise TestbedError(f"{path}: is there already; remove it or name another file")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    encoder = msgspec.json.Encoder()
    try:
        with partial.open("xb") as file:
            file.writelines(encoder.encode(line) + b"\n" for line in lines)
        trace = _read_back(path, partial, profile)
        partial.rename(path)
    except OSError as error:
        raise TestbedError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return trace


def _read_back(path: Path, partial: Path, profile: ModelProfile) -> Trace:
    try:
        return read_trace(partial, [profile])
    except TestbedError as error:
        reason = str(error).removeprefix(str(partial)).lstrip(":")
        raise TestbedError(f"{path}: the trace could not be played, record more text:{reason}") from error
