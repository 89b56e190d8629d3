"""The copies of every expert as the search sees them: priced for so many tokens, by the latest beliefs.

What does not change in a run (where a copy is, what it loses, how long its device takes for n tokens on its data
sheet, how long a copy of its size loads) is looked up once.  What beliefs change (slowness, weights) is one factor per
kind of copy, and the times by number of tokens are made anew when they do, so that pricing a copy is one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.frameworks.base import ExpertDemand, View
from agents.frameworks.hetroute_problem import Need, Option
from agents.protocol import Replica

#: ``Option`` and ``Need`` without their calls by name, which take longer than all the rest.
_new = tuple.__new__


class Copy(NamedTuple):
    """What is known of a copy before anything is asked of it."""

    server: int
    precision: str
    kind: int  # of server and precision: copies of one kind take the same time for the same tokens
    loss: float  # relative, per gate share
    slow: Replica | None  # itself, if it was placed in slow memory


class Copies:
    """All copies of a placement, seen from one server."""

    def __init__(self, view: View, position: Mapping[str, int]) -> None:
        """``position`` numbers the servers."""
        self._nominal = view.nominal
        self._kinds: dict[tuple[str, str], int] = {}
        self._copies: dict[tuple[int, int], list[Copy]] = {}
        self._own: dict[tuple[int, int], list[Copy]] = {}  # those of this server
        for replica in sorted(view.placement.replicas):
            kind = self._kinds.setdefault((replica.server, replica.precision), len(self._kinds))
            loss = view.quality_loss(replica.layer, replica.precision)
            slow = None if replica.fast else replica
            copy = Copy(position[replica.server], replica.precision, kind, loss, slow)
            self._copies.setdefault((replica.layer, replica.expert), []).append(copy)
            if replica.server == view.server:
                self._own.setdefault((replica.layer, replica.expert), []).append(copy)
        self._server_of = [position[server] for server, _ in self._kinds]
        #: By number of tokens, then by kind.
        self._call_s: dict[int, list[float]] = {}
        #: By kind: a load without queueing.
        self._load_s: dict[int, float] = {}
        self.price([1.0] * len(position), loading=1.0)

    def price(self, slower: Sequence[float], *, loading: float) -> None:
        """From now on servers take ``slower`` times as long as on their data sheets, and loads ``loading`` times."""
        self._slower = [slower[server] for server in self._server_of]
        self._loading = loading
        #: By number of tokens, then by kind: as slow as the servers now are.
        self._compute_s: dict[int, list[float]] = {}
        #: By layer, expert and number of tokens; decoding asks for the same again and again.
        self._known: dict[tuple[int, int, int], tuple[Option, ...]] = {}

    def needs(self, view: View, layer: int, experts: Iterable[ExpertDemand]) -> list[Need]:
        """What is asked for, with all copies that there are."""
        found, known = [], self._known
        for entry in experts:
            expert, tokens = entry.expert, entry.tokens
            key = (layer, expert, tokens)
            options = known.get(key)
            if options is None:
                options = known[key] = self._priced(view, self._copies.get((layer, expert), ()), tokens)
            found.append(_new(Need, (expert, entry.rows, entry.gate_share, options)))
        return found

    def own(self, view: View, layer: int, experts: Iterable[ExpertDemand]) -> list[Need] | None:
        """The same with the copies on the server that looks on; None if it has none of some expert."""
        own = self._own
        for entry in experts:
            if (layer, entry.expert) not in own:
                return None
        return [
            Need(entry.expert, entry.rows, entry.gate_share, self._priced(view, own[layer, entry.expert], entry.tokens))
            for entry in experts
        ]

    def options(self, view: View, layer: int, expert: int, tokens: int) -> tuple[Option, ...]:
        """The copies of an expert, for so many tokens."""
        key = (layer, expert, tokens)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._priced(view, self._copies.get(key[:2], ()), tokens)
        return known

    def _priced(self, view: View, copies: Sequence[Copy], tokens: int) -> tuple[Option, ...]:
        compute_s = self._compute_s.get(tokens) or self._computing(tokens)
        found = []
        for server, precision, kind, loss, slow in copies:
            load_s = 0.0 if slow is None or view.cached(slow) else self._loading * self._loads(view, kind, slow)
            found.append(_new(Option, (server, precision, compute_s[kind], load_s, loss, -1)))
        return tuple(found)

    def _computing(self, tokens: int) -> list[float]:
        """The time of so many tokens by kind."""
        call_s = self._call_s.get(tokens)
        if call_s is None:
            call_s = self._call_s[tokens] = [self._nominal.call_s(*kind, tokens) for kind in self._kinds]
        made = [slower * time_s for slower, time_s in zip(self._slower, call_s, strict=True)]
        self._compute_s[tokens] = made
        return made

    def _loads(self, view: View, kind: int, replica: Replica) -> float:
        """The load of a copy that is not in fast memory, which its server and precision decide."""
        known_s = self._load_s.get(kind)
        if known_s is None:
            known_s = self._load_s[kind] = view.load_s(replica)
        return known_s
