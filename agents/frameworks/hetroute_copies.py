"""The copies of every expert as the search sees them: priced for so many tokens, by the latest beliefs.

What does not change in a run (where a copy is, what it loses, how long its device takes for n tokens on its data
sheet) is looked up once.  What beliefs change (slowness, weights) is one factor per kind of copy, made anew when they
do, so that pricing a copy is one multiplication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agents.frameworks.base import ExpertDemand, View
from agents.frameworks.hetroute_problem import Option
from agents.protocol import Replica

#: ``Option`` without its call by name, which takes longer than all the rest.
_option = tuple.__new__


class Copy(NamedTuple):
    """What is known of a copy before anything is asked of it."""

    server: int
    precision: str
    kind: int  # of server and precision: copies of one kind take the same time for the same tokens
    loss: float  # relative, per gate share
    replica: Replica


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
            copy = Copy(position[replica.server], replica.precision, kind, loss, replica)
            self._copies.setdefault((replica.layer, replica.expert), []).append(copy)
            if replica.server == view.server:
                self._own.setdefault((replica.layer, replica.expert), []).append(copy)
        self._server_of = [position[server] for server, _ in self._kinds]
        #: By number of tokens, then by kind.
        self._call_s: dict[int, list[float]] = {}
        self.price([1.0] * len(position), loading=1.0)

    def price(self, slower: Sequence[float], *, loading: float) -> None:
        """From now on servers take ``slower`` times as long as on their data sheets, and loads ``loading`` times."""
        self._slower = [slower[server] for server in self._server_of]
        self._loading = loading
        #: By layer, expert and number of tokens; decoding asks for the same again and again.
        self._known: dict[tuple[int, int, int], tuple[Option, ...]] = {}

    def options(self, view: View, layer: int, expert: int, tokens: int) -> tuple[Option, ...]:
        """The copies of an expert, for so many tokens."""
        key = (layer, expert, tokens)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._priced(view, self._copies.get(key[:2], ()), tokens)
        return known

    def all_here(self, layer: int, experts: Iterable[ExpertDemand]) -> bool:
        """Whether the server that looks on has a copy of each."""
        own = self._own
        for entry in experts:  # noqa: SIM110 - a third of the time of all()
            if (layer, entry.expert) not in own:
                return False
        return True

    def own(self, view: View, layer: int, expert: int, tokens: int) -> tuple[Option, ...]:
        """Those on the server that looks on."""
        return self._priced(view, self._own.get((layer, expert), ()), tokens)

    def _priced(self, view: View, copies: Sequence[Copy], tokens: int) -> tuple[Option, ...]:
        call_s = self._call_s.get(tokens)
        if call_s is None:
            call_s = self._call_s[tokens] = [self._nominal.call_s(*kind, tokens) for kind in self._kinds]
        slower, loading = self._slower, self._loading
        found = []
        for server, precision, kind, loss, replica in copies:
            load_s = 0.0 if replica.fast else loading * view.load_s(replica)
            found.append(_option(Option, (server, precision, slower[kind] * call_s[kind], load_s, loss, -1)))
        return tuple(found)
