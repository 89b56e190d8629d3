"""HetRoute's routing over copies that are spread over all servers: what a set-level choice is worth by itself.

HetRoute's own placement keeps a layer's experts together, which leaves the routing of a set little to choose.  Here the
placement is that of the simple baselines (``placements.spread``: full precision, popular experts twice), every request
is gathered at home, and only the choice of copies differs: the cheapest team, or the cheapest copy of each expert
alone (``set_level: false``).  Between these two a difference has one cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.cluster import Cluster
from agents.frameworks.hetroute import HetRoute
from agents.frameworks.placements import spread
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import Placement


class SpreadRouting(HetRoute):
    """HetRoute's choice of copies, nothing else of it.  Options: those of HetRoute's online part."""

    name = "spread-routing"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__({"look_ahead": "none", **(options or {})})

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """Popular experts twice, by free fast memory."""
        return spread(cluster, profile, calibration)
