"""What one run on one server says to the other servers: messages that carry their sender, their time and their run.

Sockets outlive runs, and so do messages that are late.  Each names its run; ``Agent.receive`` drops those of another.
"""

from __future__ import annotations

from agents.clock import Clock
from agents.protocol import Array, Body, Message
from agents.transport import Transport


class Channel:
    """The data plane as the parts of one run see it."""

    def __init__(self, *, server: str, run_id: str, clock: Clock, transport: Transport) -> None:
        self._server = server
        self._run_id = run_id
        self._clock = clock
        self._transport = transport

    def message(self, body: Body, arrays: tuple[Array, ...] = (), size_bytes: int = 0) -> Message:
        """A message of this run, leaving now; ``size_bytes`` is what the large model's weighs."""
        return Message(
            run=self._run_id,
            source=self._server,
            sent_s=self._clock.now_s(),
            size_bytes=size_bytes,
            body=body,
            arrays=arrays,
        )

    def send(self, target: str, body: Body, arrays: tuple[Array, ...] = (), size_bytes: int = 0) -> None:
        """Queue a message for another server."""
        self._transport.send(target, self.message(body, arrays, size_bytes))
