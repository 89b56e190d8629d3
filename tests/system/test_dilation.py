"""The same scenario at two dilations gives the same latencies: only the host's clock runs slower, not the world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from testbed.load import load_topology
from testbed.network import Network

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(ROOT / "orchestrator.py"), "run", "steady_load", "--framework", "edgeshard"]


def latencies_s(results: Path, dilation: int) -> pl.DataFrame:
    out = results / str(dilation)
    done = subprocess.run(
        [
            *RUN,
            "--rate",
            "3",
            "--duration",
            "8",
            "--dilation",
            str(dilation),
            "--results",
            str(results / str(dilation)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.glob("*/edgeshard-r0/requests.parquet")
    return pl.read_parquet(file).select("request", "latency_s").drop_nulls()


def test_latencies_at_dilation_2_and_6_agree_within_their_confidence_interval(run_root: Path, tmp_path: Path) -> None:
    with Network.up(load_topology(ROOT / "topologies" / "small3.yaml"), name="dilation"):
        fast, slow = (latencies_s(tmp_path, dilation) for dilation in (2, 6))

    both = fast.join(slow, on="request", suffix="_slow")
    assert len(both) == len(fast) == len(slow) > 15
    a, b = both["latency_s"].to_numpy(), both["latency_s_slow"].to_numpy()
    # The unpaired interval of a mean, 95 %: what a reader of one run would state.
    half_s = 1.96 * a.std(ddof=1) / np.sqrt(len(a))
    assert abs(a.mean() - b.mean()) < half_s
    # Request by request, the two worlds differ by far less than requests differ from each other.
    assert np.median(np.abs(a - b) / b) < 0.05
