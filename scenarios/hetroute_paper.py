"""Is the whole expert set, routed at once, as much better as HetRoute's paper says?  Its experiments, measured.

Ten servers, 40 requests/s of 37 tokens, 300 ms objective, 2 % quality budget, memory for two copies of every expert;
then load, redundancy and budget swept, HetRoute without each of its parts, three models, and how fast frameworks
react when links congest or servers slow down.  Repeats differ in their seed; ``docs/hetroute.md`` explains the rows.

python scenarios/hetroute_paper.py                        half an hour on one core, in virtual time
python scenarios/hetroute_paper.py --out results/...      goes on with that directory
python scenarios/hetroute_paper.py --backend netns        the default point, on the testbed that is up
python scenarios/hetroute_paper.py --quick                a minute, for a look
python scenarios/hetroute_paper.py --help
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """More requests than most frameworks can answer: how many a second does each get done?"""

    model: str
    rate_per_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is run.  Frameworks of a part share its arrivals; so do parts with the same load and seed."""

    models: tuple[str, ...] = ("mixtral-8x7b", "switch-base-8", "qwen1.5-moe-a2.7b")
    rate_per_s: float = 40.0
    budget: float = 0.02
    redundancy: float = 2.0
    duration_s: float = 3.0
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)  # of the default point
    fewer: tuple[int, ...] = (0, 1, 2)  # of everything else
    frameworks: tuple[str, ...] = ("edgeshard", "petals", "moe-infinity", "prism", "hetroute")
    #: The baselines at HetRoute's own precisions, and HetRoute with int8 only.
    lower: tuple[str, ...] = (
        "edgeshard-int8",
        "edgeshard-int4",
        "petals-int8",
        "petals-int4",
        "prism-int8",
        "prism-int4",
        "hetroute-int8",
    )
    elsewhere: tuple[str, ...] = (  # on the other models
        "edgeshard",
        "edgeshard-int8",
        "petals",
        "moe-infinity",
        "prism",
        "hetroute",
        "hetroute-no-set-level",
    )
    loads_per_s: tuple[float, ...] = (10.0, 20.0, 80.0)  # beside the default
    loaded: tuple[str, ...] = ("edgeshard", "edgeshard-int8", "prism", "hetroute")
    overloads: tuple[Overload, ...] = (Overload(model="mixtral-8x7b", rate_per_s=160.0, duration_s=1.5),)
    overloaded: tuple[str, ...] = ("edgeshard", "prism", "hetroute")
    redundancies: tuple[float, ...] = (1.0, 3.0)  # beside the default
    budgets: tuple[float, ...] = (0.005, 0.01, 0.03)  # beside the default
    ablations: tuple[str, ...] = (
        "hetroute-no-set-level",
        "hetroute-no-residency",
        "hetroute-no-precision",
        "hetroute-no-redundancy",
        "hetroute-no-announcing",
        "hetroute-no-merging",
        "hetroute-no-rehearsal",
    )
    #: Those that gather a request at home, layer by layer, where it arrived.
    at_home: tuple[str, ...] = ("greedy", "hetroute-one-layer", "hetroute-no-look-ahead")
    exact: tuple[str, ...] = ("hetroute-exact",)  # minutes for a placement: it rehearses with every team enumerated
    #: A set routed at once and each expert alone, where copies are spread and links are not yet full.
    spread: tuple[str, ...] = ("spread-set-level", "spread-each-alone")
    spread_models: tuple[str, ...] = ("mixtral-8x7b", "qwen1.5-moe-a2.7b")
    spread_rate_per_s: float = 5.0
    spread_s: float = 8.0
    disturbances: tuple[str, ...] = ("server_slowdown", "congestion_waves", "link_congestion")
    disturbed: tuple[str, ...] = ("edgeshard", "petals", "prism", "hetroute")
    disturbed_rate_per_s: float = 8.0
    disturbed_s: float = 12.0
    emulated: tuple[str, ...] = ("edgeshard", "petals", "prism", "hetroute")  # the default point, on packets


DEFAULT = Grid()
QUICK = Grid(
    models=("switch-base-8",),
    seeds=(0, 1),
    fewer=(0, 1),
    duration_s=1.0,
    frameworks=("edgeshard", "prism", "hetroute"),
    lower=("edgeshard-int8",),
    loads_per_s=(80.0,),
    loaded=("edgeshard", "hetroute"),
    overloads=(),
    redundancies=(1.0,),
    budgets=(0.005,),
    ablations=("hetroute-no-set-level",),
    at_home=(),
    exact=(),
    spread_models=("switch-base-8",),
    spread_s=2.0,
    disturbances=("server_slowdown",),
    disturbed=("edgeshard", "hetroute"),
    disturbed_s=6.0,
    emulated=("edgeshard", "hetroute"),
)

if __name__ == "__main__":
    import sys

    from analysis.hetroutepaper import draw
    from orchestration.hetroute_paper import main

    sys.exit(main(sys.argv[1:], default=DEFAULT, quick=QUICK, draw=draw))
