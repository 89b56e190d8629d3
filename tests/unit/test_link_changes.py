"""What a scenario's change makes of a link."""

from __future__ import annotations

from orchestration.player import changed
from scenarios.timeline import LinkChange
from testbed.impairments import GilbertElliott, Steps
from testbed.topology import Direction

SLOW = LinkChange(at_s=1.0, link="s1-s2", rate_bps=1e6)


def test_a_change_keeps_whatever_it_does_not_name() -> None:
    bursts = GilbertElliott(worsens=0.01, recovers=0.5)
    before = Direction(rate_bps=1e8, delay_s=0.005, jitter_s=0.001, reorder=True, burst_loss=bursts, corrupt=0.01)
    after = changed(before, SLOW)

    assert (after.rate_bps, after.delay_s, after.jitter_s, after.reorder) == (1e6, 0.005, 0.001, True)
    assert (after.burst_loss, after.corrupt) == (bursts, 0.01)


def test_a_congested_link_keeps_its_queue() -> None:
    in_bytes, in_packets = (
        changed(Direction(rate_bps=1e8, delay_s=0.005, **queue), SLOW) for queue in ({}, {"queue_packets": 50})
    )

    assert in_bytes.queue_bytes == Direction(rate_bps=1e8, delay_s=0.005).effective_queue_bytes
    assert (in_packets.queue_bytes, in_packets.queue_packets) == (None, 50)


def test_a_rate_that_is_set_takes_the_place_of_a_recording_until_it_is_restored() -> None:
    steps = Steps(name="t", ends_s=(1.0, 2.0), values=(1e6, 3e6))
    recorded = Direction(rate_bps=2e6, delay_s=0.005, rate_trace=steps)

    assert changed(recorded, SLOW).rate_trace is None
    assert changed(recorded, LinkChange(at_s=1.0, link="s1-s2", delay_s=0.1)).rate_trace == steps
    assert changed(recorded, LinkChange(at_s=2.0, link="s1-s2", restore=True)) == recorded
