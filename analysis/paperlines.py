"""One run as the lines of a paper's tables have it: latency, traffic, calls elsewhere, quality in the worst domain.

    latency     from arrival to answer; a request that failed counts with its deadline, so failing is never quick  (0)
    traffic     activation payload on links of answered requests / tokens of their prompts and answers            (1)
    elsewhere   calls that ran on another server / calls that ran                                                  (2)
    loss        Σ KL(full || served) / Σ NLL of full, over the tokens of a domain; the worst domain               (3)

(3) is the rise of NLL that is to be expected; the measured rise, which is noisier, stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.load import Run

#: Of results that do not say theirs.
DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run of one framework."""

    framework: str
    answered: int
    sent: int
    mean_s: float
    p99_s: float
    within_slo: float
    bytes_per_token: float  # (1)
    elsewhere: float  # (2)
    loss: float | None  # (3)
    worst: str | None  # its domain
    rise: float | None  # largest measured rise of NLL of any domain
    ttft_s: float | None
    tpot_s: float | None
    agreement: float | None


def line(run: Run) -> Line:
    """Equations (1) to (3) of a run."""
    done, layers = run.completed, run.layers
    tokens = int((done["prompt_tokens"] + done["output_tokens"]).sum())
    experts = int(layers["experts"].sum())
    worst = by_domain(done)
    latency = pl.Series(latencies_s(run))
    return Line(
        framework=run.manifest.framework,
        answered=done.height,
        sent=run.requests.height,
        mean_s=_number(latency.mean()),
        p99_s=_number(latency.quantile(0.99, "linear")),
        within_slo=int((latency <= run.manifest.slo_s).sum()) / max(1, run.requests.height),
        bytes_per_token=int(done["sent_bytes"].sum()) / max(1, tokens),
        elsewhere=int(layers["remote_experts"].sum()) / max(1, experts),
        loss=None if worst is None else _number(worst["loss"].max()),
        worst=None if worst is None else str(worst.sort("loss", "domain")["domain"][-1]),
        rise=None if worst is None else _number(worst["rise"].max()),
        ttft_s=_some(done["ttft_s"].mean()),
        tpot_s=_some(done["tpot_s"].mean()),
        agreement=_some(done["top1_agreement"].mean()),
    )


def latencies_s(run: Run) -> np.ndarray:
    """Equation (0), in order of arrival."""
    failed = pl.col("error").is_not_null() | pl.col("latency_s").is_null()
    patience_s = pl.lit(run.manifest.deadline_s or DEADLINE_S)
    return run.requests.select(pl.when(failed).then(patience_s).otherwise(pl.col("latency_s"))).to_series().to_numpy()


def by_domain(done: pl.DataFrame) -> pl.DataFrame | None:
    """``loss`` and ``rise`` of every domain; None where no request was scored."""
    scored = done.filter((pl.col("kind") == "score") & pl.col("nll").is_not_null() & pl.col("kl").is_not_null())
    if scored.is_empty():
        return None
    following = pl.col("prompt_tokens") - 1
    full = (pl.col("reference_nll") * following).sum()
    return scored.group_by("domain").agg(
        ((pl.col("kl") * following).sum() / full).alias("loss"),
        ((pl.col("nll") * following).sum() / full - 1.0).alias("rise"),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _some(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
