"""Which experts this server holds, in which memory, and the pacing of loads from slow to fast.

A replica placed in fast memory stays there.  A replica placed in slow memory is loaded before it runs; what fast memory
the placement leaves free is a cache of loaded experts (least recently used goes first).  Calls that need the same load
share it, and an expert in use cannot be evicted.  Where the cache is too small for even one expert, experts are
streamed through and kept by nobody.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from agents.clock import Clock
from agents.device import SerialLane
from agents.errors import PlacementError
from agents.protocol import Replica
from testbed.topology import Device

#: Share of the fast memory that experts may fill; the rest is for dense weights, KV cache and activations.
FAST_SHARE = 0.85

Key = tuple[int, int, str]  # layer, expert, precision


class ExpertStore:
    """The replicas of one server."""

    def __init__(
        self,
        *,
        replicas: Iterable[Replica],
        device: Device,
        expert_bytes: Mapping[str, int],
        clock: Clock,
    ) -> None:
        self.loader = SerialLane(clock)
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

    def hold(self, key: Key) -> None:
        """Keep an expert from being evicted until ``release``; PlacementError if it is not on this server."""
        if self.is_fast(key) and key in self._cached:
            self._cached.move_to_end(key)
        self._in_use[key] = self._in_use.get(key, 0) + 1

    async def fetch(self, key: Key, *, ready_s: float) -> float:
        """Bring a held expert into fast memory; returns when (emulated) it was there."""
        if self.is_fast(key):
            return ready_s
        if key not in self._loading:
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
        _, finish_s = await self.loader.run(
            lambda: None, ready_s=ready_s, modelled_s=size_bytes / self._device.load_bytes_per_s
        )
        del self._loading[key]
        self._shrink(size_bytes)
        self._cached[key] = size_bytes
        return finish_s

    def _shrink(self, wanted_bytes: int) -> None:
        """Evict the least recently used experts that nobody holds until ``wanted_bytes`` more fit, if possible."""
        used_bytes = sum(self._cached.values())
        for key in list(self._cached):
            if used_bytes + wanted_bytes <= self._cache_bytes:
                return
            if key not in self._in_use:
                used_bytes -= self._cached.pop(key)
