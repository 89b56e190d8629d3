r"""Spans of whole layers on a swarm of servers, and a client that finds its own way.  Petals, arXiv 2209.01188
[reconstruction].

Placement is ``petals_spans``, the way is ``petals_routing``: home takes the first server by (4) there, and from it on
the ways of (2).  All experts of a layer run where the layer is.  The client holds the head: the states of
the last layer go home.

A server that stops answering is banned for 15 s, then 30 s ...; who is in the swarm, and all RTTs, are looked at every
60 s.  Throughputs are those announced at the start: nobody sees a queue, as in the paper.

The client decides on the whole chain, which travels with the request: servers only follow it.

Where our engine differs from the paper's client:

- A chain whose next server is lost is repaired by the client, which sends what it has kept of the states.  Here the
  server at the end of the span before repairs it, by the same search with its own measured RTTs and its own bans.
- Token ids travel to the first server, not embeddings: some 8 KB per token less on the first hop.
- A failure shows as silence in gossip (``View.alive``), and an answer to it as a success; the client would notice
  at its next call.

``precision`` makes the same in int8 or int4, ``serialisation_s`` replaces the authors' 18 ms per hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.cluster import Cluster
from agents.frameworks.base import Arrival, BaseFramework, Choice, Demand, Plan, View, next_server
from agents.frameworks.petals_routing import (
    REFRESH_S,
    SERIALISATION_S,
    Bans,
    Spans,
    Way,
    chain,
    covering,
    entries,
    follow,
    half_rtt_s,
    read,
    ways,
    written,
)
from agents.frameworks.petals_spans import spans
from agents.frameworks.placements import known_precision
from agents.models.calibrate import Calibration
from agents.models.profile import ModelProfile
from agents.protocol import FULL, Placement, Replica


class Petals(BaseFramework):
    """Spans, and the shortest way through them."""

    name = "petals"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        rest = dict(options or {})
        self.precision = str(rest.pop("precision", FULL))
        self.serialisation_s = float(rest.pop("serialisation_s", SERIALISATION_S))
        super().__init__(rest)

    def place(self, cluster: Cluster, profile: ModelProfile, calibration: Calibration) -> Placement:
        """See ``petals_spans``."""
        known_precision(self.precision, profile, framework=self.name)
        hosted, layer_s = spans(cluster, profile, calibration, self.precision, framework=self.name)
        replicas = [
            Replica(
                layer=layer,
                expert=expert,
                server=cluster.names[span.server],
                precision=self.precision,
                fast=layer - span.begin < span.fast,
            )
            for span in hosted
            for layer in range(span.begin, span.end)
            for expert in range(profile.experts)
        ]
        notes = {
            "spans": {cluster.names[span.server]: [span.begin, span.end] for span in hosted},
            "layer_s": {cluster.names[span.server]: layer_s[span.server] for span in hosted},
        }
        return Placement(replicas=tuple(replicas), notes=notes)

    def begin(self, view: View) -> None:
        """Read the spans from the placement and look round for the first time."""
        self._spans: Spans = {name: (begin, end) for name, (begin, end) in view.placement.notes["spans"].items()}
        self._layer_s: dict[str, float] = dict(view.placement.notes["layer_s"])
        self._bans = Bans()
        self._found: dict[str, tuple[Spans, dict[tuple[str, int], Way]]] = {}
        self._found_for: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._refresh(view)

    def enter(self, arrival: Arrival, view: View) -> str:
        """Equation (4) of ``petals_routing``."""
        reachable, found = self._ways(arrival.home, view)
        return self._entry(arrival.home, 0, reachable, found, view)

    def notes(self, arrival: Arrival, view: View) -> bytes:
        """The chain that begins at the server of ``enter``."""
        reachable, found = self._ways(arrival.home, view)
        first = self._entry(arrival.home, 0, reachable, found, view)
        return written(chain(found, first, 0, view.profile.layers))

    def plan(self, demand: Demand, view: View) -> Plan:
        """Experts at this server; stay to the end of its span, then on along the chain that came with the request."""
        following = follow(read(demand.notes), view.server, demand.layer, demand.home, view.profile.layers)
        if following is not None and view.alive(following):
            return self._plan(demand, view.server, following)
        return self._searched(demand, view)

    def _searched(self, demand: Demand, view: View) -> Plan:
        """Where there is no chain, or its next server is lost: a new one from here, by equation (2)."""
        reachable, found = self._ways(demand.home, view)
        owner, layer = view.server, demand.layer
        if (owner, layer) not in found:
            owner = self._entry(view.server, layer, reachable, found, view)
        notes = written(chain(found, owner, layer, view.profile.layers))
        return self._plan(demand, owner, found[owner, layer].following, notes)

    def _plan(self, demand: Demand, owner: str, following: str, notes: bytes | None = None) -> Plan:
        choices = tuple(Choice(expert=e.expert, server=owner, precision=self.precision) for e in demand.experts)
        return Plan(choices=choices, next_server=next_server(demand, following), notes=notes)

    def _entry(
        self, origin: str, layer: int, reachable: Spans, found: Mapping[tuple[str, int], Way], view: View
    ) -> str:
        """The best server to go to for a layer."""
        costs = entries(reachable, layer, found)
        return min(
            costs,
            key=lambda server: (self._half_rtt_s(view, origin, server) + self.serialisation_s + costs[server], server),
        )

    def _ways(self, home: str, view: View) -> tuple[Spans, dict[tuple[str, int], Way]]:
        """The ways of a client at ``home``, searched anew when something has changed."""
        if view.now_s() - self._refreshed_s >= REFRESH_S:
            self._refresh(view)
        usable = tuple(server for server in self._spans if self._usable(server, view))
        alive = tuple(server for server in self._spans if view.alive(server))
        if (usable, alive) != self._found_for:
            self._found.clear()
            self._found_for = (usable, alive)
        if home not in self._found:
            reachable = covering(self._spans, view.profile.layers, usable, alive, list(self._spans))
            self._found[home] = (
                reachable,
                ways(
                    reachable,
                    layers=view.profile.layers,
                    layer_s=self._layer_s,
                    half_rtt_s=lambda one, other: self._half_rtt_s(view, one, other),
                    home=home,
                    serialisation_s=self.serialisation_s,
                ),
            )
        return self._found[home]

    def _usable(self, server: str, view: View) -> bool:
        if self._bans.banned(server, now_s=view.now_s()):
            return False
        if not view.alive(server):
            self._bans.failed(server, now_s=view.now_s())
            return False
        self._bans.succeeded(server)
        return server in self._swarm

    def _refresh(self, view: View) -> None:
        """Look who is there; RTTs are taken as they are needed, and kept."""
        self._refreshed_s = view.now_s()
        self._swarm = frozenset(server for server in self._spans if view.alive(server))
        self._rtt_s: dict[tuple[str, str], float | None] = {}
        self._found.clear()

    def _half_rtt_s(self, view: View, one: str, other: str) -> float:
        pair = (one, other)
        if pair not in self._rtt_s:
            known = view.alive(other)
            self._rtt_s[pair] = view.delay_s(one, other) + view.delay_s(other, one) if known else None
        return half_rtt_s(self._rtt_s[pair])
