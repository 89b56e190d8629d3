"""Every number that analysis prints, each with its definition next to the function that computes it.

``METRICS`` is the one list: the summary table, the report and ``docs/metrics.md`` are made from it, so a number
cannot be shown under a definition that is not its own.  All functions are pure; a metric takes the runs of one
framework and says how it was resampled.  Values are SI; ``Metric.scale`` turns them into the unit that is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl

from analysis.bootstrap import Array, Bootstrap, Estimate, Statistic, change, mean, quantile, ratio
from analysis.events import end_s, inside
from analysis.load import Run
from analysis.measure import Metric, Runs, matrix, over_completed
from analysis.quality import QUALITY

WARM_UP_SHARE = 0.1  # of the arrival timeline, before the steady part begins
STEADY_BINS = 20  # equal stretches of the steady part, the rows that throughput is resampled from


def summarise(runs: Runs, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Every metric of one framework, by key."""
    return {metric.key: metric.measure(runs, bootstrap) for metric in METRICS}


def paired_change(
    runs: Runs, reference: Runs, bootstrap: Bootstrap, column: str = "latency_s", statistic: Statistic = mean
) -> Estimate:
    """Relative change of ``statistic`` of ``column`` against the reference, on requests that both completed.

    Runs are matched by repeat and seed, requests by number: the same prompt at the same time.  A row holds both
    frameworks' values, so a resample keeps the pairs and what all requests suffer alike cancels.
    """
    pairs = []
    for run in runs:
        for other in reference:
            if (run.manifest.repeat, run.manifest.seed) == (other.manifest.repeat, other.manifest.seed):
                both = run.completed.join(other.completed, on="request", suffix="_reference", maintain_order="left")
                pairs.append(matrix(both, column, f"{column}_reference"))
    return bootstrap.estimate(pairs, change(statistic))


def disturbed_change(runs: Runs, bootstrap: Bootstrap) -> Estimate:
    """Relative change of mean latency of requests that arrived while a link was disturbed, against the others."""

    def columns(run: Run) -> Array:
        latency = run.completed["latency_s"].to_numpy()
        hit = inside(run, run.completed["scheduled_s"]).to_numpy().astype(np.float64)
        return np.column_stack([latency * hit, hit, latency * (1 - hit), 1 - hit])

    def statistic(rows: Array) -> Array:
        return np.asarray(ratio(rows[..., 0:2]) / ratio(rows[..., 2:4]) - 1)

    return bootstrap.estimate([columns(run) for run in runs], statistic)


def steady_part(run: Run) -> tuple[float, float]:
    """Where the steady part of a run begins and ends, in emulated seconds."""
    return WARM_UP_SHARE * run.manifest.duration_s, end_s(run)


def offered_requests_per_s(runs: Runs) -> float | None:
    """Planned arrivals per emulated second of the steady part: what throughput could be at most for long."""
    arrivals, seconds = 0, 0.0
    for run in runs:
        start, end = steady_part(run)
        arrivals += run.requests.filter(pl.col("scheduled_s").is_between(start, end)).height
        seconds += max(0.0, end - start)
    return arrivals / seconds if seconds else None


def execution_mix(runs: Runs) -> dict[str, float] | None:
    """Shares of all expert calls: local fast, remote fast, slow, fallback.  They sum to 1.

    A layer's record counts fallback calls whatever their place and residency; they are taken as spread evenly over the
    layer's other three kinds, and a call counts once, as a fallback.
    """
    layers = pl.concat([run.layers for run in runs])
    calls = layers["experts"].sum()
    if not calls:
        return None
    columns = ("experts", "remote_experts", "slow_experts", "remote_slow_experts", "fallback_experts")
    experts, remote, slow, remote_slow, fallback = (layers[column].to_numpy().astype(np.float64) for column in columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(experts > 0, 1 - fallback / experts, 0.0)
    return {
        "local fast": float(((experts - remote - slow + remote_slow) * kept).sum() / calls),
        "remote fast": float(((remote - remote_slow) * kept).sum() / calls),
        "slow": float((slow * kept).sum() / calls),
        "fallback": float(fallback.sum() / calls),
    }


def time_parts(runs: Runs) -> dict[str, float] | None:
    """Mean emulated seconds of a completed request by where they went.  They sum to its mean latency.

    Dense: attention, gate and norms with their queue on the device.  Own experts: those of the aggregation server, with
    queue and loads.  Other servers: waiting for their results after that.  Moves: what is left of a layer until the
    next can start, which is the residual stream's way to another server.  Rest: outside any layer (arrival, the way to
    the first aggregation server, output head, the way home).
    """
    completed = pl.concat([run.completed.select("latency_s") for run in runs])
    layers = pl.concat(
        [run.layers.join(run.completed.select("request"), on="request", how="semi") for run in runs]
    ).select("dense_s", "experts_s", "wait_s", "duration_s")
    if completed.is_empty() or layers.is_empty():
        return None
    n = len(completed)
    dense, own, wait, total = (float(layers[column].sum()) / n for column in layers.columns)
    latency = float(completed["latency_s"].sum()) / n
    named = dense + own + wait
    return {
        "dense": dense,
        "own experts": own,
        "other servers": wait,
        "moves": max(0.0, total - named),
        "rest": max(0.0, latency - max(total, named)),
    }


def device_busy(runs: Runs) -> dict[str, float]:
    """Mean busy share of every server's device until arrivals end."""
    samples = pl.concat([run.servers.filter(pl.col("t_s") <= end_s(run)) for run in runs])
    means = samples.group_by("server", maintain_order=True).agg(pl.col("device_busy").mean())
    return {str(server): float(busy) for server, busy in means.iter_rows()}


def _throughput(tokens: bool) -> Callable[[Runs, Bootstrap], Estimate]:
    def measure(runs: Runs, bootstrap: Bootstrap) -> Estimate:
        samples, done = [], 0
        for run in runs:
            start, end = steady_part(run)
            if end <= start:
                continue
            finished = run.completed.filter(pl.col("finished_s").is_between(start, end))
            weights = (finished["prompt_tokens"] + finished["output_tokens"]).to_numpy() if tokens else None
            work, _ = np.histogram(finished["finished_s"], bins=STEADY_BINS, range=(start, end), weights=weights)
            samples.append(np.column_stack([work, np.full(STEADY_BINS, (end - start) / STEADY_BINS)]))
            done += len(finished)
        found = bootstrap.estimate(samples, ratio)
        return replace(found, n=done, method=found.method.replace("order of arrival", f"{STEADY_BINS} steps of time"))

    return measure


def _slo_share(runs: Runs, bootstrap: Bootstrap) -> Estimate:
    def within(run: Run) -> Array:
        met = pl.col("error").is_null() & (pl.col("latency_s") <= run.manifest.slo_s)
        return matrix(run.requests.select(met.fill_null(False).alias("met")), "met")

    return bootstrap.estimate([within(run) for run in runs], mean)


def _failed_share(runs: Runs, bootstrap: Bootstrap) -> Estimate:
    failed = pl.col("error").is_not_null() | pl.col("latency_s").is_null()
    return bootstrap.estimate([matrix(run.requests.select(failed.alias("failed")), "failed") for run in runs], mean)


def _traffic(runs: Runs, bootstrap: Bootstrap) -> Estimate:
    tokens = (pl.col("prompt_tokens") + pl.col("output_tokens")).alias("tokens")
    rows = [matrix(run.completed.select("sent_bytes", tokens), "sent_bytes", "tokens") for run in runs]
    return bootstrap.estimate(rows, ratio)


_TOKENS = "Tokens of a request = prompt tokens + output tokens."

METRICS: tuple[Metric, ...] = (
    Metric(
        key="latency_mean_s",
        title="Mean latency",
        unit="ms",
        scale=1e3,
        definition="Mean over completed requests of the time from planned arrival to the result being back at the "
        "home server. Emulated time; includes all queueing.",
        measure=over_completed("latency_s", mean),
    ),
    Metric(
        key="latency_median_s",
        title="Median latency",
        unit="ms",
        scale=1e3,
        definition="Half of the completed requests were at least as fast.",
        measure=over_completed("latency_s", quantile(0.5)),
    ),
    Metric(
        key="latency_p95_s",
        title="P95 latency",
        unit="ms",
        scale=1e3,
        definition="95 % of the completed requests were at least as fast (linear between neighbours).",
        measure=over_completed("latency_s", quantile(0.95)),
    ),
    Metric(
        key="latency_p99_s",
        title="P99 latency",
        unit="ms",
        scale=1e3,
        definition="99 % of the completed requests were at least as fast. Below some 500 requests only a handful "
        "decide it, which its interval shows only in part.",
        measure=over_completed("latency_s", quantile(0.99)),
    ),
    Metric(
        key="slo_share",
        title="Within SLO",
        unit="%",
        scale=100,
        definition="Share of all sent requests that completed within the latency objective of the scenario. A failed "
        "request missed it.",
        measure=_slo_share,
    ),
    Metric(
        key="failed_share",
        title="Failed",
        unit="%",
        scale=100,
        definition="Share of all sent requests that ended in an error. Latencies leave them out.",
        measure=_failed_share,
    ),
    Metric(
        key="throughput_requests_per_s",
        title="Throughput",
        unit="requests/s",
        definition="Requests completed per emulated second of the steady part: from 10 % of the arrival timeline to "
        "its end. Below saturation this is the offered load. n counts these completions.",
        measure=_throughput(tokens=False),
    ),
    Metric(
        key="throughput_tokens_per_s",
        title="Token throughput",
        unit="tokens/s",
        definition=f"Tokens of the requests completed per emulated second of the steady part. {_TOKENS}",
        measure=_throughput(tokens=True),
    ),
    Metric(
        key="traffic_bytes_per_token",
        title="Traffic",
        unit="GB/1000 tokens",
        scale=1e-6,
        definition="Activation bytes put on links between servers by completed requests, per token of theirs; every "
        f"message counts once per pair of servers, without headers. GB = 10^9 bytes. {_TOKENS}",
        measure=_traffic,
    ),
    Metric(
        key="moves_per_request",
        title="Moves",
        unit="per request",
        definition="Mean changes of aggregation server in a completed request.",
        measure=over_completed("moves", mean),
    ),
    Metric(
        key="ttft_mean_s",
        title="Time to first token",
        unit="ms",
        scale=1e3,
        definition="Mean over completed requests that generate text, from planned arrival to the first token at home.",
        measure=over_completed("ttft_s", mean),
    ),
    Metric(
        key="tpot_mean_s",
        title="Time per token",
        unit="ms",
        scale=1e3,
        definition="Mean over completed requests that generate text of the time per token after the first.",
        measure=over_completed("tpot_s", mean),
    ),
    *QUALITY,
)

#: Numbers that are not one estimate per framework, defined for the report and ``docs/metrics.md`` alike.
OTHER_DEFINITIONS: tuple[tuple[str, str, str], ...] = (
    (
        "Change against the reference",
        "%",
        "Relative change of a metric on the requests that both frameworks completed, paired request by request.",
    ),
    (
        "Change while disturbed",
        "%",
        "Mean latency of completed requests that arrived while a link differed from the topology file, relative to "
        "the other completed requests of the same runs.",
    ),
    (
        "Execution mix",
        "%",
        "Shares of all expert calls: fallback (took the full-precision fallback), slow (loaded first), and of the "
        "others remote fast and local fast. Fallback calls of a layer are taken as spread evenly over its other kinds.",
    ),
    (
        "Where time goes",
        "ms",
        "Parts of the mean latency: dense (attention, gate, norms with their queue), own experts (of the aggregation "
        "server, with queue and loads), other servers (waiting for their results after that), moves (the residual "
        "stream's way to the next aggregation server), rest (outside layers).",
    ),
    ("Device busy", "%", "Mean share of time in which a server's device computed, until arrivals end."),
    (
        "Interval",
        "",
        "95 % bootstrap interval. One run: circular blocks of √n consecutive requests are drawn, because neighbours "
        "share queues. Repeats: runs are drawn first, then blocks within each.",
    ),
)


def metric(key: str) -> Metric:
    """The metric of that key; KeyError if there is none."""
    return {entry.key: entry for entry in METRICS}[key]


def definitions_table() -> str:
    """All definitions as a Markdown table, the text of ``docs/metrics.md``."""
    rows = [(entry.title, entry.unit, entry.definition) for entry in METRICS]
    lines = ["| number | unit | definition |", "|---|---|---|"]
    lines += [f"| {title} | {unit or '1'} | {text} |" for title, unit, text in (*rows, *OTHER_DEFINITIONS)]
    return "\n".join(lines) + "\n"
