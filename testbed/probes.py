"""Measurements over the emulated links, made from outside: sockets opened in the sandboxes, handled here in one loop.

No program has to exist in a sandbox for it: the kernel answers the echoes, and both ends of a TCP transfer are ours.

    round trip   ICMP echo over the link's own addresses; the kernel notes when the answer came, so that waking up this
                 process is not counted
    goodput      TCP from end to end, counted at the receiver when the link is full.  It starts with a window that
                 fills the link without overflowing its queue, and is paced above the link's rate, so that a short
                 measurement sees the rate instead of slow start and the recovery from its drops
"""

from __future__ import annotations

import itertools
import math
import os
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.backends.kernel import inside_netns
from testbed.wiring import Interface

ICMP_ECHO = 8
ICMP_HEADER = struct.Struct("!BBHHH")
ECHO_PAYLOAD_BYTES = 56
#: What an echo occupies on the wire: IP header, ICMP header, payload.
ECHO_BYTES = 20 + 8 + ECHO_PAYLOAD_BYTES
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
SO_MAX_PACING_RATE = 47
TIMESPEC = struct.Struct("=qq")
NS_PER_S = 1_000_000_000
SEND_BYTES = 128 * 1024
RECEIVE_BYTES = 1 << 20
#: What the kernel takes as the size of a buffer; it doubles it in a number of 32 bits.
MOST_BUFFER_BYTES = (1 << 30) - 1
#: The kernel's bookkeeping of a buffered byte.
BOOKED = 1.15
CONNECT_S = 5.0
#: Measurements that take longer than this have failed.
SLOWEST_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From one end of a link to the other, by the link's own addresses."""

    source_netns: Path
    source_address: str
    target_netns: Path
    target_address: str


def way_over(end: Interface, netns: Callable[[str], Path]) -> Way:
    """From one end of a cable to the other; ``netns`` tells where a node's network namespace is."""
    return Way(
        source_netns=netns(end.node),
        source_address=end.address,
        target_netns=netns(end.peer),
        target_address=end.peer_address,
    )


def note_arrivals(sock: socket.socket, *, buffer_bytes: int | None = None) -> None:
    """Have the kernel note when packets come, for ``received``; so much of them waits, whatever the host's limit."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    if buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer_bytes)


def received(sock: socket.socket, most_bytes: int) -> tuple[bytes, int, Any]:
    """(packet, when the kernel noted it, in nanoseconds since 1970, sender) from a socket that notes arrivals."""
    packet, ancillary, _, sender = sock.recvmsg(most_bytes, 128)
    seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
    return packet, seconds * NS_PER_S + nanoseconds, sender


@dataclass(slots=True, kw_only=True)
class _Pinger:
    sock: socket.socket
    target: str
    number: int
    sent_ns: list[int] = field(default_factory=list)
    rtts_s: list[float] = field(default_factory=list)

    def send(self) -> None:
        sequence = len(self.sent_ns)
        head = ICMP_HEADER.pack(ICMP_ECHO, 0, 0, self.number, sequence)
        packet = head + bytes(ECHO_PAYLOAD_BYTES)
        packet = ICMP_HEADER.pack(ICMP_ECHO, 0, _checksum(packet), self.number, sequence) + bytes(ECHO_PAYLOAD_BYTES)
        self.sent_ns.append(time.time_ns())
        self.sock.sendto(packet, (self.target, 0))

    def receive(self) -> None:
        packet, arrived_ns, _ = received(self.sock, 256)
        kind, _, _, number, sequence = ICMP_HEADER.unpack_from(packet, 4 * (packet[0] & 15))
        if kind == 0 and number == self.number and sequence < len(self.sent_ns):
            self.rtts_s.append((arrived_ns - self.sent_ns[sequence]) / 1e9)


@contextmanager
def preferred() -> Iterator[None]:
    """Measure ahead of ordinary work on this machine, where we may: a probe that waits measures its own waiting."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def round_trips_s(ways: Sequence[Way], *, probes: int, interval_s: float, wait_s: float) -> list[list[float]]:
    """The round trips of ``probes`` echoes over every way; lost ones are missing.

    The ways take turns, so that they do not measure each other: each sends once per ``interval_s``.  After the last
    one, answers are awaited for ``wait_s``.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pingers = []
        for number, way in enumerate(ways):
            with inside_netns(way.source_netns):
                sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
                sock.bind((way.source_address, 0))
            sock.setblocking(False)
            note_arrivals(sock)
            pinger = _Pinger(sock=sock, target=way.target_address, number=(os.getpid() + number) & 0xFFFF)
            selector.register(sock, selectors.EVENT_READ, pinger)
            pingers.append(pinger)
        start_s = time.monotonic()
        turns = [
            (start_s + interval_s * (turn + place / len(pingers)), pinger)
            for turn in range(probes)
            for place, pinger in enumerate(pingers)
        ]
        for at_s, pinger in turns:
            _receive_until(selector, at_s, pingers, 0)
            pinger.send()
        _receive_until(selector, time.monotonic() + wait_s, pingers, probes)
        return [pinger.rtts_s for pinger in pingers]


def _receive_until(selector: selectors.BaseSelector, end_s: float, pingers: list[_Pinger], enough: int) -> None:
    while (left_s := end_s - time.monotonic()) > 0:
        for key, _ in selector.select(left_s):
            key.data.receive()
        if enough and all(len(pinger.rtts_s) >= enough for pinger in pingers):
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a TCP connection may have under way, and how fast it may send."""

    window_bytes: int
    pace_bytes_per_s: int


def connect(
    ways: Sequence[Way], stack: ExitStack, *, deadline_s: float, bounds: Sequence[Bounds] = ()
) -> list[tuple[socket.socket, socket.socket] | None]:
    """A TCP connection over each way (source end, target end); None where none comes about before the deadline.

    ``bounds`` says for each what TCP may do; without, it does as it likes.
    """
    calls = []
    for way, bound in itertools.zip_longest(ways, bounds):
        with inside_netns(way.target_netns):
            listener = stack.enter_context(socket.socket())
            if bound:
                listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, min(2 * bound.window_bytes, MOST_BUFFER_BYTES))
            listener.bind((way.target_address, 0))
            listener.listen(1)
        with inside_netns(way.source_netns):
            near = stack.enter_context(socket.socket())
            near.setblocking(False)
            if bound:
                # What is not acknowledged stays in the sender's buffer, so its size bounds what is under way.  The
                # kernel doubles the number, and books packets at somewhat more than their size.
                send_bytes = min(int(BOOKED * bound.window_bytes / 2), MOST_BUFFER_BYTES)
                near.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, send_bytes)
                near.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", bound.pace_bytes_per_s))
            near.bind((way.source_address, 0))
            near.connect_ex(listener.getsockname())
        calls.append((near, listener))
    pairs: list[tuple[socket.socket, socket.socket] | None] = []
    for near, listener in calls:
        listener.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            far = stack.enter_context(listener.accept()[0])
        except TimeoutError:
            pairs.append(None)
            continue
        finally:
            listener.close()
        far.setblocking(False)
        pairs.append((near, far))
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A goodput to measure."""

    way: Way
    bounds: Bounds
    warm_up_s: float  # until the link is full
    measure_s: float


class _Flow:
    """A transfer under way.  Its clock starts with the first byte that arrives: that we began late costs nothing."""

    def __init__(self, sender: socket.socket, receiver: socket.socket, transfer: Transfer) -> None:
        self.sender, self.receiver = sender, receiver
        self.done = False
        self._warm_up_s, self._measure_s = transfer.warm_up_s, transfer.measure_s
        self._from_s = self._until_s = math.inf
        self._first_s = self._last_s = 0.0
        self._size_bytes = 0

    def arrived(self, now_s: float, size_bytes: int) -> None:
        if self._from_s == math.inf:
            self._from_s = now_s + self._warm_up_s
            self._until_s = self._from_s + self._measure_s
        if now_s < self._from_s:
            return
        if self._first_s:
            self._size_bytes += size_bytes
        else:
            self._first_s = now_s  # opens the interval; its bytes came before it
        self._last_s = now_s
        self.done = now_s >= self._until_s and self._size_bytes > 0

    def goodput_bps(self) -> float:
        return 8 * self._size_bytes / (self._last_s - self._first_s) if self._size_bytes else 0.0


def goodputs_bps(batches: Sequence[Sequence[Transfer]]) -> list[list[float]]:
    """TCP goodput of the transfers of each batch at once, batch after batch; 0 where nothing came.

    All connections are made first, together: waiting for each handshake would take longer than measuring.
    """
    transfers = [transfer for batch in batches for transfer in batch]
    with ExitStack() as stack:
        pairs = connect(
            [transfer.way for transfer in transfers],
            stack,
            deadline_s=time.monotonic() + CONNECT_S,
            bounds=[transfer.bounds for transfer in transfers],
        )
        remaining = iter(pairs)
        return [_run([(next(remaining), transfer) for transfer in batch]) for batch in batches]


def _run(batch: Sequence[tuple[tuple[socket.socket, socket.socket] | None, Transfer]]) -> list[float]:
    flows = [_Flow(*pair, transfer) if pair else None for pair, transfer in batch]
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            if flow:
                selector.register(flow.sender, selectors.EVENT_WRITE, (flow, True))
                selector.register(flow.receiver, selectors.EVENT_READ, (flow, False))
        _pump(selector, deadline_s=time.monotonic() + SLOWEST_S)
    return [flow.goodput_bps() if flow else 0.0 for flow in flows]


def _pump(selector: selectors.BaseSelector, deadline_s: float) -> None:
    chunk, buffer = bytes(SEND_BYTES), bytearray(RECEIVE_BYTES)
    while selector.get_map() and time.monotonic() < deadline_s:
        for key, _ in selector.select(max(0.0, deadline_s - time.monotonic())):
            flow, sends = key.data
            if flow.done:
                continue  # the other half of a pair that ended in this round
            if sends:
                flow.sender.send(chunk)
                continue
            size_bytes = flow.receiver.recv_into(buffer)
            flow.arrived(time.monotonic(), size_bytes)
            if flow.done or not size_bytes:
                flow.done = True
                selector.unregister(flow.sender)
                selector.unregister(flow.receiver)
                _abort(flow.sender)


def _abort(sock: socket.socket) -> None:
    # What is still queued is thrown away instead of delaying the next measurement.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def middle(values: Sequence[float]) -> float:
    """The median; infinity of nothing."""
    return statistics.median(values) if values else float("inf")


def _checksum(packet: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
