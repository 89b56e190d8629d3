"""The relay: one process that carries every packet of every link through its ``LinkModel``.

    python -m testbed.shaping.relay SOCKET SEED

Each end of a cable is a TUN device inside a sandbox.  What a node sends into its end is read here at once, so that the
only queue that counts is the model's; the model says when it arrives, and then it is written into the other end.  The
loop sleeps until the next packet is due or a new one comes, and handles whatever has gathered when it wakes.

Waking up takes time: a packet is read a little after it was sent, and released a little after it was due.  The relay
knows from its own sleeps how long that usually is (``WakeUps``); it dates what it reads back by it and goes to sleep
for that much less, so that links keep the delay of their file on idle and on busy machines alike.

One heap holds when to ask each model next.  An entry of another time than ``Lane.due_s`` is void: a packet has
overtaken others since, or somebody has changed the link.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import math
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
from testbed.shaping.base import CablePlan
from testbed.shaping.dilation import dilated
from testbed.shaping.lane import Lane
from testbed.shaping.lateness import LatenessHistogram
from testbed.shaping.model import LinkModel
from testbed.shaping.tun import READ_BYTES, VNET_HEADER_BYTES, LinkControl, spoiled, wire_size
from testbed.shaping.wakeups import WakeUps
from testbed.topology import Direction

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
                elif lane := self._by_fd.get(fd):
                    self._read(lane, clock() - read_lag_s)
                    self._release(clock(), 0.0)

    def close(self) -> None:
        """Remove all interfaces."""
        # Removing a device waits 20 ms for the kernel's readers; waits of different threads overlap.
        with ThreadPoolExecutor(CLOSERS) as closers:
            list(closers.map(os.close, self._by_fd))

    def _read(self, lane: Lane, sent_s: float) -> None:
        fd, offer = lane.fd, lane.model.offer
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
        except OSError:
            self._unplug(lane)  # the sandbox is gone, and the interface with it
        self._await(lane)

    def _await(self, lane: Lane) -> None:
        """See to it that the model is asked in time.  What stands in the heap for a later time is then void."""
        at_s = lane.model.next_due_s
        if at_s < lane.due_s:
            lane.due_s = at_s
            heapq.heappush(self._due, (at_s, lane.order))

    def _release(self, now_s: float, lead_s: float) -> None:
        due, horizon_s = self._due, now_s + lead_s
        while due and due[0][0] <= horizon_s:
            at_s, order = due[0]
            lane = self._lanes[order]
            if at_s != lane.due_s:
                heapq.heappop(due)
                continue
            out_fd = lane.out_fd
            arrived = lane.model.due(horizon_s)
            if arrived:
                self._lateness.add(now_s - at_s)
            for packet in arrived:
                # An interface that somebody took down, or an endpoint without memory, loses packets as hardware would.
                with contextlib.suppress(OSError):
                    os.write(out_fd, packet)
            lane.due_s = at_s = lane.model.next_due_s
            if at_s < math.inf:
                heapq.heapreplace(due, (at_s, order))
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

    def _answer(self, request: wire.Request) -> wire.Written:
        match request:
            case wire.Plug(cables=cables):
                self._plug(cables)
            case wire.Shape(link=link, source=source, direction=direction):
                return wire.Applied(direction=self._shape(link, source, direction))
            case wire.Report():
                now_s = time.monotonic()
                directions = tuple(lane.report(now_s) for lane in self._lanes)
                return wire.LanesReported(directions=directions, dilation=self._dilation)
            case wire.TellLateness(reset=reset):
                lateness = self._lateness.summary()
                if reset:
                    self._lateness = LatenessHistogram()
                return wire.Late(lateness=lateness)
            case wire.Dilate(dilation=dilation):
                self._dilation = dilation
                self._change({lane.order: lane.nominal for lane in self._lanes})
            case wire.Rewind(seed=seed):
                self._rewind(seed)
            case wire.Stop():
                self._running = False
        return wire.Done()

    def _plug(self, cables: tuple[CablePlan, ...]) -> None:
        known = {(lane.link, lane.source): lane for lane in self._lanes}
        # One visit per namespace, however many cables end there: entering one costs more than opening a device.
        ends: dict[str, list[tuple[int, CablePlan, bool]]] = {}
        for number, cable in enumerate(cables):
            ends.setdefault(cable.a.netns, []).append((2 * number, cable, True))
            ends.setdefault(cable.b.netns, []).append((2 * number + 1, cable, False))
        lanes: dict[int, Lane] = {}
        for netns, here in ends.items():
            with kernel.inside_netns(netns):
                control = LinkControl()
                there = {name for _, name in socket.if_nameindex()}
                for order, cable, forward in here:
                    end = cable.a if forward else cable.b
                    old = known.get((cable.link, end.node))
                    if old is None:
                        lanes[order] = self._lane(cable, forward, control)
                    elif end.interface not in there:
                        self._unplug(old)
                        old.open(control)
                        self._join(old)
        first = len(self._lanes)
        for number, order in enumerate(sorted(lanes)):
            lane = lanes[order]
            lane.order = first + number
            self._lanes.append(lane)
        for lane in lanes.values():
            self._join(lane)

    def _join(self, lane: Lane) -> None:
        """Read from the interface of ``lane``, and let the other direction of the link write into it."""
        self._by_fd[lane.fd] = lane
        self._epoll.register(lane.fd, select.EPOLLIN)
        opposite = self._lanes[lane.order ^ 1]  # both directions of a cable are plugged together
        opposite.out_fd = lane.fd

    def _unplug(self, lane: Lane) -> None:
        """Forget the interface of ``lane``; its number may be another's soon."""
        if lane.fd >= 0:
            del self._by_fd[lane.fd]
            with contextlib.suppress(OSError):
                self._epoll.unregister(lane.fd)
            os.close(lane.fd)
            lane.fd = self._lanes[lane.order ^ 1].out_fd = -1

    def _lane(self, cable: CablePlan, forward: bool, control: LinkControl) -> Lane:
        near, far = (cable.a, cable.b) if forward else (cable.b, cable.a)
        rng = random.Random(f"{self._seed}/{cable.link}/{near.node}")  # noqa: S311 - physics, not secrets
        nominal = cable.forward if forward else cable.backward
        applied = dilated(nominal, self._dilation)
        model: LinkModel[bytes] = LinkModel(applied, rng, now_s=time.monotonic(), spoil=spoiled)
        return Lane(cable.link, near, far.node, nominal, model, control)

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
        self._ask_anew()

    def _rewind(self, seed: int) -> None:
        now_s = time.monotonic()
        for lane in self._lanes:
            lane.model.rewind(f"{seed}/{lane.link}/{lane.source}", now_s)
        self._ask_anew()

    def _ask_anew(self) -> None:
        for lane in self._lanes:
            lane.due_s = lane.model.next_due_s
        self._due = [(lane.due_s, lane.order) for lane in self._lanes if lane.due_s < math.inf]
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
