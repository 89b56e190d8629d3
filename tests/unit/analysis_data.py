"""A made-up comparison in the documented format, so that analysis can be tested without an emulation.

The numbers are drawn from a seed around plausible values (layer sharding with few moves, home-bound routing with
many waits) and slow down while the links are congested.  They are not results of anything.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.schema import dtypes
from testbed.topology import Device, Direction, Link, Node, Topology

CONGESTED_S = (8.0, 16.0)
HIT_LINKS = ("s1-s5", "s2-s6", "s3-s8")
METROS = ("west", "west", "west", "west", "mid", "mid", "mid", "east", "east", "east")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How a made-up framework behaves."""

    median_s: float
    spread: float  # of the logarithm
    congested: float  # factor on latency while links are congested
    moves: int
    bytes_per_token: float
    remote: float  # share of expert calls
    slow: float
    fallback: float = 0.0
    nll_increase: float = 0.0
    dense: float = 0.5  # share of the latency
    wait: float = 0.1


HABITS = {
    "local-first": Habit(
        median_s=0.34, spread=0.5, congested=1.1, moves=0, bytes_per_token=2e4, remote=0.05, slow=0.62, wait=0.45
    ),
    "greedy": Habit(
        median_s=0.92,
        spread=0.25,
        congested=1.9,
        moves=0,
        bytes_per_token=6.1e5,
        remote=0.8,
        slow=0.1,
        wait=0.8,
        dense=0.1,
    ),
    "edgeshard": Habit(median_s=0.26, spread=0.2, congested=1.5, moves=9, bytes_per_token=8.8e4, remote=0.0, slow=0.0),
    "hetroute": Habit(
        median_s=0.13,
        spread=0.25,
        congested=1.12,
        moves=2,
        bytes_per_token=3.1e4,
        remote=0.24,
        slow=0.04,
        fallback=0.02,
        nll_increase=0.011,
    ),
}


def topology() -> Topology:
    """Ten servers in three metros, every pair linked."""
    rng = np.random.default_rng(5)
    nodes = tuple(
        Node(
            name=f"s{i}",
            metro=metro,
            device=Device(
                peak_flops_per_s=float(rng.uniform(18e12, 120e12)),
                memory_bytes_per_s=8e11,
                fast_bytes=24 * 10**9,
                slow_bytes=128 * 10**9,
                load_bytes_per_s=32e9,
            ),
        )
        for i, metro in enumerate(METROS, 1)
    )
    links = []
    for a, b in combinations(nodes, 2):
        near = a.metro == b.metro
        direction = Direction(
            rate_bps=float(rng.choice([5e9, 10e9] if near else [0.8e9, 1e9, 2.5e9])),
            delay_s=float(rng.uniform(0.0003, 0.0009) if near else rng.uniform(0.005, 0.022)),
        )
        links.append(Link(a=a.name, b=b.name, forward=direction, backward=direction))
    return Topology(name="edge10", description="made up", nodes=nodes, links=tuple(links))


def write_comparison(
    results: Path,
    *,
    frameworks: dict[str, Habit] = HABITS,
    requests: int = 400,
    repeats: int = 1,
    layers: int = 32,
    failed_share: float = 0.02,
    verdicts: dict[str, str] | None = None,
    seed: int = 7,
    name: str = "20261129-181502-link_congestion",
) -> Path:
    """Write a whole comparison under ``results`` and return its directory."""
    directory = results / name
    directory.mkdir(parents=True)
    runs = []
    for repeat in range(1, repeats + 1):
        for index, (framework, habit) in enumerate(frameworks.items()):
            run = f"{framework}-r{repeat}"
            runs.append(run)
            _write_run(
                directory / run,
                framework=framework,
                habit=habit,
                repeat=repeat,
                requests=requests,
                layers=layers,
                failed_share=failed_share,
                verdict=(verdicts or {}).get(framework, "PASS"),
                seed=seed,
                own_seed=seed + 100 * repeat + index,
            )
    write_json(
        directory / "comparison.json",
        {
            "scenario": "link_congestion",
            "frameworks": list(frameworks),
            "repeats": repeats,
            "seeds": [seed + repeat for repeat in range(1, repeats + 1)],
            "runs": runs,
            "finished": True,
        },
    )
    return directory


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def edit_manifest(run: Path, **changes: Any) -> None:
    """Rewrite keys of one manifest; a key set to None is removed."""
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8")) | changes
    write_json(run / "manifest.json", {key: value for key, value in manifest.items() if value is not None})


def _write_run(
    directory: Path,
    *,
    framework: str,
    habit: Habit,
    repeat: int,
    requests: int,
    layers: int,
    failed_share: float,
    verdict: str,
    seed: int,
    own_seed: int,
) -> None:
    directory.mkdir()
    duration_s = max(requests / 20.0, 1.0)
    common = np.random.default_rng(seed + repeat)  # what is the same under every framework
    scheduled = np.sort(common.uniform(0, duration_s, requests))
    tokens = common.integers(12, 64, requests)
    reference = common.normal(2.1, 0.2, requests)
    size = 1 + 0.1 * common.standard_normal(requests)

    rng = np.random.default_rng(own_seed)
    slow_wave = np.convolve(rng.standard_normal(requests + 20), np.ones(21) / 4.6, mode="valid")
    noise = 0.6 * slow_wave + 0.8 * rng.standard_normal(requests)
    congested = (scheduled >= CONGESTED_S[0]) & (scheduled < CONGESTED_S[1])
    latency = habit.median_s * size * np.exp(habit.spread * noise) * np.where(congested, habit.congested, 1.0)
    failed = rng.random(requests) < failed_share
    names = [f"s{i}" for i in range(1, 11)]
    lossy = habit.nll_increase > 0

    text = np.random.default_rng(seed + repeat + 5000)  # apart, so that what is above stays as it was drawn
    reference_correct, items = text.binomial(tokens - 1, 0.3), tokens // 20
    reference_hits = text.binomial(items, 0.4)
    harm = np.random.default_rng(own_seed + 5000).integers(0, 2, requests) * lossy

    def unless_failed(values: Any) -> list[Any]:
        return [
            None if gone else value for gone, value in zip(failed.tolist(), np.asarray(values).tolist(), strict=True)
        ]

    _write_table(
        directory,
        "requests",
        {
            "request": list(range(requests)),
            "kind": ["score"] * requests,
            "home": common.choice(names, requests).tolist(),
            "domain": common.choice(["plays", "docs", "code"], requests).tolist(),
            "scheduled_s": scheduled,
            "sent_s": scheduled + 0.0004,
            "finished_s": unless_failed(scheduled + latency),
            "latency_s": unless_failed(latency),
            "late_s": unless_failed(0.01 * latency),
            "ttft_s": [None] * requests,
            "tpot_s": [None] * requests,
            "prompt_tokens": tokens,
            "output_tokens": [0] * requests,
            "moves": np.maximum(0, habit.moves + rng.integers(-1, 2, requests) * (habit.moves > 0)),
            "sent_bytes": (tokens * habit.bytes_per_token * rng.uniform(0.9, 1.1, requests)).astype(int),
            "nll": unless_failed(reference * (1 + habit.nll_increase * rng.uniform(0, 2, requests))),
            "reference_nll": unless_failed(reference),
            "top1_agreement": unless_failed(1 - 0.04 * rng.random(requests) * lossy),
            "kl": unless_failed(0.002 * harm),
            "correct": unless_failed(np.maximum(0, reference_correct - harm)),
            "reference_correct": reference_correct,
            "cloze_items": items,
            "cloze_hits": unless_failed(np.maximum(0, reference_hits - harm)),
            "reference_cloze_hits": reference_hits,
            "exact": unless_failed(rng.random(requests) < 0.2 if lossy else np.ones(requests, dtype=bool)),
            "error": ["deadline of 5 s passed at <s4>" if gone else None for gone in failed],
        },
    )
    _write_layers(directory, habit, scheduled, latency, failed, layers, rng)
    _write_samples(directory, framework, duration_s, rng)
    _write_manifest(
        directory, framework, repeat, seed + repeat, duration_s, verdict, requests, int(failed.sum()), habit
    )


def _write_layers(
    directory: Path,
    habit: Habit,
    scheduled: Any,
    latency: Any,
    failed: Any,
    layers: int,
    rng: np.random.Generator,
) -> None:
    done = np.flatnonzero(~failed)
    rows = len(done) * layers
    request = np.repeat(done, layers)
    layer = np.tile(np.arange(layers), len(done))
    duration = np.repeat(latency[done] * 0.96 / layers, layers)
    experts = rng.integers(4, 9, rows)
    remote = rng.binomial(experts, habit.remote)
    slow = rng.binomial(experts - remote, habit.slow)
    _write_table(
        directory,
        "layers",
        {
            "request": request,
            "step": np.zeros(rows, dtype=int),
            "layer": layer,
            "server": [f"s{1 + (r + la // 8) % 10}" for r, la in zip(request.tolist(), layer.tolist(), strict=True)],
            "start_s": np.repeat(scheduled[done], layers) + layer * duration,
            "duration_s": duration,
            "dense_s": duration * habit.dense,
            "experts_s": duration * (1 - habit.dense - habit.wait) / 2,
            "wait_s": duration * habit.wait,
            "experts": experts,
            "remote_experts": remote,
            "slow_experts": slow,
            "remote_slow_experts": np.minimum(slow, remote) // 2,
            "fallback_experts": rng.binomial(experts, habit.fallback),
            "servers": rng.integers(1, 4, rows),
            "quality_spent": habit.nll_increase * layer / max(layers, 1),
        },
    )


def _write_samples(directory: Path, framework: str, duration_s: float, rng: np.random.Generator) -> None:
    times = np.arange(0.5, duration_s + 0.5, 0.5)
    links = []
    for link in topology().links:
        for source, target, direction in ((link.a, link.b, link.forward), (link.b, link.a, link.backward)):
            for t in times.tolist():
                hit = link.name in HIT_LINKS and CONGESTED_S[0] <= t < CONGESTED_S[1]
                carried = int(rng.integers(0, 10_000_000))
                links.append(
                    {
                        "t_s": t,
                        "link": link.name,
                        "source": source,
                        "target": target,
                        "rate_bps": 1e8 if hit else direction.rate_bps,
                        "delay_s": direction.delay_s,
                        "bytes": carried,
                        "packets": carried // 1500,
                        "dropped": int(hit) * 3,
                        "queued_bytes": int(hit) * 250_000,
                    }
                )
    pl.DataFrame(links, schema=dtypes("links")).write_parquet(directory / "links.parquet")

    level = {"local-first": 0.7, "greedy": 0.35, "edgeshard": 0.55}.get(framework, 0.4)
    servers = [
        {
            "t_s": t,
            "server": f"s{i}",
            "device_busy": float(np.clip(level * (0.4 + 0.12 * i) + rng.normal(0, 0.05), 0, 1)),
            "loader_busy": 0.1,
            "backlog_s": float(rng.exponential(0.02)),
            "rss_bytes": 300_000_000,
            "alive": True,
        }
        for i in range(1, 11)
        for t in times.tolist()
    ]
    pl.DataFrame(servers, schema=dtypes("servers")).write_parquet(directory / "servers.parquet")

    events = []
    for link in HIT_LINKS:
        before = topology().link(link).forward.rate_bps
        for planned, text in ((CONGESTED_S[0], "100 Mbit/s"), (CONGESTED_S[1], f"{before / 1e9:g} Gbit/s")):
            if planned < duration_s:
                events.append(
                    {
                        "event": f"{link} rate={text}",
                        "link": link,
                        "scheduled_s": planned,
                        "actual_s": planned + float(rng.uniform(0.0005, 0.004)),
                    }
                )
    pl.DataFrame(events, schema=dtypes("events")).write_parquet(directory / "events.parquet")


def _write_manifest(
    directory: Path,
    framework: str,
    repeat: int,
    seed: int,
    duration_s: float,
    verdict: str,
    sent: int,
    failed: int,
    habit: Habit,
) -> None:
    rng = np.random.default_rng(seed)
    calibration = [
        {
            "link": link.name,
            "source": source,
            "target": target,
            "rtt_s": 2 * direction.delay_s + float(rng.uniform(0.00005, 0.0003)),
            "expected_rtt_s": 2 * direction.delay_s,
            "goodput_bps": 0.95 * direction.rate_bps * float(rng.uniform(0.97, 1.0)),
            "expected_goodput_bps": 0.95 * direction.rate_bps,
            "ok": True,
        }
        for link in topology().links
        for source, target, direction in ((link.a, link.b, link.forward), (link.b, link.a, link.backward))
    ]
    lag_s = 0.004 if verdict == "PASS" else 0.031
    write_json(
        directory / "manifest.json",
        {
            "run_id": directory.name,
            "scenario": "link_congestion",
            "framework": framework,
            "repeat": repeat,
            "seed": seed,
            "started_at": "2026-11-29T18:15:02+00:00",
            "duration_s": duration_s,
            "dilation": 10.0,
            "slo_s": 0.3,
            "versions": {"python": "3.11.2", "kernel": "6.1.0", "git": "0123abc", "numpy": "2.4.6"},
            "topology": asdict(topology()),
            "model": {
                "name": "mixtral-8x7b",
                "layers": 32,
                "experts": 8,
                "top_k": 2,
                "precisions": {"full": 352321536},
            },
            "placement": {
                "replicas": 480,
                "memory_bytes": 169 * 10**9,
                "redundancy": 1.88,
                "servers": {f"s{i}": {"replicas": 48, "fast_bytes": 10**10, "slow_bytes": 0} for i in range(1, 11)},
            },
            "shaping": {},
            "calibration": calibration,
            "counts": {"sent": sent, "completed": sent - failed, "failed": failed},
            "fidelity": {
                "verdict": verdict,
                "checks": [
                    {
                        "name": "relay lateness P99",
                        "value": lag_s,
                        "bound": 0.010,
                        "unit": "s",
                        "ok": verdict == "PASS",
                        "meaning": "how much later than planned the relay released a packet",
                    },
                    {
                        "name": "host CPU",
                        "value": 0.43 + 0.02 * habit.moves / 10,
                        "bound": 0.80,
                        "unit": "share",
                        "ok": True,
                        "meaning": "share of all cores in use, all processes",
                    },
                ],
            },
            "complete": True,
            "quality_budget": 0.02,
        },
    )


def _write_table(directory: Path, table: str, columns: dict[str, Any]) -> None:
    plain = {name: np.asarray(values) if not isinstance(values, list) else values for name, values in columns.items()}
    pl.DataFrame(plain, schema_overrides=dtypes(table)).write_parquet(directory / f"{table}.parquet")
