"""Fits the exit heads of a twin (:mod:`agents.models.exits`) with torch; the twin itself stays as it is.

Maps and gauges learn from training text, the gauges' last scale and shift from some calibration rows, and what is
reported and what gates are calibrated with comes from the other calibration rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from torch import Tensor

from agents.models.exits import BINS, NORM_EPS, THRESHOLDS, ExitHeads
from agents.models.network import Network, rotary_table

Rows = npt.NDArray[np.int16]

#: Rows that are played at once: all exits' scores are held in memory.
CHUNK_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecipe:
    """How the heads are fitted."""

    seed: int = 0
    steps: int = 240
    rows: int = 8  # sequences per step, the same number from every domain
    length: int = 96
    rate: float = 4e-3
    gauge_width: int = 32
    scaling_share: float = 0.25  # of the calibration rows, for the gauges' scale and shift


class _Heads(torch.nn.Module):
    """What is fitted."""

    def __init__(self, exits: int, width: int, gauge: int) -> None:
        super().__init__()
        self.maps = torch.nn.Parameter(torch.zeros(exits, width, width))
        self.shifts = torch.nn.Parameter(torch.zeros(exits, 1, width))
        self.gauge_in = torch.nn.Parameter(torch.randn(exits, width, gauge) * width**-0.5)
        self.gauge_bias = torch.nn.Parameter(torch.zeros(exits, 1, gauge))
        self.gauge_out = torch.nn.Parameter(torch.zeros(exits, gauge, 1))
        self.gauge_shift = torch.nn.Parameter(torch.zeros(exits, 1, 1))

    def carried(self, x: Tensor) -> Tensor:
        """Equation (1) of all exits, (exits, n, width)."""
        return x + torch.baddbmm(self.shifts, x, self.maps)

    def scores(self, x: Tensor) -> Tensor:
        """Equation (2) before the sigmoid, (exits, n)."""
        h = functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS)
        inner = torch.baddbmm(self.gauge_bias, h, self.gauge_in).relu()
        return torch.baddbmm(self.gauge_shift, inner, self.gauge_out)[..., 0]


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
    heads = _Heads(spec.layers - 1, spec.width, recipe.gauge_width)
    optimizer = torch.optim.Adam(heads.parameters(), recipe.rate)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * min(1.0, 2 * (1 - step / recipe.steps))
        x, last = _streams(network, _draw(training, recipe, step))
        wanted = network.read_out(last)
        total, agrees = _fit_maps(network, heads.carried(x), wanted)
        gauged = functional.binary_cross_entropy_with_logits(heads.scores(x), agrees)
        gauged.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 20 == 0:
            progress(
                f"exit heads: step {step + 1} of {recipe.steps}, cross entropy with the full model {total:.4f}, "
                f"gauges {gauged.item():.4f}"
            )
    first = [max(1, round(recipe.scaling_share * len(rows))) for rows in calibration]
    heads.requires_grad_(False)
    _scale(heads, list(_play(network, heads, [rows[:n] for rows, n in zip(calibration, first, strict=True)])))
    return _judged(network, heads, [rows[n:] for rows, n in zip(calibration, first, strict=True)])


def _fit_maps(network: Network, carried: Tensor, wanted: Tensor) -> tuple[float, Tensor]:
    """Gradients of the maps; the loss, and where each exit agrees with the full model, (exits, n)."""
    target, choice = wanted.softmax(-1), wanted.argmax(-1)
    total, agrees = 0.0, []
    for place, each in enumerate(carried):
        scores = network.read_out(each)
        loss = functional.cross_entropy(scores, target) / len(carried)
        # One exit's scores at a time, or memory grows with depth.
        loss.backward(retain_graph=place < len(carried) - 1)  # type: ignore[no-untyped-call]
        total += loss.item()
        agrees.append((scores.detach().argmax(-1) == choice).float())
    return total, torch.stack(agrees)


@torch.no_grad()
def _streams(network: Network, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The streams after every layer but the last, (exits, n, width), and after the last, (n, width)."""
    turns = rotary_table(network.spec, tokens.shape[1])
    x = network.embedding[tokens]
    found = []
    for layer in network.layers:
        x, _, _ = layer(x, *turns)
        found.append(x.flatten(0, 1))
    return torch.stack(found[:-1]), found[-1]


@dataclass(frozen=True, slots=True)
class _Played:
    """What every exit says of the tokens of a few rows."""

    domain: int
    rows: int
    scores: Tensor  # (exits, n) of the gauges
    agrees: Tensor  # (exits, n)
    nll: Tensor  # (exits, rows) nats, summed over the tokens that have a next one
    full_nll: Tensor  # (rows,)


@torch.no_grad()
def _play(network: Network, heads: _Heads, domains: list[Rows]) -> Iterator[_Played]:
    for number, rows in enumerate(domains):
        for start in range(0, len(rows), CHUNK_ROWS):
            tokens = torch.from_numpy(rows[start : start + CHUNK_ROWS].astype(np.int64))
            x, last = _streams(network, tokens)
            full = network.read_out(last)
            choice, agrees, nll = full.argmax(-1), [], []
            for each in heads.carried(x):
                scores = network.read_out(each)
                agrees.append(scores.argmax(-1) == choice)
                nll.append(_nll(scores, tokens))
            yield _Played(
                number, len(tokens), heads.scores(x), torch.stack(agrees), torch.stack(nll), _nll(full, tokens)
            )


def _nll(scores: Tensor, tokens: Tensor) -> Tensor:
    shaped = scores.view(*tokens.shape, -1)[:, :-1]
    return functional.cross_entropy(shaped.mT, tokens[:, 1:], reduction="none").sum(-1)


def _scale(heads: _Heads, played: list[_Played]) -> None:
    """Platt: scale and shift every gauge's score so that it is right on these rows."""
    scores = torch.cat([each.scores for each in played], 1)
    agrees = torch.cat([each.agrees for each in played], 1).float()
    scale = torch.ones(len(scores), 1, requires_grad=True)
    shift = torch.zeros(len(scores), 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale, shift], max_iter=50)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.binary_cross_entropy_with_logits(scale * scores + shift, agrees)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    heads.gauge_out.mul_(scale.detach()[:, :, None])
    heads.gauge_shift.mul_(scale.detach()[:, :, None]).add_(shift.detach()[:, :, None])


def _judged(network: Network, heads: _Heads, domains: list[Rows]) -> ExitHeads:
    """The heads, with what they do on rows that nothing was fitted on."""
    exits = len(heads.maps)
    thresholds = torch.from_numpy(THRESHOLDS)
    wrong, left, owners = [], torch.zeros(len(THRESHOLDS), exits), list[int]()
    count, confidence, agreement = (torch.zeros(exits, BINS) for _ in range(3))
    nll, full_nll = torch.zeros(exits), 0.0
    for played in _play(network, heads, domains):
        sure = played.scores.sigmoid()  # (exits, n)
        place = (sure * BINS).long().clamp_max(BINS - 1)
        count.scatter_add_(1, place, torch.ones_like(sure))
        confidence.scatter_add_(1, place, sure)
        agreement.scatter_add_(1, place, played.agrees.float())
        nll += played.nll.sum(1)
        full_nll += float(played.full_nll.sum())
        # The surest exit that is wrong decides up to which threshold a token is at risk.
        surest = torch.where(played.agrees, -1.0, sure).amax(0)
        wrong.append((surest >= thresholds[:, None]).float().view(len(THRESHOLDS), played.rows, -1).mean(-1))
        passes = sure[None] >= thresholds[:, None, None]  # (thresholds, exits, n)
        first = passes & (passes.cumsum(1) == 1)
        left += first.float().sum(2)
        owners += [played.domain] * played.rows
    tokens = count[0].sum()
    return ExitHeads(
        maps=heads.maps.numpy(),
        shifts=heads.shifts[:, 0].numpy(),
        gauge_in=heads.gauge_in.numpy(),
        gauge_bias=heads.gauge_bias[:, 0].numpy(),
        gauge_out=heads.gauge_out[..., 0].numpy(),
        gauge_shift=heads.gauge_shift[:, 0, 0].numpy(),
        wrong=torch.cat(wrong, 1).numpy(),
        left=(left / tokens).numpy(),
        domains=np.array(owners, np.int16),
        count=count.numpy(),
        confidence=(confidence / count.clamp_min(1)).numpy(),
        agreement=(agreement / count.clamp_min(1)).numpy(),
        rise=(nll / full_nll - 1).numpy(),
    )


def _draw(training: list[Rows], recipe: FitRecipe, step: int) -> Tensor:
    draw = np.random.default_rng((recipe.seed, step))
    rows = []
    for row in range(recipe.rows):
        stream = training[row % len(training)]
        start = int(draw.integers(0, len(stream) - recipe.length))
        rows.append(stream[start : start + recipe.length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))
