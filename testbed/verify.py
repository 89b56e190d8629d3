"""Measures the emulated links against their file: what a person would do with ping and iperf3, for all of them.

``prove`` moves a little TCP both ways over every link, so that no testbed is handed over in which ping works and TCP
does not.  ``calibrate`` measures round trip and goodput of every link and judges them.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.backends.kernel import inside_netns
from testbed.errors import TestbedError
from testbed.topology import BITS_PER_BYTE, Direction, Link

if TYPE_CHECKING:
    from testbed.network import Network

#: A proof moves this much each way, or what the link carries in PROOF_S.
PROOF_BYTES = 64 * 1024
PROOF_S = 0.05
PROOF_DEADLINE_S = 5.0
#: TCP is not expected to get through more loss than this in reasonable time.
PROVABLE_LOSS = 0.2


@dataclass(slots=True, kw_only=True)
class _Peer:
    """One end of a proof: sends ``to_send`` bytes and waits for as many as the other end sends."""

    link: str
    sock: socket.socket
    to_send: int
    to_receive: int

    def step(self, mask: int) -> None:
        """Send and receive what is possible now."""
        if mask & selectors.EVENT_WRITE and self.to_send:
            self.to_send -= self.sock.send(bytes(self.to_send))
        if mask & selectors.EVENT_READ and self.to_receive:
            got = len(self.sock.recv(min(self.to_receive, 1 << 16)))
            if not got:
                raise ConnectionResetError("the connection ended early")
            self.to_receive -= got

    @property
    def wants(self) -> int:
        """What to wait for next; 0 when done."""
        return (selectors.EVENT_WRITE if self.to_send else 0) | (selectors.EVENT_READ if self.to_receive else 0)


def prove(network: Network) -> None:
    """Move a little TCP both ways over every link; TestbedError naming those that do not carry it."""
    links = [link for link in network.topology.links if max(link.forward.loss, link.backward.loss) <= PROVABLE_LOSS]
    slowest_s = network.dilation * max((_proof_s(link) for link in links), default=0.0)
    deadline_s = time.monotonic() + PROOF_DEADLINE_S + 4 * slowest_s
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        calls = [(link, *_call(network, link, stack)) for link in links]
        failed: dict[str, str] = {}
        for link, near, listener in calls:
            listener.settimeout(max(0.001, deadline_s - time.monotonic()))
            try:
                far = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                failed[link.name] = "no connection"
                continue
            forward, backward = _proof_bytes(link.forward), _proof_bytes(link.backward)
            for sock, sends, receives in ((near, forward, backward), (far, backward, forward)):
                sock.setblocking(False)
                peer = _Peer(link=link.name, sock=sock, to_send=sends, to_receive=receives)
                selector.register(sock, peer.wants, peer)
        _exchange(selector, deadline_s, failed)
    if failed:
        lines = "".join(f"\n  {link}: {reason}" for link, reason in failed.items())
        raise TestbedError(f"TCP does not cross {len(failed)} of {len(links)} links:{lines}")


def _exchange(selector: selectors.BaseSelector, deadline_s: float, failed: dict[str, str]) -> None:
    while selector.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
        for key, mask in selector.select(left_s):
            peer = key.data
            try:
                peer.step(mask)
            except OSError as error:
                failed[peer.link] = str(error)
                peer.to_send = peer.to_receive = 0
            if not peer.wants:
                selector.unregister(peer.sock)
            elif peer.wants != key.events:
                selector.modify(peer.sock, peer.wants, peer)
    for key in selector.get_map().values():
        failed.setdefault(key.data.link, "no answer in time")


def _proof_s(link: Link) -> float:
    return sum(each.transfer_s(_proof_bytes(each)) for each in (link.forward, link.backward))


def _proof_bytes(direction: Direction) -> int:
    return max(1, min(PROOF_BYTES, int(direction.rate_bps * PROOF_S / BITS_PER_BYTE)))


def _call(network: Network, link: Link, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """A socket at ``link.a`` that is connecting to a listening one at ``link.b``, by the link's own addresses."""
    cable = network.wiring.cable(link.name)
    with inside_netns(network.netns(link.b)):
        listener = stack.enter_context(socket.socket())
        listener.bind((cable.b.address, 0))
        listener.listen(1)
    with inside_netns(network.netns(link.a)):
        near = stack.enter_context(socket.socket())
        near.setblocking(False)
        near.bind((cable.a.address, 0))
        near.connect_ex(listener.getsockname())
    return near, listener
