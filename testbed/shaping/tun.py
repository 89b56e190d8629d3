"""TUN devices: a network interface whose other side is a file descriptor of ours.

A device is created inside the namespace it belongs to (enter first, then open), which is a hundred times quicker than
moving it there.  Every packet read or written carries a ``virtio_net_hdr`` in front, so checksums may be left to the
far end and TCP may hand over up to 64 KiB at once instead of single packets.  How many packets travel in such a bundle
is limited per device (``set_bundle``), because a bundle meets loss, jitter and the queue as one.

    virtio_net_hdr (10 bytes): flags, gso type (u8); header length, gso size, checksum start, checksum offset (u16)
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
IFF_TUN_EXCL = 0x8000
TUN_F_CSUM = 0x01
TUN_F_TSO4 = 0x02

VNET_HEADER_BYTES = 10
NEEDS_CHECKSUM = 1  # flag of the header: the sum is left to the far end
#: Largest read: the header and the largest IP packet.
READ_BYTES = VNET_HEADER_BYTES + 65535
TCP_DATA_OFFSET = 12  # byte of the TCP header whose upper half is its length in words

RTM_NEWLINK = 16
NLM_F_REQUEST_ACK = 0x5
NLMSG_ERROR = 2
IFLA_GSO_MAX_SEGS = 40


def open_tun(name: str) -> int:
    """Create the interface ``name`` in the namespace of the calling thread; it lives until the descriptor is closed."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        let_bundles(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


def let_bundles(fd: int, allowed: bool) -> None:
    """Whether the kernel may hand over several packets at once.

    What a node forwards comes in bundles that no limit of the interface cuts (the limit binds TCP's own bundles only),
    so where smaller ones are wanted, forwarded packets must come one by one.
    """
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | (TUN_F_TSO4 if allowed else 0))


def wire_size(packet: bytes) -> tuple[int, int]:
    """(bytes, packets) that this read becomes on a wire: every packet of a bundle has its own headers.

    >>> wire_size(bytes(10) + bytes(1500))
    (1500, 1)
    """
    size = len(packet) - VNET_HEADER_BYTES
    if not packet[1]:  # gso type: none
        return size, 1
    _, _, _, gso_size, transport, _ = struct.unpack_from("=BBHHHH", packet)
    header = transport + 4 * (packet[VNET_HEADER_BYTES + transport + TCP_DATA_OFFSET] >> 4)
    count = max(1, -(-(size - header) // gso_size))
    return size + (count - 1) * header, count


def spoiled(packet: bytes, draw: Callable[[int], int]) -> bytes:
    """The packet with one bit flipped, and with its own checksum, so that the receiver notices; bundles stay whole.

    ``draw`` gives one of so many numbers from 0.
    """
    flags, gso_type, _, _, start, offset = struct.unpack_from("=BBHHHH", packet)
    if gso_type:
        return packet
    changed = bytearray(packet)
    if flags & NEEDS_CHECKSUM:
        # The field holds the sum of the addresses, to which the sum over the rest is added.
        at = VNET_HEADER_BYTES + start
        covered = packet[at:] + bytes((len(packet) - at) & 1)
        total = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        struct.pack_into("!H", changed, at + offset, ~total & 0xFFFF)
    changed[:VNET_HEADER_BYTES] = bytes(VNET_HEADER_BYTES)
    bit = draw(8 * (len(packet) - VNET_HEADER_BYTES))
    changed[VNET_HEADER_BYTES + bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


class LinkControl:
    """Changes the bundle limit of interfaces of one namespace, at once and without forking or importing much."""

    def __init__(self) -> None:
        """Open in the namespace of the calling thread."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))

    def set_bundle(self, index: int, packets: int) -> None:
        """Let TCP hand over at most ``packets`` packets at once to the interface ``index``."""
        attribute = struct.pack("=HHI", 8, IFLA_GSO_MAX_SEGS, packets)
        body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, 0, 0) + attribute
        self._socket.send(struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, NLM_F_REQUEST_ACK, 1, 0) + body)
        answer = self._socket.recv(4096)
        kind, number = struct.unpack_from("=4xH10xi", answer)
        if kind == NLMSG_ERROR and number:
            raise OSError(-number, f"cannot limit the bundles of interface {index}: {os.strerror(-number)}")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
