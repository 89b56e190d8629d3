r"""What one server believes of waits and links, and the V that follows.  HetRoute, online part [reconstruction].

    w_d  <-  w_d + α (gossip_d - w_d)      every ``REFRESH_S``, begun at the wait that the placement expects     (1)
    w_d  +=  own requests of the last ``REFRESH_S``:  sum over them of  (S / layers) (S / T)                      (2)

    S  device time of a request on d, T  its device time in all: one job of S / layers is there with probability S / T

Gossip is a quarter of a second old, longer than many a request lives..  A server that steers by the newest backlogs
steers by the past, and all others with it: they leave the busy pipeline together and meet again in the other..  So
(1) is slow, (2) makes a server count what it has just sent itself, and leaving a pipeline in mid-request must gain
``detour_s``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from agents.frameworks.base import View
from agents.frameworks.expected import Expected, Floats
from agents.frameworks.hetroute_outlook import Live, Outlook
from agents.protocol import FULL

#: Emulated seconds between two refreshes of V.
REFRESH_S = 0.25
#: α of (1).
WAIT_WEIGHT = 0.1
#: Added to the wait of a server that does not answer.
LOST_S = 10.0
#: Size at which links are asked for their rate.
UNIT_BYTES = 1_000_000


class Beliefs:
    """Waits, links and V of one server, refreshed from its view."""

    def __init__(
        self,
        view: View,
        *,
        price_s_per_byte: float,
        penalty_s: Mapping[str, Floats],
        detour_s: float,
        one_layer: bool,
    ) -> None:
        cluster = view.cluster
        self.names = cluster.names
        self.layers = view.profile.layers
        self._one_layer = one_layer
        self._position = {name: position for position, name in enumerate(self.names)}
        self._expected = Expected(cluster, view.profile, view.calibration)
        self._detour_s = self._detours(view, detour_s)
        #: By whether lower precisions may still be used.
        self._outlooks = {
            lossy: Outlook(
                cluster,
                view.profile,
                self._expected,
                view.placement.replicas,
                price_s_per_byte=price_s_per_byte,
                penalty_s=penalty_s if lossy else {FULL: penalty_s[FULL]},
                detour_s=self._detour_s if lossy else 0.0,
            )
            for lossy in (True, False)
        }
        prior_s = view.placement.notes.get("wait_s", {})
        self._wait_s = np.array([float(prior_s.get(name, 0.0)) for name in self.names])
        self.alive = [True] * len(self.names)
        self._refreshed_s = float("-inf")
        self._sent: deque[tuple[float, Floats]] = deque()
        self.weight = 1.0  # of remote times, learnt from feedback

    def refresh(self, view: View) -> None:
        """Take in gossip and links (1), at most every ``REFRESH_S`` unless a server went or came."""
        now_s = view.now_s()
        alive = [view.alive(name) for name in self.names]
        if now_s - self._refreshed_s < REFRESH_S and alive == self.alive:
            return
        if self._refreshed_s > float("-inf"):
            gossip_s = np.array([view.wait_s(name) for name in self.names])
            self._wait_s += WAIT_WEIGHT * (gossip_s - self._wait_s)
        self._refreshed_s = now_s
        self.alive = alive
        self._delay_s = np.array([[view.delay_s(a, b) for b in self.names] for a in self.names])
        whole_s = np.array([[view.transfer_s(a, b, UNIT_BYTES) for b in self.names] for a in self.names])
        self._s_per_byte = (whole_s - self._delay_s) / UNIT_BYTES
        self._load_wait_s = np.array([view.load_backlog_s(name) for name in self.names])
        self._rebuild(now_s)

    def first_server(self, home: int, now_s: float) -> int:
        """Where a request of this home should begin, counting what this server lately sent itself (2)."""
        self._rebuild(now_s)
        value_s, best_s = self._tables(True)
        first = here = int((self._live.delay_s[home] + value_s[0][:, home]).argmin())
        outlook = self._outlooks[True]
        work_s = np.zeros(len(self.names))
        for layer in range(self.layers):
            work_s[here] += outlook.dense_s[here] + outlook.work_s[layer, here] * outlook.whole[layer, here]
            here = int((best_s[layer, here] + value_s[layer + 1, :, home]).argmin())
        self._sent.append((now_s, work_s))
        return first

    def ahead(self, layer: int, here: int, home: int, *, lossy: bool, most: int) -> list[tuple[int, float]]:
        """The most promising next aggregation servers, with V and the detour's price, the best first."""
        if lossy not in self._lists:
            self._lists[lossy] = self._tables(lossy)[0].transpose(0, 2, 1).tolist()  # (layers + 1, home, a)
        value_s = self._lists[lossy][layer + 1][home]
        if lossy:
            value_s = [
                value + detour for value, detour in zip(value_s, self._detour_s[layer, here].tolist(), strict=True)
            ]
        move_s = self._move_list[here]
        living = [a for a, alive in enumerate(self.alive) if alive] or [here]
        living.sort(key=lambda a: value_s[a] + move_s[a])
        return [(a, value_s[a]) for a in living[:most]]

    def _rebuild(self, now_s: float) -> None:
        while self._sent and now_s - self._sent[0][0] > REFRESH_S:
            self._sent.popleft()
        own_s = np.zeros(len(self.names))
        for _, work_s in self._sent:
            own_s += (work_s / self.layers) * (work_s / max(float(work_s.sum()), 1e-9))  # (2)
        lost_s = LOST_S * ~np.array(self.alive)
        self._live = Live(
            wait_s=self._wait_s + own_s + lost_s,
            load_wait_s=self._load_wait_s,
            delay_s=self.weight * self._delay_s,
            s_per_byte=self.weight * self._s_per_byte,
        )
        self.wait_s: Sequence[float] = self._live.wait_s.tolist()
        self.load_wait_s: Sequence[float] = self._load_wait_s.tolist()
        self.delay_s: Sequence[Sequence[float]] = self._live.delay_s.tolist()
        self.s_per_byte: Sequence[Sequence[float]] = self._live.s_per_byte.tolist()
        self._move_list = (self._live.delay_s + self._live.s_per_byte * self._expected.state_bytes).tolist()
        self._cached: dict[bool, tuple[Floats, Floats]] = {}
        self._lists: dict[bool, list[list[list[float]]]] = {}

    def _tables(self, lossy: bool) -> tuple[Floats, Floats]:
        """V and the best transitions, made when first asked for."""
        if lossy not in self._cached:
            outlook = self._outlooks[lossy]
            best_s, _, _ = outlook.transitions(self._live)
            value_s = (
                outlook.next_layer_s(self._live, best_s) if self._one_layer else outlook.values(self._live, best_s)
            )
            self._cached[lossy] = value_s, best_s
        return self._cached[lossy]

    def _detours(self, view: View, detour_s: float) -> Floats:
        """What a step must gain that leaves its pipeline, or stays outside of all (layers, a, a').

        The guarantee may be left freely where other pipelines are there to be joined.
        """
        entries = view.placement.notes.get("pipelines", ())
        chains = [[self._position[name] for name in entry["owners"]] for entry in entries]
        if not chains:
            return np.zeros((self.layers, len(self.names), len(self.names)))
        *others, guarantee = chains
        leaving = np.full((self.layers, len(self.names), len(self.names)), detour_s)
        each = np.arange(self.layers)
        if others:
            leaving[each, guarantee] = 0.0
        for owners in others or chains:
            leaving[each, :, _next(owners)] = 0.0
        for owners in others or chains:
            leaving[each, owners] = detour_s
        for owners in others or chains:
            leaving[each, owners, _next(owners)] = 0.0
        return leaving


def _next(owners: Sequence[int]) -> list[int]:
    """The owner of the layer after, by layer; after the last one the request stays."""
    return [*owners[1:], owners[-1]]
