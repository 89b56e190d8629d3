"""Within which bounds a measured link is as it should be.

    round trip         both one-way delays and both serializations of the echo; met within 0.3 ms or 2 %
    goodput            rate · 1448 / 1500, TCP's payload share of a packet; met within 10 %
    one-way delay      as the round trip, but one direction alone                                               (1)
    jitter, loss       met within what the number of probes can tell (four standard errors)                     (1)
    packet size        1500 bytes cross whole, 1501 do not leave                                                (1)

(1) by numbered datagrams (``testbed.oneway``).  A rate above what a short probe can tell on a small machine
(``CEILING_BPS``) is judged by that bound instead.  Where loss limits TCP, jitter widens a round trip or a recording
moves a value, the measurement says so in ``judged``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed import oneway
from testbed.probes import ECHO_BYTES
from testbed.topology import MTU_BYTES, Direction

#: More loss than this leaves a probe nothing to measure a round trip with.
SILENT_LOSS = 0.2

#: Payload of a full packet: IP and TCP headers and the time stamp option take 52 bytes.
PAYLOAD_BYTES = 1448
PAYLOAD_SHARE = PAYLOAD_BYTES / MTU_BYTES
RTT_TOLERANCE_S = 0.0003
RTT_TOLERANCE = 0.02
GOODPUT_TOLERANCE = 0.10
#: An acknowledgement of 52 bytes for every second packet, and as much again.
ACKNOWLEDGEMENT_SHARE = 0.035
#: Faster links are only asked to carry this much.
CEILING_BPS = 2e9


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


def pair_bound_s(hops: Sequence[Direction]) -> float:
    """How far the round trip over ``hops``, there and back, may be off; infinity where nothing can be said."""
    if any(hop.mean_loss > SILENT_LOSS or hop.recorded_rate for hop in hops):
        return math.inf
    expected_s = sum(hop.transfer_s(ECHO_BYTES) for hop in hops)
    moved_s = sum(2 * hop.jitter_s + _recorded_range_s(hop) for hop in hops)
    # Every hop wakes the relay once more.
    return max(RTT_TOLERANCE_S * len(hops) / 2, RTT_TOLERANCE * expected_s) + moved_s


def _judge_rtt(measured: LinkMeasurement, there: Direction, back: Direction) -> tuple[bool, str]:
    jitter_s = math.hypot(there.jitter_s, back.jitter_s)
    recorded_s = _recorded_range_s(there) + _recorded_range_s(back)
    bound_s = max(RTT_TOLERANCE_S, RTT_TOLERANCE * measured.expected_rtt_s) + 2 * jitter_s + recorded_s
    words = "RTT within 0.3 ms or 2 %" + (" and twice the jitter" if jitter_s else "")
    # A probe over a link that loses everything has nothing to measure, and that is what was asked for.
    silent = max(there.mean_loss, back.mean_loss) > SILENT_LOSS
    if there.recorded_rate or back.recorded_rate:
        return True, "RTT not judged: a recorded rate lets echoes wait"
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


def _recorded_range_s(direction: Direction) -> float:
    """How far a recording moves the delay."""
    trace = direction.delay_trace
    return max(trace.values) - min(trace.values) if trace else 0.0
