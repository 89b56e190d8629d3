"""How agents reach each other: one seam, and its ZeroMQ implementation for real packets.

The agent sends and is called back; it never waits for a socket.  The simulator moves the same messages through link
models behind the same methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import zmq

from agents.codec import decode, encode
from agents.protocol import MAX_ARRAY_BYTES, Message, ProtocolError

#: Messages waiting for one peer before further ones are dropped: bounds memory when a peer has stopped reading.
SEND_HIGH_WATER_MARK = 4_096

OnMessage = Callable[[Message], None]


class Transport(Protocol):
    """What the agents know of the network."""

    dropped: int  # messages that could not be queued or decoded

    def send(self, target: str, message: Message) -> None:
        """Queue a message for another server; never blocks."""
        ...

    def close(self) -> None:
        """Give up what is still queued and free everything."""
        ...


class ZmqTransport:
    """PUSH sockets to every peer, one PULL socket for what they send: any start order works."""

    def __init__(
        self,
        *,
        endpoint: str,
        on_message: OnMessage,
        on_error: Callable[[ProtocolError], None],
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        self._loop = loop
        self._on_message = on_message
        self._on_error = on_error
        self._peers: dict[str, zmq.Socket[bytes]] = {}
        self._endpoints: dict[str, str] = {}
        self.dropped = 0
        self._inbox = context.socket(zmq.PULL)
        self._inbox.set(zmq.LINGER, 0)
        self._inbox.set(zmq.RCVHWM, SEND_HIGH_WATER_MARK)
        self._inbox.set(zmq.MAXMSGSIZE, MAX_ARRAY_BYTES)
        self._inbox.bind(endpoint)
        self._fd = int(self._inbox.get(zmq.FD))
        loop.add_reader(self._fd, self._drain)

    def connect(self, endpoints: Mapping[str, str]) -> None:
        """Reach these peers from now on, at these endpoints; known connections are kept."""
        for name, endpoint in endpoints.items():
            if self._endpoints.get(name) == endpoint:
                continue
            if name in self._peers:
                self._peers[name].close()
            peer = self._context.socket(zmq.PUSH)
            peer.set(zmq.LINGER, 0)
            peer.set(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
            peer.set(zmq.RECONNECT_IVL, 50)
            peer.set(zmq.RECONNECT_IVL_MAX, 1_000)
            peer.connect(endpoint)
            self._peers[name], self._endpoints[name] = peer, endpoint

    def send(self, target: str, message: Message) -> None:
        """Queue a message; counts it as dropped when the peer has stopped taking any."""
        try:
            # Copied: handing 300 kB over without a copy costs more, since pyzmq then wakes a thread to free it.
            self._peers[target].send_multipart(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def close(self) -> None:
        """Close all sockets at once."""
        self._loop.remove_reader(self._fd)
        for peer in self._peers.values():
            peer.close()
        self._inbox.close()

    def _drain(self) -> None:
        # The descriptor is edge-triggered: whatever is there must be read until there is nothing.
        while True:
            try:
                frames = self._inbox.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = decode([frame.buffer for frame in frames])
            except ProtocolError as error:
                self.dropped += 1
                self._on_error(error)
                continue
            self._on_message(message)
