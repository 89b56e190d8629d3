"""Kernel units: the one file that knows what ``sch_netem``, ``sch_htb`` and the fifos want to be told, and in what.

Everything above speaks seconds, bits per second, probabilities and bytes of IP packets.  The kernel speaks

    times           nanoseconds in 64 bits, or ticks of 64 ns in 32
    rates           BYTES per second; 32 bits end at 34 Gbit/s, from there on a second attribute carries 64
    bursts          the time that they take at the class's rate, in ticks
    probabilities   32 bits, all ones is certainty; Gilbert-Elliott's ``h`` is the chance to get THROUGH a bad link
    sizes           of Ethernet frames, 14 bytes more than the IP packet
    jitter          a table of 16 bit quantiles with one standard deviation = 8192; without one it would be uniform

and keeps what a change does not mention, so every message says everything.

A direction becomes two things.  The ``Queue`` holds what waits and lets it go at the link's rate.  The ``Line`` makes
each packet take size/rate and then the delay, one after the other, so the queue may let some milliseconds' worth go at
once without letting anything arrive early.

>>> line_of(Direction(rate_bps=100e6, delay_s=0.005, loss=0.5), bundle=1).delay_ns
5000000
>>> queue_of(Direction(rate_bps=8e6, delay_s=0.0, queue_bytes=150_000), bundle=1)
Queue(rate_bytes_per_s=1009333, burst_ticks=62500, quantum_bytes=1514, limit=147362, in_packets=False)
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from testbed.impairments import TABLE_SIGMA, Distribution, GilbertElliott
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction

#: What a veth puts in front of every IP packet.
ETHERNET_BYTES = 14
FRAME_BYTES = MTU_BYTES + ETHERNET_BYTES
#: Frames in place of packets: rates and limits grow by this, so that full packets meet the rate of the file.
FRAMING = FRAME_BYTES / MTU_BYTES

MAX_U32 = 0xFFFFFFFF
MAX_JITTER_NS = 0x7FFFFFFF
MAX_INT16 = 0x7FFF
TICK_NS = 64
NS = 1e9
#: The queue lets go at once what passes in this time: as late as timers may wake up without costing throughput.
BURST_S = 0.004
#: ... but never more than this share of the queue.
BURST_OF_QUEUE = 4
#: netem's own limit counts what is under way; the queue's is the one that shall drop.
NO_LIMIT = 1 << 30
#: Quantiles in the table of normal jitter.
NORMAL_QUANTILES = 4096
#: The kernel takes no longer table.
MAX_TABLE = 16384

NETEM_HEAD = struct.Struct("=6I")  # delay ticks, limit, loss, gap, duplicate, jitter ticks
NETEM_DELAY_DIST, NETEM_CORRUPT, NETEM_LOSS, NETEM_RATE = 2, 4, 5, 6
NETEM_RATE64, NETEM_LATENCY64, NETEM_JITTER64, NETEM_PRNG_SEED = 8, 10, 11, 14
NETEM_LOSS_GE = 2
HTB_PARMS, HTB_INIT, HTB_RATE64, HTB_CEIL64 = 1, 2, 6, 7
HTB_VERSION, HTB_RATE_TO_QUANTUM = 3, 10
HTB_LEVELS = struct.Struct("=5I")  # burst, burst of the ceiling, quantum, level, priority
RATESPEC = struct.Struct("=BBHhHI")  # cell log, link layer, overhead, cell align, minimum, rate
LINKLAYER_ETHERNET = 1
NESTED = 0x8000  # flag in an attribute's type
KIND_MASK = 0x3FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What netem is told: serialization, delay and chances."""

    delay_ns: int
    jitter_ns: int
    loss: int  # of all ones
    bursts: tuple[int, int, int, int] | None  # Gilbert-Elliott's p, r, h, 1-k, instead of ``loss``
    duplicate: int  # of all ones
    corrupt: int  # of all ones
    rate_bytes_per_s: int  # 0: no serialization, and jitter may reorder
    overhead_bytes: int  # added to every frame before its time is computed
    table: tuple[int, ...] = ()  # quantiles of jitter; the kernel does not tell it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What htb's class and the fifo in it are told."""

    rate_bytes_per_s: int
    burst_ticks: int
    quantum_bytes: int  # what a class may send before another's turn; there is no other
    limit: int  # bytes of frames, or packets
    in_packets: bool


def line_of(direction: Direction, *, bundle: int) -> Line:
    """The line of ``direction``, in wall time, if at most ``bundle`` packets cross as one.

    Where packets come singly their size is known to the byte.  A bundle has a header for each of its packets and the
    kernel takes a fixed overhead off only once, so there the rate is that of frames.
    """
    jitter_ns = round(direction.jitter_s * NS)
    rate_bps = direction.rate_bps if bundle == 1 else direction.rate_bps * FRAMING
    bursts = None
    if direction.burst_loss:
        worse = direction.burst_loss
        loss_bad, loss_good = (_either(direction.loss, chance) for chance in (worse.loss_bad, worse.loss_good))
        bursts = (u32(worse.worsens), u32(worse.recovers), u32(1 - loss_bad), u32(loss_good))
    return Line(
        delay_ns=round(direction.delay_s * NS),
        jitter_ns=min(jitter_ns, MAX_JITTER_NS),
        loss=0 if bursts else u32(direction.loss),
        bursts=bursts,
        duplicate=u32(direction.duplicate),
        corrupt=u32(direction.corrupt),
        rate_bytes_per_s=0 if direction.reorder and jitter_ns else max(1, round(rate_bps / BITS_PER_BYTE)),
        overhead_bytes=-ETHERNET_BYTES if bundle == 1 else 0,
        table=_table(direction.jitter_shape) if jitter_ns else (),
    )


def queue_of(direction: Direction, *, bundle: int) -> Queue:
    """The queue of ``direction``, in wall time, if at most ``bundle`` packets cross as one.

    What has gone to the line at once still waits there, so it is part of the limit.
    """
    rate = direction.rate_bps * FRAMING / BITS_PER_BYTE
    frames_bytes = direction.effective_queue_bytes * FRAMING
    burst_s = min(BURST_S, frames_bytes / rate / BURST_OF_QUEUE)
    in_packets = direction.queue_in_packets
    if in_packets:
        limit = max(1, (direction.queue_packets or 0) - 1)  # one of them is in service
    else:
        limit = max(bundle * FRAME_BYTES, int(frames_bytes - rate * burst_s))
    return Queue(
        rate_bytes_per_s=max(1, round(rate)),
        burst_ticks=max(1, round(burst_s * NS / TICK_NS)),
        quantum_bytes=bundle * FRAME_BYTES,
        limit=min(limit, MAX_U32),
        in_packets=in_packets,
    )


def direction_of(line: Line, queue: Queue, shape: Distribution | None) -> Direction:
    """What a line and a queue found in the kernel mean; ``shape`` is what was asked, since the kernel does not tell."""
    bursts = None
    if line.bursts:
        worsens, recovers, through, good = (share(number) for number in line.bursts)
        bursts = GilbertElliott(worsens=worsens, recovers=recovers, loss_bad=1 - through, loss_good=good)
    framing = FRAMING if line.overhead_bytes == 0 else 1.0
    rate = min(line.rate_bytes_per_s / framing or math.inf, queue.rate_bytes_per_s / FRAMING)
    direction = Direction(
        rate_bps=rate * BITS_PER_BYTE,
        delay_s=line.delay_ns / NS,
        jitter_s=line.jitter_ns / NS,
        jitter_shape=shape if line.jitter_ns else None,
        reorder=not line.rate_bytes_per_s,
        loss=share(line.loss),
        burst_loss=bursts,
        duplicate=share(line.duplicate),
        corrupt=share(line.corrupt),
    )
    if queue.in_packets:
        return replace(direction, queue_packets=queue.limit + 1)
    burst_bytes = queue.rate_bytes_per_s * queue.burst_ticks * TICK_NS / NS
    return replace(direction, queue_bytes=round((queue.limit + burst_bytes) / FRAMING))


def u32(chance: float) -> int:
    """A probability as netem wants it."""
    return round(min(1.0, max(0.0, chance)) * MAX_U32)


def share(number: int) -> float:
    """The probability that netem means."""
    return number / MAX_U32


def packed_line(line: Line, *, seed: int | None = None) -> bytes:
    """Options of netem.  A kernel before 6.6 knows no ``seed`` and passes over it."""
    head = NETEM_HEAD.pack(
        min(line.delay_ns // TICK_NS, MAX_U32), NO_LIMIT, line.loss, 0, line.duplicate, line.jitter_ns // TICK_NS
    )
    rate = line.rate_bytes_per_s
    parts = [
        attribute(NETEM_LATENCY64, struct.pack("=q", line.delay_ns)),
        attribute(NETEM_JITTER64, struct.pack("=q", line.jitter_ns)),
        attribute(NETEM_CORRUPT, struct.pack("=II", line.corrupt, 0)),
        attribute(NETEM_RATE, struct.pack("=IiIi", min(rate, MAX_U32), line.overhead_bytes, 0, 0)),
    ]
    if rate >= MAX_U32:
        parts.append(attribute(NETEM_RATE64, struct.pack("=Q", rate)))
    if line.bursts:
        parts.append(attribute(NETEM_LOSS | NESTED, attribute(NETEM_LOSS_GE, struct.pack("=4I", *line.bursts))))
    if line.table:
        parts.append(attribute(NETEM_DELAY_DIST, struct.pack(f"={len(line.table)}h", *line.table)))
    if seed is not None:
        parts.append(attribute(NETEM_PRNG_SEED, struct.pack("=Q", seed)))
    return head + b"".join(parts)


def unpacked_line(options: bytes) -> Line:
    """What netem says it does, but for its table."""
    delay_ticks, _, loss, _, duplicate, jitter_ticks = NETEM_HEAD.unpack_from(options)
    found = attributes(options[NETEM_HEAD.size :])
    rate, overhead, _, _ = struct.unpack("=IiIi", found.get(NETEM_RATE, bytes(16)))
    bursts = attributes(found.get(NETEM_LOSS, b"")).get(NETEM_LOSS_GE)
    return Line(
        delay_ns=_number(found, NETEM_LATENCY64, "=q", delay_ticks * TICK_NS),
        jitter_ns=_number(found, NETEM_JITTER64, "=q", jitter_ticks * TICK_NS),
        loss=loss,
        bursts=struct.unpack("=4I", bursts) if bursts else None,
        duplicate=duplicate,
        corrupt=_number(found, NETEM_CORRUPT, "=I4x", 0),
        rate_bytes_per_s=_number(found, NETEM_RATE64, "=Q", rate),
        overhead_bytes=overhead,
    )


def packed_passage() -> bytes:
    """Options of a netem that only passes packets on to what hangs below it."""
    return NETEM_HEAD.pack(0, NO_LIMIT, 0, 0, 0, 0)


def packed_classes(default: int) -> bytes:
    """Options of htb itself: where packets go that nobody sorts."""
    return attribute(HTB_INIT, struct.pack("=5I", HTB_VERSION, HTB_RATE_TO_QUANTUM, default, 0, 0))


def packed_queue(queue: Queue) -> bytes:
    """Options of htb's class; its ceiling is its rate."""
    rate, burst = queue.rate_bytes_per_s, queue.burst_ticks
    spec = RATESPEC.pack(0, LINKLAYER_ETHERNET, 0, -1, 0, min(rate, MAX_U32))
    parts = attribute(HTB_PARMS, spec + spec + HTB_LEVELS.pack(burst, burst, queue.quantum_bytes, 0, 0))
    if rate >= MAX_U32:
        parts += b"".join(attribute(kind, struct.pack("=Q", rate)) for kind in (HTB_RATE64, HTB_CEIL64))
    return parts


def unpacked_queue(options: bytes, fifo: bytes, *, in_packets: bool) -> Queue:
    """What htb's class and the fifo in it say they do; what the fifo counts, its kind says."""
    found = attributes(options)
    parms = found[HTB_PARMS]
    burst, _, quantum, _, _ = HTB_LEVELS.unpack_from(parms, 2 * RATESPEC.size)
    return Queue(
        rate_bytes_per_s=_number(found, HTB_RATE64, "=Q", RATESPEC.unpack_from(parms)[-1]),
        burst_ticks=burst,
        quantum_bytes=quantum,
        limit=struct.unpack_from("=I", fifo)[0],
        in_packets=in_packets,
    )


def packed_fifo(limit: int) -> bytes:
    """Options of pfifo (packets) and bfifo (bytes)."""
    return struct.pack("=I", limit)


def ip_bytes(frames_bytes: int, frames: int) -> int:
    """Bytes of the IP packets in so many frames."""
    return max(0, frames_bytes - ETHERNET_BYTES * frames)


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in ``data`` by kind; ValueError if it is cut short."""
    found, at = {}, 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4 or at + size > len(data):
            raise ValueError(f"a netlink attribute of {size} bytes at {at} of {len(data)}")
        found[kind & KIND_MASK] = data[at + 4 : at + size]
        at += size + -size % 4
    return found


def _number(found: Mapping[int, bytes], kind: int, layout: str, otherwise: int) -> int:
    return int(struct.unpack(layout, found[kind])[0]) if kind in found else otherwise


def _either(one: float, other: float) -> float:
    """The chance that at least one of two independent things happens."""
    return 1 - (1 - one) * (1 - other)


@functools.cache
def _table(shape: Distribution | None) -> tuple[int, ...]:
    if shape is None:
        steps = range(NORMAL_QUANTILES)
        normal = NormalDist(0, TABLE_SIGMA)
        return tuple(round(normal.inv_cdf((step + 0.5) / NORMAL_QUANTILES)) for step in steps)
    # Longer tables are thinned: every quantile that stays is as likely as before.
    stride = -(-len(shape.table) // MAX_TABLE)
    return tuple(max(-MAX_INT16, min(MAX_INT16, quantile)) for quantile in sorted(shape.table)[::stride])
