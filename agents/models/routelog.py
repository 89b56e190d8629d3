"""Reads what a patched vLLM logs of its routers, and turns it into a routing trace as far as it goes.

A log is a text file of JSON lines: what was run, then a row per token and logged layer in the order of computation::

    {"type": "meta", "model_id": "Qwen/Qwen1.5-MoE-A2.7B-Chat", "layers_logged": [12], "top_k": 4, ...}
    {"type": "route", "req_id": "r1", "token_idx": 0, "layer": 12, "topk_ids": [13, 15], "topk_weights": [0.07, 0.05]}

Three things about it mislead.  The engine measures its memory on made-up tokens before the first request: thousands of
equal rows at the start, which are left out.  ``req_id`` names the recording, not a request, and ``token_idx`` begins
again with every step of the engine: a step is the nearest thing to a text, but during decoding its rows belong to
different requests.  And weights sum to 1 or not, as the model's gate has it (:mod:`agents.models.trace`).

A log of some layers cannot drive a whole model.  ``spread`` fills layer l from the nearest logged layer m:

    experts(l, row) = (experts(m, row + shift(l)) + l - m) mod experts     shift(l) = |l - m| · rows // layers     (1)

so that every layer has the log's imbalance and number of different experts, on other experts and for other tokens, and
two layers have nothing to do with each other.  What a model's layers have in common is not in such a log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from agents.models.profile import ModelProfile
from agents.models.trace import MAX_LINE_BYTES, MAX_LINES, MAX_TOKENS, MAX_TOP_K, Line
from testbed.errors import TestbedError

#: So many equal rows in a row are no text: a token's routing depends on what precedes it.
DUMMY_ROWS = 32

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Small = Annotated[int, msgspec.Meta(ge=0, lt=2**15)]
_Weight = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class _Meta(msgspec.Struct, tag_field="type", tag="meta", gc=False):
    model_id: str
    layers_logged: Annotated[list[_Small], msgspec.Meta(min_length=1, max_length=1000)]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP_K)]
    num_experts: int | None = None


class _Route(msgspec.Struct, tag_field="type", tag="route", forbid_unknown_fields=True, gc=False):
    req_id: str
    token_idx: _Number
    layer: _Small
    topk_ids: list[_Small]
    topk_weights: list[_Weight]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLayer:
    """The rows of one layer, in the order of computation."""

    experts: npt.NDArray[np.int16]  # (rows, top_k), best first
    weights: npt.NDArray[np.float32]  # (rows, top_k), as logged
    step: npt.NDArray[np.int32]  # (rows,) which step of the engine, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLog:
    """A log without its dummy rows."""

    path: Path
    profile: ModelProfile
    layers: dict[int, LoggedLayer]
    dummies: int  # rows left out

    @property
    def rows(self) -> int:
        """Rows of every layer."""
        return len(next(iter(self.layers.values())).step)

    @property
    def is_whole(self) -> bool:
        """Whether every layer of the model was logged."""
        return len(self.layers) == self.profile.layers

    @property
    def summary(self) -> str:
        """One line: what was logged, and what was left out."""
        steps = int(next(iter(self.layers.values())).step[-1]) + 1
        text = f"{self.rows} tokens in {steps} steps, {self._logged} of {self.profile.name}"
        return f"{text}; {self.dummies} dummy rows left out"

    @property
    def _logged(self) -> str:
        return "all layers" if self.is_whole else "layer " + ", ".join(map(str, self.layers))

    def lines(self, *, spread: bool = False) -> Iterator[Line]:
        """The log as a trace, its steps as problems; of some layers only if they are ``spread``, equation (1)."""
        if not self.is_whole and not spread:
            raise TestbedError(
                f"{self.path}: holds {self._logged} of {self.profile.name}, and a replay needs all "
                f"{self.profile.layers}; --spread fills the others from it"
            )
        if self.rows > MAX_TOKENS or self.rows * self.profile.layers > MAX_LINES:
            raise TestbedError(f"{self.path}: {self.rows} tokens are more than a trace may hold; cut the log")
        return self._lines()

    def _lines(self) -> Iterator[Line]:
        dataset = "vllm" if self.is_whole else f"vllm-layer-{'-'.join(map(str, self.layers))}-spread"
        for layer in range(self.profile.layers):
            source = min(self.layers, key=lambda logged: (abs(logged - layer), logged))
            logged = self.layers[source]
            shift = abs(layer - source) * self.rows // self.profile.layers
            experts = (np.roll(logged.experts, -shift, axis=0) + layer - source) % self.profile.experts
            weights = np.roll(logged.weights, -shift, axis=0)
            first = np.searchsorted(logged.step, logged.step)  # row at which each row's step begins
            places = (np.arange(self.rows) - first).tolist()
            rows = zip(logged.step.tolist(), places, experts.tolist(), weights.tolist(), strict=True)
            for step, place, chosen, weighed in rows:
                yield Line(
                    dataset=dataset,
                    problem_id=step,
                    layer=layer,
                    experts=chosen,
                    gating_probs=weighed,
                    token_idx=place,
                )


class _Columns:
    """Rows of one layer while they are read."""

    def __init__(self) -> None:
        self.experts, self.weights, self.tokens = array("h"), array("f"), array("i")


def read_route_log(path: Path) -> RouteLog:
    """Read and check a log.  TestbedError naming file and line for a mistake."""
    lines = _parsed(path)
    first = next(lines, None)
    if first is None:
        raise TestbedError(f"{path}: no line in it")
    meta = first[1]
    if not isinstance(meta, _Meta):
        raise TestbedError(f"{path}:1: the first line must be of type meta")
    profile = _profile_of(path, meta)
    columns = {layer: _Columns() for layer in sorted(set(meta.layers_logged))}
    if max(columns) >= profile.layers:
        raise TestbedError(f"{path}:1: layer {max(columns)} is not in 0..{profile.layers - 1}, {profile.name}'s layers")
    for number, line in lines:
        if isinstance(line, _Meta):
            raise TestbedError(f"{path}:{number}: another recording begins; cut the log here")
        wrong = _mistake(line, profile, columns)
        if wrong:
            raise TestbedError(f"{path}:{number}: {wrong}")
        into = columns[line.layer]
        into.experts.extend(line.topk_ids)
        into.weights.extend(line.topk_weights)
        into.tokens.append(line.token_idx)
    found = {layer: _layer(each, profile.top_k) for layer, each in columns.items()}
    rows = {len(each.step) for each, _ in found.values()}
    if len(rows) > 1 or rows == {0}:
        each_has = ", ".join(f"layer {layer} has {len(each.step)}" for layer, (each, _) in found.items())
        raise TestbedError(f"{path}: without dummy rows {each_has} rows; every layer must have as many, and some")
    return RouteLog(
        path=path,
        profile=profile,
        layers={layer: each for layer, (each, _) in found.items()},
        dummies=sum(dummies for _, dummies in found.values()),
    )


def _parsed(path: Path) -> Iterator[tuple[int, _Meta | _Route]]:
    decoder = msgspec.json.Decoder(_Meta | _Route)
    try:
        with path.open("rb") as file:
            number = 0
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    raise TestbedError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
                if number > MAX_LINES:
                    raise TestbedError(f"{path}:{number}: more than {MAX_LINES} lines; cut the log")
                try:
                    yield number, decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise TestbedError(f"{path}:{number}: {error}") from None
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None


def _profile_of(path: Path, meta: _Meta) -> ModelProfile:
    """By the name that the log gives: the longest name of a profile that it begins with."""
    model = meta.model_id.rpartition("/")[2].casefold()
    named = [profile for profile in ModelProfile.known() if model.startswith(profile.name)]
    if not named:
        known = ", ".join(profile.name for profile in ModelProfile.known())
        raise TestbedError(f"{path}:1: no profile of {meta.model_id}; known are {known}")
    profile = max(named, key=lambda each: len(each.name))
    for what, logged, has in (("top_k", meta.top_k, profile.top_k), ("num_experts", meta.num_experts, profile.experts)):
        if logged not in (None, has):
            raise TestbedError(f"{path}:1: {what} is {logged}, but {profile.name} has {has}")
    return profile


def _mistake(line: _Route, profile: ModelProfile, layers: dict[int, Any]) -> str:
    """What is wrong with a row, if anything."""
    if line.layer not in layers:
        return f"layer {line.layer} is not among layers_logged"
    if not len(line.topk_ids) == len(line.topk_weights) == profile.top_k:
        return f"{len(line.topk_ids)} experts and {len(line.topk_weights)} weights, but top_k is {profile.top_k}"
    if len(set(line.topk_ids)) < profile.top_k:
        return f"experts {line.topk_ids} name one expert twice"
    if max(line.topk_ids) >= profile.experts:
        return f"experts {line.topk_ids} are not all in 0..{profile.experts - 1}"
    return "" if sum(line.topk_weights) > 0 else "topk_weights sum to 0"


def _layer(columns: _Columns, top_k: int) -> tuple[LoggedLayer, int]:
    """A layer without its dummy rows, and how many those were."""
    experts = np.frombuffer(columns.experts, np.int16).reshape(-1, top_k)
    weights = np.frombuffer(columns.weights, np.float32).reshape(-1, top_k)
    tokens = np.frombuffer(columns.tokens, np.int32)
    dummies = _dummies(experts, weights)
    order = np.argsort(-weights[dummies:], axis=1, kind="stable")
    tokens = tokens[dummies:]
    step = np.append(0, (np.diff(tokens) != 1).cumsum())[: len(tokens)]  # a step begins where counting begins again
    layer = LoggedLayer(
        experts=np.take_along_axis(experts[dummies:], order, axis=1),
        weights=np.take_along_axis(weights[dummies:], order, axis=1),
        step=step.astype(np.int32),
    )
    return layer, dummies


def _dummies(experts: npt.NDArray[np.int16], weights: npt.NDArray[np.float32]) -> int:
    """Rows of the long runs of equal ones that stand at the start."""
    changes = (np.diff(experts, axis=0) != 0).any(axis=1) | (np.diff(weights, axis=0) != 0).any(axis=1)
    ends = np.append(np.flatnonzero(changes) + 1, len(experts))  # after each run
    lengths = np.diff(ends, prepend=0)
    short = np.flatnonzero(lengths < DUMMY_ROWS)
    return int(ends[short[0]] - lengths[short[0]]) if len(short) else len(experts)
