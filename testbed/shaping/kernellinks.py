"""The devices of a link in the kernel and what hangs on them: make, change and read one end at a time.

    a program's packets -> to-s2  --redirected-->  q-s2: netem (passes on) > htb > fifo     waits here, dropped here
                           to-s2  <--let go------  q-s2
                           to-s2: netem: size/rate, delay, jitter, loss ... --> the other end of the pair

The order matters.  netem holds a packet when it comes in and htb when it goes out, so in one tree the delay would come
before the queue: a change of rate or delay would miss what is queued, and a lost packet would not have taken the line.
So the queue is a device of its own (an ``ifb``) in front of the interface.

htb hangs below a netem that does nothing, because a drop right at the root would be told to the sender's TCP, which
would take it back; a queue somewhere on the way tells nobody.  Both ends of a cable have the same hardware address and
ask for none (NOARP), so no ARP crosses shaped links, whatever addresses they are given later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EINVAL, ENOENT
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from testbed.backends import kernel
from testbed.errors import TestbedError
from testbed.shaping import kernelunits as units
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport
from testbed.shaping.dilation import dilated
from testbed.shaping.model import Drop
from testbed.shaping.offloads import keep_order
from testbed.shaping.qdiscs import Qdisc, TrafficControl
from testbed.shaping.tun import LinkControl
from testbed.tcp import bundle_for
from testbed.topology import MTU_BYTES, Direction

#: Handles: the root of either device; below the root of the queue's device; its one class, and the fifo in that.
ROOT, QUEUE = 1 << 16, 2 << 16
BELOW_ROOT, CLASS = ROOT | 1, QUEUE | 1
FIFOS = {"bfifo": 3 << 16, "pfifo": 4 << 16}  # the kernel gives no handle to another kind
EGRESS = 0xFFFFFFF3  # where clsact looks at what leaves
IFF_NOARP = 0x80
#: Packets on their way from the queue to the line.
DEVICE_QUEUE_PACKETS = 1000
MAX_NAME = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a cable, and what the kernel is told for it."""

    link: str
    near: CableEnd
    target: str
    nominal: Direction  # as people asked for it, before dilation
    dilation: float
    bundle: int
    line: units.Line
    queue: units.Queue

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.link} from {self.near.node}"


def way_of(cable: CablePlan, source: str, dilation: float) -> Way:
    """The direction of ``cable`` that starts at the node ``source``."""
    forward = source == cable.a.node
    near, far = (cable.a, cable.b) if forward else (cable.b, cable.a)
    nominal = cable.forward if forward else cable.backward
    bundle, real = bundle_for(nominal), dilated(nominal, dilation)
    return Way(
        link=cable.link,
        near=near,
        target=far.node,
        nominal=nominal,
        dilation=dilation,
        bundle=bundle,
        line=units.line_of(real, bundle=bundle),
        queue=units.queue_of(real, bundle=bundle),
    )


def queue_device(interface: str) -> str:
    """The device in which the packets of ``interface`` wait.

    >>> queue_device("to-s2")
    'q-s2'
    """
    return f"q-{interface.removeprefix('to-')}"[:MAX_NAME]


def missing(cables: Sequence[CablePlan]) -> list[CablePlan]:
    """Cables that are not whole."""
    there: dict[str, set[str]] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            if end.netns not in there:
                with _inside(cable.link, end):
                    there[end.netns] = {name for _, name in socket.if_nameindex()}
    return [
        cable
        for cable in cables
        if not all({end.interface, queue_device(end.interface)} <= there[end.netns] for end in (cable.a, cable.b))
    ]


def connect(cable: CablePlan) -> None:
    """Make the pair of interfaces.  What is left of an old one goes first: its other end may live in a dead sandbox."""
    for end in (cable.a, cable.b):
        with _inside(cable.link, end), IPRoute() as netlink:
            # To ask the kernel for a name that is not there would make it look for a driver of that name.
            left = {name: index for index, name in socket.if_nameindex()}
            for name in (end.interface, queue_device(end.interface)):
                if name in left:
                    with worded(cable.link, "to give up what is left"):
                        netlink.link("del", index=left[name])
    address = _hardware_address(cable.link)
    with _inside(cable.link, cable.a), IPRoute() as netlink, Path(cable.b.netns).open() as other:
        peer = {"ifname": cable.b.interface, "address": address, "mtu": MTU_BYTES, "net_ns_fd": other.fileno()}
        with worded(cable.link, "a pair of interfaces"):
            netlink.link("add", ifname=cable.a.interface, kind="veth", address=address, mtu=MTU_BYTES, peer=peer)


def furnish(way: Way) -> None:
    """Give one end of a new pair its queue and its line, and set it up."""
    interface, device, kind = way.near.interface, queue_device(way.near.interface), _fifo(way)
    with (
        _inside(way.name, way.near),
        worded(way.name, "its queue and line"),
        IPRoute() as netlink,
        TrafficControl() as control,
    ):
        netlink.link("add", ifname=device, kind="ifb", txqlen=DEVICE_QUEUE_PACKETS, mtu=MTU_BYTES)
        line, queue = socket.if_nametoindex(interface), socket.if_nametoindex(device)
        _limit_bundle(way, line, queue)
        control.put(line, "netem", units.packed_line(way.line), handle=ROOT)
        control.put(queue, "netem", units.packed_passage(), handle=ROOT)
        control.put(queue, "htb", units.packed_classes(CLASS - QUEUE), handle=QUEUE, parent=BELOW_ROOT)
        control.put_class(queue, "htb", units.packed_queue(way.queue), handle=CLASS, parent=QUEUE)
        control.put(queue, kind, units.packed_fifo(way.queue.limit), handle=FIFOS[kind], parent=CLASS)
        redirect = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": queue}
        netlink.tc("add", "clsact", index=line)
        netlink.tc("add-filter", "matchall", index=line, parent=EGRESS, prio=1, action=redirect)
        netlink.link("set", index=queue, state="up")
        netlink.link("set", index=line, flags=IFF_NOARP, change=IFF_NOARP)
        netlink.link("set", index=line, state="up")
        keep_order(interface, number=line)


def change(before: Way, after: Way) -> None:
    """Tell the kernel what is different; nothing that is queued is lost."""
    if (before.line, before.queue, before.bundle) == (after.line, after.queue, after.bundle):
        return
    with _inside(after.name, after.near), worded(after.name, "the change"), TrafficControl() as control:
        line = socket.if_nametoindex(after.near.interface)
        queue = socket.if_nametoindex(queue_device(after.near.interface))
        regraft = before.queue.in_packets != after.queue.in_packets
        if regraft and any(each.interface == queue and each.waiting for each in control.read()):
            raise TestbedError(
                f"{after.name}: its queue cannot go from bytes to packets or back while packets wait in it: try again"
            )
        if before.bundle != after.bundle:
            _limit_bundle(after, line, queue)
        if before.line != after.line:
            control.change(line, "netem", units.packed_line(after.line), handle=ROOT)
        if before.queue != after.queue:
            control.put_class(queue, "htb", units.packed_queue(after.queue), handle=CLASS, parent=QUEUE)
            kind, limit = _fifo(after), units.packed_fifo(after.queue.limit)
            put = control.put if regraft else control.change
            put(queue, kind, limit, handle=FIFOS[kind], parent=CLASS)


def reseed(way: Way, seed: int) -> None:
    """Let chances start from ``seed``; nothing happens on kernels before 6.6."""
    with _inside(way.name, way.near), worded(way.name, "a seed"), TrafficControl() as control:
        index = socket.if_nametoindex(way.near.interface)
        control.change(index, "netem", units.packed_line(way.line, seed=seed), handle=ROOT)


def report(ways: Sequence[Way]) -> list[DirectionReport | None]:
    """What the kernel has of each direction of one namespace; None for those it does not shape as we made it."""
    with kernel.inside_netns(ways[0].near.netns), TrafficControl() as control:
        numbers = {name: index for index, name in socket.if_nameindex()}
        found = {(each.interface, each.handle, each.kind): each for each in control.read()}
        reports = []
        for way in ways:
            line = numbers.get(way.near.interface, -1)
            queue = numbers.get(queue_device(way.near.interface), -1)
            classes = [each for each in control.read_classes(queue) if each.handle == CLASS] if queue >= 0 else []
            fifo = next((key for kind, handle in FIFOS.items() if (key := (queue, handle, kind)) in found), None)
            keys = ((line, ROOT, "netem"), (queue, ROOT, "netem"), fifo)
            parts = [found[key] for key in keys if key in found]
            whole = classes and len(parts) == len(keys)
            reports.append(_report(way, classes[0], *parts) if whole else None)
    return reports


@contextmanager
def worded(what: str, refused: str) -> Iterator[None]:
    """Errors of the kernel for the person who must act."""
    try:
        yield
    except (OSError, NetlinkError) as error:
        number = error.code if isinstance(error, NetlinkError) else error.errno
        text = os.strerror(number) if number else str(error)
        if number == ENOENT:
            remedy = "it lacks netem, htb, ifb, clsact or mirred: use the shaper `relay`"
        elif number == EINVAL:
            remedy = "it takes no such value: use another value, or the shaper `relay`"
        else:
            remedy = "type `make status` to see what is there, or use the shaper `relay`"
        raise TestbedError(f"{what}: the kernel refuses {refused} ({text}); {remedy}") from error


def _report(way: Way, served: Qdisc, line: Qdisc, passage: Qdisc, fifo: Qdisc) -> DirectionReport:
    found_line = units.unpacked_line(line.options)
    found_queue = units.unpacked_queue(served.options, fifo.options, in_packets=fifo.kind == "pfifo")
    applied = way.nominal
    if (found_line, found_queue) != (replace(way.line, table=()), way.queue):
        real = units.direction_of(found_line, found_queue, way.nominal.jitter_shape)
        applied = dilated(real, 1 / way.dilation)
    packets = line.packets + line.waiting + passage.waiting
    dropped = dict.fromkeys((reason.value for reason in Drop), 0)
    return DirectionReport(
        link=way.link,
        source=way.near.node,
        target=way.target,
        applied=applied,
        packets=packets,
        bytes=units.ip_bytes(line.bytes + line.waiting_bytes + passage.waiting_bytes, packets),
        dropped={**dropped, Drop.QUEUE.value: fifo.drops, Drop.LOSS.value: line.drops},
        queued_bytes=units.ip_bytes(fifo.waiting_bytes, fifo.waiting),
        engine="netem",
    )


def _fifo(way: Way) -> str:
    return "pfifo" if way.queue.in_packets else "bfifo"


def _limit_bundle(way: Way, *devices: int) -> None:
    """TCP hands over no more than the bundle; what comes in a larger one is cut between queue and line."""
    control = LinkControl()
    try:
        for device in devices:
            control.set_bundle(device, way.bundle)
    finally:
        control.close()


def _hardware_address(link: str) -> str:
    """The same at both ends; locally administered, so it is nobody's."""
    return ":".join(f"{byte:02x}" for byte in b"\x02" + hashlib.sha256(link.encode()).digest()[:5])


@contextmanager
def _inside(what: str, end: CableEnd) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(kernel.inside_netns(end.netns))
        except OSError as error:
            raise TestbedError(f"{what}: the namespace of {end.node} is gone: type `make down`, then up") from error
        yield
