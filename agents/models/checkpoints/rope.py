r"""Rotary positions as configurations describe them: plain, with stretched positions, or YaRN.

    θ_i = base^(-2i / w)                                                     plain; J. Su et al., arXiv:2104.09864
    θ_i / s                                                                  linear
    θ_i (1 - r_i) + θ_i / s · r_i                                            YaRN; B. Peng et al., arXiv:2309.00071
    r_i = clip((i - low) / (high - low), 0, 1),   low = ⌊d(β_fast)⌋,  high = ⌈d(β_slow)⌉
    d(β) = w ln(L / 2πβ) / (2 ln base)                                       pair that turns β times in L positions

    m(s, c) = 0.1 c ln s + 1                                                 YaRN's temperature (1 for s <= 1)
    cosines and sines are multiplied by  m(s, mscale) / m(s, mscale_all_dim), or m(s, 1) where these are not given

    w  rotary width    s  factor    L  positions that the model was first trained on

DeepSeek-V2 multiplies its attention scores by m(s, mscale_all_dim)² besides: ``Rope.temperature``.

Angles are products of float32, as in ``transformers``, which logits are compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agents.models.checkpoints.config import Config
from agents.models.mixture import Floats

KINDS = ("default", "linear", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Turns per position of every pair of numbers."""

    frequencies: Floats  # (w / 2,)
    scale: float = 1.0  # of cosines and sines
    temperature: float = 1.0  # of attention scores, DeepSeek-V2 only

    @classmethod
    def of(cls, config: Config, width: int, *, base: float) -> Rope:
        """From a configuration; ``base`` where it gives none.  TestbedError naming the field that is not supported."""
        if width % 2:
            raise config.error("rotary width", f"is {width}; it must be even")
        field = "rope_parameters" if config.given("rope_parameters") else "rope_scaling"
        table = config.table(field)
        base = _base(config, base)
        config.must_be("partial_rotary_factor", (None, 1.0))
        if table is None:
            return cls(frequencies=_plain(base, width))
        kind = table.raw("rope_type") or table.raw("type") or "default"
        if kind not in KINDS:
            raise config.error(field, f"is of type {kind!r}; supported: {', '.join(KINDS)}")
        table.must_be("partial_rotary_factor", (None, 1.0))
        base = _base(table, base)
        plain = _plain(base, width)
        if kind == "default":
            return cls(frequencies=plain)
        factor = table.number("factor")
        if kind == "linear":
            return cls(frequencies=plain / np.float32(factor))
        return cls._yarn(config, table, plain, factor=factor, base=base)

    @classmethod
    def _yarn(cls, config: Config, table: Config, plain: Floats, *, factor: float, base: float) -> Rope:
        width = 2 * len(plain)
        table.must_be("truncate", (None, True))
        trained = table.count("original_max_position_embeddings", config.count("max_position_embeddings"))

        def pair(turns: float) -> float:
            return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair(table.number("beta_fast", 32))), 0)
        high = min(math.ceil(pair(table.number("beta_slow", 1))), width - 1)
        wide = float(high - low) or 0.001  # as the reference avoids dividing by nothing
        ramp = np.clip((np.arange(len(plain), dtype=np.float32) - low) / np.float32(wide), 0, 1)
        scale_by, every = table.raw("mscale"), table.raw("mscale_all_dim")
        if table.given("attention_factor"):
            scale = table.number("attention_factor")
        elif scale_by and every:
            scale = temperature(factor, table.number("mscale")) / temperature(factor, table.number("mscale_all_dim"))
        else:
            scale = temperature(factor, 1.0)
        return cls(
            frequencies=plain / np.float32(factor) * ramp + plain * (np.float32(1) - ramp),
            scale=scale,
            temperature=temperature(factor, table.number("mscale_all_dim")) if every else 1.0,
        )

    def turns(self, start: int, n: int) -> tuple[Floats, Floats]:
        """Cosines and sines of n positions from ``start`` on, each (n, w / 2)."""
        positions = np.arange(start, start + n, dtype=np.float32)
        angle = positions[:, None] * self.frequencies
        return np.cos(angle) * np.float32(self.scale), np.sin(angle) * np.float32(self.scale)


def temperature(factor: float, weight: float) -> float:
    """m(s, c) above.

    >>> temperature(1.0, 1.0), round(temperature(40.0, 0.707), 4)
    (1.0, 1.2608)
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def turned_halves(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    """Heads (n, heads, w) turned, pair i being numbers i and i + w / 2."""
    cos, sin = turns[0][:, None], turns[1][:, None]
    first, second = np.split(x, 2, axis=2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)


def turned_neighbours(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    """Heads (n, heads, w) turned, pair i being numbers 2i and 2i + 1 (DeepSeek-V2)."""
    cos, sin = turns[0][:, None], turns[1][:, None]
    first, second = x[:, :, ::2], x[:, :, 1::2]
    out = np.empty_like(x)
    out[:, :, ::2] = first * cos - second * sin
    out[:, :, 1::2] = second * cos + first * sin
    return out


def _base(config: Config, default: float) -> float:
    base = config.number("rope_theta", default)
    if base <= 1:
        raise config.error("rope_theta", f"is {base:g}; it must be above 1")
    return base


def _plain(base: float, width: int) -> Floats:
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1) / np.float32(base) ** exponents).astype(np.float32)
