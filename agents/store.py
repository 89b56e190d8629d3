"""Which experts this server holds, in which memory, and the pacing of loads from slow to fast.

A replica placed in fast memory stays there.  A replica placed in slow memory is loaded before it runs; what fast memory
the placement leaves free is a cache of loaded experts (least recently used goes first).  Calls that need the same load
share it, and an expert in use cannot be evicted.  Where the cache is too small for even one expert, experts are
streamed through and kept by nobody.

A framework may say what is worth keeping (``keep_by``): what is worth least then goes first.  It may also name experts
to load ahead: that happens one by one while nobody waits for the load channel, and a load that has begun is not
interrupted.  Whatever is loaded ahead never takes the place of something that is worth more, nor of something that was
loaded ahead and is still to be used.

A placement may change during a run (``agents.migration``): copies arrive in slow memory, and those that are to stay in
fast memory are loaded ahead.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agents.clock import Clock
from agents.device import Meter, SerialLane
from agents.errors import PlacementError
from agents.protocol import Loads, Replica
from agents.wishes import Key, Wishes
from testbed.topology import Device

#: Share of the fast memory that experts may fill; the rest is for dense weights, KV cache and activations.
FAST_SHARE = 0.85

#: Emulated seconds for which a copy that a new placement takes away can still be called, from slow memory.
LINGER_S = 60.0
#: Stands for the store itself among the requests that wish for loads.
STORE = -1

#: Turns of the loop within which loads that are asked for now have been booked.
BOOKING_TURNS = 3

Worth = Callable[[Key], float]


class Loader(Meter, Protocol):
    """The channel from slow to fast memory."""

    async def read(self, key: Key, *, ready_s: float, modelled_s: float) -> float:
        """Read one expert, beginning not before ``ready_s``; returns when (emulated) it was there."""
        ...


class InOrder(SerialLane):
    """A channel that reads experts in the order in which they were asked for."""

    async def read(self, key: Key, *, ready_s: float, modelled_s: float) -> float:  # noqa: ARG002
        """See ``Loader``."""
        _, finish_s = await self.run(_nothing, ready_s=ready_s, modelled_s=modelled_s)
        return finish_s


class ExpertStore:
    """The replicas of one server."""

    def __init__(
        self,
        *,
        replicas: Iterable[Replica],
        device: Device,
        expert_bytes: Mapping[str, int],
        clock: Clock,
        loader: Loader | None = None,
    ) -> None:
        """``loader``: the channel from slow to fast memory; by default it reads in the order of asking."""
        self.loader = InOrder(clock) if loader is None else loader
        self._clock = clock
        self._device = device
        self._expert_bytes = expert_bytes
        self._resident: set[Key] = set()
        self._slow: set[Key] = set()
        for replica in replicas:
            key = (replica.layer, replica.expert, replica.precision)
            (self._resident if replica.fast else self._slow).add(key)
        fast_bytes = sum(expert_bytes[precision] for _, _, precision in self._resident)
        slow_bytes = sum(expert_bytes[precision] for _, _, precision in self._slow)
        if fast_bytes > FAST_SHARE * device.fast_bytes:
            raise PlacementError(
                f"the placement puts {fast_bytes / 1e9:.1f} GB of experts into fast memory; "
                f"{FAST_SHARE:.0%} of {device.fast_bytes / 1e9:.0f} GB may be used"
            )
        if slow_bytes > device.slow_bytes:
            raise PlacementError(
                f"the placement puts {slow_bytes / 1e9:.1f} GB of experts into slow memory; "
                f"there are {device.slow_bytes / 1e9:.0f} GB"
            )
        self._cache_bytes = int(FAST_SHARE * device.fast_bytes) - fast_bytes
        self._cached: OrderedDict[Key, int] = OrderedDict()  # key -> bytes, oldest first
        self._in_use: dict[Key, int] = {}
        self._loading: dict[Key, asyncio.Future[float]] = {}
        self._worth: Worth | None = None
        self._wishes = Wishes()
        self._unused: set[Key] = set()  # loaded ahead, or on their way so, and not asked for since
        self._ahead: asyncio.Task[None] | None = None
        self._to_stay: set[Key] = set()  # of a new placement, in slow memory still, to stay in fast memory
        self._leaving_s: dict[Key, float] = {}  # of an old placement: when they go
        self.loads = Loads()

    def is_fast(self, key: Key) -> bool:
        """Whether a call could run without a load; PlacementError if the expert is not on this server at all."""
        if key in self._resident or key in self._cached:
            return True
        if key in self._slow:
            return False
        layer, expert, precision = key
        raise PlacementError(f"expert {expert} of layer {layer} in precision {precision} has no replica on this server")

    def cached(self) -> list[Key]:
        """Experts that were loaded from slow memory and are still in fast memory."""
        return list(self._cached)

    def keep_by(self, worth: Worth) -> None:
        """Evict what is worth least from now on; the cache begins with what is worth most, as after a long time."""
        self._worth = worth
        free_bytes = self._cache_bytes
        for key in sorted(self._slow, key=lambda key: (-worth(key), key)):
            free_bytes -= self._expert_bytes[key[2]]
            if free_bytes < 0:
                return
            self._cached[key] = self._expert_bytes[key[2]]

    def prefetch(self, request: int, keys: Iterable[Key]) -> None:
        """Load these ahead, the first one first; they take the place of what the request has wished for before.

        PlacementError if one is not on this server.
        """
        self._wishes.put(request, [key for key in keys if not self.is_fast(key)])
        if self._wishes and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.ensure_future(self._load_ahead())

    def holds(self, key: Key) -> bool:
        """Whether an expert is on this server, in whatever memory."""
        return key in self._resident or key in self._slow

    def arrive(self, key: Key) -> None:
        """A copy has come over the network, into slow memory; PlacementError where there is no room for it."""
        self._slow.add(key)
        needed_bytes = sum(self._expert_bytes[precision] for _, _, precision in self._slow)
        if needed_bytes > self._device.slow_bytes:
            self._slow.remove(key)
            raise PlacementError(
                f"a copy that moves here needs slow memory: {needed_bytes / 1e9:.1f} GB of experts in all; "
                f"there are {self._device.slow_bytes / 1e9:.0f} GB"
            )

    def keep(self, keys: Iterable[Key]) -> None:
        """A placement to come wants these: those that were to leave stay until the next ``rearrange``."""
        for key in keys:
            self._leaving_s.pop(key, None)

    def rearrange(self, replicas: Iterable[Replica], *, now_s: float) -> None:
        """These copies belong here from now on, and no others; all of them are here already.

        What leaves fast memory goes to slow memory, and from there ``LINGER_S`` later if it belongs nowhere here.  That
        takes no time and asks for no room: its bytes count when the next copy wants to ``arrive``.
        """
        fast: set[Key] = set()
        slow: set[Key] = set()
        for replica in replicas:
            key = (replica.layer, replica.expert, replica.precision)
            (fast if replica.fast else slow).add(key)
        before = self._resident | self._slow
        self._to_stay = fast - self._resident - self._cached.keys()
        self._resident = fast - self._to_stay
        for key in self._resident:
            self._cached.pop(key, None)
            self._unused.discard(key)
        self._slow = before - self._resident
        self._leaving_s = {key: self._leaving_s.get(key, now_s + LINGER_S) for key in self._slow - slow - self._to_stay}
        fast_bytes = sum(self._expert_bytes[precision] for _, _, precision in fast)
        self._cache_bytes = int(FAST_SHARE * self._device.fast_bytes) - fast_bytes
        self._shrink(0)
        self.prefetch(STORE, sorted(self._to_stay))

    def forget_expired(self, now_s: float) -> None:
        """Drop the copies that have left with an earlier placement, but for those in use and those being loaded."""
        busy = self._in_use.keys() | self._loading.keys()
        for key in [key for key, until_s in self._leaving_s.items() if now_s > until_s and key not in busy]:
            del self._leaving_s[key]
            self._slow.discard(key)
            self._cached.pop(key, None)
            self._unused.discard(key)

    def close(self) -> None:
        """Load nothing ahead any more."""
        self._wishes.clear()
        if self._ahead is not None:
            self._ahead.cancel()

    def hold(self, key: Key) -> None:
        """Keep an expert from being evicted until ``release``; PlacementError if it is not on this server."""
        if self.is_fast(key) and key in self._cached:
            self._cached.move_to_end(key)
        if key in self._unused:
            self._unused.remove(key)
            self.loads.used += 1
        self._in_use[key] = self._in_use.get(key, 0) + 1

    async def fetch(self, key: Key, *, ready_s: float) -> float:
        """Bring a held expert into fast memory; returns when (emulated) it was there."""
        if self.is_fast(key):
            return ready_s
        if key not in self._loading:
            self.loads.demanded += 1
            self._loading[key] = asyncio.ensure_future(self._load(key, ready_s))
        return await asyncio.shield(self._loading[key])

    def release(self, key: Key) -> None:
        """End a hold; without it the expert may be evicted."""
        self._in_use[key] -= 1
        if not self._in_use[key]:
            del self._in_use[key]
            self._shrink(0)

    async def _load(self, key: Key, ready_s: float) -> float:
        size_bytes = self._expert_bytes[key[2]]
        finish_s = await self.loader.read(key, ready_s=ready_s, modelled_s=size_bytes / self._device.load_bytes_per_s)
        del self._loading[key]
        if key in self._to_stay:
            self._to_stay.remove(key)
            self._slow.remove(key)
            self._resident.add(key)
            return finish_s
        self._shrink(size_bytes)
        self._cached[key] = size_bytes
        return finish_s

    async def _load_ahead(self) -> None:
        """Grant one wish after the other, whenever the channel is free."""
        for _ in range(BOOKING_TURNS):  # what is needed now comes first
            await asyncio.sleep(0)
        while self._wishes:
            if (busy_s := self.loader.backlog_s()) > 0:
                await self._clock.sleep_until_s(self._clock.now_s() + busy_s)
                continue
            key = self._wishes.take(lambda key: key in self._loading or not self.holds(key) or self.is_fast(key))
            if key is None:
                return
            if key in self._to_stay or self._has_room_for(key):
                if key not in self._to_stay:
                    self.loads.prefetched += 1
                    self._unused.add(key)
                self._loading[key] = asyncio.ensure_future(self._load(key, self._clock.now_s()))
                await asyncio.shield(self._loading[key])

    def _has_room_for(self, key: Key) -> bool:
        """Whether an expert can be loaded ahead without evicting something that is worth more."""
        room_bytes = self._cache_bytes - sum(self._cached.values()) - self._expert_bytes[key[2]]
        for other in self._leaving():
            if room_bytes >= 0:
                break
            if other in self._in_use or other in self._unused:
                continue
            if self._worth is not None and self._worth(other) >= self._worth(key):
                break
            room_bytes += self._cached[other]
        return room_bytes >= 0

    def _leaving(self) -> list[Key]:
        """What is in the cache, in the order in which it would be evicted."""
        if self._worth is None:
            return list(self._cached)
        return sorted(self._cached, key=self._worth)  # of equals the least recently used

    def _shrink(self, wanted_bytes: int) -> None:
        """Evict what is worth least and held by nobody until ``wanted_bytes`` more fit, if possible."""
        used_bytes = sum(self._cached.values())
        if used_bytes + wanted_bytes <= self._cache_bytes:
            return
        for key in self._leaving():
            if used_bytes + wanted_bytes <= self._cache_bytes:
                return
            if key not in self._in_use:
                used_bytes -= self._cached.pop(key)
                if key in self._unused:
                    self._unused.remove(key)
                    self.loads.wasted += 1


def _nothing() -> None:
    return None
