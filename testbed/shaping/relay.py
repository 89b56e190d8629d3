"""The relay: one process that carries every packet of every link through its ``LinkModel``.

    python -m testbed.shaping.relay SOCKET SEED

Each end of a cable is a TUN device inside a sandbox.  What a node sends into its end is read here at once, so that the
only queue that counts is the model's; the model says when it arrives, and then it is written into the other end.  The
loop sleeps until the next packet is due or a new one comes, and handles whatever has gathered when it wakes.

Waking up takes time: a packet is read a little after it was sent, and released a little after it was due.  The relay
knows from its own sleeps how long that usually is (``WakeUps``); it dates what it reads back by it and goes to sleep
for that much less, so that links keep the delay of their file on idle and on busy machines alike.

One heap holds, for every direction with packets under way, the time of its first.  Links keep order, so this entry is
right until the packet leaves or somebody changes the link.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import zmq

from testbed.backends import kernel
from testbed.shaping import protocol as wire
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport
from testbed.shaping.lateness import LatenessHistogram
from testbed.shaping.model import LinkModel, dilated
from testbed.shaping.tun import READ_BYTES, VNET_HEADER_BYTES, LinkControl, let_bundles, open_tun, wire_size
from testbed.shaping.wakeups import WakeUps
from testbed.tcp import bundle_for
from testbed.topology import Direction

#: A link that may take so many packets at once takes whatever bundle is forwarded to it.
WHOLE_BUNDLE = 40
#: At most this many packets of one device are read before others get their turn.
READ_BATCH = 32
#: A relay without links ends after this long.
UNPLUGGED_S = 10.0
FOREVER_S = 3600.0
#: Whoever holds this file open says how late processors may wake up, in microseconds.
PROCESSOR_LATENCY = "/dev/cpu_dma_latency"
#: Threads that close devices at the end.
CLOSERS = 64
#: Rounds of control messages are rare; the garbage they make is collected rarely too.
GC_THRESHOLD = 50_000


class Lane:
    """One direction of one link in the relay: where packets are read, the model, where they are written."""

    __slots__ = (
        "_control",
        "_forwards",
        "_index",
        "fd",
        "link",
        "model",
        "nominal",
        "order",
        "out_fd",
        "source",
        "target",
    )

    def __init__(self, link: str, end: CableEnd, target: str, model: LinkModel[bytes], control: LinkControl) -> None:
        """Create the interface in the namespace of the calling thread."""
        self.link, self.source, self.target, self.model = link, end.node, target, model
        self.nominal = model.direction  # as people asked for it, before dilation
        self.fd = open_tun(end.interface)
        self.out_fd = -1
        self.order = -1
        self._control = control
        self._forwards = end.forwards
        self._index = socket.if_nametoindex(end.interface)
        self._limit_bundle()

    def apply(self, nominal: Direction, dilation: float, now_s: float) -> None:
        """Put ``nominal`` in force, ``dilation`` times slower."""
        self.nominal = nominal
        self.model.change(dilated(nominal, dilation), now_s)
        self._limit_bundle()

    def _limit_bundle(self) -> None:
        bundle = bundle_for(self.nominal)
        self._control.set_bundle(self._index, bundle)
        if self._forwards:
            let_bundles(self.fd, bundle >= WHOLE_BUNDLE)

    def report(self, now_s: float) -> DirectionReport:
        """What is in force and what was carried."""
        counters = self.model.counters(now_s)
        return DirectionReport(
            link=self.link,
            source=self.source,
            target=self.target,
            applied=self.nominal,
            packets=counters.packets,
            bytes=counters.bytes,
            dropped=counters.dropped,
            queued_bytes=counters.queued_bytes,
        )


class Relay:
    """All lanes, the loop that serves them, and the control socket."""

    def __init__(self, control: zmq.Socket[bytes], seed: str) -> None:
        self._control = control
        self._seed = seed
        self._lanes: list[Lane] = []
        self._by_fd: dict[int, Lane] = {}
        self._due: list[tuple[float, int]] = []
        self._lateness = LatenessHistogram()
        self._wakeups = WakeUps()
        self._dilation = 1.0
        self._running = True
        self._epoll = select.epoll()
        self._epoll.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Serve until told to stop."""
        clock, poll, ready = time.monotonic, self._epoll.poll, [self._epoll.fileno()]
        control_fd, wakeups = self._control.fileno(), self._wakeups
        lead_s = 0.0  # what is due within this is released now
        while self._running:
            before_s = clock()
            self._release(before_s, lead_s)
            if self._due:
                left_s = self._due[0][0] - before_s
                lead_s = wakeups.expected_s(left_s)
                sleep_s = left_s - lead_s
            else:
                sleep_s = FOREVER_S if self._lanes else UNPLUGGED_S
            read_lag_s = 0.0
            if sleep_s > 0:
                # select takes microseconds where epoll alone would round to milliseconds
                woken = select.select(ready, (), (), sleep_s)[0]
                slept_s = clock() - before_s
                if woken:
                    read_lag_s = wakeups.expected_s(slept_s)
                elif self._due:
                    wakeups.learn(sleep_s, slept_s - sleep_s)
                elif not self._lanes:
                    return  # whoever started us died before it could give us work, or write down that we exist
            for fd, _ in poll(0):
                if fd == control_fd:
                    self._serve_control()
                else:
                    self._read(self._by_fd[fd], clock() - read_lag_s)
                    self._release(clock(), 0.0)

    def close(self) -> None:
        """Remove all interfaces."""
        # Removing a device waits 20 ms for the kernel's readers; waits of different threads overlap.
        with ThreadPoolExecutor(CLOSERS) as closers:
            list(closers.map(os.close, self._by_fd))

    def _read(self, lane: Lane, sent_s: float) -> None:
        fd, offer = lane.fd, lane.model.offer
        was_idle = not len(lane.model)
        try:
            for _ in range(READ_BATCH):
                packet = os.read(fd, READ_BYTES)
                if packet[1]:
                    size, count = wire_size(packet)
                    offer(sent_s, size, packet, count=count)
                else:
                    offer(sent_s, len(packet) - VNET_HEADER_BYTES, packet)
        except BlockingIOError:
            pass
        if was_idle and len(lane.model):
            heapq.heappush(self._due, (lane.model.next_due_s, lane.order))

    def _release(self, now_s: float, lead_s: float) -> None:
        due, horizon_s = self._due, now_s + lead_s
        while due and due[0][0] <= horizon_s:
            at_s, order = due[0]
            lane = self._lanes[order]
            out_fd = lane.out_fd
            self._lateness.add(now_s - at_s)
            for packet in lane.model.due(horizon_s):
                # An interface that somebody took down, or an endpoint without memory, loses packets as hardware would.
                with contextlib.suppress(OSError):
                    os.write(out_fd, packet)
            if len(lane.model):
                heapq.heapreplace(due, (lane.model.next_due_s, order))
            else:
                heapq.heappop(due)

    def _serve_control(self) -> None:
        # The descriptor of a ZeroMQ socket signals once; everything that waits must be taken.
        while True:
            try:
                text = self._control.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                reply = self._answer(wire.decode_request(text))
            except (OSError, KeyError, msgspec.MsgspecError) as error:
                reply = wire.Failed(reason=f"{type(error).__name__}: {error}")
            self._control.send(wire.encode(reply))

    def _answer(self, request: wire.Request) -> wire.Reply:
        match request:
            case wire.Plug(cables=cables):
                self._plug(cables)
            case wire.Shape(link=link, source=source, direction=direction):
                return wire.Applied(direction=self._shape(link, source, direction))
            case wire.Report():
                now_s = time.monotonic()
                directions = tuple(lane.report(now_s) for lane in self._lanes)
                return wire.Reported(directions=directions, dilation=self._dilation)
            case wire.TellLateness(reset=reset):
                lateness = self._lateness.summary()
                if reset:
                    self._lateness = LatenessHistogram()
                return wire.Late(lateness=lateness)
            case wire.Dilate(dilation=dilation):
                self._dilation = dilation
                self._change({lane.order: lane.nominal for lane in self._lanes})
            case wire.Stop():
                self._running = False
        return wire.Done()

    def _plug(self, cables: tuple[CablePlan, ...]) -> None:
        # One visit per namespace, however many cables end there: entering one costs more than opening a device.
        ends: dict[str, list[tuple[int, CablePlan, bool]]] = {}
        for number, cable in enumerate(cables):
            ends.setdefault(cable.a.netns, []).append((2 * number, cable, True))
            ends.setdefault(cable.b.netns, []).append((2 * number + 1, cable, False))
        lanes: dict[int, Lane] = {}
        for netns, here in ends.items():
            with kernel.inside_netns(netns):
                control = LinkControl()
                for order, cable, forward in here:
                    lanes[order] = self._lane(cable, forward, control)
        first = len(self._lanes)
        for order in sorted(lanes):
            lane = lanes[order]
            lane.out_fd, lane.order = lanes[order ^ 1].fd, first + order
            self._lanes.append(lane)
            self._by_fd[lane.fd] = lane
            self._epoll.register(lane.fd, select.EPOLLIN)

    def _lane(self, cable: CablePlan, forward: bool, control: LinkControl) -> Lane:
        near, far = (cable.a, cable.b) if forward else (cable.b, cable.a)
        rng = random.Random(f"{self._seed}/{cable.link}/{near.node}")  # noqa: S311 - physics, not secrets
        nominal = cable.forward if forward else cable.backward
        model: LinkModel[bytes] = LinkModel(nominal, rng)
        return Lane(cable.link, near, far.node, model, control)

    def _shape(self, link: str, source: str, direction: Direction) -> Direction:
        for lane in self._lanes:
            if lane.link == link and lane.source == source:
                self._change({lane.order: direction})
                return lane.nominal
        raise KeyError(f"no direction of {link} starts at {source}")

    def _change(self, nominal: dict[int, Direction]) -> None:
        now_s = time.monotonic()
        for order, direction in nominal.items():
            self._lanes[order].apply(direction, self._dilation, now_s)
        self._due = [(lane.model.next_due_s, lane.order) for lane in self._lanes if len(lane.model)]
        heapq.heapify(self._due)


def be_punctual() -> None:
    """Ask the kernel to wake this process on time, before ordinary ones."""
    kernel.set_timer_slack(1)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    # A processor that had gone to sleep takes 0.1 to 0.5 ms to come back.  While this stays open, until we end, it
    # idles awake, for the agents too.
    with contextlib.suppress(OSError):
        os.write(os.open(PROCESSOR_LATENCY, os.O_WRONLY | os.O_CLOEXEC), struct.pack("=i", 0))
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def main(argv: list[str]) -> None:
    """Bind the control socket and relay until told to stop."""
    path, seed = argv
    context = zmq.Context()
    control = context.socket(zmq.REP)
    control.bind(f"ipc://{path}")
    be_punctual()
    relay = Relay(control, seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        relay.run()
    finally:
        relay.close()
        context.destroy(linger=1000)


if __name__ == "__main__":
    main(sys.argv[1:])
