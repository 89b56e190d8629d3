"""What one process alone would answer: the full-precision reference that quality and exactness are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.models.arithmetic import Arithmetic
from agents.models.reference import digest, generate, next_token_nll, score
from scenarios.timeline import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The centralised answer to one request."""

    mean_nll: float | None  # nats per token, score only; None where the model measures no quality
    top1: tuple[int, ...]
    digest: bytes
    measures_quality: bool = True  # whether the tokens and their likelihoods mean something


class References(Mapping[int, Reference]):
    """The references of all requests by number, each computed when it is first asked for; equal prompts once."""

    def __init__(self, twin: Arithmetic, requests: Iterable[Request], prompts: Mapping[int, Sequence[int]]) -> None:
        self._twin = twin
        self._asked = {request.number: (tuple(prompts[request.number]), request.output_tokens) for request in requests}
        self._known: dict[tuple[tuple[int, ...], int], Reference] = {}

    def compute(self, *, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Compute all that are not known yet, until interrupted."""
        for number in self:
            if interrupted():
                return
            self[number]

    def __getitem__(self, number: int) -> Reference:
        key = self._asked[number]
        if key not in self._known:
            self._known[key] = _reference(self._twin, *key)
        return self._known[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)


def _reference(twin: Arithmetic, tokens: tuple[int, ...], output_tokens: int) -> Reference:
    if output_tokens:
        generated = generate(twin, tokens, output_tokens)
        digests = b"".join(digest(generated.logits[row : row + 1]) for row in range(len(generated.logits)))
        return Reference(mean_nll=None, top1=generated.tokens, digest=digests, measures_quality=twin.measures_quality)
    logits = score(twin, tokens)
    top1 = tuple(int(token) for token in logits.argmax(axis=1))
    if not twin.measures_quality:
        return Reference(mean_nll=None, top1=top1, digest=digest(logits), measures_quality=False)
    nll = next_token_nll(logits, tokens).astype(np.float32).tolist()  # as it would have travelled
    return Reference(mean_nll=sum(nll) / len(nll) if nll else None, top1=top1, digest=digest(logits))
