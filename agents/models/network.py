"""The twins as torch modules: what is trained, and the reference that the numpy inference is tested against.

Pre-norm decoders with RMSNorm, rotary positions and a tied embedding; what differs between the kinds of model stands in
:mod:`agents.models.spec`.  Agents never import this module (torch takes seconds to import and is slower than numpy on
37 tokens); they use :mod:`agents.models.twin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    faster than autograd's graph of slices and its sums have a fixed order.  ``inner`` has twice the columns that
    ``outer`` has rows where the activation is SwiGLU, and as many where it is ReLU.
    """

    @staticmethod
    def forward(ctx, h, weight, inner, outer, order, counts):  # type: ignore[no-untyped-def]  # noqa: D102
        (tokens, top_k), hidden = weight.shape, outer.shape[1]
        position = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        rows = h.index_select(0, order // top_k)
        projected = rows.new_empty(len(order), inner.shape[2])
        for part, expert in _parts(counts):
            torch.mm(rows[part], inner[expert], out=projected[part])
        if inner.shape[2] == hidden:
            active = functional.relu(projected)
        else:
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
        d_outer, d_inner = torch.zeros_like(outer), torch.zeros_like(inner)
        d_active = torch.empty_like(active)
        for part, expert in _parts(ctx.counts):
            torch.mm(active[part].T, d_y[part], out=d_outer[expert])
            torch.mm(d_y[part], outer[expert].T, out=d_active[part])
        if inner.shape[2] == hidden:
            d_projected = d_active.masked_fill_(projected <= 0, 0.0)
        else:
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
        if count:
            yield slice(start, start + count), expert
        start += count


def attend(
    x: Tensor, norm: Tensor, qkv: Tensor, out: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
) -> Tensor:
    """The residual stream after causal attention."""
    batch, length, width = x.shape
    h = functional.rms_norm(x, (width,), norm, eps)
    q, k, v = (h @ qkv).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    # Written out: the fused kernel is slower at a head width of 16, and this form can be compiled.
    scores = _rotate(q, cos, sin) @ _rotate(k, cos, sin).transpose(-1, -2) * (width // heads) ** -0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed: Tensor = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    return x + mixed.transpose(1, 2).reshape(batch, length, width) @ out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Layer(nn.Module):
    """Dense block if there is one, attention, gate, experts and shared expert of one layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        width, hidden = spec.width, spec.expert_width
        # So small that the sum over all blocks begins about as large as the stream itself.
        small = (2 * spec.layers * spec.attentions) ** -0.5
        # Shares of a softmax over all experts are small at first, and so would be what experts add.
        shares = (spec.experts / spec.top_k) ** 0.5 if spec.gating == "all" else 1.0
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.expert_norm = nn.Parameter(torch.ones(width))
        self.qkv = _normal(width, 3 * width)
        self.attention_out = _normal(width, width, scale=small)
        self.gate = _normal(width, spec.experts)
        self.experts_in = _normal(spec.experts, width, spec.inner_width)
        self.experts_out = _normal(spec.experts, hidden, width, scale=small * shares)
        if spec.shared_width:
            self.shared_in = _normal(width, 2 * spec.shared_width)
            self.shared_out = _normal(spec.shared_width, width, scale=small)
            self.shared_gate = _normal(width, 1)
        if spec.dense_width:
            self.dense_attention_norm = nn.Parameter(torch.ones(width))
            self.dense_norm = nn.Parameter(torch.ones(width))
            self.dense_qkv = _normal(width, 3 * width)
            self.dense_attention_out = _normal(width, width, scale=small)
            self.dense_in = _normal(width, spec.dense_width)
            self.dense_out = _normal(spec.dense_width, width, scale=small)

    def dense(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The stream after all attention, and after the dense block where there is one."""
        heads, eps, width = self.spec.heads, self.spec.norm_eps, self.spec.width
        if self.spec.dense_width:
            x = attend(x, self.dense_attention_norm, self.dense_qkv, self.dense_attention_out, cos, sin, heads, eps)
            h = functional.rms_norm(x, (width,), self.dense_norm, eps)
            x = x + functional.relu(h @ self.dense_in) @ self.dense_out
        return attend(x, self.attention_norm, self.qkv, self.attention_out, cos, sin, heads, eps)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The state that experts see, the gate's logits, weights and numbers of the chosen, what the shared adds."""
        width = x.shape[-1]
        h = functional.rms_norm(x, (width,), self.expert_norm, self.spec.norm_eps).reshape(-1, width)
        logits = h @ self.gate
        top, chosen = logits.topk(self.spec.top_k)
        over_all = self.spec.gating == "all"
        weight = (top - logits.logsumexp(-1, keepdim=True)).exp() if over_all else top.softmax(-1)
        shared = torch.zeros((), dtype=x.dtype)
        if self.spec.shared_width:
            gate, value = (h @ self.shared_in).chunk(2, -1)
            shared = (h @ self.shared_gate).sigmoid() * ((functional.silu(gate) * value) @ self.shared_out)
        return h, logits, weight, chosen, shared

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The residual stream after the layer, the load-balancing loss, and tokens per expert."""
        x = self.dense(x, cos, sin)
        h, logits, weight, chosen, shared = self.route(x)
        total = self.mix(h, weight, chosen)
        counts = torch.bincount(chosen.reshape(-1), minlength=self.spec.experts)
        balance = self.spec.experts * (counts / counts.sum() * logits.softmax(-1).mean(0)).sum()
        return x + (total + shared).view_as(x), balance, counts

    def mix(self, h: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of the chosen experts' results, (tokens, width)."""
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.spec.experts).tolist()
        total: Tensor = Experts.apply(  # type: ignore[no-untyped-call]
            h, weight, self.experts_in, self.experts_out, order, counts
        )
        return total

    def expert(self, h: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        """What an expert with these matrices makes of rows of ``h``."""
        projected = h @ inner
        if self.spec.activation == "relu":
            return functional.relu(projected) @ outer
        gate, value = projected.chunk(2, -1)
        return (functional.silu(gate) * value) @ outer


class Network(nn.Module):
    """The whole twin; the output projection is the transposed embedding."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.randn(spec.vocab, spec.width) * 0.05)
        self.layers: Sequence[Layer] = nn.ModuleList(Layer(spec) for _ in range(spec.layers))  # type: ignore[assignment]
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
        return self.read_out(x), balance / self.spec.layers, counts

    def read_out(self, x: Tensor) -> Tensor:
        """Logits of the next token."""
        x = functional.rms_norm(x, (self.spec.width,), self.final_norm, self.spec.norm_eps)
        return x @ self.embedding.T


def _normal(*shape: int, scale: float = 1.0) -> nn.Parameter:
    """Normal with the standard deviation that keeps the size of what is multiplied, times ``scale``."""
    return nn.Parameter(torch.randn(*shape) * (scale * shape[-2] ** -0.5))
