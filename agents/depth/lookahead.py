r"""What the budget could buy in later layers, so that no layer spends what a later one would spend better.

    s_{m+1} = s_m P_m                                     shares of the gate's weight, P_m transition probabilities (1)
    item (m, e):   loss s_me i_me,   saving (1 - (1 - min(1, k s_me))^n) c_me                                    (2)
    μ = saving / loss of the last item that fits, when items are taken by that ratio while Σ loss <= budget left (3)

    i_me  loss per gate weight without the expert     c_me  time of the expert where it runs quickest
    n, k  tokens of the pass, experts per token       μ     what a unit of loss must save, s

(3) is the threshold of the fractional knapsack: to spend in this layer only what saves at least μ per loss is to spend
the budget where it buys most.  A server that has planned a layer before knows better than (2) what cuts save there,
transmissions included, because it has seen the plans; then the two cuts that it remembers, the best and all of it,
stand in for the layer, their loss in the proportion in which (1) expects more or less important experts than usual.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agents.depth.base import skip_loss
from agents.frameworks.base import Demand, View

Doubles = npt.NDArray[np.float64]

#: Weight of the newest plan in what is remembered of a layer.
SMOOTHING = 0.1
#: Marks a layer that has not been planned here; any time will do as long as it is not negative.
UNSEEN = -1.0


class Lookahead:
    """Equations (1) to (3) on one server; needs what was measured of the model's experts."""

    def __init__(self, view: View) -> None:
        """ValueError where nothing is known of the experts."""
        facts, profile = view.facts, view.profile
        if facts is None:
            raise ValueError("a look-ahead needs measured experts")
        layers, experts = profile.layers, profile.experts
        self._layers, self._top_k = layers, profile.top_k
        self._transition = facts.transition.astype(np.float64)
        self._importance = np.array(
            [[skip_loss(facts, layer, expert) for expert in range(experts)] for layer in range(layers)]
        )
        usage = view.calibration.usage.mean(axis=0)
        self._usual = (usage * self._importance).sum(axis=1)  # loss of a whole layer, on average
        tokens = max(1, round(view.cluster.tokens_per_request * profile.top_k / experts))
        self._call_s = self._quickest_s(view, tokens)
        servers = view.cluster.names
        self._dense_s = min(view.dense_s(server, round(view.cluster.tokens_per_request)) for server in servers)
        self._seen_s = np.full(layers, UNSEEN)  # time of a layer that was planned here, without its dense part
        self._best = np.zeros((layers, 2))  # loss and saving of the cut that saves most for its loss
        self._whole = np.zeros((layers, 2))  # and of cutting all

    def remember(self, layer: int, layer_s: float, cuts: Sequence[tuple[float, float]]) -> None:
        """A plan made here takes ``layer_s``; ``cuts`` are (loss, saving) of more and more cuts."""
        if not cuts:
            return
        best = max(cuts, key=lambda cut: cut[1] / cut[0])
        weight = 1.0 if self._seen_s[layer] == UNSEEN else SMOOTHING
        self._seen_s[layer] += weight * (layer_s - self._seen_s[layer])
        self._best[layer] += weight * (np.array(best) - self._best[layer])
        self._whole[layer] += weight * (np.array(cuts[-1]) - self._whole[layer])

    def price_s(self, demand: Demand, budget: float) -> float:
        """Equation (3) for the layers after the demand's: 0 when all of them fit into ``budget``."""
        if budget <= 0.0:
            return float("inf")
        losses, savings = self._items(demand)
        if not len(losses):
            return 0.0
        ratio = savings / losses
        order = np.argsort(-ratio)
        spent = np.cumsum(losses[order])
        fits = int(np.searchsorted(spent, budget, side="right"))
        return 0.0 if fits >= len(order) else float(ratio[order[fits]])

    @property
    def pass_s(self) -> float:
        """What a whole pass takes, roughly."""
        return self.rest_s(-1)

    def rest_s(self, layer: int) -> float:
        """What a pass still takes after ``layer``, roughly."""
        later = np.arange(layer + 1, self._layers)
        cheapest_s = self._call_s[later].sum(axis=1)
        seen_s = self._seen_s[later]
        return float(np.where(seen_s == UNSEEN, cheapest_s, seen_s).sum()) + len(later) * self._dense_s

    def _items(self, demand: Demand) -> tuple[Doubles, Doubles]:
        shares = np.zeros(self._importance.shape[1])
        for entry in demand.experts:
            shares[entry.expert] = entry.gate_share
        losses, savings = [], []
        for layer in range(demand.layer + 1, self._layers):
            shares = shares @ self._transition[layer - 1]
            weighed = shares * self._importance[layer]
            if self._seen_s[layer] == UNSEEN:
                called = 1.0 - (1.0 - np.minimum(1.0, self._top_k * shares)) ** demand.tokens
                losses.append(weighed)
                savings.append(called * self._call_s[layer])
                continue
            scale = float(weighed.sum() / self._usual[layer])
            (best_loss, best_s), (all_loss, all_s) = self._best[layer], self._whole[layer]
            losses.append(scale * np.array([best_loss, all_loss - best_loss]))
            savings.append(np.array([best_s, all_s - best_s]))
        if not losses:
            return np.zeros(0), np.zeros(0)
        every_loss, every_s = np.concatenate(losses), np.concatenate(savings)
        real = (every_loss > 0) & (every_s > 0)
        return every_loss[real], every_s[real]

    def _quickest_s(self, view: View, tokens: int) -> Doubles:
        """c_me: among copies in fast memory, else with the load."""
        found = np.zeros(self._importance.shape)
        for layer, expert in np.ndindex(found.shape):
            copies = view.replicas(layer, expert)
            times = [view.call_s(copy.server, copy.precision, tokens) + view.load_s(copy) for copy in copies]
            found[layer, expert] = min(times, default=0.0)
        return found
