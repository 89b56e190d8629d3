"""Queueing disciplines of one network namespace: put, change and read them, over netlink.

pyroute2 makes the devices.  Its netem has no 64-bit times and rates, no tables and no loss in bursts, and it converts
units on its own, so the disciplines themselves are written here, with options from ``testbed.shaping.kernelunits``.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from testbed.shaping.kernelunits import attribute, attributes

RTM_NEWQDISC, RTM_GETQDISC = 36, 38
RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
NLM_F_REPLACE, NLM_F_CREATE = 0x100, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
TCMSG = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, information
TCA_KIND, TCA_OPTIONS, TCA_STATS2 = 1, 2, 7
STATS_BASIC, STATS_QUEUE, STATS_PKT64 = 1, 3, 8
ROOT = 0xFFFFFFFF
ANSWER_BYTES = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdisc:
    """One queueing discipline, or a class of one, as the kernel describes it."""

    interface: int
    kind: str
    handle: int
    options: bytes
    packets: int  # let go since it exists; the packets of a bundle count each
    bytes: int  # of their frames
    drops: int
    waiting: int  # packets (bundles) in it and below it
    waiting_bytes: int  # of their frames


class TrafficControl:
    """A netlink socket in the namespace of the thread that opens it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> TrafficControl:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def put(self, interface: int, kind: str, options: bytes, *, handle: int, parent: int = ROOT) -> None:
        """Make a discipline in place of what was there; what was queued there is lost."""
        self._tell(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, interface, kind, options, handle, parent)

    def change(self, interface: int, kind: str, options: bytes, *, handle: int, parent: int = ROOT) -> None:
        """Change a discipline that is there and lose nothing."""
        self._tell(RTM_NEWQDISC, 0, interface, kind, options, handle, parent)

    def put_class(self, interface: int, kind: str, options: bytes, *, handle: int, parent: int) -> None:
        """Make a class, or change the one that is there and lose nothing."""
        self._tell(RTM_NEWTCLASS, NLM_F_CREATE, interface, kind, options, handle, parent)

    def read(self) -> list[Qdisc]:
        """All disciplines of all interfaces here."""
        return self._dump(RTM_GETQDISC, 0)

    def read_classes(self, interface: int) -> list[Qdisc]:
        """All classes of an interface."""
        return self._dump(RTM_GETTCLASS, interface)

    def _dump(self, kind: int, interface: int) -> list[Qdisc]:
        self._send(kind, NLM_F_DUMP, TCMSG.pack(0, interface, 0, 0, 0))
        return [_qdisc(body) for body in self._answers()]

    def _tell(
        self, order: int, flags: int, interface: int, kind: str, options: bytes, handle: int, parent: int
    ) -> None:
        body = TCMSG.pack(0, interface, handle, parent, 0)
        body += attribute(TCA_KIND, kind.encode() + b"\0") + attribute(TCA_OPTIONS, options)
        self._send(order, NLM_F_ACK | flags, body)
        for _ in self._answers():
            pass

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        self._socket.send(HEADER.pack(HEADER.size + len(body), kind, NLM_F_REQUEST | flags, self._sequence, 0) + body)

    def _answers(self) -> Iterator[bytes]:
        """Bodies of the messages that answer the last request; OSError if the kernel refused it."""
        while True:
            data, at = self._socket.recv(ANSWER_BYTES), 0
            while at < len(data):
                length, kind, _, sequence, _ = HEADER.unpack_from(data, at)
                body = data[at + HEADER.size : at + length]
                at += length + -length % 4
                if sequence != self._sequence:
                    continue
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    number = -struct.unpack_from("=i", body)[0]
                    if number:
                        raise OSError(number, os.strerror(number))
                    return
                yield body


def _qdisc(body: bytes) -> Qdisc:
    _, interface, handle, _, _ = TCMSG.unpack_from(body)
    found = attributes(body[TCMSG.size :])
    stats = attributes(found.get(TCA_STATS2, b""))
    carried_bytes, packets = struct.unpack_from("=QI", stats.get(STATS_BASIC, bytes(12)))
    if STATS_PKT64 in stats:
        packets = struct.unpack("=Q", stats[STATS_PKT64])[0]
    waiting, waiting_bytes, drops = struct.unpack_from("=III", stats.get(STATS_QUEUE, bytes(12)))
    return Qdisc(
        interface=interface,
        kind=found[TCA_KIND].rstrip(b"\0").decode(),
        handle=handle,
        options=found.get(TCA_OPTIONS, b""),
        packets=packets,
        bytes=carried_bytes,
        drops=drops,
        waiting=waiting,
        waiting_bytes=waiting_bytes,
    )
