"""A topology as the rest of the testbed sees it: frozen values in SI units.

Nothing here reads a file, asks a kernel or knows an expert.  ``testbed.load`` makes a ``Topology`` from YAML;
backends, the orchestrator and the agents only read it.

>>> metro = Direction(rate_bps=1e9, delay_s=0.002)
>>> metro.transfer_s(1_000_000), metro.effective_queue_bytes
(0.01, 2500000)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from testbed.impairments import CoDel, Distribution, GilbertElliott, Opportunities, Steps

BITS_PER_BYTE = 8
MTU_BYTES = 1500
#: Without a ``queue`` in the file a direction buffers this much time at its own rate (or twice its delay, if longer):
#: the common rule of one round trip, with a floor so that short links can take a burst of a few messages.
DEFAULT_QUEUE_S = 0.020
MIN_QUEUE_BYTES = 256 * 1024

#: What a device's file entry need not say: real kernels reach about half of the peak; a call costs about 20 us.
DEFAULT_EFFICIENCY = 0.5
DEFAULT_LAUNCH_S = 20e-6

NodeKind = Literal["server", "router"]
#: What makes a link's physics: user space or the kernel.
Engine = Literal["relay", "netem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The emulated accelerator of one server.  Convention: peak is dense FP16."""

    peak_flops_per_s: float
    memory_bytes_per_s: float  # bandwidth of the fast memory
    fast_bytes: int  # "GPU" memory: experts here run at once
    slow_bytes: int  # "host" memory: experts here are loaded first
    load_bytes_per_s: float  # slow -> fast
    efficiency: float = DEFAULT_EFFICIENCY  # share of the peak that real kernels reach, in (0, 1]
    launch_s: float = DEFAULT_LAUNCH_S  # fixed cost of one kernel call


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the topology.  A router forwards packets; a server has a device and runs one agent."""

    name: str
    kind: NodeKind = "server"
    device: Device | None = None  # always set for a server, never for a router
    users: float = 1.0  # relative share of the requests whose home this server is
    metro: str = ""  # a label for people and figures; frameworks look at delays instead
    cpus: float | None = None  # processors of this machine that its sandbox may use, where the backend can tell it
    ram_bytes: int | None = None  # memory of this machine that its sandbox may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction of a link: everything a packet meets between two neighbours."""

    rate_bps: float  # bits per second; faster arrivals queue.  With a trace: its mean
    delay_s: float  # one-way propagation, without queueing.  With a trace: its mean
    jitter_s: float = 0.0  # standard deviation of the extra delay
    jitter_shape: Distribution | None = None  # None: normal
    reorder: bool = False  # jitter lets packets overtake; without it they keep their order
    loss: float = 0.0  # probability in [0, 1] that a packet is lost, each for itself
    burst_loss: GilbertElliott | None = None  # loss in bursts, besides
    duplicate: float = 0.0  # probability that a packet arrives twice
    corrupt: float = 0.0  # probability that one bit of a packet is flipped
    queue_bytes: int | None = None  # drop-tail limit; None sizes it from rate and delay
    queue_packets: int | None = None  # drop-tail limit in packets, instead of bytes
    codel: CoDel | None = None  # drop early, below the limit
    rate_trace: Steps | None = None  # bits per second over time
    opportunities: Opportunities | None = None  # chances to leave over time, instead
    delay_trace: Steps | None = None  # seconds over time

    @property
    def effective_queue_bytes(self) -> int:
        """The drop-tail limit in force, in bytes; with a limit in packets, what so many full ones take."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        if self.queue_packets is not None:
            return self.queue_packets * MTU_BYTES
        held_s = max(DEFAULT_QUEUE_S, 2 * self.delay_s)
        return max(MIN_QUEUE_BYTES, int(self.rate_bps * held_s / BITS_PER_BYTE))

    @property
    def queue_in_packets(self) -> bool:
        """Whether the drop-tail limit counts packets instead of bytes."""
        return self.queue_bytes is None and self.queue_packets is not None

    @property
    def recorded_rate(self) -> Steps | Opportunities | None:
        """The recording that the rate follows, if it follows one."""
        return self.rate_trace or self.opportunities

    @property
    def mean_loss(self) -> float:
        """Share of the packets that the cable loses in the long run."""
        in_bursts = self.burst_loss.mean_loss if self.burst_loss else 0.0
        return 1 - (1 - self.loss) * (1 - in_bursts)

    @property
    def undelivered(self) -> float:
        """Share of the packets that reach no program: lost, or dropped by the receiver for their checksum."""
        return 1 - (1 - self.mean_loss) * (1 - self.corrupt)

    @property
    def per_packet(self) -> bool:
        """Whether physics tells packets apart, so that several must not cross as one."""
        chances = self.loss or self.burst_loss or self.duplicate or self.corrupt or self.jitter_s
        return bool(chances or self.queue_packets or self.codel or self.recorded_rate)

    @property
    def traced(self) -> bool:
        """Whether rate or delay follow a recording."""
        return bool(self.recorded_rate or self.delay_trace)

    def transfer_s(self, size_bytes: int) -> float:
        """Time to move a message over the idle direction: propagation, then serialization."""
        return self.delay_s + BITS_PER_BYTE * size_bytes / self.rate_bps


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One cable between the nodes ``a`` and ``b``."""

    a: str
    b: str
    forward: Direction  # a -> b
    backward: Direction  # b -> a

    @property
    def name(self) -> str:
        """``s1-s2``: how people, files and the CLI name this link."""
        return f"{self.a}-{self.b}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole emulated network."""

    name: str
    description: str = ""
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def servers(self) -> tuple[Node, ...]:
        """The nodes that run agents, in file order."""
        return tuple(node for node in self.nodes if node.kind == "server")

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def link(self, name: str) -> Link:
        """The link of that name, written from either end (``s1-s2`` or ``s2-s1``); KeyError if there is none."""
        for link in self.links:
            if name in (link.name, f"{link.b}-{link.a}"):
                return link
        raise KeyError(name)
