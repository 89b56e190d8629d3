"""A recorded trace in the place of a model: experts are chosen as the large model chose them, and nothing is computed.

Engine, messages and frameworks run unchanged, because a replay has the pieces of a twin
(:class:`agents.models.arithmetic.Arithmetic`).  The trick is the residual stream: one number wide, it holds the row of
the trace that each token is.  Whatever server a stream reaches can look its tokens up there:

    embed(tokens)   token numbers are rows of the trace                  x = rows, (n, 1)                (1)
    attend(x)       x
    gate(l, x)      what those rows chose in layer l                     a look-up
    expert(..., h)  zeros, (m, 1), so that ``finish`` leaves x alone
    logits(x)       one at the row that follows in the same problem, the first after the last            (2)

By (2) a generated text walks along its problem.  The digest of (2) proves that the right tokens went through all
layers; it says nothing of quality, and precision changes no bit of it (``measures_quality`` is false).

A pass costs look-ups in tables made once.  Equal tokens in the same layer get the same :class:`Gate` object, which
keeps what ``agents.routing`` derives from it.

float32 holds whole numbers up to 2²⁴ exactly, more than a trace may have rows (``agents.models.trace``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agents.models.calibrate import Calibration
from agents.models.mixture import Call, Floats, Gate, Totals
from agents.models.profile import ModelProfile
from agents.models.prompts import Prompts
from agents.models.quantize import PRECISIONS
from agents.models.trace import Problem, Trace, read_trace
from testbed.errors import TestbedError

TRACE_SUFFIX = ".jsonl"
LONGEST_PROMPT = 128
#: Prompts of a dataset are as long as this share of its tokens allows; problems that are shorter give none.
PROMPTED_SHARE = 0.9
#: Gate decisions kept for tokens that come again: some 12 KiB each with what is derived from them.
GATES_KEPT = 8192
#: Whose twin's losses of precision stand in where a model has no twin.
LENDER = "mixtral-8x7b"

_MODELS = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """The shape of a replay: the large model's routing, and a stream that holds row numbers."""

    name: str
    layers: int
    experts: int
    top_k: int
    vocab: int  # rows of the trace
    width: int = 1


class Positions:
    """What a replay remembers of one layer of one request: how far it has come."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length = 0


class Replay:
    """The model that made a trace, as far as routing goes."""

    measures_quality = False

    def __init__(self, trace: Trace) -> None:
        profile, rows = trace.profile, trace.rows
        self.trace = trace
        self.profile = profile
        self.spec = ReplaySpec(
            name=profile.name, layers=profile.layers, experts=profile.experts, top_k=profile.top_k, vocab=rows
        )
        following = np.arange(1, rows + 1)  # equation (2)
        for problem in trace.problems:
            following[problem.first + problem.tokens - 1] = problem.first
        self._following = following
        self._lengths = {
            dataset: _prompt_length([problem.tokens for problem in problems])
            for dataset, problems in self._datasets().items()
        }
        self._gate = lru_cache(maxsize=GATES_KEPT)(self._looked_up)

    @classmethod
    def load(cls, path: Path, profiles: Sequence[ModelProfile] | None = None) -> Self:
        """Read a trace of one of ``profiles``, or of any known model.  TestbedError naming file and line otherwise."""
        known = ModelProfile.known() if profiles is None else profiles
        return cls(read_trace(path, known))

    # --- the pieces of a forward pass ---------------------------------------------------------------------------------

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """Equation (1)."""
        numbers = np.asarray(tokens, dtype=np.intp)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.spec.vocab):
            raise TestbedError(f"token numbers must be in 0..{self.spec.vocab - 1}")
        return numbers.astype(np.float32)[:, None]

    def new_cache(self, capacity: int = 64) -> Positions:
        """An empty cache for one layer of one request."""
        del capacity  # it holds a number only
        return Positions()

    def attend(self, layer: int, x: Floats, cache: Positions | None = None, start: int = 0) -> Floats:
        """The stream as it is; a pass that left positions out or repeats them is refused as a twin refuses it."""
        if cache is not None:
            if cache.length != start:
                raise TestbedError(
                    f"layer {layer}: the cache holds {cache.length} positions, so start cannot be {start}"
                )
            cache.length += len(x)
        return x

    def gate(self, layer: int, x: Floats) -> Gate:
        """What these tokens chose in the recording; the same object for the same tokens, if it was lately made."""
        return self._gate(layer, x.tobytes())

    def outputs(self, layer: int, calls: Sequence[Call], rows: Floats) -> Floats:
        """Zeros: nothing is known of what an expert gave."""
        del layer
        for _, precision, _ in calls:
            if precision not in PRECISIONS:
                raise TestbedError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
        return np.zeros((len(rows), 1), np.float32)

    def experts(
        self,
        layer: int,
        calls: Sequence[Call],
        hidden: Floats,
        index: npt.NDArray[Any],
        weights: Floats,
        total: Totals,
    ) -> None:
        """Adds nothing, as ``outputs`` gives nothing."""
        del layer, hidden, index, weights, total
        for _, precision, _ in calls:
            if precision not in PRECISIONS:
                raise TestbedError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")

    def logits(self, x: Floats) -> Floats:
        """Equation (2), (n, rows)."""
        out = np.zeros((len(x), self.spec.vocab), np.float32)
        out[np.arange(len(x)), self._following[x[:, 0].astype(np.intp)]] = 1.0
        return out

    def _looked_up(self, layer: int, stream: bytes) -> Gate:
        hidden = np.frombuffer(stream, np.float32)  # cannot be written, so sharing is safe
        rows = hidden.astype(np.intp)
        experts, weights = self.trace.experts[layer][rows], self.trace.weights[layer][rows]
        experts.setflags(write=False)
        weights.setflags(write=False)
        return Gate(hidden=hidden[:, None], experts=experts, weights=weights, memo={})

    # --- what users ask, and what frameworks may know -----------------------------------------------------------------

    @property
    def prompts(self) -> Prompts:
        """Every stretch of a problem that is as long as its dataset's prompts; token numbers are rows."""
        rows = {}
        for dataset, problems in self._datasets().items():
            length = self._lengths[dataset]
            numbers = [np.arange(each.first, each.first + each.tokens, dtype=np.int16) for each in problems]
            windows = [np.lib.stride_tricks.sliding_window_view(n, length) for n in numbers if len(n) >= length]
            rows[dataset] = np.concatenate(windows)
        return Prompts(rows)

    def calibration(self, losses: Calibration | None = None) -> Calibration:
        """Usage as recorded; what fewer bits lose cannot be, and is borrowed.

        From the model's own twin; where it has none, ``LENDER``'s total loss is spread evenly over the layers.
        """
        borrowed = self._borrowed() if losses is None else losses
        layers, experts = self.profile.layers, self.profile.experts
        datasets = self._datasets()
        usage = np.zeros((len(datasets), layers, experts))
        for place, problems in enumerate(datasets.values()):
            first, last = problems[0].first, problems[-1].first + problems[-1].tokens  # a dataset's rows are neighbours
            for layer in range(layers):
                usage[place, layer] = np.bincount(self.trace.experts[layer, first:last].ravel(), minlength=experts)
        for precision, each in borrowed.precision_loss.items():
            if len(each) != layers:
                raise TestbedError(
                    f"losses of {precision} cover {len(each)} layers; {self.profile.name} has {layers}: borrow from "
                    "its own twin"
                )
        return Calibration(
            tokens=self.trace.rows,
            domains=tuple(datasets),
            usage=usage / usage.sum(axis=2, keepdims=True),
            precision_loss=borrowed.precision_loss,
            precision_loss_total=borrowed.precision_loss_total,
        )

    @property
    def summary(self) -> str:
        """One line: what is replayed, and what was left out or changed."""
        trace = self.trace
        text = f"{trace.rows} tokens of {len(trace.problems)} problems"
        if trace.incomplete:
            text += f"; {trace.incomplete} left out: no row in every layer"
        short = [problem for problem in trace.problems if problem.tokens < self._lengths[problem.dataset]]
        if short:
            text += f"; {len(short)} problems give no prompt: too short"
        if trace.rescaled:
            text += f"; weights of {trace.rescaled} rows rescaled to sum to 1"
        if not _twin_of(self.profile.name).is_dir():
            text += f"; it has no twin, so what fewer bits lose is that of {LENDER}'s"
        return text

    def _borrowed(self) -> Calibration:
        own = _twin_of(self.profile.name)
        if own.is_dir():
            return Calibration.load(own)
        lent, layers = Calibration.load(_twin_of(LENDER)), self.profile.layers
        shares = {name: (loss / layers,) * layers for name, loss in lent.precision_loss_total.items()}
        return replace(lent, precision_loss=shares)

    def _datasets(self) -> dict[str, list[Problem]]:
        found: dict[str, list[Problem]] = {}
        for problem in self.trace.problems:
            found.setdefault(problem.dataset, []).append(problem)
        return found


def _twin_of(name: str) -> Path:
    return _MODELS / f"{name}-twin"


def _prompt_length(tokens: Sequence[int]) -> int:
    """The longest prompt that problems with ``PROMPTED_SHARE`` of all tokens can give.

    >>> _prompt_length([166, 78]), _prompt_length([500, 400, 3])
    (78, 128)
    """
    reached = 0
    for length in sorted(tokens, reverse=True):
        reached += length
        if reached >= PROMPTED_SHARE * sum(tokens):
            return min(LONGEST_PROMPT, length)
    raise ValueError("no problem has a token")
