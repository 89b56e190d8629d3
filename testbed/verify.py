"""Measures the emulated network against its file: what a person would do with ping and iperf3, for all of it at once.

``calibrate`` measures every direction of every link, ``verify`` every pair of nodes besides, and both judge:

    round trip         both one-way delays and both serializations of the echo; met within 0.3 ms or 2 %
    goodput            rate · 1448 / 1500, TCP's payload share of a packet; met within 10 %
    one-way delay      as the round trip, but one direction alone                                               (1)
    jitter, loss       met within what the number of probes can tell (four standard errors)                     (1)
    packet size        1500 bytes cross whole, 1501 do not leave                                                (1)

(1) by numbered datagrams.  A rate above what a short probe can tell on a small machine (``CEILING_BPS``) is judged by
that bound instead.  Where loss limits TCP, jitter widens a round trip or a recording moves a value, the measurement
says so in ``judged``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from testbed import oneway
from testbed.probes import (
    ECHO_BYTES,
    Bounds,
    Transfer,
    Way,
    goodputs_bps,
    middle,
    preferred,
    round_trips_s,
    way_over,
)
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction, Link

if TYPE_CHECKING:
    from testbed.network import Network

#: More loss than this leaves a probe nothing to measure a round trip with.
SILENT_LOSS = 0.2

#: Payload of a full packet: IP and TCP headers and the time stamp option take 52 bytes.
PAYLOAD_BYTES = 1448
PAYLOAD_SHARE = PAYLOAD_BYTES / MTU_BYTES
ECHOES = 7
ECHO_INTERVAL_S = 0.03
#: Between the echoes of different pairs.
PAIR_S = 0.0003
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
    oneway: oneway.Measured | None = None  # delay, jitter, loss and packet size of this direction alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMeasurement:
    """The round trip between two nodes that are not neighbours or use another way, by the addresses of programs."""

    source: str
    target: str
    rtt_s: float
    expected_rtt_s: float
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A whole network, measured."""

    testbed: str
    links: tuple[LinkMeasurement, ...]
    pairs: tuple[PairMeasurement, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is within its bounds."""
        return all(link.ok for link in self.links) and all(pair.ok for pair in self.pairs)


def verify(network: Network) -> Verification:
    """Measure every link and every pair, and judge them by what is in force; under dilation, in wall time."""
    links = calibrate(network)
    return Verification(testbed=network.name, links=tuple(links), pairs=tuple(pairs(network)))


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


def pairs(network: Network) -> list[PairMeasurement]:
    """The round trips of all pairs of nodes, at once; what misses its bound is measured again, alone."""
    shaping = {key: network.dilated(direction) for key, direction in network.shaping().items()}
    names = [node.name for node in network.topology.nodes]
    ends = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    measured: dict[tuple[str, str], PairMeasurement] = {}
    with preferred():
        for some in (ends, *([pair] for pair in ends)):
            doubtful = [pair for pair in some if pair not in measured or not measured[pair].ok]
            for pair, found in zip(doubtful, _pairs(network, doubtful, shaping), strict=True):
                measured[pair] = found
    return list(measured.values())


def expected_rtt_s(forward: Direction, backward: Direction) -> float:
    """Round trip of an echo over an idle link."""
    return forward.transfer_s(ECHO_BYTES) + backward.transfer_s(ECHO_BYTES)


def judge(measured: LinkMeasurement, there: Direction, back: Direction) -> LinkMeasurement:
    """The measurement with its verdict, for a direction that is ``there`` and its opposite ``back``."""
    rtt_ok, rtt_bound = _judge_rtt(measured, there, back)
    goodput_ok, goodput_bound = _judge_goodput(measured, there, back)
    bounds = [rtt_bound, goodput_bound]
    one_way_ok = True
    if measured.oneway is not None:
        one_way_ok, more = oneway.judge(measured.oneway, there)
        bounds += more
    return replace(measured, ok=rtt_ok and goodput_ok and one_way_ok, judged="; ".join(bounds))


def _judge_rtt(measured: LinkMeasurement, there: Direction, back: Direction) -> tuple[bool, str]:
    jitter_s = math.hypot(there.jitter_s, back.jitter_s)
    recorded_s = sum(_spread_s(direction) for direction in (there, back))
    bound_s = max(RTT_TOLERANCE_S, RTT_TOLERANCE * measured.expected_rtt_s) + 2 * jitter_s + recorded_s
    words = "RTT within 0.3 ms or 2 %" + (" and twice the jitter" if jitter_s else "")
    # A probe over a link that loses everything has nothing to measure, and that is what was asked for.
    silent = max(there.mean_loss, back.mean_loss) > SILENT_LOSS
    waiting = "a recorded rate lets echoes wait" if there.rate_trace or there.opportunities else ""
    waiting = waiting or ("a recorded rate lets echoes wait" if back.rate_trace or back.opportunities else "")
    if waiting:
        return True, f"RTT not judged: {waiting}"
    if recorded_s:
        words += " and what the recording moves it"
    return abs(measured.rtt_s - measured.expected_rtt_s) <= bound_s or silent, words


def _judge_goodput(measured: LinkMeasurement, there: Direction, back: Direction) -> tuple[bool, str]:
    least_bps = (1 - GOODPUT_TOLERANCE) * measured.expected_goodput_bps
    most_bps = (1 + GOODPUT_TOLERANCE) * measured.expected_goodput_bps
    reasons = {
        "loss limits TCP": there.mean_loss or back.mean_loss or there.corrupt or back.corrupt,
        "packets that overtake others look lost to TCP": there.reorder or back.reorder,
        "duplicates take a share": there.duplicate or back.duplicate,
        "the rate follows a recording": there.traced or back.traced,
        "CoDel limits TCP": there.codel or back.codel,
        "acknowledgements fill the way back": back.rate_bps < ACKNOWLEDGEMENT_SHARE * there.rate_bps,
    }
    for reason, applies in reasons.items():
        if applies:
            return True, f"goodput not judged: {reason}"
    if there.rate_bps > CEILING_BPS:
        words = f"goodput at least {least_bps / 1e9:.2g} Gbit/s: faster than a short probe can tell"
        return measured.goodput_bps >= least_bps, words
    return least_bps <= measured.goodput_bps <= most_bps, "goodput within 10 %"


def _spread_s(direction: Direction) -> float:
    trace = direction.delay_trace
    return max(trace.values) - min(trace.values) if trace else 0.0


def _pairs(
    network: Network, ends: Sequence[tuple[str, str]], shaping: Mapping[tuple[str, str], Direction]
) -> list[PairMeasurement]:
    if not ends:
        return []
    ways, expected, bounds = [], [], []
    for a, b in ends:
        hops = [*network.hops(a, b), *network.hops(b, a)]
        directions = [shaping[hop] for hop in hops]
        expected.append(sum(each.transfer_s(ECHO_BYTES) for each in directions))
        spread_s = sum(2 * each.jitter_s + _spread_s(each) for each in directions)
        free = any(each.mean_loss > SILENT_LOSS or each.rate_trace or each.opportunities for each in directions)
        # Every hop wakes the relay once more.
        bounds.append(
            math.inf if free else max(RTT_TOLERANCE_S * len(hops) / 2, RTT_TOLERANCE * expected[-1]) + spread_s
        )
        ways.append(
            Way(
                source_netns=network.netns(a),
                source_address=network.wiring.node(a).address,
                target_netns=network.netns(b),
                target_address=network.wiring.node(b).address,
            )
        )
    echoes = round_trips_s(
        ways, probes=ECHOES, interval_s=max(ECHO_INTERVAL_S, PAIR_S * len(ways)), wait_s=max(expected) + 0.2
    )
    return [
        PairMeasurement(
            source=a, target=b, rtt_s=rtt_s, expected_rtt_s=expected_s, ok=abs(rtt_s - expected_s) <= bound_s
        )
        for (a, b), rtt_s, expected_s, bound_s in zip(ends, map(middle, echoes), expected, bounds, strict=True)
    ]


class _Probe:
    """One direction to measure."""

    def __init__(self, network: Network, link: Link, source: str, shaping: Mapping[tuple[str, str], Direction]) -> None:
        self.link, self.source = link.name, source
        self.target = link.b if source == link.a else link.a
        cable = network.wiring.cable(link.name)
        self.way = way_over(cable.a if source == link.a else cable.b, network.netns)
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

    def judged(self, rtt_s: float, goodput_bps: float, one_way: oneway.Measured) -> LinkMeasurement:
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
            oneway=one_way,
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
    one_ways = oneway.measure([(probe.way, probe.there) for probe in probes])
    found = [0.0] * len(probes)
    batches = list(_batches([probe.there.rate_bps for probe in probes], attempt))
    for first in range(0, len(batches), CONNECTED_BATCHES):
        some = batches[first : first + CONNECTED_BATCHES]
        goodputs = goodputs_bps([[probes[n].transfer(attempt.measure_s) for n in batch] for batch in some])
        for n, goodput_bps in zip(chain(*some), chain(*goodputs), strict=True):
            found[n] = goodput_bps
    return [probe.judged(rtts[probe.link], found[n], one_ways[n]) for n, probe in enumerate(probes)]


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
