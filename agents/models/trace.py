"""Recorded gate decisions of a large model: which experts each token chose in every layer, and with what weight.

A trace is a text file with one JSON object per line::

    {"dataset": "gsm8k", "problem_id": 0, "layer": 0, "experts": [7, 0], "gating_probs": [0.8, 0.2], "token_idx": 0}

Experts stand best first.  Lines may come in any order.  A token that lacks a line in some layer is a gap of the
recording: it is left out and counted.  Everything else that does not fit is a mistake, and is refused with file and
line, because a trace that is wrong in one place is not to be believed in another.

Whether a token's weights sum to 1 is the model's nature (``ModelProfile.gating``): Mixtral's do; Qwen1.5 weighs its
experts by their shares of a softmax over all of them, and what the others would have had is missing from the sum.
Weights that sum to something else than such a model's can are rescaled and counted.

Lines are read one by one into compact arrays: some 20 bytes of memory per line, and a few dozen more while sorting.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from agents.models.profile import ModelProfile
from testbed.errors import TestbedError

MAX_LINE_BYTES = 16 * 2**10
MAX_LINES = 4_000_000
#: A token's number must fit the int16 of :class:`agents.models.prompts.Prompts`.
MAX_TOKENS = 2**15
MAX_TOP_K = 64
#: Recorded in half precision, weights miss a sum of 1 by less than this.
SUM_TOLERANCE = 5e-3
#: Recorded in single precision, they miss it by less than this, and stay as they are to the bit.
SINGLE_TOLERANCE = 1e-6

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Small = Annotated[int, msgspec.Meta(ge=0, lt=2**15)]
_Weight = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Choices = msgspec.Meta(min_length=1, max_length=MAX_TOP_K)


class Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What one token chose in one layer."""

    dataset: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    problem_id: _Number
    layer: _Small
    experts: Annotated[list[_Small], _Choices]
    gating_probs: Annotated[list[_Weight], _Choices]
    token_idx: _Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One text that the model read: its complete tokens stand in consecutive rows, in their order."""

    dataset: str
    number: int
    first: int  # row
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The complete tokens of a file; rows are ordered by dataset, problem and position."""

    profile: ModelProfile  # whose decisions these are
    experts: npt.NDArray[np.int16]  # (layers, rows, top_k), best first
    weights: npt.NDArray[np.float32]  # (layers, rows, top_k), as the model's gate weighs
    problems: tuple[Problem, ...]
    incomplete: int  # tokens left out, because some layer has no line of theirs
    rescaled: int  # lines whose weights did not sum to what the model's do

    @property
    def rows(self) -> int:
        """How many complete tokens there are."""
        return int(self.experts.shape[1])


@dataclass(slots=True)
class _Lines:
    """The file as columns; line n stands at n - 1."""

    path: Path
    problems: dict[tuple[str, int], int]  # (dataset, number) -> place in ``problem``
    problem: npt.NDArray[np.int32]
    token: npt.NDArray[np.int32]
    layer: npt.NDArray[np.int16]
    experts: npt.NDArray[np.int16]  # (lines, top_k)
    weights: npt.NDArray[np.float32]  # (lines, top_k)

    def refuse(self, wrong: npt.NDArray[np.bool_], reason: str) -> None:
        """TestbedError for the first line with something wrong; ``reason`` may name its ``experts`` or ``layer``."""
        places = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
        if len(places):
            place = int(places[0])
            values = {"experts": self.experts[place].tolist(), "layer": int(self.layer[place])}
            raise TestbedError(f"{self.path}:{place + 1}: {reason.format(**values)}")


def read_trace(path: Path, profiles: Sequence[ModelProfile]) -> Trace:
    """Read and check a trace, which must be of one of these profiles.

    TestbedError naming file and line for a mistake, and the file where no profile fits or more than one does.
    """
    lines = _read(path)
    lines.refuse(np.diff(np.sort(lines.experts, axis=1), axis=1) == 0, "experts {experts} name one expert twice")
    lines.refuse(np.diff(lines.weights, axis=1) > 0, "experts must stand best first, but gating_probs rise")
    sums = lines.weights.sum(axis=1, dtype=np.float64)
    lines.refuse(sums <= 0, "gating_probs sum to 0")
    profile = _profile_of(lines, profiles)
    return _complete(lines, profile, sums)


def _read(path: Path) -> _Lines:
    columns = {name: array("i") for name in ("problem", "token")}
    layer, experts, weights = array("h"), array("h"), array("f")
    problems: dict[tuple[str, int], int] = {}
    top_k = 0
    for number, line in _parsed(path):
        top_k = top_k or len(line.experts)
        if len(line.experts) != top_k:
            _refuse(path, number, f"{len(line.experts)} experts, but line 1 has {top_k}")
        if len(line.gating_probs) != top_k:
            _refuse(path, number, f"{len(line.gating_probs)} gating_probs for {top_k} experts")
        columns["problem"].append(problems.setdefault((line.dataset, line.problem_id), len(problems)))
        columns["token"].append(line.token_idx)
        layer.append(line.layer)
        experts.extend(line.experts)
        weights.extend(line.gating_probs)
    if not top_k:
        raise TestbedError(f"{path}: no line in it")
    return _Lines(
        path=path,
        problems=problems,
        problem=np.frombuffer(columns["problem"], np.int32),
        token=np.frombuffer(columns["token"], np.int32),
        layer=np.frombuffer(layer, np.int16),
        experts=np.frombuffer(experts, np.int16).reshape(-1, top_k),
        weights=np.frombuffer(weights, np.float32).reshape(-1, top_k),
    )


def _parsed(path: Path) -> Iterator[tuple[int, Line]]:
    decoder = msgspec.json.Decoder(Line)
    try:
        with path.open("rb") as file:
            for number in range(1, MAX_LINES + 2):
                text = file.readline(MAX_LINE_BYTES + 1)
                if not text:
                    return
                if len(text) > MAX_LINE_BYTES:
                    _refuse(path, number, f"longer than {MAX_LINE_BYTES} bytes")
                if number > MAX_LINES:
                    _refuse(path, number, f"more than {MAX_LINES} lines; cut the trace")
                try:
                    yield number, decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    log = number == 1 and b'"type"' in text and b'"meta"' in text
                    hint = "; a vLLM route log becomes a trace by `orchestrator.py convert-routing`" if log else ""
                    _refuse(path, number, f"{error}{hint}")
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None


def _refuse(path: Path, number: int, reason: str) -> NoReturn:
    raise TestbedError(f"{path}:{number}: {reason}") from None


def _profile_of(lines: _Lines, profiles: Sequence[ModelProfile]) -> ModelProfile:
    """The one profile of this shape; where only one comes near, what does not fit is named.

    Layers and experts are counted by the largest number: an expert that no token chose in any layer is hardly possible.
    """
    top_k, layers, experts = lines.experts.shape[1], int(lines.layer.max()) + 1, int(lines.experts.max()) + 1
    near = [profile for profile in profiles if profile.top_k == top_k]
    if len(near) > 1:
        near = [profile for profile in near if profile.layers == layers]
    if len(near) == 1:
        _refuse_another_models(lines, near[0], experts)
    fitting = [profile for profile in near if profile.experts == experts]
    if len(fitting) == 1:
        return fitting[0]
    has = f"{layers} layers, {experts} experts, top-{top_k}"
    if fitting:
        names = " or ".join(profile.name for profile in fitting)
        raise TestbedError(f"{lines.path}: a trace of {has} may be of {names}")
    known = ", ".join(
        f"{profile.name} ({profile.layers} layers, {profile.experts} experts, top-{profile.top_k})"
        for profile in profiles
    )
    raise TestbedError(f"{lines.path}: no known model has {has}; known are {known}")


def _refuse_another_models(lines: _Lines, profile: ModelProfile, experts: int) -> None:
    name, last = profile.name, profile.experts - 1
    lines.refuse(lines.experts > last, f"experts {{experts}} are not all in 0..{last}, the experts of {name}")
    last = profile.layers - 1
    lines.refuse(lines.layer > last, f"layer {{layer}} is not in 0..{last}, the layers of {name}")
    if experts < profile.experts:
        raise TestbedError(
            f"{lines.path}: no token chose an expert above {experts - 1}; {name} has {profile.experts}, so this is "
            "another model's trace, or cut too short to tell"
        )


def _complete(lines: _Lines, profile: ModelProfile, sums: npt.NDArray[np.float64]) -> Trace:
    """The tokens with a line in every layer, as tables."""
    missing = sorted(set(range(profile.layers)) - set(np.unique(lines.layer).tolist()))
    if missing:
        raise TestbedError(
            f"{lines.path}: no line of layer {missing[0]}; {profile.name} has layers 0..{profile.layers - 1}"
        )
    names = sorted(lines.problems)
    rank = np.empty(len(names), np.int64)  # first-come number -> place in alphabetical order
    rank[[lines.problems[name] for name in names]] = np.arange(len(names))
    keys, token_of = np.unique(rank[lines.problem] << 32 | lines.token, return_inverse=True)
    _refuse_repeats(lines, token_of, profile.layers)
    whole = np.bincount(token_of) == profile.layers
    count = int(whole.sum())
    if not count:
        raise TestbedError(f"{lines.path}: no token has a line in each of the {profile.layers} layers")
    if count > MAX_TOKENS:
        raise TestbedError(f"{lines.path}: {count} complete tokens, more than {MAX_TOKENS}; cut the trace")
    kept = whole[token_of]
    where = lines.layer[kept], (whole.cumsum() - 1)[token_of[kept]]
    experts = np.empty((profile.layers, count, profile.top_k), np.int16)
    weights = np.empty(experts.shape, np.float32)
    experts[where] = lines.experts[kept]
    divisors, off = _divisors(sums, profile)
    weights[where] = lines.weights[kept] / divisors[kept, None]
    sizes = np.bincount(keys[whole] >> 32, minlength=len(names)).tolist()
    firsts = np.cumsum([0, *sizes]).tolist()
    return Trace(
        profile=profile,
        experts=experts,
        weights=weights,
        problems=tuple(
            Problem(dataset=dataset, number=number, first=first, tokens=tokens)
            for (dataset, number), first, tokens in zip(names, firsts, sizes, strict=False)
            if tokens
        ),
        incomplete=len(keys) - count,
        rescaled=int(off.sum()),
    )


def _divisors(
    sums: npt.NDArray[np.float64], profile: ModelProfile
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """What to divide every line's weights by, and which of them are off by more than rounding."""
    excess = sums - 1 if profile.gating == "chosen" else np.maximum(sums - 1, 0)
    return np.where(np.abs(excess) > SINGLE_TOLERANCE, sums, 1.0), np.abs(excess) > SUM_TOLERANCE


def _refuse_repeats(lines: _Lines, token_of: npt.NDArray[Any], layers: int) -> None:
    cell = token_of * layers + lines.layer
    order = cell.argsort(kind="stable")  # lines of one cell stay in the order of the file
    again = np.zeros(len(cell), dtype=bool)
    again[order[1:]] = cell[order[1:]] == cell[order[:-1]]
    lines.refuse(again, "this problem's token has a line of layer {layer} already")
