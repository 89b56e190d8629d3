r"""How far served outputs are from those of the centralised full-precision model, from the outputs themselves.

    ln p_i(v) = z_i(v) - max_u z_i(u) - ln Σ_u exp(z_i(u) - max_u z_i(u))                                         (1)
    KL_i      = Σ_v p_i(v) (ln p_i(v) - ln q_i(v))                                                                (2)
    correct   = Σ_i [top1_i = t_{i+1}]                                                                            (3)
    hit(a, b) = [top1_{i-1} = t_i for all a <= i < b]                                                             (4)

    z_i     logits at position i, over the vocabulary     p, q   the reference's and the served distribution
    t_i     token i of the prompt, from 0                 a, b   a word's first token, and the one after its last

Every position sees the true text before it (teacher forcing), so (3) and (4) follow from the most likely tokens alone.
Sums are in float64; divergences are in nats.

>>> correct([7, 8, 5], [3, 7, 9]), hits([7, 9, 5], [3, 7, 9], [(1, 3)])
(1, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from agents.models.mixture import Floats

#: First token, and the one after the last.
Span = tuple[int, int]

Doubles = npt.NDArray[np.float64]


def log_probabilities(logits: Floats) -> Doubles:
    """Equation (1), row by row, (n, vocab)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def kl_divergence(reference: Floats, served: Floats) -> Doubles:
    """Equation (2), nats, at every position, (n,); ValueError when the two differ in shape.

    What rounding makes of two nearly equal distributions may lie below zero, where no divergence is; it becomes zero.
    """
    if reference.shape != served.shape:
        raise ValueError(f"logits of shape {served.shape} cannot be held against those of shape {reference.shape}")
    log_p = log_probabilities(reference)
    terms = np.exp(log_p) * (log_p - log_probabilities(served))
    divergence: Doubles = np.maximum(terms.sum(axis=1), 0.0)
    return divergence


def correct(top1: Sequence[int], tokens: Sequence[int]) -> int:
    """Equation (3): how many tokens after the first were the most likely ones; nobody knows what follows the last."""
    return sum(guess == token for guess, token in zip(top1[:-1], tokens[1:], strict=True))


def hits(top1: Sequence[int], tokens: Sequence[int], words: Iterable[Span]) -> int:
    """Equation (4), summed over words: in how many of them every token was the most likely one."""
    return sum(all(top1[place - 1] == tokens[place] for place in range(start, end)) for start, end in words)
