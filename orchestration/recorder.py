"""Writes a run as docs/results.md describes it.  Column types stand here, so an empty run has the same schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from agents.protocol import Collected, Done, Sample
from orchestration.depthtable import write_depth
from orchestration.divergences import Pass
from orchestration.player import Played
from orchestration.references import Reference
from scenarios.timeline import LinkChange, Request, Scenario

REQUESTS = {
    "request": pl.Int64,
    "kind": pl.String,
    "home": pl.String,
    "domain": pl.String,
    "scheduled_s": pl.Float64,
    "sent_s": pl.Float64,
    "finished_s": pl.Float64,
    "latency_s": pl.Float64,
    "late_s": pl.Float64,
    "ttft_s": pl.Float64,
    "tpot_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "moves": pl.Int64,
    "sent_bytes": pl.Int64,
    "nll": pl.Float64,
    "reference_nll": pl.Float64,
    "top1_agreement": pl.Float64,
    "kl": pl.Float64,
    "correct": pl.Int64,
    "reference_correct": pl.Int64,
    "cloze_items": pl.Int64,
    "cloze_hits": pl.Int64,
    "reference_cloze_hits": pl.Int64,
    "exact": pl.Boolean,
    "error": pl.String,
}
LAYERS = {
    "request": pl.Int64,
    "step": pl.Int64,
    "layer": pl.Int64,
    "server": pl.String,
    "start_s": pl.Float64,
    "duration_s": pl.Float64,
    "dense_s": pl.Float64,
    "experts_s": pl.Float64,
    "wait_s": pl.Float64,
    "experts": pl.Int64,
    "remote_experts": pl.Int64,
    "slow_experts": pl.Int64,
    "remote_slow_experts": pl.Int64,
    "fallback_experts": pl.Int64,
    "servers": pl.Int64,
    "quality_spent": pl.Float64,
    "substitute_experts": pl.Int64,
    "skipped_experts": pl.Int64,
    "tokens": pl.Int64,
    "frozen_tokens": pl.Int64,
    "exited_tokens": pl.Int64,
    "predicted_transmission_s": pl.Float64,
    "predicted_loading_s": pl.Float64,
    "predicted_compute_s": pl.Float64,
    "predicted_quality_s": pl.Float64,
    "predicted_traffic_s": pl.Float64,
    "predicted_ahead_s": pl.Float64,
}
#: Names of ``LayerRecord.terms``, in its order.
TERMS = tuple(name for name in LAYERS if name.startswith("predicted_"))
LINKS = {
    "t_s": pl.Float64,
    "link": pl.String,
    "source": pl.String,
    "target": pl.String,
    "rate_bps": pl.Float64,
    "delay_s": pl.Float64,
    "bytes": pl.Int64,
    "packets": pl.Int64,
    "dropped": pl.Int64,
    "queued_bytes": pl.Int64,
}
SERVERS = {
    "t_s": pl.Float64,
    "server": pl.String,
    "device_busy": pl.Float64,
    "loader_busy": pl.Float64,
    "backlog_s": pl.Float64,
    "rss_bytes": pl.Int64,
    "alive": pl.Boolean,
}
EVENTS = {"event": pl.String, "link": pl.String, "scheduled_s": pl.Float64, "actual_s": pl.Float64}
NOTHING: Mapping[Pass, float] = {}


def write_run(
    directory: Path,
    *,
    manifest: Mapping[str, Any],
    scenario: Scenario,
    played: Played,
    references: Mapping[int, Reference],
) -> None:
    """One run directory; the manifest is written last, so a directory with one is whole."""
    directory.mkdir(parents=True)
    dead = played.dead
    requests = [
        request_row(
            request,
            played.done.get(request.number),
            references[request.number],
            kl=played.kl,
            dead=request.home in dead,
        )
        for request in scenario.requests
        if request.number in played.submitted
    ]
    _write(directory / "requests.parquet", requests, REQUESTS)
    _write(directory / "layers.parquet", layer_rows(played.collected.values()), LAYERS)
    write_depth(directory, played.collected.values())
    _write(directory / "links.parquet", played.links, LINKS)
    _write(directory / "servers.parquet", server_rows(played.samples), SERVERS)
    events = [
        {
            "event": str(event.change),
            "link": event.change.link if isinstance(event.change, LinkChange) else None,
            "scheduled_s": event.change.at_s,
            "actual_s": event.actual_s,
        }
        for event in played.events
    ]
    _write(directory / "events.parquet", events, EVENTS)
    write_json(directory / "manifest.json", manifest)


def request_row(
    request: Request,
    done: Done | None,
    reference: Reference,
    *,
    kl: Mapping[Pass, float] = NOTHING,
    dead: bool = False,
) -> dict[str, Any]:
    """One row of requests.parquet; a request without an end by the time the run was collected has failed.

    ``kl`` holds the divergences of logits that are not the reference's.  ``dead`` says that its home server has
    failed, and so could not report the end.
    """
    row: dict[str, Any] = {
        "request": request.number,
        "kind": request.kind,
        "home": request.home,
        "domain": request.domain,
        "scheduled_s": request.at_s,
        "prompt_tokens": request.tokens,
        "output_tokens": request.output_tokens,
        "reference_nll": reference.mean_nll,
        "reference_correct": reference.correct(reference.top1),
        "cloze_items": None if reference.cloze is None else len(reference.cloze),
        "reference_cloze_hits": reference.cloze_hits(reference.top1),
    }
    if done is None:
        return row | {
            "sent_s": request.at_s,
            "moves": 0,
            "sent_bytes": 0,
            "error": f"its home server {request.home} has failed" if dead else "the run ended before the request did",
        }
    row |= {"sent_s": done.sent_s, "moves": done.moves, "sent_bytes": done.sent_bytes, "error": done.error}
    if done.error is not None:
        return row
    exact = done.digest == reference.digest
    quality: dict[str, float | None] = dict.fromkeys(("nll", "top1_agreement", "kl", "correct", "cloze_hits"))
    if reference.measures_quality:
        agreeing = sum(ours == theirs for ours, theirs in zip(done.top1, reference.top1, strict=True))
        quality["nll"] = sum(done.nll) / len(done.nll) if done.nll else None
        quality["top1_agreement"] = agreeing / len(reference.top1)
    if reference.judged:
        quality["kl"] = 0.0 if exact else kl.get((request.number, done.digest))  # the same bits do not diverge
        quality["correct"] = reference.correct(done.top1)
        quality["cloze_hits"] = reference.cloze_hits(done.top1)
    return row | {
        "finished_s": done.finished_s,
        "latency_s": done.finished_s - request.at_s,
        "late_s": done.late_s,
        "ttft_s": done.ttft_s,
        "tpot_s": done.tpot_s,
        **quality,
        "exact": exact,
    }


def server_rows(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Rows of servers.parquet; a server that others have lost and that says nothing itself has rows, too: not alive."""
    rows = [
        {
            "t_s": sample.t_s,
            "server": sample.server,
            "device_busy": sample.device_busy,
            "loader_busy": sample.loader_busy,
            "backlog_s": sample.backlog_s,
            "rss_bytes": sample.rss_bytes,
            "alive": True,
        }
        for sample in samples
    ]
    last_words_s = {sample.server: sample.t_s for sample in samples}
    lost = {(sample.t_s, server) for sample in samples for server in sample.lost_peers}
    silent = {"device_busy": 0.0, "loader_busy": 0.0, "backlog_s": 0.0, "rss_bytes": 0, "alive": False}
    rows += [
        {"t_s": t_s, "server": server, **silent}
        for t_s, server in sorted(lost)
        if t_s > last_words_s.get(server, float("-inf"))
    ]
    return rows


def layer_rows(collected: Iterable[Collected]) -> list[dict[str, Any]]:
    """Rows of layers.parquet in the order of request, step and layer."""
    rows = []
    for report in collected:
        for record in report.layers:
            row = msgspec.structs.asdict(record)
            terms = row.pop("terms")
            rows.append(row | dict(zip(TERMS, terms or [None] * len(TERMS), strict=True)))
    return sorted(rows, key=lambda row: (row["request"], row["step"], row["layer"]))


def write_json(path: Path, value: Any) -> None:
    """Indented JSON, complete or not there at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    partial.rename(path)


def _write(path: Path, rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> None:
    pl.DataFrame(rows, schema=dict(schema), orient="row").write_parquet(path)
