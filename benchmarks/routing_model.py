"""How frameworks would do if the network and the devices were ideal queues: for tuning them without an emulation.

Prints what ``agents.frameworks.queues`` makes of each framework: a discrete-event model that drives the very classes
that the agents run.

    python benchmarks/routing_model.py                       # every framework at 5, 10, 20, 40 requests/s
    python benchmarks/routing_model.py --rates 40 --frameworks hetroute,edgeshard --gossip 0

Latency is from arrival to the answer at home, in ms, of the requests that arrive after a warm-up of a tenth of the
run; GB/1k is activation payload on links per 1000 tokens; ``vs`` is the mean against ``edgeshard`` at the same
rate.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.cluster import cluster_of
from agents.frameworks.base import Framework
from agents.frameworks.placements import check_placement
from agents.frameworks.queues import Queues, requests_of
from agents.frameworks.registry import FRAMEWORKS, create
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.models.spec import twin_directory
from agents.protocol import GOSSIP_INTERVAL_S
from testbed.load import load_topology

TOPOLOGY = Path(__file__).parents[1] / "topologies/edge10.yaml"


def main() -> int:
    """Print a table, a row per rate and framework."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", default=str(TOPOLOGY))
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="names; options as name:key=value")
    parser.add_argument("--rates", default="5,10,20,40", help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument(
        "--gossip", type=float, default=GOSSIP_INTERVAL_S, help="seconds between gossips; 0: all know the truth"
    )
    parser.add_argument("--redundancy", type=float, default=2.0)
    parser.add_argument("--budget", type=float, default=0.02)
    arguments = parser.parse_args()
    profile = ModelProfile.load("mixtral-8x7b")
    calibration = Calibration.load(twin_directory("mixtral-8x7b"))
    columns = (
        "req/s",
        "framework",
        "mean",
        "P50",
        "P99",
        "vs",
        "GB/1k",
        "moves",
        "busiest",
        "plan us",
        "place s",
        "calls",
    )
    print("{:>5}  {:<34}{:>7}{:>7}{:>7}{:>6}{:>8}{:>7}{:>8}{:>9}{:>8}  {}".format(*columns))
    for rate in (float(text) for text in arguments.rates.split(",")):
        cluster = cluster_of(
            load_topology(arguments.topology),
            arrival_rate_per_s=rate,
            tokens_per_request=37,
            redundancy=arguments.redundancy,
        )
        peer_s = 0.0
        for text in arguments.frameworks.split(","):
            planner, started = _create(text), time.perf_counter()
            planner.measured(None, None, quality_budget=arguments.budget)
            placement = planner.place(cluster, profile, calibration)
            place_s = time.perf_counter() - started
            check_placement(placement, cluster, profile, framework=planner.name)
            model = Queues(
                partial(_create, text),
                cluster,
                profile,
                calibration,
                placement,
                gossip_s=arguments.gossip,
                quality_budget=arguments.budget,
            )
            requests = requests_of(
                cluster, profile, calibration.usage, duration_s=arguments.seconds, seed=arguments.seed
            )
            model.run(requests)
            first_s = 0.1 * arguments.seconds
            latency_s = np.array([model.latency_s[r.number] for r in requests if r.arrived_s >= first_s])
            if text == "edgeshard":
                peer_s = float(latency_s.mean())
            tokens = sum(r.chosen.shape[1] for r in requests)
            calls = sum(model.calls[key] for key in ("local", "remote"))
            mix = " ".join(f"{key} {count / calls:.0%}" for key, count in model.calls.items() if count)
            versus = f"{latency_s.mean() / peer_s - 1:+.0%}" if peer_s else ""
            busiest = max(lane.busy_s for lane in model.devices.values()) / model.now_s
            mean, middle, tail = (
                1e3 * x for x in (latency_s.mean(), np.percentile(latency_s, 50), np.percentile(latency_s, 99))
            )
            print(
                f"{rate:>5g}  {text:<34}{mean:>7.0f}{middle:>7.0f}{tail:>7.0f}{versus:>6}"
                f"{model.sent_bytes / 1e9 / (tokens / 1e3):>8.3f}{np.mean(model.moves):>7.1f}{busiest:>8.0%}"
                f"{1e6 * np.median(model.plan_s):>9.0f}{place_s:>8.1f}  {mix}",
                flush=True,
            )
    return 0


def _create(text: str) -> Framework:
    """``name:key=value:key=value``; values are read as number, true/false or text."""
    name, *pairs = text.split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        options[key] = {"true": True, "false": False}.get(value, value.split("+") if "+" in value else value)
    return create(name, options)


if __name__ == "__main__":
    raise SystemExit(main())
