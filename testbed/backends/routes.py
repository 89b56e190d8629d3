"""Many routes of one namespace at once: netlink messages in batches, which a hundred nodes with a hundred routes need.

    nlmsghdr   length, type, flags, sequence, port
    rtmsg      family, destination length, source length, TOS, table, protocol, scope, type, flags
    attributes destination, interface, gateway, source, metrics (initial windows, congestion control, smallest time-out)

A library that asks and waits for each route takes 2 ms for one; a batch takes 20 µs.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

RTM_NEWROUTE = 24
NLMSG_ERROR = 2
REQUEST_ACK_CREATE_REPLACE = 0x1 | 0x4 | 0x400 | 0x100
RT_TABLE_MAIN = 254
RTPROT_KERNEL, RTPROT_STATIC = 2, 4
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK = 0, 253
RTN_UNICAST = 1
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_METRICS = 1, 4, 5, 7, 8
RTAX_INITCWND, RTAX_RTO_MIN, RTAX_INITRWND, RTAX_CC_ALGO = 11, 13, 14, 16
HEADER = struct.Struct("=IHHII")
ROUTE = struct.Struct("=BBBBBBBBI")
#: Answers to so many fit the kernel's default buffer.
BATCH = 64
RECEIVE_BYTES = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRoute:
    """One route with what TCP is to do on it."""

    destination: str  # an IPv4 address
    prefix_length: int
    interface: int  # its index
    source: str  # address of packets that leave here
    gateway: str | None  # None: the destination is at the other end of the cable
    initial_window: int  # packets; twice as many are welcome
    congestion_control: str
    rto_min_ms: int | None = None

    def encoded(self, sequence: int) -> bytes:
        """The message that puts the route in, or replaces it."""
        metrics = _number(RTAX_INITCWND, self.initial_window) + _number(RTAX_INITRWND, 2 * self.initial_window)
        metrics += _attribute(RTAX_CC_ALGO, self.congestion_control.encode() + b"\0")
        if self.rto_min_ms is not None:
            metrics += _number(RTAX_RTO_MIN, self.rto_min_ms)
        attributes = _address(RTA_DST, self.destination) + _number(RTA_OIF, self.interface)
        if self.gateway is not None:
            attributes += _address(RTA_GATEWAY, self.gateway)
        attributes += _address(RTA_PREFSRC, self.source) + _attribute(RTA_METRICS, metrics)
        protocol, scope = (RTPROT_KERNEL, RT_SCOPE_LINK) if self.gateway is None else (RTPROT_STATIC, RT_SCOPE_UNIVERSE)
        body = ROUTE.pack(socket.AF_INET, self.prefix_length, 0, 0, RT_TABLE_MAIN, protocol, scope, RTN_UNICAST, 0)
        length = HEADER.size + len(body) + len(attributes)
        head = HEADER.pack(length, RTM_NEWROUTE, REQUEST_ACK_CREATE_REPLACE, sequence, 0)
        return head + body + attributes


def put_in(routes: Iterable[KernelRoute]) -> None:
    """Put routes into the namespace of the calling thread; OSError names the first that the kernel refuses."""
    remaining = iter(routes)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        while batch := list(islice(remaining, BATCH)):
            netlink.send(b"".join(route.encoded(number) for number, route in enumerate(batch)))
            answered = 0
            while answered < len(batch):
                for number, error in _answers(netlink.recv(RECEIVE_BYTES)):
                    answered += 1
                    if error:
                        route = batch[number]
                        raise OSError(error, f"route to {route.destination}: {os.strerror(error)}")


def _answers(data: bytes) -> Iterator[tuple[int, int]]:
    """(sequence, error number) of every answer."""
    place = 0
    while place < len(data):
        length, kind, _, sequence, _ = HEADER.unpack_from(data, place)
        if kind == NLMSG_ERROR:
            yield sequence, -struct.unpack_from("=i", data, place + HEADER.size)[0]
        place += (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _address(kind: int, address: str) -> bytes:
    return _attribute(kind, socket.inet_aton(address))
