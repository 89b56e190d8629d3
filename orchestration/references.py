"""What one process alone would answer: the full-precision reference that quality and exactness are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.models.arithmetic import Arithmetic
from agents.models.cloze import cloze_items
from agents.models.mixture import Floats
from agents.models.quality import Span, correct, hits
from agents.models.reference import digest, generate, next_token_nll, score
from agents.models.sampling import GREEDY, Sampling
from orchestration.logitsfile import LogitsFile
from scenarios.timeline import Request, Scenario

#: A prompt, how many tokens to generate after it, and where tokens are drawn, the request whose draws they are.
Question = tuple[tuple[int, ...], int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The centralised answer to one request."""

    mean_nll: float | None  # nats per token, score only; None where the model measures no quality
    top1: tuple[int, ...]
    digest: bytes
    measures_quality: bool = True  # whether the tokens and their likelihoods mean something
    scored: tuple[int, ...] | None = None  # the prompt of a score
    cloze: tuple[Span, ...] | None = None  # its items; None where no tokenizer tells words

    @property
    def judged(self) -> bool:
        """Whether there is a text that predictions can be held against."""
        return self.measures_quality and self.scored is not None

    def correct(self, top1: Sequence[int]) -> int | None:
        """How many tokens of the prompt these most likely tokens foretell (``agents.models.quality``)."""
        return correct(top1, self.scored) if self.measures_quality and self.scored is not None else None

    def cloze_hits(self, top1: Sequence[int]) -> int | None:
        """How many cloze items they complete."""
        if not self.measures_quality or self.scored is None or self.cloze is None:
            return None
        return hits(top1, self.scored, self.cloze)


def sampling_of(scenario: Scenario) -> Sampling:
    """How a scenario's requests draw their tokens."""
    return Sampling(temperature=scenario.temperature, top_p=scenario.top_p, seed=scenario.sampling_seed)


class References(Mapping[int, Reference]):
    """The references of all requests by number, each computed when it is first asked for; equal prompts once."""

    def __init__(
        self,
        twin: Arithmetic,
        requests: Iterable[Request],
        prompts: Mapping[int, Sequence[int]],
        *,
        pieces: Sequence[bytes] | None = None,
        sampling: Sampling = GREEDY,
    ) -> None:
        """``pieces`` holds the bytes of every token (``agents.models.cloze``), where they are known."""
        self._twin = twin
        self._pieces = pieces
        self._sampling = sampling
        drawn = sampling.temperature > 0
        self._asked: dict[int, Question] = {
            request.number: (
                tuple(prompts[request.number]),
                request.output_tokens,
                request.number if drawn and request.output_tokens else None,
            )
            for request in requests
        }
        self._known: dict[Question, Reference] = {}
        self._kept: LogitsFile | None = None
        self._latest: tuple[Question, Floats] | None = None  # most are asked for right after they were computed

    def compute(self, *, keep: LogitsFile | None = None, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Compute all that are not known yet, until interrupted; keep the logits of prompts for ``logits``."""
        self._kept = keep
        for number in self:
            if interrupted():
                return
            self[number]

    def logits(self, number: int) -> Floats:
        """The reference logits of a score, (tokens, vocab): as kept, or computed anew."""
        question = self._asked[number]
        if self._latest is not None and self._latest[0] == question:
            return self._latest[1]
        kept = self._kept.read(question) if self._kept is not None else None
        return score(self._twin, question[0]) if kept is None else kept

    def known_logits(self) -> frozenset[bytes]:
        """Digests of the logits of all scores that are computed by now."""
        return frozenset(reference.digest for reference in self._known.values() if reference.judged)

    def __getitem__(self, number: int) -> Reference:
        question = self._asked[number]
        if question not in self._known:
            self._known[question] = self._reference(question)
        return self._known[question]

    def __iter__(self) -> Iterator[int]:
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)

    def _reference(self, question: Question) -> Reference:
        tokens, output_tokens, number = question
        measures = self._twin.measures_quality
        if output_tokens:
            generated = generate(self._twin, tokens, output_tokens, sampling=self._sampling, request=number or 0)
            digests = b"".join(digest(generated.logits[row : row + 1]) for row in range(len(generated.logits)))
            return Reference(mean_nll=None, top1=generated.tokens, digest=digests, measures_quality=measures)
        logits = score(self._twin, tokens)
        top1 = tuple(int(token) for token in logits.argmax(axis=1))
        if not measures:
            return Reference(mean_nll=None, top1=top1, digest=digest(logits), measures_quality=False)
        self._latest = question, logits
        if self._kept is not None:
            self._kept.keep(question, logits)
        nll = next_token_nll(logits, tokens).astype(np.float32).tolist()  # as it would have travelled
        return Reference(
            mean_nll=sum(nll) / len(nll) if nll else None,
            top1=top1,
            digest=digest(logits),
            scored=tokens,
            cloze=None if self._pieces is None else cloze_items(tokens, self._pieces),
        )
