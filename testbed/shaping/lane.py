"""One direction of one link in the relay: the TUN device that packets are read from, and the model that they meet.

What is in force is kept as people asked for it and applied as dilation makes of it.  It is encoded for reports once,
when it is put in force: recordings make it long, and the relay forwards nothing while it encodes.
"""

from __future__ import annotations

import math
import socket

import msgspec

from testbed.shaping import protocol as wire
from testbed.shaping.base import CableEnd
from testbed.shaping.dilation import dilated
from testbed.shaping.model import LinkModel
from testbed.shaping.tun import LinkControl, let_bundles, open_tun
from testbed.tcp import bundle_for
from testbed.topology import Direction

#: A link that may take so many packets at once takes whatever bundle is forwarded to it.
WHOLE_BUNDLE = 40


class Lane:
    """Where packets are read, the model, where they are written."""

    __slots__ = (
        "_control",
        "_encoded",
        "_forwards",
        "_index",
        "_interface",
        "due_s",
        "fd",
        "link",
        "model",
        "nominal",
        "order",
        "out_fd",
        "source",
        "target",
    )

    def __init__(
        self,
        link: str,
        end: CableEnd,
        target: str,
        nominal: Direction,
        model: LinkModel[bytes],
        control: LinkControl,
    ) -> None:
        """Create the interface in the namespace of the calling thread."""
        self.link, self.source, self.target, self.model = link, end.node, target, model
        self.nominal = nominal  # as people asked for it, before dilation
        self._encoded = msgspec.Raw(wire.encode(nominal))
        self.out_fd = -1  # of the other end; -1: not plugged in
        self.order = -1  # place among all lanes; the other direction of the link is at ``order ^ 1``
        self.due_s = math.inf  # when the relay will ask the model for what is due
        self._interface, self._forwards = end.interface, end.forwards
        self.open(control)

    def open(self, control: LinkControl) -> None:
        """Create the interface in the namespace of the calling thread."""
        self.fd = open_tun(self._interface)
        self._control = control
        self._index = socket.if_nametoindex(self._interface)
        self._limit_bundle()

    def apply(self, nominal: Direction, dilation: float, now_s: float) -> None:
        """Put ``nominal`` in force, ``dilation`` times slower."""
        if nominal is not self.nominal:
            self.nominal, self._encoded = nominal, msgspec.Raw(wire.encode(nominal))
        self.model.change(dilated(nominal, dilation), now_s)
        if self.fd >= 0:
            self._limit_bundle()

    def report(self, now_s: float) -> wire.LaneReport:
        """What is in force and what was carried."""
        counters = self.model.counters(now_s)
        return wire.LaneReport(
            link=self.link,
            source=self.source,
            target=self.target,
            applied=self._encoded,
            packets=counters.packets,
            bytes=counters.bytes,
            dropped=counters.dropped,
            queued_bytes=counters.queued_bytes,
        )

    def _limit_bundle(self) -> None:
        bundle = bundle_for(self.nominal)
        self._control.set_bundle(self._index, bundle)
        if self._forwards:
            let_bundles(self.fd, bundle >= WHOLE_BUNDLE)
