r"""Which expert makes room: cache policies, as functions of the state.

    lru           argmin  last use                                                                                (1)
    lfu           argmin  uses                                         ties: (1)                                  (2)
    least-stale   argmax  d(layer),  d = least over requests of (layer - l_r) mod L          ties: (2), then (1)  (3)
    next-use      argmax  d(layer) + L (1 - P) / P,  P = 1 - (1 - q)^n                       [ours]               (4)

    l_r  layer at which request r stands    L  layers    n  requests    q  the expert's share of its layer's uses

Passes visit layers in a cycle, so what was used last will be needed last, and (1) throws away just what comes next
(SpecMD, arXiv 2602.03921, names its answer Least-Stale).  (3) is our reconstruction of that idea for many requests:
experts of layers that every request has just left go first; among those, the ones seldom asked for.  (4) puts both into
one number: how many layers until somebody asks for the expert, if each of n passes asks for it with probability q.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from agents.schedulers.base import Key, SchedulerError, State
from testbed.errors import did_you_mean

Policy = Callable[[State, npt.NDArray[np.bool_]], Key]


def lru(state: State, free: npt.NDArray[np.bool_]) -> Key:
    """Equation (1)."""
    places = np.flatnonzero(free)
    return int(places[state.last_use[places].argmin()])


def lfu(state: State, free: npt.NDArray[np.bool_]) -> Key:
    """Equation (2)."""
    places = np.flatnonzero(free)
    return _seldom(state, places)


def least_stale(state: State, free: npt.NDArray[np.bool_]) -> Key:
    """Equation (3)."""
    places = np.flatnonzero(free)
    away = layers_away(state)[places // state.experts]
    return _seldom(state, places[away == away.max()])


def layers_away(state: State) -> npt.NDArray[np.int64]:
    """d of equation (3) for every layer; an expert of the layer where a request stands is 0 away."""
    at = np.array([each.stage // 2 for each in (*state.standing.values(), *state.running)] or [0])
    return np.asarray(((np.arange(state.layers)[:, None] - at) % state.layers).min(axis=1), np.int64)


def next_use(state: State, free: npt.NDArray[np.bool_]) -> Key:
    """Equation (4); an expert without uses counts as half a use."""
    places = np.flatnonzero(free)
    uses = state.uses.reshape(state.layers, state.experts) + 0.5
    share = (uses / uses.sum(axis=1, keepdims=True)).ravel()[places]
    present = max(1, len(state.standing) + len(state.running))
    asked = 1 - (1 - share) ** present
    until = layers_away(state)[places // state.experts] + state.layers * (1 - asked) / asked
    return int(places[until.argmax()])


POLICIES: dict[str, Policy] = {"lru": lru, "lfu": lfu, "least-stale": least_stale, "next-use": next_use}


def policy(name: str) -> Policy:
    """A cache policy by name; SchedulerError listing the known ones."""
    if name not in POLICIES:
        raise SchedulerError(
            f"there is no cache policy {name!r}{did_you_mean(name, POLICIES)}; known: {', '.join(POLICIES)}"
        )
    return POLICIES[name]


def _seldom(state: State, places: npt.NDArray[np.intp]) -> Key:
    uses = state.uses[places]
    fewest = places[uses == uses.min()]
    return int(fewest[state.last_use[fewest].argmin()])
