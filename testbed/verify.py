"""Measures the emulated network: what a person would do with ping and iperf3, for all of it at once.

``calibrate`` measures every direction of every link, ``verify`` every pair of nodes besides.  ``testbed.judging`` says
within which bounds a link is as it should be; what misses them is measured again, longer and with fewer beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from testbed import oneway
from testbed.judging import CEILING_BPS, PAYLOAD_SHARE, LinkMeasurement, expected_rtt_s, judge, pair_bound_s
from testbed.probes import ECHO_BYTES, Bounds, Transfer, Way, goodputs_bps, middle, preferred, round_trips_s, way_over
from testbed.topology import BITS_PER_BYTE, MTU_BYTES, Direction, Link

if TYPE_CHECKING:
    from testbed.network import Network

ECHOES = 7
ECHO_INTERVAL_S = 0.03
#: Between the echoes of different pairs.
PAIR_S = 0.0003
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
        bounds.append(pair_bound_s(directions))
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
