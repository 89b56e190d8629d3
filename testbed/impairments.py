"""What a link may do to packets beyond making them wait: plain values, read by shapers and by the file loader.

>>> bursts = GilbertElliott(worsens=0.01, recovers=0.19)
>>> bursts.mean_loss, bursts.mean_burst_packets
(0.05, 5.2631578947368425)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

#: One standard deviation in the integers of iproute2's distribution tables.
TABLE_SIGMA = 8192
#: What delivers a packet of mahimahi's: Ethernet's 1500 bytes and 4 of its TUN header.
OPPORTUNITY_BYTES = 1504


@dataclass(frozen=True, slots=True, kw_only=True)
class GilbertElliott:
    """Loss in bursts: a link that is good or bad, and may change before every packet.  Gilbert 1960, Elliott 1963."""

    worsens: float  # probability, before each packet, that a good link turns bad
    recovers: float  # probability, before each packet, that a bad link turns good
    loss_bad: float = 1.0  # probability that a packet is lost while the link is bad
    loss_good: float = 0.0  # ... and while it is good

    @property
    def mean_loss(self) -> float:
        """Share of the packets that is lost in the long run."""
        bad = self.worsens / (self.worsens + self.recovers) if self.worsens else 0.0
        return bad * self.loss_bad + (1 - bad) * self.loss_good

    @property
    def mean_burst_packets(self) -> float:
        """How many packets a bad spell lasts on average."""
        return 1 / self.recovers


@dataclass(frozen=True, slots=True, kw_only=True)
class CoDel:
    """A queue that drops early once packets have waited too long for a whole interval.  RFC 8289."""

    target_s: float = 0.005  # acceptable standing wait
    interval_s: float = 0.100  # how long it may be exceeded; about the longest round trip


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The shape of jitter, as iproute2's tables have it: quantiles at equal steps of probability, sigma = 8192."""

    name: str
    table: tuple[int, ...]  # ascending or not: a draw takes one entry, all equally likely


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A value that changes in steps: ``values[i]`` holds until ``ends_s[i]``; after the last it starts anew."""

    name: str  # of the file, for people
    ends_s: tuple[float, ...]  # ascending, the first above zero
    values: tuple[float, ...]  # in the SI unit of what is traced

    @property
    def period_s(self) -> float:
        """How long one round takes."""
        return self.ends_s[-1]

    @property
    def mean(self) -> float:
        """The mean over time."""
        starts_s = (0.0, *self.ends_s)
        spans_s = (end - start for start, end in itertools.pairwise(starts_s))
        return sum(span * value for span, value in zip(spans_s, self.values, strict=True)) / self.period_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunities:
    """A rate as mahimahi records it: at each of these times so many bytes may leave; unused chances are gone."""

    name: str  # of the file, for people
    at_s: tuple[float, ...]  # ascending, equal ones allowed; after the last it starts anew
    each_bytes: int = OPPORTUNITY_BYTES

    @property
    def period_s(self) -> float:
        """How long one round takes."""
        return self.at_s[-1]

    @property
    def mean_bps(self) -> float:
        """Bits per second if every chance is used."""
        return 8 * self.each_bytes * len(self.at_s) / self.period_s
