"""Requests that generate text: time to the first token and time per token after it.

python scenarios/generation.py --help
"""

from __future__ import annotations

import sys

from scenarios.timeline import Scenario, Setting
from scenarios.workload import domain_shares, poisson

RATE_PER_S = 2.0
DURATION_S = 12.0


def build(setting: Setting) -> Scenario:
    """The timeline for one setting."""
    rate_per_s = setting.arrival_rate_per_s or RATE_PER_S
    duration_s = setting.duration_s or DURATION_S
    return Scenario(
        name="generation",
        question="How long until the first token, and how long per token after it?",
        duration_s=duration_s,
        arrival_rate_per_s=rate_per_s,
        domain_shares=domain_shares(setting),
        requests=poisson(
            setting,
            rate_per_s=rate_per_s,
            duration_s=duration_s,
            generate_share=1.0 if setting.generate_share is None else setting.generate_share,
        ),
    )


if __name__ == "__main__":
    from orchestrator import main

    main(["compare", "generation", *sys.argv[1:]])
