r"""What the online router will select, found by letting it route.  HetRoute, offline part [reconstruction].

    P(r)    = (requests of a rehearsal that call copy r) / (all requests)                                         (1)
    C       = mean latency of these requests + λ · mean loss                                                      (2)

A rehearsal draws requests from the calibration traffic, lets them arrive at the rate that the placement is made for,
and routes them with the very online part that will route the run, one instance per server, over ideal queues
(``queues``).  So P knows of bottlenecks, waits, precision and look-ahead, which a frequency of activation does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from agents.cluster import Cluster
from agents.frameworks.base import Framework
from agents.frameworks.queues import Queues, requests_of
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import GOSSIP_INTERVAL_S, Placement

#: Layer passes of a rehearsal: requests are as many as make them up.
LAYER_PASSES = 2_000
#: Least and most requests of one.
FEWEST, MOST = 30, 160
SEED = 7
#: Share of the requests that only fill the queues.
WARM_UP = 0.2

Copy = tuple[int, int, str, str]  # layer, expert, server, precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Equations (1) and (2)."""

    selected: Mapping[Copy, float]
    mean_s: float
    loss: float
    wait_s: Mapping[str, float]  # of jobs for each server's device, at the end

    def cost_s(self, loss_price_s: float) -> float:
        """C of (2)."""
        return self.mean_s + loss_price_s * self.loss


Rehearse = Callable[[Placement, Cluster, ModelProfile, Calibration], Rehearsal]


def rehearsed(framework: Callable[[], Framework], *, quality_budget: float) -> Rehearse:
    """A rehearsal with online parts made by ``framework``, of requests that may lose ``quality_budget`` each."""

    def rehearse(placement: Placement, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Rehearsal:
        wanted = min(MOST, max(FEWEST, LAYER_PASSES // profile.layers))
        requests = requests_of(
            cluster,
            profile,
            calibration.usage,
            duration_s=1.5 * wanted / cluster.arrival_rate_per_s,
            seed=SEED,
        )[:wanted]
        queues = Queues(
            framework,
            cluster,
            profile,
            calibration,
            placement,
            gossip_s=GOSSIP_INTERVAL_S,
            quality_budget=quality_budget,
        )
        queues.run(requests)
        counted = requests[int(WARM_UP * len(requests)) :]
        return Rehearsal(
            selected={copy: count / len(requests) for copy, count in queues.selected.items()},
            mean_s=float(np.mean([queues.latency_s[request.number] for request in counted])),
            loss=float(np.mean(queues.spent)),
            wait_s={name: lane.wait_s for name, lane in queues.devices.items()},
        )

    return rehearse
