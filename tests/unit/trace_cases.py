"""Made-up routing traces: small recordings in the format of the real ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.models.profile import ModelProfile
from agents.models.replay import Replay

MIXTRAL = ModelProfile.load("mixtral-8x7b")
TINY = replace(MIXTRAL, name="tiny", layers=3, experts=4)

Line = dict[str, Any]


def lines(*tokens: int, profile: ModelProfile = TINY, dataset: str = "maths") -> list[Line]:
    """A made-up recording of problems with that many tokens, layer by layer like a real one."""
    draw = random.Random(f"{tokens} {dataset}")  # noqa: S311 - a recording made up, not a secret
    found = []
    for problem, count in enumerate(tokens):
        for layer in range(profile.layers):
            for token in range(count):
                chosen = draw.sample(range(profile.experts), profile.top_k)
                if layer == token == 0 and profile.experts - 1 not in chosen:
                    chosen[0] = profile.experts - 1  # how many experts there are must show
                best = draw.uniform(0.5, 1.0)
                found.append(line(dataset, problem, layer, token, chosen, [best, 1 - best]))
    return found


def line(dataset: str, problem: int, layer: int, token: int, experts: list[int], weights: list[float]) -> Line:
    return {
        "dataset": dataset,
        "problem_id": problem,
        "layer": layer,
        "experts": experts,
        "gating_probs": weights,
        "token_idx": token,
    }


def written(path: Path, found: Iterable[Line | str]) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in found]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def replayed(path: Path, found: Iterable[Line | str], *profiles: ModelProfile) -> Replay:
    return Replay.load(written(path / "trace.jsonl", found), profiles or (TINY,))


def without(found: list[Line], **wanted: int) -> list[Line]:
    return [each for each in found if any(each[key] != value for key, value in wanted.items())]
