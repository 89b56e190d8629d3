"""A little TCP both ways over every link: no testbed is handed over in which ping works and TCP does not."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.probes import connect, way_over
from testbed.topology import BITS_PER_BYTE, Direction, Link

if TYPE_CHECKING:
    from testbed.network import Network

#: A proof moves this much each way, or what the link carries in PROOF_S.
PROOF_BYTES = 64 * 1024
PROOF_S = 0.05
PROOF_DEADLINE_S = 5.0
#: A recorded rate may be zero for a while.
OUTAGE_S = 15.0
#: TCP is not expected to get through more loss than this in reasonable time.
PROVABLE_LOSS = 0.2


def prove(network: Network) -> None:
    """Move a little TCP both ways over every link; TestbedError naming those that do not carry it."""
    links = [
        link
        for link in network.topology.links
        if max(link.forward.undelivered, link.backward.undelivered) <= PROVABLE_LOSS
    ]
    slowest_s = network.dilation * max((_proof_s(link) for link in links), default=0.0)
    recorded = any(direction.traced for link in links for direction in (link.forward, link.backward))
    deadline_s = time.monotonic() + PROOF_DEADLINE_S + 4 * slowest_s + (OUTAGE_S * network.dilation if recorded else 0)
    failed: dict[str, str] = {}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pairs = connect(
            [way_over(network.wiring.cable(link.name).a, network.netns) for link in links], stack, deadline_s=deadline_s
        )
        for link, pair in zip(links, pairs, strict=True):
            if pair is None:
                failed[link.name] = "no connection"
                continue
            forward, backward = _proof_bytes(link.forward), _proof_bytes(link.backward)
            for sock, sends, receives in ((pair[0], forward, backward), (pair[1], backward, forward)):
                peer = _Peer(link=link.name, sock=sock, to_send=sends, to_receive=receives)
                selector.register(sock, peer.wants, peer)
        _exchange(selector, deadline_s, failed)
    if failed:
        lines = "".join(f"\n  {link}: {reason}" for link, reason in failed.items())
        raise TestbedError(f"TCP does not cross {len(failed)} of {len(links)} links:{lines}")


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
            got = len(self.sock.recv(min(self.to_receive, PROOF_BYTES)))
            if not got:
                raise ConnectionResetError("the connection ended early")
            self.to_receive -= got

    @property
    def wants(self) -> int:
        """What to wait for next; 0 when done."""
        return (selectors.EVENT_WRITE if self.to_send else 0) | (selectors.EVENT_READ if self.to_receive else 0)


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
