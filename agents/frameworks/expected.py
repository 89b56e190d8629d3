r"""What an average request asks of a layer: the demand that placements are planned for.

p_le = min(1, k u_le)                 share of tokens that expert e of layer l is chosen for                      (1)
q_le = 1 - (1 - p_le)^n               probability that at least one of n tokens chooses it                        (2)
t_ld = T_dense(d, n) + c_d + sum_e q_le T_cmp(d, e, n p_le / q_le)    time of a whole layer on server d           (3)

u_le  usage of the expert in the calibration text, as a share of its layer       k  experts per token
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster import Cluster
from agents.frameworks.cost import call_s, dense_s
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile

Floats = NDArray[np.float64]


class Expected:
    """Equations (1) to (3) for one cluster and model; arrays are indexed by layer, expert and server position."""

    def __init__(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> None:
        self._cluster, self._profile = cluster, profile
        self.tokens = max(1, cluster.tokens_per_request)
        usage = np.asarray(calibration.usage, dtype=np.float64).mean(axis=0)
        share = usage / np.maximum(usage.sum(axis=1, keepdims=True), 1e-12)
        self.token_share: Floats = np.minimum(1.0, profile.top_k * share)  # (layers, experts) (1)
        self.called: Floats = 1.0 - (1.0 - self.token_share) ** self.tokens  # (layers, experts) (2)
        self.dense_s: Floats = np.array(
            [dense_s(s.device, profile, self.tokens) for s in cluster.servers]
        )  # (servers,)
        self.launch_s: Floats = np.array([server.device.launch_s for server in cluster.servers])  # (servers,)
        self._expert_s: dict[str, Floats] = {}

    def expert_s(self, precision: str) -> Floats:
        """Expected device time per request of every expert on every server, without the launch of its batch.

        (layers, experts, servers)
        """
        if precision not in self._expert_s:
            time_s = np.zeros((self._profile.layers, self._profile.experts, len(self._cluster.servers)))
            for layer, expert in np.ndindex(time_s.shape[:2]):
                called = float(self.called[layer, expert])
                if called <= 0:
                    continue
                tokens = max(1, round(self.tokens * float(self.token_share[layer, expert]) / called))
                for position, server in enumerate(self._cluster.servers):
                    time_s[layer, expert, position] = called * call_s(server.device, self._profile, precision, tokens)
            self._expert_s[precision] = time_s
        return self._expert_s[precision]

    def layer_s(self, precision: str) -> Floats:
        """Equation (3), (servers, layers)."""
        time_s: Floats = self.expert_s(precision).sum(axis=1).T + (self.dense_s + self.launch_s)[:, None]
        return time_s

    def layer_load_s(self, precision: str) -> Floats:
        """Expected time per request to load a layer's experts from slow memory (servers, layers)."""
        size_bytes = self._profile.expert_bytes[precision]
        per_expert_s = np.array([size_bytes / server.device.load_bytes_per_s for server in self._cluster.servers])
        time_s: Floats = per_expert_s[:, None] * self.called.sum(axis=1)
        return time_s

    @property
    def state_bytes(self) -> int:
        """The residual stream of an average request."""
        return self.tokens * self._profile.hidden_bytes

    def move_s(self) -> Floats:
        """Time to move the residual stream of an average request between two servers (from, to)."""
        servers = range(len(self._cluster.servers))
        return np.array([[self._cluster.transfer_s(a, b, self.state_bytes) for b in servers] for a in servers])


def home_shares(cluster: Cluster) -> Floats:
    """Share of the requests that arrive at each server."""
    return np.array([server.home_share for server in cluster.servers])


def delays(cluster: Cluster) -> Floats:
    """One-way delays (from, to), zero within a server."""
    delay_s = np.array(cluster.delay_s, dtype=np.float64)
    np.fill_diagonal(delay_s, 0.0)
    return delay_s
