"""Numbered datagrams one way over many links at once: how long each took, which are missing, which came twice.

Both ends are sockets of this process, opened in the sandboxes, so one clock tells when a datagram left and, by the
kernel's own note, when it came.  Some of them are as large as a packet may be and must not be cut.
"""

from __future__ import annotations

import errno
import heapq
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from testbed.backends.kernel import inside_netns
from testbed.probes import Way, note_arrivals, received
from testbed.topology import MTU_BYTES

#: IP and UDP headers.
HEADERS_BYTES = 28
SMALL_BYTES = 72
IP_MTU_DISCOVER = 10
#: Never cut a packet, whatever the path is said to take.
IP_PMTUDISC_PROBE = 3
RECEIVE_BUFFER_BYTES = 1 << 21
#: Datagrams as large as the MTU, sent last.
LARGE_COUNT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What to send over one way."""

    way: Way
    count: int  # small datagrams
    interval_s: float


@dataclass(slots=True, kw_only=True)
class Sample:
    """What came of a probe."""

    sent: int = 0  # small datagrams
    delays_s: dict[int, float] = field(default_factory=dict)  # of those that came, by number
    duplicates: int = 0  # datagrams that came again
    mtu_bytes: int = 0  # the largest packet that came through whole, 0 if none

    @property
    def loss(self) -> float:
        """Share of the small datagrams that did not come."""
        return 1 - sum(number < self.sent for number in self.delays_s) / self.sent if self.sent else 0.0


class _Line:
    """One probe under way."""

    def __init__(self, probe: Probe, stack: ExitStack) -> None:
        self.probe, self.sample = probe, Sample()
        way = probe.way
        with inside_netns(way.target_netns):
            self.far = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        note_arrivals(self.far, buffer_bytes=RECEIVE_BUFFER_BYTES)
        self.far.bind((way.target_address, 0))
        self.far.setblocking(False)
        with inside_netns(way.source_netns):
            self.near = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.near.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        self.near.bind((way.source_address, 0))
        self.near.connect(self.far.getsockname())

    def send(self, number: int) -> None:
        large = number >= self.probe.count
        size = MTU_BYTES - HEADERS_BYTES if large else SMALL_BYTES
        head = number.to_bytes(4, "big") + time.time_ns().to_bytes(8, "big")
        self.sample.sent += not large
        self.near.send(head + bytes(size - len(head)))

    def receive(self) -> None:
        packet, arrived_ns, _ = received(self.far, MTU_BYTES)
        number, sent_ns = int.from_bytes(packet[:4], "big"), int.from_bytes(packet[4:12], "big")
        if number in self.sample.delays_s:
            self.sample.duplicates += 1
            return
        self.sample.delays_s[number] = (arrived_ns - sent_ns) / 1e9
        self.sample.mtu_bytes = max(self.sample.mtu_bytes, len(packet) + HEADERS_BYTES)

    @property
    def complete(self) -> bool:
        return len(self.sample.delays_s) == self.probe.count + LARGE_COUNT


def one_ways(probes: Sequence[Probe], *, wait_s: float) -> list[Sample]:
    """Send all probes at once; after the last datagram, wait so long for what is still under way."""
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        lines = [_Line(probe, stack) for probe in probes]
        for line in lines:
            selector.register(line.far, selectors.EVENT_READ, line)
        start_s = time.monotonic()
        # Out of step, so that they do not all come at once.
        turns = [(start_s + line.probe.interval_s * n / len(lines), n, 0) for n, line in enumerate(lines)]
        heapq.heapify(turns)
        while turns:
            at_s, n, number = turns[0]
            _receive_until(selector, at_s)
            line = lines[n]
            line.send(number)
            if number + 1 < line.probe.count + LARGE_COUNT:
                heapq.heapreplace(turns, (at_s + line.probe.interval_s, n, number + 1))
            else:
                heapq.heappop(turns)
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s and not all(line.complete for line in lines):
            _receive_until(selector, min(until_s, time.monotonic() + 0.02))
        return [line.sample for line in lines]


def cuts_at_mtu(way: Way) -> bool:
    """Whether the way refuses a packet that is one byte larger than packets are here."""
    with inside_netns(way.source_netns):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        try:
            sock.sendto(bytes(MTU_BYTES - HEADERS_BYTES + 1), (way.target_address, 9))
        except OSError as error:
            return error.errno == errno.EMSGSIZE
    return False


def _receive_until(selector: selectors.BaseSelector, end_s: float) -> None:
    while True:
        left_s = end_s - time.monotonic()
        ready = selector.select(max(0.0, left_s))
        for key, _ in ready:
            key.data.receive()
        if left_s <= 0:
            return
