r"""What a plan takes, and what it takes after cuts: the slowest server of the team decides.

    t_d(k) = x(a, d, n_k) + w_d + c_d + Σ_{e not among the first k} (T_cmp(d, e) + T_load(d, e)) + x(d, a', n_k)    (1)
    t_a(k) = w_a + c_a + Σ_{e ...} (...) + x(a, a', n)                                                         (2)
    T      = max_d t_d(k_d)                                                                                      (3)

    a, a'  this and the next aggregation server      x(i, j, n)  time to move n tokens' states; 0 if i = j
    k_d    experts that are cut on server d           n_k         tokens that the experts left there need
    w_d    wait in front of the device               c_d         launch; with nothing left to run w and c are 0, and
                                                                 for d other than a all of t_d is

A cut helps (3) only on the server that is slowest at that moment, and a trip is saved only when the last expert of a
server goes.  Therefore cuts are tried in one order, ``descents``: always the next expert of the slowest server, those
first that lose least for their time; every prefix of that order is a candidate, judged as a whole.

>>> team = [Part(server="s1", experts=(0, 1), time_s=(0.003, 0.002, 0.0), size_bytes=(0, 0, 0)),
...         Part(server="s2", experts=(2,), time_s=(0.009, 0.0), size_bytes=(800, 0))]
>>> [(step.expert, step.server, step.layer_s) for step in descents(team)]
[(2, 's2', 0.003), (0, 's1', 0.002), (1, 's1', 0.0)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agents.frameworks.base import Choice, ExpertDemand, Plan, View
from agents.protocol import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The work of one server; entry k of ``time_s`` and ``size_bytes`` is what is left without the first k experts."""

    server: str
    experts: tuple[int, ...]  # in the order in which they would be cut
    time_s: tuple[float, ...]  # equations (1) and (2), one more than experts
    size_bytes: tuple[int, ...]  # that this part puts on links


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One more cut, and what the layer is then."""

    expert: int
    server: str
    last: bool  # nothing is left on that server
    layer_s: float  # equation (3)
    size_bytes: int  # on links, all servers


def parts_of(
    plan: Plan, demands: Sequence[ExpertDemand], tokens: int, view: View, layer: int, rank: Callable[[int], float]
) -> list[Part]:
    """The team of a plan, its experts in ascending order of ``rank``."""
    entries = {entry.expert: entry for entry in demands}
    replicas = {(copy.server, copy.precision, copy.expert): copy for e in entries for copy in view.replicas(layer, e)}
    teams: dict[str, list[Choice]] = {view.server: []}
    for choice in sorted(plan.choices, key=lambda choice: (rank(choice.expert), choice.expert)):
        teams.setdefault(choice.server, []).append(choice)
    return [_part(server, team, entries, replicas, tokens, plan.next_server, view) for server, team in teams.items()]


def descents(parts: Sequence[Part]) -> Iterator[Step]:
    """Cut after cut, always at the slowest server, until that one has nothing to cut."""
    cut = [0] * len(parts)
    times = [part.time_s[0] for part in parts]
    size_bytes = sum(part.size_bytes[0] for part in parts)
    while True:
        slowest = max(range(len(parts)), key=times.__getitem__)
        part, done = parts[slowest], cut[slowest]
        if done == len(part.experts):
            return
        cut[slowest] = done + 1
        times[slowest] = part.time_s[done + 1]
        size_bytes += part.size_bytes[done + 1] - part.size_bytes[done]
        yield Step(
            expert=part.experts[done],
            server=part.server,
            last=done + 1 == len(part.experts),
            layer_s=max(times),
            size_bytes=size_bytes,
        )


def _part(
    server: str,
    team: Sequence[Choice],
    entries: dict[int, ExpertDemand],
    replicas: dict[tuple[str, str, int], Replica],
    tokens: int,
    next_server: str,
    view: View,
) -> Part:
    here, state_bytes = view.server, view.profile.hidden_bytes
    onwards_s = view.transfer_s(here, next_server, tokens * state_bytes) if server == here else 0.0
    work_s, rows, times, sizes = 0.0, 0, [onwards_s], [0]
    wait_s = (view.backlog_s(server) if server == here else view.wait_s(server)) + view.launch_s(server)
    for choice in reversed(team):  # from nothing to everything, so that every sum is one more term
        entry = entries[choice.expert]
        copy = replicas.get((server, choice.precision, choice.runs))
        work_s += view.call_s(server, choice.precision, entry.tokens)
        work_s += view.load_s(copy) if copy is not None else 0.0
        rows |= entry.rows
        if server == here:
            times.append(wait_s + work_s + onwards_s)
            sizes.append(0)
            continue
        size_bytes = rows.bit_count() * state_bytes
        there_s = view.transfer_s(here, server, size_bytes)
        times.append(there_s + wait_s + work_s + view.transfer_s(server, next_server, size_bytes))
        sizes.append(size_bytes if server == next_server else 2 * size_bytes)
    return Part(
        server=server,
        experts=tuple(choice.expert for choice in team),
        time_s=tuple(reversed(times)),
        size_bytes=tuple(reversed(sizes)),
    )
