"""Measures the emulated links against their file: what a person would do with ping and iperf3, for all of them at once.

``prove`` moves a little TCP both ways over every link, so that no testbed is handed over in which ping works and TCP
does not.  ``calibrate`` measures round trip and goodput of every link and judges them:

    expected RTT       both one-way delays and both serializations of the echo; met within 0.3 ms or 2 %
    expected goodput   rate · 1448 / 1500, TCP's payload share of a packet; met within 10 %

A rate above what a short probe can tell on a small machine (``CEILING_BPS``) is judged by that bound instead, and where
loss limits TCP or jitter widens the round trip, the measurement says so in ``judged``.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.probes import ECHO_BYTES, Bounds, Transfer, Way, connect, goodputs_bps, middle, preferred, round_trips_s
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction, Link

if TYPE_CHECKING:
    from testbed.network import Network

#: A proof moves this much each way, or what the link carries in PROOF_S.
PROOF_BYTES = 64 * 1024
PROOF_S = 0.05
PROOF_DEADLINE_S = 5.0
#: TCP is not expected to get through more loss than this in reasonable time.
PROVABLE_LOSS = 0.2

#: Payload of a full packet: IP and TCP headers and the time stamp option take 52 bytes.
PAYLOAD_BYTES = 1448
PAYLOAD_SHARE = PAYLOAD_BYTES / MTU_BYTES
ECHOES = 7
ECHO_INTERVAL_S = 0.03
RTT_TOLERANCE_S = 0.0003
RTT_TOLERANCE = 0.02
GOODPUT_TOLERANCE = 0.10
#: An acknowledgement of 52 bytes for every second packet, and as much again.
ACKNOWLEDGEMENT_SHARE = 0.035
#: Faster links are only asked to carry this much.
CEILING_BPS = 2e9
#: So many batches are connected before the first is measured: all of a small testbed, within the limit on open files.
CONNECTED_BATCHES = 40
#: A measurement lasts for this many packets at least, but not longer than MAX_MEASURE_S.
MEASURE_PACKETS = 200
MAX_MEASURE_S = 1.0
WARM_UP_S = 0.01
#: Probes keep this share of the queue filled.
QUEUE_SHARE = 0.75
#: They send at most so many times faster than the link should be, and never faster than FASTEST_BPS.
MAX_PACE = 3.0
FASTEST_BPS = 3e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """How goodput is measured, and what is measured together, so that the machine is not what limits it."""

    measure_s: float
    together_bps: float
    together_flows: int


ATTEMPTS = (
    _Attempt(measure_s=0.06, together_bps=2.5e9, together_flows=6),
    _Attempt(measure_s=0.15, together_bps=1.2e9, together_flows=3),
    _Attempt(measure_s=0.25, together_bps=0.0, together_flows=1),
    _Attempt(measure_s=0.5, together_bps=0.0, together_flows=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """One direction of a link, measured.  The round trip is the same both ways."""

    link: str
    source: str
    target: str
    rtt_s: float
    expected_rtt_s: float
    goodput_bps: float
    expected_goodput_bps: float
    ok: bool
    judged: str  # by what bounds, in words
    goodput_at_least: bool = False  # the link is faster than a probe can tell; ``expected_goodput_bps`` is what it can


def calibrate(network: Network) -> list[LinkMeasurement]:
    """Measure every link, both ways, and judge it by what is in force; under dilation, in wall time.

    What misses its bounds is measured again, longer and with fewer beside it: the host may have been busy.
    """
    shaping = {key: network.dilated(direction) for key, direction in network.shaping().items()}
    probes = [_Probe(network, link, source, shaping) for link in network.topology.links for source in (link.a, link.b)]
    with preferred():
        measured = _measure(probes, ATTEMPTS[0])
        for attempt in ATTEMPTS[1:]:
            doubtful = [n for n, measurement in enumerate(measured) if not measurement.ok]
            for n, again in zip(doubtful, _measure([probes[n] for n in doubtful], attempt), strict=True):
                measured[n] = again
    return measured


def expected_rtt_s(forward: Direction, backward: Direction) -> float:
    """Round trip of an echo over an idle link."""
    return forward.transfer_s(ECHO_BYTES) + backward.transfer_s(ECHO_BYTES)


def judge(measured: LinkMeasurement, there: Direction, back: Direction) -> LinkMeasurement:
    """The measurement with its verdict, for a direction that is ``there`` and its opposite ``back``."""
    jitter_s = math.hypot(there.jitter_s, back.jitter_s)
    rtt_bound_s = max(RTT_TOLERANCE_S, RTT_TOLERANCE * measured.expected_rtt_s) + 2 * jitter_s
    bounds = ["RTT within 0.3 ms or 2 %" + (" and twice the jitter" if jitter_s else "")]
    # A probe over a link that loses everything has nothing to measure, and that is what was asked for.
    silent = max(there.loss, back.loss) > PROVABLE_LOSS
    rtt_ok = abs(measured.rtt_s - measured.expected_rtt_s) <= rtt_bound_s or silent
    least_bps = (1 - GOODPUT_TOLERANCE) * measured.expected_goodput_bps
    most_bps = (1 + GOODPUT_TOLERANCE) * measured.expected_goodput_bps
    if there.loss or back.loss:
        bounds.append("goodput not judged: loss limits TCP")
        goodput_ok = True
    elif back.rate_bps < ACKNOWLEDGEMENT_SHARE * there.rate_bps:
        bounds.append("goodput not judged: acknowledgements fill the way back")
        goodput_ok = True
    elif there.rate_bps > CEILING_BPS:
        bounds.append(f"goodput at least {least_bps / 1e9:.2g} Gbit/s: faster than a short probe can tell")
        goodput_ok = measured.goodput_bps >= least_bps
    else:
        bounds.append("goodput within 10 %")
        goodput_ok = least_bps <= measured.goodput_bps <= most_bps
    return replace(measured, ok=rtt_ok and goodput_ok, judged="; ".join(bounds))


def prove(network: Network) -> None:
    """Move a little TCP both ways over every link; TestbedError naming those that do not carry it."""
    links = [link for link in network.topology.links if max(link.forward.loss, link.backward.loss) <= PROVABLE_LOSS]
    slowest_s = network.dilation * max((_proof_s(link) for link in links), default=0.0)
    deadline_s = time.monotonic() + PROOF_DEADLINE_S + 4 * slowest_s
    failed: dict[str, str] = {}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pairs = connect([_way(network, link, link.a) for link in links], stack, deadline_s=deadline_s)
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


def _way(network: Network, link: Link, source: str) -> Way:
    cable = network.wiring.cable(link.name)
    near, far = (cable.a, cable.b) if source == link.a else (cable.b, cable.a)
    return Way(
        source_netns=network.netns(near.node),
        source_address=near.address,
        target_netns=network.netns(far.node),
        target_address=far.address,
    )


class _Probe:
    """One direction to measure."""

    def __init__(self, network: Network, link: Link, source: str, shaping: Mapping[tuple[str, str], Direction]) -> None:
        self.link, self.source = link.name, source
        self.target = link.b if source == link.a else link.a
        self.way = _way(network, link, source)
        self.there, self.back = shaping[link.name, source], shaping[link.name, self.target]

    def transfer(self, measure_s: float) -> Transfer:
        """A transfer that fills the link and most of its queue, so that a pause of the sender leaves no gap."""
        rate_bps = min(self.there.rate_bps, FASTEST_BPS)
        rtt_s = self.there.delay_s + self.back.delay_s
        queued_bytes = max(QUEUE_SHARE * self.there.effective_queue_bytes, 4 * MTU_BYTES)
        window_bytes = rate_bps * rtt_s / BITS_PER_BYTE + queued_bytes
        # The faster the probe, the surer it notices a link that is too fast; but while the window is sent for the first
        # time, what exceeds the link's rate has to fit into the queue:  window · (1 - 1 / pace) = queued.
        pace = min(MAX_PACE, 1 / (1 - queued_bytes / (window_bytes + 1)))
        packets_s = MEASURE_PACKETS * BITS_PER_BYTE * MTU_BYTES / rate_bps
        return Transfer(
            way=self.way,
            bounds=Bounds(
                window_bytes=int(window_bytes),
                pace_bytes_per_s=int(min(pace * rate_bps, FASTEST_BPS) / BITS_PER_BYTE),
            ),
            # One round trip until the receiver's first acknowledgement has opened the window, and half of one to spare.
            warm_up_s=1.5 * rtt_s + WARM_UP_S,
            measure_s=min(max(measure_s, packets_s), MAX_MEASURE_S),
        )

    def judged(self, rtt_s: float, goodput_bps: float) -> LinkMeasurement:
        """What was measured, with its verdict."""
        measured = LinkMeasurement(
            link=self.link,
            source=self.source,
            target=self.target,
            rtt_s=rtt_s,
            expected_rtt_s=expected_rtt_s(self.there, self.back),
            goodput_bps=goodput_bps,
            expected_goodput_bps=min(self.there.rate_bps, CEILING_BPS) * PAYLOAD_SHARE,
            goodput_at_least=self.there.rate_bps > CEILING_BPS,
            ok=False,
            judged="",
        )
        return judge(measured, self.there, self.back)


def _measure(probes: Sequence[_Probe], attempt: _Attempt) -> list[LinkMeasurement]:
    if not probes:
        return []
    longest_s = max((probe.there.delay_s + probe.back.delay_s for probe in probes), default=0.0)
    jitter_s = max((probe.there.jitter_s + probe.back.jitter_s for probe in probes), default=0.0)
    by_link = {probe.link: probe.way for probe in probes}
    wait_s = longest_s + 5 * jitter_s + 0.1
    echoes = round_trips_s(list(by_link.values()), probes=ECHOES, interval_s=ECHO_INTERVAL_S, wait_s=wait_s)
    rtts = dict(zip(by_link, map(middle, echoes), strict=True))
    found = [0.0] * len(probes)
    batches = list(_batches([probe.there.rate_bps for probe in probes], attempt))
    for first in range(0, len(batches), CONNECTED_BATCHES):
        some = batches[first : first + CONNECTED_BATCHES]
        goodputs = goodputs_bps([[probes[n].transfer(attempt.measure_s) for n in batch] for batch in some])
        for n, goodput_bps in zip(chain(*some), chain(*goodputs), strict=True):
            found[n] = goodput_bps
    return [probe.judged(rtts[probe.link], found[n]) for n, probe in enumerate(probes)]


def _batches(rates_bps: Sequence[float], attempt: _Attempt) -> Iterator[list[int]]:
    """Which to measure together: similar rates, since they take similarly long, up to what the machine carries."""
    batch: list[int] = []
    load_bps = 0.0
    for n in sorted(range(len(rates_bps)), key=lambda n: rates_bps[n]):
        rate_bps = min(rates_bps[n], CEILING_BPS)
        if batch and (load_bps + rate_bps > attempt.together_bps or len(batch) == attempt.together_flows):
            yield batch
            batch, load_bps = [], 0.0
        batch.append(n)
        load_bps += rate_bps
    if batch:
        yield batch
