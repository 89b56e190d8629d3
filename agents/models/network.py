"""The twin as a torch module: what is trained, and the reference that the numpy inference is tested against.

A small Mixtral: RMSNorm before attention and before the experts, rotary positions, SwiGLU experts, and a gate that
takes the softmax over its ``top_k`` largest logits only.  Agents never import this module (torch takes seconds to
import and is slower than numpy on 37 tokens); they use :mod:`agents.models.twin`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from agents.models.spec import ModelSpec


def rotary_table(spec: ModelSpec, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles; pairs are (i, i + half), as in Mixtral."""
    half = spec.width // spec.heads // 2
    frequency = spec.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency  # (positions, half)
    return angle.cos().float(), angle.sin().float()


class Experts(torch.autograd.Function):
    """A layer's experts: dispatch, products, weighted sum, with a hand-written backward pass.

    Rows are sorted by expert once; gathering by the inverse order replaces every scatter, so that the step is
    faster than autograd's graph of slices and its sums have a fixed order.
    """

    @staticmethod
    def forward(ctx, h, weight, inner, outer, order, counts):  # type: ignore[no-untyped-def]  # noqa: D102
        (tokens, top_k), hidden = weight.shape, outer.shape[1]
        position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        rows = h.index_select(0, order // top_k)
        projected = rows.new_empty(len(order), 2 * hidden)
        for part, expert in _parts(counts):
            torch.mm(rows[part], inner[expert], out=projected[part])
        active = functional.silu(projected[:, :hidden]).mul_(projected[:, hidden:])
        y = torch.empty_like(rows)
        for part, expert in _parts(counts):
            torch.mm(active[part], outer[expert], out=y[part])
        y = y.index_select(0, position).view(tokens, top_k, -1)
        ctx.save_for_backward(rows, weight, inner, outer, order, position, projected, active, y)
        ctx.counts = counts
        return torch.bmm(weight[:, None], y)[:, 0]

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: D102
        rows, weight, inner, outer, order, position, projected, active, y = ctx.saved_tensors
        (tokens, top_k), hidden = weight.shape, outer.shape[1]
        d_weight = torch.bmm(y, gradient[:, :, None])[:, :, 0]
        d_y = gradient.index_select(0, order // top_k).mul_(weight.view(-1).index_select(0, order)[:, None])
        d_outer, d_inner = torch.empty_like(outer), torch.empty_like(inner)
        d_active = torch.empty_like(active)
        for part, expert in _parts(ctx.counts):
            torch.mm(active[part].T, d_y[part], out=d_outer[expert])
            torch.mm(d_y[part], outer[expert].T, out=d_active[part])
        gate, value = projected[:, :hidden], projected[:, hidden:]
        d_projected = torch.empty_like(projected)
        torch.mul(d_active, functional.silu(gate), out=d_projected[:, hidden:])
        d_projected[:, :hidden] = torch.ops.aten.silu_backward(d_active.mul_(value), gate)
        d_rows = torch.empty_like(rows)
        for part, expert in _parts(ctx.counts):
            torch.mm(rows[part].T, d_projected[part], out=d_inner[expert])
            torch.mm(d_projected[part], inner[expert].T, out=d_rows[part])
        d_h = d_rows.index_select(0, position).view(tokens, top_k, -1).sum(1)
        return d_h, d_weight, d_inner, d_outer, None, None


def _parts(counts: list[int]) -> Iterator[tuple[slice, int]]:
    start = 0
    for expert, count in enumerate(counts):
        yield slice(start, start + count), expert
        start += count


class Layer(nn.Module):
    """Attention, gate and experts of one layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        width, depth = spec.width, (2 * spec.layers) ** 0.5
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.expert_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Parameter(torch.randn(width, 3 * width) * width**-0.5)
        self.attention_out = nn.Parameter(torch.randn(width, width) * width**-0.5 / depth)
        self.gate = nn.Parameter(torch.randn(width, spec.experts) * width**-0.5)
        inner = torch.randn(spec.experts, width, 2 * spec.expert_width) * width**-0.5
        outer = torch.randn(spec.experts, spec.expert_width, width) * spec.expert_width**-0.5 / depth
        self.experts_in, self.experts_out = nn.Parameter(inner), nn.Parameter(outer)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The residual stream after causal attention."""
        batch, length, width = x.shape
        heads = self.spec.heads
        h = functional.rms_norm(x, (width,), self.attention_norm, self.spec.norm_eps)
        q, k, v = (h @ self.qkv).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        # Written out: the fused kernel is slower at a head width of 16, and this form can be compiled.
        scores = _rotate(q, cos, sin) @ _rotate(k, cos, sin).transpose(-1, -2) * self.spec.head_width**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return cast(Tensor, x + mixed.transpose(1, 2).reshape(batch, length, width) @ self.attention_out)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The state that experts see, the gate's logits, and the weights and numbers of the chosen experts."""
        width = x.shape[-1]
        h = functional.rms_norm(x, (width,), self.expert_norm, self.spec.norm_eps).reshape(-1, width)
        logits = h @ self.gate
        top, chosen = logits.topk(self.spec.top_k)
        return h, logits, top.softmax(-1), chosen

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The residual stream after the layer, the load-balancing loss, and tokens per expert."""
        x = self.attend(x, cos, sin)
        h, logits, weight, chosen = self.route(x)
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.spec.experts)
        total = Experts.apply(  # type: ignore[no-untyped-call]
            h, weight, self.experts_in, self.experts_out, order, counts.tolist()
        )
        balance = self.spec.experts * (counts / counts.sum() * logits.softmax(-1).mean(0)).sum()
        return x + total.view_as(x), balance, counts


class Network(nn.Module):
    """The whole twin; the output projection is the transposed embedding."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.randn(spec.vocab, spec.width) * 0.05)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.final_norm = nn.Parameter(torch.ones(spec.width))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits, the mean load-balancing loss, and tokens per expert of every layer."""
        cos, sin = rotary_table(self.spec, tokens.shape[1])
        x = self.embedding[tokens]
        balance = torch.zeros(())
        counts: list[Tensor] = []
        for layer in self.layers:
            x, loss, count = layer(x, cos, sin)
            balance = balance + loss
            counts.append(count)
        x = functional.rms_norm(x, (self.spec.width,), self.final_norm, self.spec.norm_eps)
        return x @ self.embedding.T, balance / self.spec.layers, counts


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
