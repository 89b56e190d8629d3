"""Packets of one interface in a pcap file that Wireshark and tshark read.

What an end of a link sends and receives is seen as IP packets, whatever makes the link (LINKTYPE_RAW), with the
kernel's time in nanoseconds.  Where the link lets several packets of TCP cross as one, one record holds them all.

    file     magic 0xa1b23c4d, version 2.4, zone, accuracy, longest record, link type
    record   seconds, nanoseconds, bytes kept, bytes of the packet, the bytes
"""

from __future__ import annotations

import select
import socket
import struct
import time
from pathlib import Path
from typing import BinaryIO

from testbed.backends.kernel import inside_netns
from testbed.probes import NS_PER_S, note_arrivals, received

MAGIC_NANOSECONDS = 0xA1B23C4D
LINKTYPE_RAW = 101
SNAP_BYTES = 262_144
HEADER = struct.Struct("=IHHiIII")
RECORD = struct.Struct("=IIII")
ETH_P_ALL = 0x0003
ETH_P_IP = 0x0800
BUFFER_BYTES = 1 << 24
#: How often to look at the time, and to write out what has come.
LOOK_S = 0.1


def capture(
    netns: Path,
    interface: str,
    file: BinaryIO,
    *,
    most_packets: int | None,
    duration_s: float | None,
) -> int:
    """Write the packets of an interface until so many came or so long has passed; how many came."""
    with inside_netns(netns):
        # Without a protocol first: packets of other interfaces would come before the socket is bound to this one.
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    count, until_s = 0, None if duration_s is None else time.monotonic() + duration_s
    with sock:
        note_arrivals(sock, buffer_bytes=BUFFER_BYTES)
        sock.bind((interface, ETH_P_ALL))
        file.write(HEADER.pack(MAGIC_NANOSECONDS, 2, 4, 0, 0, SNAP_BYTES, LINKTYPE_RAW))
        file.flush()
        while count != most_packets and (until_s is None or time.monotonic() < until_s):
            if not select.select([sock], (), (), LOOK_S)[0]:
                file.flush()
                continue
            packet, arrived_ns, sender = received(sock, SNAP_BYTES)
            if sender[1] != ETH_P_IP:
                continue
            file.write(RECORD.pack(*divmod(arrived_ns, NS_PER_S), len(packet), len(packet)) + packet)
            count += 1
        file.flush()
    return count
