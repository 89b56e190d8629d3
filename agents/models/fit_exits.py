"""Fits the exit heads of a twin (:mod:`agents.models.exits`) with torch; the twin itself stays as it is.

The maps learn from training text, the temperatures from one half of the calibration rows, and the sample that gates are
calibrated with is the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from torch import Tensor

from agents.models.exits import ExitHeads
from agents.models.network import Network, rotary_table

#: Temperatures tried; the likeliest is kept.
TEMPERATURES = np.geomspace(0.4, 4.0, 73)
Rows = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecipe:
    """How the maps are fitted."""

    seed: int = 0
    steps: int = 240
    rows: int = 8  # sequences per step, the same number from every domain
    length: int = 96
    rate: float = 4e-3


@torch.no_grad()
def streams(network: Network, tokens: Tensor) -> list[Tensor]:
    """The stream after every layer, (rows, length, width) each."""
    turns = rotary_table(network.spec, tokens.shape[1])
    x = network.embedding[tokens]
    found = []
    for layer in network.layers:
        x, _, _ = layer(x, *turns)
        found.append(x)
    return found


def fit(
    network: Network,
    training: list[Rows],
    calibration: list[Rows],
    recipe: FitRecipe,
    progress: Callable[[str], None] = lambda _: None,
) -> ExitHeads:
    """Heads for every layer but the last: ``training`` are token streams, ``calibration`` rows, of every domain."""
    spec = network.spec
    torch.manual_seed(recipe.seed)
    exits = spec.layers - 1
    maps = torch.zeros(exits, spec.width, spec.width, requires_grad=True)
    shifts = torch.zeros(exits, 1, spec.width, requires_grad=True)
    optimizer = torch.optim.Adam([maps, shifts], recipe.rate)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, 2 * (1 - step / recipe.steps))
        *early, last = streams(network, _draw(training, recipe, step))
        wanted = network.read_out(last).flatten(0, 1).softmax(-1)
        x = torch.stack([each.flatten(0, 1) for each in early])  # (exits, n, width)
        carried = x + torch.baddbmm(shifts, x, maps)
        total = 0.0
        for place, each in enumerate(carried):
            loss = functional.cross_entropy(network.read_out(each), wanted) / exits
            loss.backward(  # type: ignore[no-untyped-call]
                retain_graph=place < exits - 1  # one exit's logits at a time, or memory grows with depth
            )
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 20 == 0:
            progress(f"exit heads: step {step + 1} of {recipe.steps}, cross entropy with the full model {total:.4f}")
    half = [len(rows) // 2 for rows in calibration]
    maps, shifts = maps.detach(), shifts.detach()
    first = _Played.of(network, [rows[:n] for rows, n in zip(calibration, half, strict=True)], maps, shifts)
    temperatures = np.array([_temperature(scores, first.choice) for scores in first.scores], np.float32)
    second = _Played.of(network, [rows[n:] for rows, n in zip(calibration, half, strict=True)], maps, shifts)
    confidence = [
        (scores / float(t)).softmax(-1).max(-1).values for scores, t in zip(second.scores, temperatures, strict=True)
    ]
    return ExitHeads(
        maps=maps.numpy(),
        shifts=shifts[:, 0].numpy(),
        temperatures=temperatures,
        confidence=torch.stack(confidence).numpy(),
        agrees=torch.stack([scores.argmax(-1) == second.choice for scores in second.scores]).numpy(),
        rise=torch.stack([_nll(scores, second.next) - second.nll for scores in second.scores]).numpy(),
        full_nll=float(second.nll.mean()),
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """What every exit and the full model say about each token that has a next one, m in all."""

    scores: list[Tensor]  # (m, vocab) of every exit
    choice: Tensor  # (m,) of the full model
    next: Tensor  # (m,) what came
    nll: Tensor  # (m,) of the full model

    @classmethod
    @torch.no_grad()
    def of(cls, network: Network, rows: list[Rows], maps: Tensor, shifts: Tensor) -> _Played:
        tokens = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        *early, last = (x[:, :-1].flatten(0, 1) for x in streams(network, tokens))
        scores = [network.read_out(x + x @ a + b) for x, a, b in zip(early, maps, shifts, strict=True)]
        full, following = network.read_out(last), tokens[:, 1:].flatten()
        return cls(scores, full.argmax(-1), following, _nll(full, following))


def _nll(scores: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(scores, following, reduction="none")


def _temperature(scores: Tensor, choice: Tensor) -> float:
    """The temperature under which the full model's choices are likeliest."""
    losses = [float(functional.cross_entropy(scores / t, choice)) for t in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def _draw(training: list[Rows], recipe: FitRecipe, step: int) -> Tensor:
    draw = np.random.default_rng((recipe.seed, step))
    rows = []
    for row in range(recipe.rows):
        stream = training[row % len(training)]
        start = int(draw.integers(0, len(stream) - recipe.length))
        rows.append(stream[start : start + recipe.length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))
