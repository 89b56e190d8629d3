"""What one process alone would answer: the full-precision reference that quality and exactness are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def references(
    twin: Arithmetic,
    requests: Sequence[Request],
    prompts: Mapping[int, Sequence[int]],
    *,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[int, Reference]:
    """References of all requests by number; equal prompts are computed once.  Stops early when interrupted."""
    known: dict[tuple[tuple[int, ...], int], Reference] = {}
    found = {}
    for request in requests:
        if interrupted():
            break
        key = (tuple(prompts[request.number]), request.output_tokens)
        if key not in known:
            known[key] = _reference(twin, *key)
        found[request.number] = known[key]
    return found


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
