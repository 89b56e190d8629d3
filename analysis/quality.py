r"""Quality of what was served, held against the centralised full-precision model on the same held-out text.

Sums run over the completed requests i of a framework; only requests that score a prompt have a text to be held against.

    NLL increase     Σ_i n_i NLL_i / Σ_i n_i NLL*_i - 1           n_i = prompt tokens - 1, the predicted ones      (1)
    perplexity       exp(Σ_i n_i NLL_i / Σ_i n_i)                                                                  (2)
    accuracy         Σ_i correct_i / Σ_i n_i                                                                       (3)
    KL divergence    Σ_i m_i KL_i / Σ_i m_i                       m_i = prompt tokens, all positions               (4)
    agreement        Σ_i m_i agreement_i / Σ_i m_i                of generated text: m_i = output tokens           (5)
    cloze accuracy   Σ_i hits_i / Σ_i items_i                                                                      (6)
    change           (3) or (6) less the same of the reference, on the same requests                               (7)

    *  the reference's.  What one request's NLL, KL, hits and items are: ``agents/models/quality.py`` and ``cloze.py``

They are ratios of sums, not means of ratios: a long text counts for as many predictions as it has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from analysis.bootstrap import Array, Bootstrap, Estimate, Statistic, mean, ratio
from analysis.measure import Metric, Runs, matrix, over_completed

_SCORED = pl.col("kind") == "score"
#: Equations (1) to (5): what a request's mean or count is weighted with, or held against.
PREDICTIONS = pl.when(_SCORED).then(pl.col("prompt_tokens") - 1)
POSITIONS = pl.when(_SCORED).then(pl.col("prompt_tokens")).otherwise(pl.col("output_tokens"))
#: A request without an item says nothing about (6).
ITEMS = pl.when(pl.col("cloze_items") > 0).then(pl.col("cloze_items"))

_LIKE = "The same for the full-precision reference on the same requests."
_PAIRED = "in percentage points; paired request by request, so that how hard the texts are cancels."


def _sums(weight: pl.Expr, *means: str, statistic: Statistic = ratio) -> Callable[[Runs, Bootstrap], Estimate]:
    """A statistic over rows of (weight x mean ..., weight)."""
    weighted = [(pl.col(column) * weight).alias(column) for column in means]
    return _rows([*weighted, weight.alias("weight")], statistic)


def _counts(count: str, of: pl.Expr) -> Callable[[Runs, Bootstrap], Estimate]:
    """The sum of a count over that of what could have been counted."""
    return _rows([pl.col(count), of.alias("of")], ratio)


def _difference(count: str, reference: str, of: pl.Expr) -> Callable[[Runs, Bootstrap], Estimate]:
    """By how much one count's share is above another's; a resample keeps both sides of a request together."""
    return _rows([pl.col(count), pl.col(reference), of.alias("of")], _share_apart)


def _share_apart(rows: Array) -> Array:
    served, reference, of = (rows[..., column].sum(axis=1) for column in range(3))
    return np.asarray((served - reference) / of)


def _rows(columns: list[pl.Expr], statistic: Statistic) -> Callable[[Runs, Bootstrap], Estimate]:
    def measure(runs: Runs, bootstrap: Bootstrap) -> Estimate:
        frames = [run.completed.select(columns) for run in runs]
        return bootstrap.estimate([matrix(frame, *frame.columns) for frame in frames], statistic)

    return measure


def _relative_increase(rows: Array) -> Array:
    return np.asarray(ratio(rows) - 1)


def _perplexity(rows: Array) -> Array:
    return np.asarray(np.exp(ratio(rows)))


QUALITY: tuple[Metric, ...] = (
    Metric(
        key="nll_increase",
        title="NLL increase",
        unit="%",
        scale=100,
        definition="Relative increase of the negative log likelihood of the predicted tokens, those of a prompt after "
        "its first, over the full-precision reference: ΣNLL / Σreference NLL - 1, over completed requests.",
        measure=_sums(PREDICTIONS, "nll", "reference_nll", statistic=lambda rows: _relative_increase(rows[..., :2])),
    ),
    Metric(
        key="perplexity",
        title="Perplexity",
        unit="",
        definition="exp(ΣNLL / number of predicted tokens), NLL in nats, over completed requests.",
        measure=_sums(PREDICTIONS, "nll", statistic=_perplexity),
    ),
    Metric(
        key="perplexity_reference",
        title="Reference perplexity",
        unit="",
        definition=_LIKE,
        measure=_sums(PREDICTIONS, "reference_nll", statistic=_perplexity),
    ),
    Metric(
        key="accuracy",
        title="Next-token accuracy",
        unit="%",
        scale=100,
        definition="Share of the predicted tokens that were the most likely ones, the true text before them given.",
        measure=_counts("correct", PREDICTIONS),
    ),
    Metric(
        key="accuracy_reference",
        title="Reference accuracy",
        unit="%",
        scale=100,
        definition=_LIKE,
        measure=_counts("reference_correct", PREDICTIONS),
    ),
    Metric(
        key="accuracy_change",
        title="Accuracy change",
        unit="points",
        scale=100,
        definition=f"Next-token accuracy less that of the reference, {_PAIRED}",
        measure=_difference("correct", "reference_correct", PREDICTIONS),
    ),
    Metric(
        key="top1_agreement",
        title="Top-1 agreement",
        unit="%",
        scale=100,
        definition="Share of positions whose most likely token is the reference's: every token of a prompt, or every "
        "generated token.",
        measure=_sums(POSITIONS, "top1_agreement"),
    ),
    Metric(
        key="kl_divergence",
        title="KL divergence",
        unit="mnat/token",
        scale=1e3,
        definition="Mean over a prompt's positions of Σ p (ln p - ln q) over the vocabulary, p the reference's "
        "distribution of the next token, q the served one. 0: the same distribution. 1 mnat = 0.001 nat.",
        measure=_sums(POSITIONS, "kl"),
    ),
    Metric(
        key="cloze_accuracy",
        title="Cloze accuracy",
        unit="%",
        scale=100,
        definition="Share of cloze items of which every token was the most likely one, the true text before it given. "
        "An item is a word of 4 letters or more that occurred earlier in the same prompt; n counts requests with any.",
        measure=_counts("cloze_hits", ITEMS),
    ),
    Metric(
        key="cloze_accuracy_reference",
        title="Reference cloze accuracy",
        unit="%",
        scale=100,
        definition=_LIKE,
        measure=_counts("reference_cloze_hits", ITEMS),
    ),
    Metric(
        key="cloze_change",
        title="Cloze change",
        unit="points",
        scale=100,
        definition=f"Cloze accuracy less that of the reference, {_PAIRED}",
        measure=_difference("cloze_hits", "reference_cloze_hits", ITEMS),
    ),
    Metric(
        key="exact_share",
        title="Bit-exact",
        unit="%",
        scale=100,
        definition="Share of completed requests whose logits equal the reference's bit for bit.",
        measure=over_completed("exact", mean),
    ),
)
