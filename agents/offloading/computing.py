"""Real arithmetic for every request: a twin, asked stage by stage, each request's rows multiplied alone.

The pieces and their shapes are those of ``agents.models.reference``, so tokens and logits have the same bits as there,
whoever else is served and in whatever order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.models.arithmetic import Arithmetic, Cache
from agents.models.mixture import Floats, Gate, finish
from agents.models.quantize import FULL
from agents.models.reference import digest, mixture
from agents.offloading.tables import counted, voted
from agents.offloading.work import Request, Revealed


@dataclass(slots=True)
class Answer:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of the logits that chose each token


@dataclass(slots=True)
class _UnderWay:
    caches: list[Cache]
    stream: Floats
    start: int = 0
    gate: Gate | None = None


class Computing:
    """``Work`` of a twin."""

    def __init__(self, twin: Arithmetic, prompts: Mapping[int, Sequence[int]], *, precision: str = FULL) -> None:
        """``prompts`` holds the tokens of every request that may come."""
        self._twin = twin
        self._prompts = prompts
        self._precision = precision
        self._under_way: dict[int, _UnderWay] = {}
        self.answers: dict[int, Answer] = {}

    def begin(self, request: Request) -> None:
        """See ``Work``; ValueError where the prompt is not as long as announced."""
        prompt = self._prompts[request.number]
        if len(prompt) != request.prompt_tokens:
            raise ValueError(f"the prompt of request {request.number} has {len(prompt)} tokens")
        positions = request.prompt_tokens + request.output_tokens
        self._under_way[request.number] = _UnderWay(
            caches=[self._twin.new_cache(positions) for _ in range(self._twin.spec.layers)],
            stream=self._twin.embed(prompt),
        )
        self.answers[request.number] = Answer()

    def dense(self, request: int, layer: int) -> Revealed:
        """See ``Work``."""
        at, twin = self._under_way[request], self._twin
        at.stream = twin.attend(layer, at.stream, at.caches[layer], at.start)
        at.gate = twin.gate(layer, at.stream)
        guess: tuple[int, ...] = ()
        if layer + 1 < twin.spec.layers:
            guess = tuple(voted(twin.gate(layer + 1, at.stream).experts))
        return Revealed(counts=counted(at.gate.experts), guess=guess)

    def experts(self, request: int, layer: int) -> None:
        """See ``Work``."""
        at, twin = self._under_way[request], self._twin
        if at.gate is None:
            raise ValueError(f"request {request}: the gate of layer {layer} has not spoken")
        at.stream = finish(at.gate.residual(at.stream), mixture(twin, layer, at.gate, self._precision))
        at.gate = None
        if layer == twin.spec.layers - 1:
            logits = twin.logits(at.stream[-1:])
            answer = self.answers[request]
            answer.tokens.append(int(logits[0].argmax()))
            answer.digests.append(digest(logits))
            at.start += len(at.stream)
            at.stream = twin.embed(answer.tokens[-1:])

    def end(self, request: int) -> None:
        """See ``Work``."""
        del self._under_way[request]
