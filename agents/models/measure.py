"""Measures a twin and every expert of it (:mod:`agents.models.facts`) with torch, all calibration rows at once.

One full pass is kept.  Then, for every expert and precision, only what changes is computed again: the results of that
expert for the tokens that chose it, and the layers after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from torch import Tensor

from agents.models.calibrate import Calibration
from agents.models.facts import ExpertFacts
from agents.models.network import Layer, Network, rotary_table
from agents.models.quantize import FORMATS, FULL, rounded
from agents.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Kept:
    """One layer of the full pass, n tokens."""

    out: Tensor  # (rows, length, width) the stream after the layer
    hidden: Tensor  # (n, width)
    logits: Tensor  # (n, experts) of the router
    weights: Tensor  # (n, top_k)
    chosen: Tensor  # (n, top_k)


class FullPass:
    """The full-precision pass over all rows, layer by layer."""

    @torch.no_grad()
    def __init__(self, network: Network, tokens: Tensor) -> None:
        self.network = network
        self.tokens = tokens
        self.turns = rotary_table(network.spec, tokens.shape[1])
        self.layers: list[Kept] = []
        x = network.embedding[tokens]
        for layer in network.layers:
            x, hidden, logits, weights, chosen = _run(layer, x, self.turns)
            self.layers.append(Kept(x, hidden, logits, weights, chosen))
        self.log_p = network.read_out(x).log_softmax(-1)
        picked = self.log_p[:, :-1].gather(-1, tokens[:, 1:, None])
        self.nll = float(-picked.mean())

    @torch.no_grad()
    def after(self, layer: int, x: Tensor) -> Tensor:
        """The log probabilities when ``x`` is the stream after ``layer``."""
        for later in self.network.layers[layer + 1 :]:
            x, *_ = _run(later, x, self.turns)
        return self.network.read_out(x).log_softmax(-1)

    def divergence(self, log_q: Tensor) -> float:
        """KL(full || q) per token, in nats."""
        return float((self.log_p.exp() * (self.log_p - log_q)).sum(-1).double().mean())


def _run(layer: Layer, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    attended = layer.dense(x, *turns)
    hidden, logits, weights, chosen, shared = layer.route(attended)
    total = layer.mix(hidden, weights, chosen)
    return attended + (total + shared).view_as(attended), hidden, logits, weights, chosen


def network_of(spec: ModelSpec, weights: Mapping[str, npt.NDArray[np.float32]]) -> Network:
    """The torch module with a stored twin's weights."""
    network = Network(spec)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))
    return network.eval()


@torch.no_grad()
def measure_experts(
    network: Network, domains: list[npt.NDArray[np.int16]], progress: Callable[[str], None] = lambda _: None
) -> ExpertFacts:
    """Equations (1) to (6) of :mod:`agents.models.facts` on token rows of every domain, (rows, length) each."""
    spec = network.spec
    tokens = torch.from_numpy(np.concatenate(domains).astype(np.int64))
    full = FullPass(network, tokens)
    shape = (spec.layers, spec.experts)
    loss = {precision: np.zeros(shape) for precision in FORMATS}
    importance, difference = np.zeros(shape), np.ones((*shape, spec.experts))
    for number, kept in enumerate(full.layers):
        layer = network.layers[number]
        for expert in range(spec.experts):
            rows, rank = (kept.chosen == expert).nonzero(as_tuple=True)
            if not len(rows):
                continue
            weight, hidden = kept.weights[rows, rank], kept.hidden[rows]
            share = float(weight.sum() / kept.weights.sum())
            own = layer.expert(hidden, layer.experts_in[expert], layer.experts_out[expert])
            for precision in FORMATS:
                inner, outer = _rounded(layer, expert, precision)
                moved = layer.expert(hidden, inner, outer) - own
                loss[precision][number, expert] = _rate(full, number, rows, weight[:, None] * moved, share)
            importance[number, expert] = _rate(full, number, rows, -weight[:, None] * own, share)
            for other in range(spec.experts):
                theirs = layer.expert(hidden, layer.experts_in[other], layer.experts_out[other])
                difference[number, expert, other] = (theirs - own).norm() / own.norm().clamp_min(1e-12)
        progress(f"layer {number + 1} of {spec.layers}")
    used = np.stack([np.bincount(kept.chosen.flatten(), minlength=spec.experts) > 0 for kept in full.layers])
    pairs = itertools.pairwise(kept.chosen for kept in full.layers)
    transitions = [_transition(here, there, spec) for here, there in pairs]
    return ExpertFacts(
        coactivation=np.stack(list(_together(full, domains))),
        transition=np.reshape(transitions, (-1, spec.experts, spec.experts)).astype(np.float32),
        loss={precision: _filled(rates, used) for precision, rates in loss.items()},
        importance=_filled(importance, used),
        similarity=np.stack([_cosines(kept.logits) for kept in full.layers]),
        difference=difference.astype(np.float32),
    )


@torch.no_grad()
def measure(network: Network, rows: Mapping[str, npt.NDArray[np.int16]]) -> Calibration:
    """Equations (1) to (3) of :mod:`agents.models.calibrate` on token rows of every domain."""
    spec = network.spec
    tokens = torch.from_numpy(np.concatenate(list(rows.values())).astype(np.int64))
    full = FullPass(network, tokens)
    usage, start = np.zeros((len(rows), spec.layers, spec.experts)), 0
    for place, domain in enumerate(rows.values()):
        for layer, kept in enumerate(full.layers):
            chosen = kept.chosen[start : start + domain.size].flatten().numpy()
            usage[place, layer] = np.bincount(chosen, minlength=spec.experts) / len(chosen)
        start += domain.size
    each, total = {FULL: (0.0,) * spec.layers}, {FULL: 0.0}
    for precision in FORMATS:
        lossy = network_of(spec, {name: _stored(name, p, precision) for name, p in network.named_parameters()})
        losses = []
        for layer in range(spec.layers):
            before = full.layers[layer - 1].out if layer else network.embedding[tokens]
            x, *_ = _run(lossy.layers[layer], before, full.turns)
            losses.append(full.divergence(full.after(layer, x)) / full.nll)
        each[precision] = tuple(losses)
        total[precision] = full.divergence(FullPass(lossy, tokens).log_p) / full.nll
    return Calibration(
        tokens=tokens.numel(),
        domains=tuple(rows),
        usage=usage,
        precision_loss=each,
        precision_loss_total=total,
    )


def _stored(name: str, parameter: Tensor, precision: str) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = parameter.detach().numpy()
    if not name.endswith(("experts_in", "experts_out")):
        return values
    return np.stack([rounded(matrix, precision) for matrix in values])


def _rounded(layer: Layer, expert: int, precision: str) -> tuple[Tensor, Tensor]:
    stored = (layer.experts_in[expert], layer.experts_out[expert])
    inner, outer = (torch.from_numpy(rounded(matrix.numpy(), precision)) for matrix in stored)
    return inner, outer


def _rate(full: FullPass, layer: int, rows: Tensor, change: Tensor, share: float) -> float:
    x = full.layers[layer].out.clone()
    x.view(-1, x.shape[-1])[rows] += change
    return full.divergence(full.after(layer, x)) / full.nll / share


def _together(full: FullPass, domains: list[npt.NDArray[np.int16]]) -> Iterator[npt.NDArray[np.float32]]:
    experts, start = full.network.spec.experts, 0
    for domain in domains:
        end = start + domain.size
        hot = [functional.one_hot(kept.chosen[start:end], experts).sum(1).float() for kept in full.layers]
        yield np.stack([(each.T @ each / domain.size).numpy() for each in hot])
        start = end


def _transition(here: Tensor, there: Tensor, spec: ModelSpec) -> npt.NDArray[np.float32]:
    before, after = (functional.one_hot(chosen, spec.experts).sum(1).float() for chosen in (here, there))
    counts = before.T @ after
    total = counts.sum(1, keepdim=True)
    found: npt.NDArray[np.float32] = torch.where(total > 0, counts / total.clamp_min(1), 1 / spec.experts).numpy()
    return found


def _cosines(logits: Tensor) -> npt.NDArray[np.float32]:
    columns = functional.normalize(logits, dim=0)
    found: npt.NDArray[np.float32] = (columns.T @ columns).numpy()
    return found


def _filled(rates: npt.NDArray[np.float64], used: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """The mean rate of the layer for experts that no token chose."""
    mean = (rates * used).sum(axis=1, keepdims=True) / np.maximum(used.sum(axis=1, keepdims=True), 1)
    return np.where(used, rates, mean).astype(np.float32)
