"""Congestion between the metros in the middle third of the run: who notices, who gets round it?

Every link between two metros keeps a tenth of its rate and gains 10 ms of delay; links inside a metro stay as they are.

    python scenarios/link_congestion.py --help
"""

from __future__ import annotations

import sys

from scenarios.congestion import links_between_metros, squeeze
from scenarios.timeline import Scenario, Setting
from scenarios.workload import FIRST_ARRIVAL_S, domain_shares, poisson

RATE_PER_S = 8.0
DURATION_S = 12.0
RATE_SHARE = 0.10
EXTRA_DELAY_S = 0.010


def build(setting: Setting) -> Scenario:
    """The timeline for one setting."""
    rate_per_s = setting.arrival_rate_per_s or RATE_PER_S
    duration_s = setting.duration_s or DURATION_S
    return Scenario(
        name="link_congestion",
        question="What happens to each framework when the links between metros congest?",
        duration_s=duration_s,
        arrival_rate_per_s=rate_per_s,
        domain_shares=domain_shares(setting),
        requests=poisson(
            setting, rate_per_s=rate_per_s, duration_s=duration_s, generate_share=setting.generate_share or 0.0
        ),
        changes=squeeze(
            setting.topology,
            links_between_metros(setting.topology),
            from_s=FIRST_ARRIVAL_S + duration_s / 3,
            to_s=FIRST_ARRIVAL_S + 2 * duration_s / 3,
            rate_share=RATE_SHARE,
            extra_delay_s=EXTRA_DELAY_S,
        ),
    )


if __name__ == "__main__":
    from orchestrator import main

    main(["compare", "link_congestion", *sys.argv[1:]])
