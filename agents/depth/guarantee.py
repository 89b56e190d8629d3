r"""Which confidence lets a token leave early, with a guarantee that holds for finite samples: Learn then Test.

The loss of a row of calibration text at threshold λ is the share L(λ) of its tokens for which some exit whose gauge
passes λ disagrees with the full model (:mod:`agents.models.exits`, equation 3).  It bounds whatever leaves, and falls
as λ rises.  For every domain d and λ = 1, .99 .. downwards the hypothesis "E L(λ) > α in d" is tested by betting:

    K_t = Π_{i<=t} (1 - ν_i (L_i - α)),   p = min(1, 1 / max_t K_t)                                       (1)
    ν_i = min( 1 / (1 - α) / 2,  sqrt( 2 ln(1/δ) / (n s²_{i-1}) ) )                                        (2)

K is a nonnegative supermartingale where the hypothesis holds, so p is a valid p-value (I. Waudby-Smith and A. Ramdas,
arXiv:2010.09686, section 4; bets (2) use only rows before i).  λ is lowered while every domain's hypothesis is rejected
at level δ, and the last λ before the first failure is the gate: fixed-sequence testing needs no correction for the many
λ (A. Angelopoulos et al., Learn then Test, arXiv:2110.01052, section 3), and asking all domains needs none either,
because the claim is only made when each of them is rejected.

So, with probability at least 1 - δ over the calibration rows: in every domain at most a share α of the tokens leaves
early with another token than the full model's.  What that needs: later rows come from where the calibration rows came
from, and rows are independent draws; rows of one document are somewhat alike, so the true sample is smaller than n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.errors import FrameworkError
from agents.models.exits import THRESHOLDS, ExitHeads

#: Rows are tested in an order that has nothing to do with their documents.
SHUFFLE_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitGate:
    """A calibrated threshold, and what is guaranteed of it."""

    threshold: float  # leave only where the confidence is at least this; above 1: never
    risk: float  # α
    failure: float  # δ
    rows: int  # of calibration text, all domains
    fewest_rows: int  # of any domain
    measured: float  # mean loss on these rows, worst domain
    expected_depth: float  # mean share of the layers that run if every token takes its first exit


def p_value(losses: npt.ArrayLike, risk: float, failure: float) -> float:
    """Equation (1): how unlikely these losses in [0, 1] are if their mean were above ``risk``.

    >>> p_value([0.0] * 300, 0.02, 0.1) < 0.1 < p_value([0.0] * 50, 0.02, 0.1)
    True
    """
    values = np.asarray(losses, dtype=np.float64)
    n = len(values)
    before = np.arange(1, n + 1)  # half an observation of 1/2 stands for what is known at first
    mean = (0.5 * risk + np.concatenate([[0.0], np.cumsum(values)[:-1]])) / (before - 0.5)
    spread = np.concatenate([[0.0], np.cumsum((values - mean) ** 2)[:-1]])
    variance = (0.25 * risk + spread) / before
    bets = np.minimum(0.5 / (1.0 - risk), np.sqrt(2.0 * math.log(1.0 / failure) / (n * variance)))
    log_capital = np.cumsum(np.log1p(-bets * (values - risk)))
    return float(min(1.0, math.exp(-log_capital.max(initial=0.0))))


def calibrate(heads: ExitHeads, *, risk: float, failure: float) -> ExitGate:
    """The lowest threshold that every domain's rows allow; FrameworkError for a level that cannot be one.

    A risk of 0 allows none.
    """
    if not (0.0 <= risk < 1.0 and 0.0 < failure < 1.0):
        raise FrameworkError(f"risk {risk} and failure {failure} must be at least 0 and below 1, and failure not 0")
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(heads.domains))
    wrong, domains = heads.wrong[:, order], heads.domains[order]
    known = np.unique(domains)
    chosen = len(THRESHOLDS)
    if risk > 0.0:
        for place in range(len(THRESHOLDS) - 1, -1, -1):
            if any(p_value(wrong[place, domains == domain], risk, failure) > failure for domain in known):
                break
            chosen = place
    never = chosen == len(THRESHOLDS)
    exits = heads.left.shape[1]
    depths = np.arange(1, exits + 1) / (exits + 1)
    left = np.zeros(exits) if never else heads.left[chosen].astype(float)
    return ExitGate(
        threshold=2.0 if never else float(THRESHOLDS[chosen]),
        risk=risk,
        failure=failure,
        rows=len(domains),
        fewest_rows=int(min(np.count_nonzero(domains == domain) for domain in known)),
        measured=0.0 if never else float(max(wrong[chosen, domains == domain].mean() for domain in known)),
        expected_depth=float(left @ depths + (1.0 - left.sum())),
    )
