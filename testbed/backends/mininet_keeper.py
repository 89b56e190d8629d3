"""The process that owns the Mininet hosts of a testbed, because a host lives only as long as who started it.

    python -m testbed.backends.mininet_keeper RUN_DIRECTORY SOCKET

It builds the hosts, tells their process ids, makes one anew when asked to, and ends all of them when it is told to
end.  If nobody asks within some seconds after the start, whoever started it has died, and it ends.

    client                        keeper
      | -- Tell / Renew(node) ------> |     msgspec JSON over ipc:// in the run directory
      | <-- Hosts / Failed ---------- |
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import zmq

from testbed.backends import mininet_hosts
from testbed.ledger import Ledger
from testbed.setup import FILE, Setup
from testbed.wiring import wire

#: Whoever started the keeper asks at once.
UNASKED_MS = 30_000


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Tell the process ids of the hosts."""


class Renew(msgspec.Struct, frozen=True, kw_only=True, tag="renew"):
    """End a host and start it again."""

    node: str


class Hosts(msgspec.Struct, frozen=True, kw_only=True, tag="hosts"):
    """The process ids of all hosts."""

    pids: dict[str, int]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The request had no effect, and why."""

    reason: str


Request = Tell | Renew
Reply = Hosts | Failed


def main(argv: list[str]) -> None:
    """Build the hosts and keep them until told to end."""
    directory, address = Path(argv[0]), argv[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    context = zmq.Context()
    socket = context.socket(zmq.REP)
    socket.bind(f"ipc://{directory / address}")
    setup = msgspec.json.decode((directory / FILE).read_bytes(), type=Setup)
    wiring = wire(setup.topology, Ledger(directory).name)
    network = mininet_hosts.build(wiring)
    decode = msgspec.json.Decoder(Request).decode
    asked = False
    try:
        while asked or socket.poll(UNASKED_MS):
            request, asked = decode(socket.recv()), True
            reply: Reply = Hosts(pids={})
            if isinstance(request, Renew):
                try:
                    network.delHost(network[request.node])
                    mininet_hosts.add_host(network, wiring, request.node)
                except (OSError, KeyError) as error:
                    reply = Failed(reason=f"{request.node}: {error}")
            if isinstance(reply, Hosts):
                reply = Hosts(pids={host.name: host.pid for host in network.hosts})
            socket.send(msgspec.json.encode(reply))
    finally:
        for host in network.hosts:
            host.terminate()
        context.destroy(linger=0)


if __name__ == "__main__":
    main(sys.argv[1:])
