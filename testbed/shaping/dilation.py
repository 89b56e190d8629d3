"""A direction in a world that runs slower: what is applied in wall time so that the emulated world sees the original.

>>> slow = dilated(Direction(rate_bps=1e9, delay_s=0.002), 4)
>>> slow.rate_bps, slow.delay_s, slow.effective_queue_bytes
(250000000.0, 0.008, 2500000)
"""

from __future__ import annotations

from dataclasses import replace

from testbed.impairments import CoDel, Opportunities, Steps
from testbed.topology import Direction


def dilated(direction: Direction, dilation: float) -> Direction:
    """The direction in a world that runs ``dilation`` times slower; its queue holds the same packets."""
    return replace(
        direction,
        rate_bps=direction.rate_bps / dilation,
        delay_s=direction.delay_s * dilation,
        jitter_s=direction.jitter_s * dilation,
        queue_bytes=None if direction.queue_in_packets else direction.effective_queue_bytes,
        codel=_codel(direction.codel, dilation),
        rate_trace=_steps(direction.rate_trace, dilation, 1 / dilation),
        opportunities=_opportunities(direction.opportunities, dilation),
        delay_trace=_steps(direction.delay_trace, dilation, dilation),
    )


def _codel(codel: CoDel | None, dilation: float) -> CoDel | None:
    return codel and CoDel(target_s=codel.target_s * dilation, interval_s=codel.interval_s * dilation)


def _steps(steps: Steps | None, dilation: float, factor: float) -> Steps | None:
    if steps is None or dilation == 1:
        return steps
    return replace(
        steps,
        ends_s=tuple(dilation * end_s for end_s in steps.ends_s),
        values=tuple(factor * value for value in steps.values),
    )


def _opportunities(opportunities: Opportunities | None, dilation: float) -> Opportunities | None:
    if opportunities is None or dilation == 1:
        return opportunities
    return replace(opportunities, at_s=tuple(dilation * at_s for at_s in opportunities.at_s))
