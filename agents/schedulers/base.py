r"""What a scheduler is: decisions about one device and one load channel, taken on an explicit state.

A request goes through *stages*, two per layer, again and again, once per pass (its prompt, then each new token)::

    stage 2l      the dense part of layer l: attention and gate.  Afterwards the experts of layer l are known exactly.
    stage 2l + 1  those experts.  Ready when all of them are in fast memory.

The device runs one *group* at a time: requests that stand before the same stage, in one batch.  The load channel reads
one expert at a time.  Whenever one of them is free, the executor (``agents.offloading``) asks:

    next_group(state)        who runs next; nobody: the device waits until something happens
    next_load(state)         which expert is read next; None: the channel waits
    victim(state, free)      which of the experts that nobody needs makes room

Answers depend on the state and on what ``revealed`` and ``ended`` have told before: no clock, no randomness.  The
executor refuses an answer that is impossible with a :class:`SchedulerError`.

Experts of all layers are numbered through, ``layer * experts + expert``, and called *keys*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from testbed.errors import TestbedError

Key = int
Group = tuple[int, ...]  # request numbers
Matrix = npt.NDArray[np.float64]


class SchedulerError(TestbedError):
    """A scheduler that is unknown, cannot be loaded, or decided something impossible; the message names it."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """One request that waits for its next stage."""

    request: int
    arrived: int  # how many came before it
    stage: int  # 2l or 2l + 1
    advance: int = 0  # stages behind it, plus where the least advanced stood when it came
    tokens: int = 1  # of its pass
    needs: tuple[Key, ...] = ()  # exactly the experts of its layer, where the gate has named them
    missing: int = 0  # how many of these are not in fast memory
    guess: tuple[Key, ...] = ()  # the gate of the next layer, asked too early: likeliest first
    passed_over: int = 0  # groups that ran since it became ready

    @property
    def ready(self) -> bool:
        """Whether the device could run it now."""
        return not self.missing

    @property
    def rank(self) -> tuple[int, int]:
        """The least advanced first; among equals, who came first."""
        return self.advance, self.arrived


@dataclass(slots=True, kw_only=True)
class State:
    """All that a decision may rest on.  Only the executor changes it."""

    layers: int
    experts: int  # of every layer
    slots: int  # experts that fast memory holds
    standing: dict[int, Standing] = field(default_factory=dict)  # by request number, without those that run
    running: tuple[Standing, ...] = ()  # on the device now
    loading: Key | None = None  # on the load channel now
    #: Missing experts that standing requests need, first demanded first, without the one being read:
    #: key -> loads that had begun before.
    demanded: dict[Key, int] = field(default_factory=dict)
    needers: dict[Key, list[int]] = field(default_factory=dict)  # key -> standing requests that need it
    loads: int = 0  # begun so far
    resident: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))  # by key
    held: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # requests that need a key now
    last_use: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # group number, -1: never
    uses: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # requests that have used a key

    @classmethod
    def empty(cls, *, layers: int, experts: int, slots: int) -> State:
        """Nobody is there, and fast memory is empty."""
        keys = layers * experts
        return cls(
            layers=layers,
            experts=experts,
            slots=slots,
            resident=np.zeros(keys, bool),
            held=np.zeros(keys, np.int32),
            last_use=np.full(keys, -1, np.int64),
            uses=np.zeros(keys),
        )

    @property
    def stages(self) -> int:
        """Stages of one pass."""
        return 2 * self.layers

    def ready(self) -> list[Standing]:
        """Standing requests that the device could run now."""
        return [each for each in self.standing.values() if not each.missing]

    def at_stage(self, stage: int) -> Group:
        """All ready requests before this stage, in order of arrival."""
        return tuple(each.request for each in self.standing.values() if each.stage == stage and not each.missing)


class Scheduler(Protocol):
    """Decides what the device and the load channel of one machine do."""

    name: str
    splits: bool  # whether the resident experts of a request's layer may run while others are loaded
    faults: bool  # whether experts are faulted in page by page, as by a memory-mapped file, instead of read whole

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """A run begins on this machine.  ``history``: earlier requests' tokens by (layer, expert), oldest first."""
        ...

    def next_group(self, state: State) -> Group:
        """Ready requests before one stage, to run as one batch; empty to leave the device idle for now."""
        ...

    def next_load(self, state: State) -> Key | None:
        """An expert that is neither resident nor being read.  One that nobody demands is a prefetch."""
        ...

    def victim(self, state: State, free: npt.NDArray[np.bool_]) -> Key:
        """One of the keys where ``free`` is true; there is at least one."""
        ...

    def protected(self, state: State) -> Collection[Key]:
        """Experts that nobody demands yet and that are evicted only where a demand leaves no other choice."""
        ...

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """A gate has named the experts of this request's layer, with their tokens."""
        ...

    def ended(self, request: int) -> None:
        """A request has left."""
        ...


class BaseScheduler:
    """Defaults: loads what is demanded, first come first served; keeps what was used last; learns nothing."""

    name = "base"
    faults = False
    splits = False
    cache = "lru"  # the policy that it has where none is asked for

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        from agents.schedulers.caches import policy

        given = dict(options or {})
        self._cache = policy(str(given.pop("cache", self.cache)))
        self.configure(given)
        if given:
            raise SchedulerError(f"scheduler {self.name} has no option {sorted(given)[0]!r}")

    def configure(self, options: dict[str, Any]) -> None:
        """Take the options that this scheduler knows out of ``options``."""

    def begin(self, state: State, history: Sequence[Matrix]) -> None:
        """Nothing to prepare."""

    def next_group(self, state: State) -> Group:
        """To be written by each scheduler."""
        raise NotImplementedError

    def next_load(self, state: State) -> Key | None:
        """What was demanded first."""
        return next(iter(state.demanded), None)

    def victim(self, state: State, free: npt.NDArray[np.bool_]) -> Key:
        """What the cache policy gives up."""
        return self._cache(state, free)

    def protected(self, state: State) -> Collection[Key]:  # noqa: ARG002
        """Nothing."""
        return ()

    def revealed(self, standing: Standing, counts: Mapping[Key, int]) -> None:
        """Nothing to learn."""

    def ended(self, request: int) -> None:
        """Nothing to forget."""


def number_option(options: dict[str, Any], name: str, default: int, *, least: int = 1) -> int:
    """Take a whole number out of ``options``; SchedulerError where it is none, or too small."""
    value = options.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SchedulerError(f"option {name!r} must be a whole number of at least {least}, not {value!r}")
    return value
