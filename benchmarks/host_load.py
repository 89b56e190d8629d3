"""What emulated runs needed of this machine, beside what ``--dilation auto`` predicts for them.

    python benchmarks/host_load.py [RESULTS_DIRECTORY]

Reads a comparison of the default model and redundancy that was played on packets (default: the newest under results/)
and predicts the same load anew.

    needed = busy share of the host x processors x wall seconds / emulated seconds of arrivals

Other work on the machine counts as needed; a quiet machine is assumed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agents.models.model import Model
from analysis.load import load, newest
from orchestration import hostload
from orchestration.catalogue import builder
from orchestration.comparison import prepare
from scenarios.timeline import Setting

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Print both for every framework."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, help="directory of a comparison")
    directory = parser.parse_args().results or newest(Path("results"))
    comparison = load(directory)
    first = comparison.runs[0].manifest
    if first.backend == "sim":
        raise SystemExit(f"{directory} was simulated: it needed nothing of what is measured here")
    model = Model.load(ROOT / "agents" / "models" / "mixtral-8x7b-twin")
    rows = list(model.prompts.rows.values())
    setting = Setting(
        topology=first.topology,
        domains=model.prompts.domains,
        prompts_per_domain=min(len(each) for each in rows),
        prompt_tokens=min(each.shape[1] for each in rows),
        seed=first.seed,
        duration_s=first.duration_s,
        arrival_rate_per_s=first.arrival_rate_per_s,
    )
    plan = prepare(
        scenarios={first.seed: builder(comparison.scenario)(setting)},
        topology=first.topology,
        model=model,
        frameworks=comparison.frameworks,
        redundancy=2.0,
    )
    processors = hostload.processors()
    print(f"{'framework':<16}{'needed':>10}{'predicted':>11}   processors at dilation 1, of {processors}")
    for load_of in hostload.predict(plan):
        manifest = comparison.runs_of(load_of.framework)[0].manifest
        (busy,) = [check.value for check in manifest.fidelity.checks if check.name == "host CPU"]
        needed = busy * processors * (manifest.wall_s or 0.0) / manifest.duration_s
        print(f"{load_of.framework:<16}{needed:>10.2f}{load_of.need:>11.2f}")


if __name__ == "__main__":
    main()
