"""Does doing less beat delivering faster?  TrimMoE's question, on its own and on top of HetRoute.

Latency, traffic, calls elsewhere, load and measured quality of every framework on three models; the baselines of
adaptive depth; quality against latency over the budget; and the paper's figures beside ours, all in virtual time.
``docs/trimmoe.md`` explains the rows and says what bounds them.

python scenarios/trimmoe_paper.py            some half an hour on one core
python scenarios/trimmoe_paper.py --quick    a minute, for a look
python scenarios/trimmoe_paper.py --help
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is run.  Every part is a comparison of its own, on the same arrivals for all of its frameworks."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen1.5-moe-a2.7b", "switch-base-8")
    frameworks: tuple[str, ...] = (
        "edgeshard",
        "edgeshard-int8",
        "prism",
        "prism+trimmoe",
        "hetroute",
        "trimmoe",
        "hetroute+trimmoe",
    )
    depths: tuple[str, ...] = ("none", "skip-only", "exit-only", "substitute-only", "skip-layers", "calm")
    routing: tuple[str, ...] = ("hetroute", "prism")  # under the policies of ``depths``, first model only
    rate_per_s: float = 5.0
    loads_per_s: tuple[float, ...] = (20.0, 40.0)  # of the first model
    loaded: tuple[str, ...] = ("edgeshard", "edgeshard-int8", "hetroute", "trimmoe", "hetroute+trimmoe")
    budgets: tuple[float, ...] = (0.005, 0.01, 0.02, 0.03, 0.05)  # relative NLL increase
    budgeted: tuple[str, ...] = ("hetroute", "trimmoe", "hetroute+trimmoe")
    budget: float = 0.02
    seeds: tuple[int, ...] = (0, 1, 2)  # of the comparisons of frameworks; everything else is played once
    duration_s: float = 20.0
    loaded_s: float = 6.0
    generating: tuple[str, ...] = ("prism", "prism+trimmoe", "prism+calm", "hetroute", "hetroute+trimmoe")
    generate_rate_per_s: float = 1.0
    generate_s: float = 8.0


DEFAULT = Grid()
QUICK = Grid(
    models=("switch-base-8",),
    frameworks=("edgeshard", "trimmoe"),
    depths=("skip-only",),
    routing=("edgeshard",),
    loads_per_s=(),
    budgets=(0.01, 0.02),
    budgeted=("trimmoe",),
    seeds=(0, 1),
    duration_s=2.0,
    generating=(),
)

if __name__ == "__main__":
    import sys

    from analysis.depthpaper import draw
    from orchestration.trimmoe_paper import main

    sys.exit(main(sys.argv[1:], default=DEFAULT, quick=QUICK, draw=draw))
