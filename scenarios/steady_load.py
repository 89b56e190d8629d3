"""Steady Poisson load, nothing changes: how fast, how much traffic, how good?

python scenarios/steady_load.py --help
"""

from __future__ import annotations

import sys

from scenarios.timeline import Scenario, Setting
from scenarios.workload import domain_shares, poisson

RATE_PER_S = 8.0
DURATION_S = 12.0


def build(setting: Setting) -> Scenario:
    """The timeline for one setting."""
    rate_per_s = setting.arrival_rate_per_s or RATE_PER_S
    duration_s = setting.duration_s or DURATION_S
    return Scenario(
        name="steady_load",
        question="Which framework answers fastest under a steady load, and with how much traffic?",
        duration_s=duration_s,
        arrival_rate_per_s=rate_per_s,
        domain_shares=domain_shares(setting),
        requests=poisson(
            setting, rate_per_s=rate_per_s, duration_s=duration_s, generate_share=setting.generate_share or 0.0
        ),
    )


if __name__ == "__main__":
    from orchestrator import main

    main(["compare", "steady_load", *sys.argv[1:]])
