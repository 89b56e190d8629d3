r"""What chance does to the packets of one direction: loss, duplication, corruption, jitter.

Loss in bursts is a link that is good or bad and may change before every packet (Gilbert 1960, Elliott 1963).

The extra delay of a packet is jitter · q(z), where z is normal with mean 0 and variance 1, and q brings it to the shape
of the file (the identity, if there is none): a table of quantiles is read at the probability of z.  z wanders instead
of jumping: two packets t apart have the correlation exp(-t / 10 jitter), so packets far apart are independent.
Independent draws for packets close together would not be a link whose packets keep their order: everything would wait
behind the slowest of its neighbours.  Only where packets may overtake each other is every draw for itself.
"""

from __future__ import annotations

import math
import random

from testbed.impairments import TABLE_SIGMA
from testbed.topology import Direction

#: Jitter forgets itself over this many times its own size.
JITTER_MEMORY = 10.0


class Chance:
    """The dice of one direction."""

    __slots__ = (
        "_bad",
        "_bursts",
        "_jitter_s",
        "_reorder",
        "_rng",
        "_table",
        "_z",
        "_z_at_s",
        "corrupt",
        "duplicate",
        "loses",
        "loss",
    )

    def __init__(self, direction: Direction, rng: random.Random) -> None:
        self._rng = rng
        self._bad = False
        self._z, self._z_at_s = 0.0, -math.inf
        self.adopt(direction)

    def adopt(self, direction: Direction) -> None:
        """Go on with the chances of ``direction``; a bad spell lasts as it would have."""
        self.loss = direction.loss
        self._bursts = direction.burst_loss
        self._bad = self._bad and self._bursts is not None
        self.loses = bool(self.loss or self._bursts)
        self.duplicate = direction.duplicate
        self.corrupt = direction.corrupt
        self._jitter_s = direction.jitter_s
        self._reorder = direction.reorder
        self._table = direction.jitter_shape.table if direction.jitter_shape else ()

    def restart(self, seed: str, direction: Direction) -> None:
        """Begin anew, from ``seed``."""
        self._rng.seed(seed)
        self._bad = False
        self._z, self._z_at_s = 0.0, -math.inf
        self.adopt(direction)

    def lost(self) -> bool:
        """Whether the next packet is lost."""
        random_ = self._rng.random
        bursts = self._bursts
        if bursts is not None:
            if random_() < (bursts.recovers if self._bad else bursts.worsens):
                self._bad = not self._bad
            share = bursts.loss_bad if self._bad else bursts.loss_good
            if share and (share >= 1 or random_() < share):
                return True
        return bool(self.loss) and random_() < self.loss

    def duplicated(self) -> bool:
        """Whether the next packet arrives twice."""
        return bool(self.duplicate) and self._rng.random() < self.duplicate

    def corrupted(self) -> bool:
        """Whether a bit of the next packet is flipped."""
        return bool(self.corrupt) and self._rng.random() < self.corrupt

    def spot(self, size: int) -> int:
        """A bit of ``size``, all equally likely."""
        return self._rng.randrange(size)

    def drawn(self, at_s: float) -> float:
        """The normal draw of a packet that leaves at ``at_s``."""
        if self._reorder:
            return self._rng.gauss(0.0, 1.0)
        kept = math.exp((self._z_at_s - at_s) / (JITTER_MEMORY * self._jitter_s))
        self._z = kept * self._z + math.sqrt(1 - kept * kept) * self._rng.gauss(0.0, 1.0)
        self._z_at_s = at_s
        return self._z

    def extra_s(self, z: float) -> float:
        """The extra delay, positive or negative, of a packet with that draw."""
        if self._table:
            place = int(0.5 * math.erfc(-z / math.sqrt(2)) * len(self._table))
            return self._jitter_s * self._table[min(place, len(self._table) - 1)] / TABLE_SIGMA
        return self._jitter_s * z

    def earlier(self, at_s: float) -> None:
        """What was drawn for later than ``at_s`` leaves at ``at_s``: jitter wanders on from there."""
        self._z_at_s = min(self._z_at_s, at_s)
