r"""What one server believes of waits and links, and the V that follows.  HetRoute, online part [reconstruction].

    w_d  <-  w_d + α (gossip_d - w_d)      every ``REFRESH_S``, begun at the wait that the placement expects     (1)
    u_d      wait behind the requests that are known to be under way (``hetroute_underway``),  m_d  its slow mean
    e_d   =  u_d + max(0, w_d - m_d)       where a request that arrives expects to wait                           (2)

Gossip is a quarter of a second old, longer than many a request lives.  A server that steers by the newest backlogs
steers by the past, and all others with it: they leave the busy pipeline together and meet again in the other.  So
(1) is slow, and leaving a pipeline in mid-request must gain ``detour_s``.  Where a request begins is decided by (2):
what is under way now, as homes told each other, and what gossip knows beyond that.

    r  measured / predicted time of a layer that was gathered here,  h_i  share of cost term i in the prediction
    ω_i  <-  ω_i + α h_i (r ω_i - ω_i) / max_j h_j        weights of transmission, loading, computation          (3)

(3) corrects the terms that made up what was mispredicted: a link that is slower than thought makes distance dearer, a
device that is busier makes computation dearer.  Weights stay within [1/2, 2].

All of this is made once per round of gossip, outside of any request, and ``plan`` only reads it; (2) and the V that
follows from it are made anew for every request that enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agents.frameworks.base import View
from agents.frameworks.cost import CostTerms
from agents.frameworks.expected import Expected, Floats
from agents.frameworks.hetroute_outlook import Live, Outlook
from agents.frameworks.hetroute_problem import Way
from agents.frameworks.hetroute_underway import Route, Underway, Visit
from agents.protocol import FULL
from testbed.topology import BITS_PER_BYTE

#: Emulated seconds between two refreshes of V.
REFRESH_S = 0.25
#: α of (1).
WAIT_WEIGHT = 0.1
#: Added to the wait of a server that does not answer.
LOST_S = 10.0
#: α, and the bounds of (3).
TERM_WEIGHT = 0.05
LEAST_WEIGHT, MOST_WEIGHT = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a request begins, and how long it is expected to stay."""

    first: int  # position of the server
    passes: float  # device time, in units of a pass over a whole prompt
    duration_s: float


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
        risk_s: float,
    ) -> None:
        """``risk_s`` is added to the wait of every other server, ``detour_s`` to steps out of a pipeline."""
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
        self._underway = Underway(len(self.names))
        self._modelled_s = np.zeros(len(self.names))  # m of (2)
        #: By first server and home, made when first asked for.
        self._routes: dict[tuple[int, int], Route] = {}
        self._decoding = decoding_share(view)
        #: ω of (3): transmission, loading, computation.
        self.weights = [1.0, 1.0, 1.0]
        self._here = self._position[view.server]
        self._state_bytes = view.profile.hidden_bytes
        self._price_s_per_byte = price_s_per_byte
        self._risk_s = risk_s
        self._launch_s = [view.nominal.launch_s(name) for name in self.names]
        self.slowness = [1.0] * len(self.names)
        #: By whether lower precisions may be used, and how many: next servers and their costs.
        self._aheads: dict[tuple[bool, int], tuple[list[list[list[int]]], list[list[list[float]]]]] = {}
        #: Changes whenever what was derived from these beliefs must be made anew.
        self.epoch = 0

    def refresh(self, view: View) -> None:
        """Take in gossip and links (1), at most every ``REFRESH_S`` unless a server went or came."""
        now_s = view.now_s()
        alive = [view.alive(name) for name in self.names]
        if now_s - self._refreshed_s < REFRESH_S and alive == self.alive:
            return
        if self._refreshed_s > float("-inf"):
            gossip_s = np.array([view.wait_s(name) for name in self.names])
            self._wait_s += WAIT_WEIGHT * (gossip_s - self._wait_s)
            self._modelled_s += WAIT_WEIGHT * (self._underway.wait_s(now_s) - self._modelled_s)
        self._refreshed_s = now_s
        self.alive = alive
        paths = [[view.path(a, b) for b in self.names] for a in self.names]
        self._delay_s = np.array([[delay_s for delay_s, _ in row] for row in paths])
        self._s_per_byte = np.array([[BITS_PER_BYTE / rate_bps for _, rate_bps in row] for row in paths])
        self.slowness = [view.slowness(name) for name in self.names]
        self._load_wait_s = np.array([view.load_backlog_s(name) for name in self.names])
        self._rebuild()

    def enter(self, home: int, output_tokens: int, now_s: float) -> Entry:
        """Where a request of this home begins: the server from which it is expected to be done first, by (2)."""
        wait_s = self._underway.wait_s(now_s) + np.maximum(0.0, self._wait_s - self._modelled_s)
        live = replace(self._live, wait_s=wait_s + self._lost_s)
        value_s, _ = self._valued(self._outlooks[True], live)
        first = int((live.delay_s[home] + value_s[0][:, home]).argmin())
        more = max(0, output_tokens - 1)
        route, passes = self._route(first, home), 1.0 + self._decoding * more
        # Every token crosses the links in full, though it takes devices less time than a prompt does.
        duration_s = passes * (route.pass_s(wait_s) - route.away_s) + (1 + more) * route.away_s
        entry = Entry(first=first, passes=passes, duration_s=duration_s)
        self.under_way(entry, home, now_s)
        return entry

    def under_way(self, entry: Entry, home: int, entered_s: float) -> None:
        """A request has entered, here or elsewhere."""
        route = self._route(entry.first, home)
        self._underway.add(Visit(route=route, entered_s=entered_s, duration_s=entry.duration_s, passes=entry.passes))

    def _route(self, first: int, home: int) -> Route:
        """The servers that a request of this home visits from ``first`` on, by the slow beliefs."""
        known = self._routes.get((first, home))
        if known is not None:
            return known
        value_s, best_s = self._tables(True)
        outlook, here = self._outlooks[True], first
        owners, work_s = [], []
        away_s = float(self._live.delay_s[home, first])
        for layer in range(self.layers):
            owners.append(here)
            work_s.append(self.slowness[here] * float(outlook.dense_s[here] + outlook.device_s[layer, here]))
            following = int((best_s[layer, here] + value_s[layer + 1, :, home]).argmin())
            away_s += float(self._move_s[here, following])
            here = following
        work_s[-1] += float(outlook.head_s[here])
        away_s += float(self._live.delay_s[here, home])
        made = self._routes[first, home] = Route.of(owners, work_s, servers=len(self.names), away_s=away_s)
        return made

    def learn(self, measured_s: float, predicted: CostTerms) -> None:
        """Take in what a layer took against what was predicted of it (3)."""
        terms_s = (predicted.transmission_s, predicted.loading_s, predicted.compute_s)
        total_s, most_s = sum(terms_s), max(terms_s)
        if total_s <= 0:
            return
        ratio = min(MOST_WEIGHT, max(LEAST_WEIGHT, measured_s / total_s))
        for place, term_s in enumerate(terms_s):
            weight = self.weights[place]
            weight += TERM_WEIGHT * (max(term_s, 0.0) / most_s) * (ratio - 1.0) * weight
            self.weights[place] = min(MOST_WEIGHT, max(LEAST_WEIGHT, weight))

    def way(self, following: int, ahead_s: float) -> Way:
        """The way to every server and on to ``following``; made once per refresh but for V."""
        made = self._ways.get(following)
        if made is None:
            here = self._here
            busy_s = [wait_s + launch_s for wait_s, launch_s in zip(self.queue_s, self.launch_s, strict=True)]
            made = self._ways[following] = Way.of(
                here=here,
                following=following,
                ahead_s=0.0,
                state_bytes=self._state_bytes,
                delay_s=self.delay_s,
                s_per_byte=self.s_per_byte,
                busy_s=busy_s,
                price_s_per_byte=self._price_s_per_byte,
            )
        return made.with_ahead(ahead_s)

    def ahead(self, layer: int, home: int, *, lossy: bool, most: int) -> list[tuple[int, float]]:
        """The most promising next aggregation servers, with V and the detour's price, the best first."""
        known = self._aheads.get((lossy, most))
        if known is None:
            known = self._aheads[lossy, most] = self._ahead(lossy=lossy, most=most)
        following, value_s = known
        return list(zip(following[layer][home], value_s[layer][home], strict=True))

    def _ahead(self, *, lossy: bool, most: int) -> tuple[list[list[list[int]]], list[list[list[float]]]]:
        """The same of all layers and homes at once: the servers, and what each costs (layers, home, most)."""
        value_s = self._tables(lossy)[0][1:].transpose(0, 2, 1)  # (layers, home, a)
        if lossy:
            value_s = value_s + self._detour_s[:, None, self._here]
        living = np.flatnonzero(self.alive) if any(self.alive) else np.array([self._here])
        reached_s = value_s[..., living] + self._move_s[self._here, living]
        following = living[np.argsort(reached_s, axis=2, kind="stable")[..., :most]]
        return following.tolist(), np.take_along_axis(value_s, following, axis=2).tolist()

    def _rebuild(self) -> None:
        """What decisions read, from the latest beliefs."""
        self._believe()
        _, loading, computation = self.weights
        live = self._live
        self.wait_s: list[float] = live.wait_s.tolist()
        self.queue_s = [computation * (wait_s + self._risk_s) for wait_s in self.wait_s]
        self.launch_s = [
            computation * slowness * launch_s for slowness, launch_s in zip(self.slowness, self._launch_s, strict=True)
        ]
        self.load_wait_s: list[float] = (loading * self._load_wait_s).tolist()
        self.delay_s: list[list[float]] = live.delay_s.tolist()
        self.s_per_byte: list[list[float]] = live.s_per_byte.tolist()
        self._move_s = live.delay_s + live.s_per_byte * self._expected.state_bytes
        self._ways: dict[int, Way] = {}
        asked = list(self._aheads)  # whoever asked lately will ask again: prepare it now, outside of any request
        self._aheads.clear()
        for lossy, most in asked:
            self._aheads[lossy, most] = self._ahead(lossy=lossy, most=most)
        self.epoch += 1

    def _believe(self) -> None:
        """The slow beliefs (1) and the links; V of these is made when first asked for."""
        self._lost_s = LOST_S * ~np.array(self.alive)
        transmission = self.weights[0]
        self._live = Live(
            wait_s=self._wait_s + self._lost_s,
            load_wait_s=self._load_wait_s,
            delay_s=transmission * self._delay_s,
            s_per_byte=transmission * self._s_per_byte,
            slowness=np.array(self.slowness),
        )
        self._cached: dict[bool, tuple[Floats, Floats]] = {}
        self._routes.clear()

    def _tables(self, lossy: bool) -> tuple[Floats, Floats]:
        """V and the best transitions, made when first asked for."""
        if lossy not in self._cached:
            self._cached[lossy] = self._valued(self._outlooks[lossy], self._live)
        return self._cached[lossy]

    def _valued(self, outlook: Outlook, live: Live) -> tuple[Floats, Floats]:
        """V and the best transitions."""
        best_s, _, _ = outlook.transitions(live)
        value_s = outlook.next_layer_s(live, best_s) if self._one_layer else outlook.values(live, best_s)
        return value_s, best_s

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


def decoding_share(view: View) -> float:
    """Device time of a pass over one token, as a share of that over a request's tokens; of all servers together."""
    profile, tokens = view.profile, max(1, round(view.cluster.tokens_per_request))
    each = max(1, round(tokens * profile.top_k / profile.experts))
    called = min(profile.experts, tokens * profile.top_k)
    one_s = many_s = 0.0
    for name in view.cluster.names:
        launch_s = view.launch_s(name)
        one_s += view.dense_s(name, 1) + launch_s + profile.top_k * view.call_s(name, FULL, 1)
        many_s += view.dense_s(name, tokens) + launch_s + called * view.call_s(name, FULL, each)
    return min(1.0, one_s / many_s)


def _next(owners: Sequence[int]) -> list[int]:
    """The owner of the layer after, by layer; after the last one the request stays."""
    return [*owners[1:], owners[-1]]
