r"""Jobs of a device, and what a batch of them takes: the roofline of ``agents.frameworks.cost``, whoever is in it.

A pass has two jobs per layer, numbered as *stages* (``agents.schedulers.base``), and one after the last layer::

    stage 2l        the dense part of layer l                         :class:`Dense`
    stage 2l + 1    experts of layer l, of this server's copies        :class:`Experts`
    stage 2L        the output head                                    :class:`Head`

Jobs before the same stage can run as one batch:

    T_dense  = c + max( Σ_i n_i f_a / (eff F),  w_a / M )                                                         (1)
    T_expert = c + Σ_{(e, p)}  max( Σ_i n_i(e, p) f_e / (eff F),  w_{e,p} / M )                                   (2)
    T_head   = c + max( Σ_i n_i f_h / (eff F),  w_h / M )                                                         (3)

    n_i  tokens of pass i      w  weight bytes, read once per batch      c  launch, once per batch

A batch of one job takes what the job takes alone, to the bit.  Experts of one message that are loaded first run as jobs
of their own, and only the first of these brings a launch (``Experts.launches``); a batch pays c if anybody in it does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from agents.depth.passes import Depth
from agents.frameworks.base import View
from agents.frameworks.cost import head_s
from agents.protocol import Array, ExpertCall
from testbed.topology import Device

T = TypeVar("T")
Key = tuple[int, int, str]  # layer, expert, precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Attention and gate of one pass."""

    rows: int
    left: Array  # who has left (``agents.depth.leaving``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Expert calls of one pass on one server."""

    calls: Sequence[ExpertCall]
    launches: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output head of one pass."""

    rows: int
    left: Array


Part = Dense | Experts | Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[T]):
    """One piece of work of one pass."""

    request: int
    step: int  # of the request's passes
    stage: int
    part: Part
    work: Callable[[], T]  # the real arithmetic, of this pass alone
    ready_s: float  # when its input was complete
    needs: Key | None = None  # an expert that must be loaded first, held by whoever waits
    load: Awaitable[float] | None = None  # of that expert: when (emulated) it was there


class Pricing:
    """Equations (1) to (3) for one server."""

    def __init__(self, *, server: str, device: Device, view: View, depth: Depth) -> None:
        #: How many times longer than on its data sheet the device takes; a scenario may change it.
        self.slowness = 1.0
        self._server = server
        self._device = device
        self._view = view
        self._depth = depth

    def time_s(self, parts: Sequence[Part]) -> float:
        """What a batch takes; its parts are of one kind."""
        match parts[0]:
            case Dense():
                time_s = self._depth.dense_s(self._server, [(each.rows, each.left) for each in _of(Dense, parts)])
            case Experts():
                time_s = self._experts_s(_of(Experts, parts))
            case Head():
                heads = _of(Head, parts)
                time_s = head_s(self._device, self._view.profile, sum(each.rows for each in heads))
                time_s += self._depth.heads_s(np.concatenate([each.left for each in heads]))
        return self.slowness * time_s

    def _experts_s(self, parts: Sequence[Experts]) -> float:
        nominal, server = self._view.nominal, self._server
        time_s = nominal.launch_s(server) if any(each.launches for each in parts) else 0.0
        if len(parts) == 1:
            for call in parts[0].calls:
                time_s += nominal.call_s(server, call.precision, call.rows)
            return time_s
        rows: dict[tuple[int, str], int] = {}
        for each in parts:
            for call in each.calls:
                rows[call.expert, call.precision] = rows.get((call.expert, call.precision), 0) + call.rows
        for (_, precision), count in rows.items():
            time_s += nominal.call_s(server, precision, count)
        return time_s


P = TypeVar("P", Dense, Experts, Head)


def _of(kind: type[P], parts: Sequence[Part]) -> list[P]:
    """The parts, all of one kind."""
    found: list[P] = [each for each in parts if isinstance(each, kind)]
    if len(found) < len(parts):
        raise ValueError("a batch holds jobs of one stage")
    return found
