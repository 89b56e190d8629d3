"""Tables of routes from what a model really chose: a twin that reads held-out text, or a trace of a large model.

A twin reads each text in one pass.  What it chooses at a position depends on what stands before it only, so the rows
after the prompt are those of a decode that happens to produce this very text: real text instead of a small model's
loops.  The guess for layer l + 1 is that layer's gate, asked with the stream that layer l's gate sees.

Tables are kept as safetensors, so that many runs share one recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from agents.models.loader import read_spec, read_tensors, read_weights
from agents.models.mixture import finish
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.quantize import FULL
from agents.models.reference import mixture
from agents.models.trace import read_trace
from agents.models.twin import Twin
from agents.offloading.tables import Text
from testbed.errors import TestbedError

MAX_BYTES = 2**28


def twin_texts(directory: Path, *, count: int, positions: int) -> tuple[ModelProfile, list[Text]]:
    """Record so many held-out texts, domains in turn.  TestbedError where prompts are shorter than ``positions``."""
    spec, weights = read_spec(directory), None
    _check_size(count * positions * spec.layers * 3 * spec.top_k)
    weights = read_weights(directory, spec)
    twin, prompts = Twin(spec, weights), Prompts.load(directory)
    wide = Twin(replace(spec, top_k=min(spec.experts, 2 * spec.top_k)), weights)  # its gates name more experts
    domains = prompts.domains
    rows = [prompts.take(domains[n % len(domains)], n // len(domains), positions) for n in range(count)]
    return ModelProfile.load(spec.name), [_recorded(twin, wide, row) for row in rows]


def trace_texts(
    path: Path, *, count: int, positions: int, accuracy: float, seed: int
) -> tuple[ModelProfile, list[Text]]:
    """Stretches of a trace's problems, evenly spread; they overlap where the trace is short.

    A trace has no hidden states, so guesses are drawn: each right with probability ``accuracy``.
    """
    trace = read_trace(path, ModelProfile.known())
    starts = [problem.first + offset for problem in trace.problems for offset in range(problem.tokens - positions + 1)]
    if not starts:
        raise TestbedError(f"{path}: no problem has {positions} complete tokens")
    picked = [starts[int(place)] for place in np.linspace(0, len(starts) - 1, count)]
    draw = np.random.default_rng([seed, 2])
    return trace.profile, [
        Text(
            experts=(chosen := trace.experts[:, start : start + positions]),
            guesses=drawn_guesses(chosen, experts=trace.profile.experts, accuracy=accuracy, draw=draw),
        )
        for start in picked
    ]


def drawn_guesses(
    chosen: npt.NDArray[np.int16], *, experts: int, accuracy: float, draw: np.random.Generator
) -> npt.NDArray[np.int16]:
    """For every expert that the next layer chooses: itself with probability ``accuracy``, else any other one."""
    following = np.roll(chosen, -1, axis=0)  # at layer l: what layer l + 1 chooses; the last row is not used
    right = draw.random(following.shape) < accuracy
    other = (following + draw.integers(1, max(2, experts), size=following.shape)) % experts
    return np.where(right, following, other).astype(np.int16)


def save(path: Path, profile: ModelProfile, texts: Sequence[Text]) -> None:
    """Keep tables for other processes."""
    guesses = [text.guesses for text in texts if text.guesses is not None]
    tensors = {"experts": np.stack([text.experts for text in texts])}
    if len(guesses) == len(texts):
        tensors["guesses"] = np.stack(guesses)
    save_file(tensors, path, metadata={"profile": profile.name})


def load(path: Path) -> list[Text]:
    """Tables that ``save`` has kept."""
    tensors = read_tensors(path)
    guesses = tensors.get("guesses")
    return [
        Text(experts=experts, guesses=None if guesses is None else guesses[number])
        for number, experts in enumerate(tensors["experts"])
    ]


def _recorded(twin: Twin, wide: Twin, tokens: Sequence[int]) -> Text:
    stream, experts, guesses = twin.embed(tokens), [], []
    for layer in range(twin.spec.layers):
        stream = twin.attend(layer, stream)
        gate = twin.gate(layer, stream)
        experts.append(gate.experts)
        guesses.append(wide.gate(min(layer + 1, twin.spec.layers - 1), stream).experts)
        stream = finish(gate.residual(stream), mixture(twin, layer, gate, FULL))
    return Text(experts=np.stack(experts), guesses=np.stack(guesses))


def _check_size(numbers: int) -> None:
    if 2 * numbers > MAX_BYTES:
        raise TestbedError(
            f"tables of {2 * numbers / 1e6:.0f} MB are more than the {MAX_BYTES / 1e6:.0f} MB kept; ask for less"
        )
