"""The true state of a simulated cluster, for frameworks that are to know what they usually estimate.

A server knows of the others what gossip told it a quarter of a second ago, and of links what its messages met.  In
virtual time the truth is at hand: every agent says how it is at this very moment, and every link what stands in it.
``--view oracle`` puts it in the place of telemetry, so that the same framework shows what estimation costs.

    d(a, b)  =  arrival of a very small message that is sent now, behind what is queued on every link, minus now    (1)
    r(a, b)  =  rate of the slowest link as it is in force now                                                     (2)

It is the present that is known, not the future: a request that comes next is a surprise to an oracle, too.  Of a
recorded rate or delay (a trace) the nominal value counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agents.agent import Agent, Sight
from agents.clock import Clock
from testbed.simulation.network import SimulatedNetwork

IDLE = (0.0, 0.0, 0.0)


class Truth:
    """What all servers see of all others, at once and as it is."""

    def __init__(
        self,
        *,
        clock: Clock,
        agents: Mapping[str, Agent],
        network: SimulatedNetwork,
        dead: Collection[str],
    ) -> None:
        """``agents`` and ``dead``, the servers that have failed, may still grow."""
        self._clock, self._agents, self._network, self._dead = clock, agents, network, dead

    def now_s(self) -> float:
        """Emulated time."""
        return self._clock.now_s()

    def alive(self, server: str) -> bool:
        """Whether a server has not failed: known at once, not after a silence."""
        return server not in self._dead

    def load(self, server: str) -> tuple[float, float, float]:
        """Device backlog, recent mean wait of a job, and load-channel backlog of a server, in seconds."""
        own = self._own(server)
        return IDLE if own is None else own.load(server)

    def path(self, source: str, target: str) -> tuple[float, float]:
        """Equations (1), s, and (2), bit/s."""
        return self._network.state(source, target)

    def slowness(self, server: str) -> float:
        """How many times longer than on its data sheet a server's device takes now."""
        own = self._own(server)
        return 1.0 if own is None else own.slowness(server)

    def cached(self, server: str) -> Collection[tuple[int, int, str]]:
        """Copies placed in a server's slow memory that are in its fast memory now: (layer, expert, precision)."""
        own = self._own(server)
        return () if own is None else own.cached(server)

    def _own(self, server: str) -> Sight | None:
        """What a server knows of itself; None before its run is made, or after its end."""
        return self._agents[server].sight
