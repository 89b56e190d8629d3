"""What one process alone would answer: the full-precision reference that quality and exactness are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.models.reference import digest, generate, next_token_nll, score
from agents.models.twin import Twin
from scenarios.timeline import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The centralised answer to one request."""

    mean_nll: float | None  # nats per token, score only
    top1: tuple[int, ...]
    digest: bytes


def references(
    twin: Twin,
    requests: Sequence[Request],
    prompts: Mapping[int, Sequence[int]],
) -> dict[int, Reference]:
    """References of all requests by number; equal prompts are computed once."""
    known: dict[tuple[tuple[int, ...], int], Reference] = {}
    found = {}
    for request in requests:
        key = (tuple(prompts[request.number]), request.output_tokens)
        if key not in known:
            known[key] = _reference(twin, *key)
        found[request.number] = known[key]
    return found


def _reference(twin: Twin, tokens: tuple[int, ...], output_tokens: int) -> Reference:
    if output_tokens:
        generated = generate(twin, tokens, output_tokens)
        digests = b"".join(digest(generated.logits[row : row + 1]) for row in range(len(generated.logits)))
        return Reference(mean_nll=None, top1=generated.tokens, digest=digests)
    logits = score(twin, tokens)
    nll = next_token_nll(logits, tokens).astype(np.float32).tolist()  # as it would have travelled
    top1 = tuple(int(token) for token in logits.argmax(axis=1))
    return Reference(mean_nll=sum(nll) / len(nll) if nll else None, top1=top1, digest=digest(logits))
