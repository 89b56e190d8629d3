"""The agent as a process: sockets, the event loop, and the end when nobody is in charge any more.

    python -m agents.main --server s1 --management ipc:///run/.../management.sock --model DIRECTORY

The data plane listens on the address that the server's own name resolves to, which inside a sandbox is its data-plane
address.  The management plane is a socket in the run directory, so it neither crosses nor delays an emulated link.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import selectors
import socket
import sys
import time
from pathlib import Path

import zmq

from agents.agent import Agent
from agents.clock import WallClock
from agents.codec import decode_command, encode_management
from agents.models.model import Model
from agents.protocol import (
    DATA_PORT,
    ORPHANED_AFTER_S,
    ProtocolError,
    Ready,
    Report,
)
from agents.transport import ZmqTransport
from testbed.errors import TestbedError

PAGE_BYTES = 4096


def main(arguments: list[str] | None = None) -> int:
    """Run one agent until it is told to stop; 2 and one line when it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m agents.main", description="the agent of one server")
    parser.add_argument("--server", required=True, help="this server's name in the topology")
    parser.add_argument("--management", required=True, help="ZeroMQ endpoint of the orchestrator")
    parser.add_argument("--model", required=True, type=Path, help="directory of the twin, or a routing trace")
    options = parser.parse_args(arguments)
    # asyncio's default selector sleeps in whole milliseconds; select() wakes within 0.15 ms.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        return loop.run_until_complete(_serve(options.server, options.management, options.model))
    except TestbedError as error:
        print(f"agent {options.server}: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        loop.close()


async def _serve(server: str, management: str, model: Path) -> int:
    loop = asyncio.get_running_loop()
    loaded = Model.load(model)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    commands = context.socket(zmq.DEALER)
    commands.set(zmq.LINGER, 500)
    commands.set(zmq.IDENTITY, server.encode())
    commands.connect(management)
    stopped = asyncio.Event()
    heard_s = loop.time()

    def report(message: Report) -> None:
        commands.send(encode_management(message), zmq.NOBLOCK)
        loop.call_soon(drain)  # sending can use up the socket's edge

    def on_error(error: ProtocolError) -> None:
        print(f"agent {server}: dropped a message: {error}", file=sys.stderr)

    transport = ZmqTransport(
        endpoint=f"tcp://{socket.gethostbyname(server)}:{DATA_PORT}",
        on_message=lambda message: agent.receive(message),
        on_error=on_error,
        context=context,
        loop=loop,
    )
    agent = Agent(
        server=server,
        clock=WallClock(origin_s=time.monotonic()),
        transport=transport,
        twin=loaded.twin,
        profile=loaded.profile,
        calibration=loaded.calibration,
        facts=loaded.facts,
        exits=loaded.exits,
        report=report,
        rss_bytes=_rss_bytes,
        stop=stopped.set,
    )

    def drain() -> None:
        nonlocal heard_s
        while True:
            try:
                frame = commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            heard_s = loop.time()
            try:
                agent.command(decode_command(frame))
            except ProtocolError as error:
                on_error(error)

    # What is loaded by now stays: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    descriptor = int(commands.get(zmq.FD))
    loop.add_reader(descriptor, drain)
    report(Ready(server=server))
    try:
        while not stopped.is_set() and loop.time() - heard_s < ORPHANED_AFTER_S:
            drain()
            try:
                await asyncio.wait_for(stopped.wait(), timeout=0.2)
            except TimeoutError:
                continue
        if not stopped.is_set():
            print(f"agent {server}: the orchestrator has been silent for {ORPHANED_AFTER_S:g} s", file=sys.stderr)
    finally:
        loop.remove_reader(descriptor)
        agent.close()
        transport.close()
        commands.close()
        context.term()
    return 0


def _rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    sys.exit(main())
