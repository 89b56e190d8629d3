"""What a namespace lacks of its wiring: whoever brought a node up, or made it anew, may have been killed half-way.

A namespace that is mounted proves little.  Its interfaces, their addresses and its routes are looked at one by one, so
that no testbed is called up whose packets go nowhere.  Only the standard library is asked; nothing is changed.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from testbed.wiring import Interface, NodeWiring, Route

SIOCGIFFLAGS = 0x8913
SIOCGIFADDR = 0x8915
IFF_UP = 0x1
#: struct ifreq: the name, then a union whose first bytes are the flags, or a sockaddr_in.
REQUEST = struct.Struct("=16s24x")
FLAGS = struct.Struct("=16xH")
ADDRESS = struct.Struct("=20x4s")
#: Of the calling thread's namespace: interface, destination, gateway ..., addresses as the processor holds them.
ROUTES = Path("/proc/thread-self/net/route")


def lacking(node: NodeWiring, plugged: Collection[str]) -> str | None:
    """The first thing that the namespace of the calling thread lacks of ``node``, for people; None if nothing.

    Only the links in ``plugged`` are expected to be there, and what leads over them.
    """
    expected = [interface for interface in node.interfaces if interface.link in plugged]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for interface in expected:
            if problem := _lacking(sock, interface):
                return problem
    names = {interface.name for interface in expected}
    there = set(_routes())
    gone = [each.node for each in node.routes if each.interface in names and _leads(each) not in there]
    if gone:
        return f"{node.name} has lost its route to {gone[0]}{f' and {len(gone) - 1} others' if gone[1:] else ''}"
    return None


def _lacking(sock: socket.socket, interface: Interface) -> str | None:
    request = REQUEST.pack(interface.name.encode())
    try:
        (flags,) = FLAGS.unpack_from(fcntl.ioctl(sock, SIOCGIFFLAGS, request))
    except OSError:
        return f"{interface.node} has lost its end of {interface.link}"
    if not flags & IFF_UP:
        return f"somebody took the end of {interface.link} at {interface.node} down ({interface.name})"
    try:
        (address,) = ADDRESS.unpack_from(fcntl.ioctl(sock, SIOCGIFADDR, request))
    except OSError:
        address = b""
    if address != socket.inet_aton(interface.address):
        return f"the end of {interface.link} at {interface.node} has lost its address"
    return None


def _leads(route: Route) -> tuple[str, bytes]:
    return route.interface, socket.inet_aton(route.destination)


def _routes() -> Iterator[tuple[str, bytes]]:
    for line in ROUTES.read_text().splitlines()[1:]:
        name, destination = line.split()[:2]
        yield name, struct.pack("=I", int(destination, 16))
