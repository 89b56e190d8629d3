"""Do all backends give the same latencies?  The same requests on each in turn, as a Markdown table.

    python benchmarks/backends.py [--topology topologies/edge10.yaml] [--frameworks edgeshard,hetroute] [--dilation 6]

Backends that this machine lacks are left out and named.  The first is played once more at the end: the last rows of
the table show how far two plays of one backend are apart.  ``same`` means that the mean lies in the 95 % bootstrap
interval of the first backend; the change is that of the same requests, paired.  Needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from analysis.bootstrap import Bootstrap, Estimate
from analysis.load import Comparison, load, newest
from analysis.metrics import paired_change, summarise
from testbed import capabilities
from testbed.setup import BACKENDS

ROOT = Path(__file__).resolve().parent.parent
NAME = f"bench-{os.getpid()}"


def played(backend: str, arguments: argparse.Namespace, results: Path) -> Comparison:
    """Bring the topology up on the backend, play the scenario, take it down."""
    testbed = [sys.executable, "-m", "testbed.cli"]
    subprocess.run([*testbed, "up", arguments.topology, "--name", NAME, "--backend", backend], check=True, cwd=ROOT)
    try:
        command = [sys.executable, str(ROOT / "orchestrator.py"), "compare", "steady_load", "--testbed", NAME]
        command += ["--frameworks", arguments.frameworks, "--dilation", arguments.dilation]
        command += ["--duration", arguments.duration, "--results", str(results), "--backend", "netns"]
        subprocess.run(command, check=True, cwd=ROOT)
    finally:
        subprocess.run([*testbed, "down", "--name", NAME], check=True, cwd=ROOT)
    return load(newest(results))


def interval(estimate: Estimate, scale: float, digits: str) -> str:
    """A number with its interval."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    low, high = scale * estimate.low, scale * estimate.high
    return f"{scale * estimate.value:{digits}} [{low:{digits}}, {high:{digits}}]"


def rows(plays: list[tuple[str, Comparison]]) -> list[str]:
    """The table."""
    lines = [
        "| framework | backend | fidelity | mean latency (ms) | P95 (ms) | mean vs first | |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    bootstrap = Bootstrap()
    first = plays[0][1]
    for framework in first.frameworks:
        reference = summarise(first.runs_of(framework), bootstrap)["latency_mean_s"]
        for number, (backend, comparison) in enumerate(plays):
            runs = comparison.runs_of(framework)
            found = summarise(runs, bootstrap)
            mean = found["latency_mean_s"]
            verdict = ""
            if number and None not in (mean.value, reference.low, reference.high):
                inside = reference.low <= mean.value <= reference.high  # type: ignore[operator]
                verdict = "same" if inside else "**differs**"
            change = interval(paired_change(runs, first.runs_of(framework), bootstrap), 100, "+.1f") + " %"
            lines.append(
                f"| {framework} | {backend} | {', '.join(run.manifest.fidelity.verdict for run in runs)} "
                f"| {interval(mean, 1e3, '.1f')} | {interval(found['latency_p95_s'], 1e3, '.0f')} "
                f"| {change if number else 'reference'} | {verdict} |"
            )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="topologies/edge10.yaml")
    parser.add_argument("--frameworks", default="edgeshard,hetroute")
    parser.add_argument("--dilation", default="6")
    parser.add_argument("--duration", default="8", help="emulated seconds of load")
    arguments = parser.parse_args()
    missing = {backend: capabilities.missing_for(backend, "relay") for backend in BACKENDS}
    able = [backend for backend in BACKENDS if not missing[backend]]
    with tempfile.TemporaryDirectory(prefix="backends-") as directory:
        plays = []
        for number, backend in enumerate([*able, able[0]]):
            label = backend if number < len(able) else f"{backend} again"
            plays.append((label, played(backend, arguments, Path(directory) / str(number))))
        print("\n".join(rows(plays)))
    for backend, lacks in missing.items():
        for each in lacks:
            print(f"{backend} is missing: {each.name}: {each.detail}")


if __name__ == "__main__":
    main()
