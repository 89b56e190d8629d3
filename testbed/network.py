"""A running emulated network: bring it up, use it from any process, change its links, take it down.

    with Network.up(topology) as network:
        agent = network.popen("s1", [sys.executable, "-m", "agents.main", ...], log=directory / "s1.log")
        network.shape("s1-s2", "s1", Direction(rate_bps=1e8, delay_s=0.020))

The network is not this object: it is namespaces and a relay process, which stay until ``down``.  Another process finds
them by name with ``Network.attach``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from testbed import capabilities, verify
from testbed.backends.base import Backend, Process, Sandbox
from testbed.backends.netns import NetnsBackend
from testbed.errors import TestbedError
from testbed.ledger import Ledger, all_names, ledger_of, locked
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport, Lateness
from testbed.shaping.client import RelayShaper, start_relay
from testbed.shaping.dilation import dilated
from testbed.tcp import INITIAL_WINDOW_PACKETS
from testbed.topology import Direction, Topology
from testbed.wiring import Wiring, wire

TOPOLOGY = "topology.json"
#: What one flow gets through the relay on a machine of two cores (``benchmarks/relay.py``); several links share it.
RELAY_CEILING_BPS = 9e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What of a testbed is there and what is broken."""

    name: str
    up: bool  # everything is there and as the file says, but for changes asked for at run time
    sandboxes: int
    links: int
    processes: int  # alive in sandboxes, started by us
    relay_alive: bool
    dilation: float
    changed: tuple[str, ...]  # directions shaped unlike the file
    broken: tuple[str, ...]  # what is missing, worded for people


class Network:
    """One emulated network, brought up by this process or another."""

    def __init__(self, ledger: Ledger, topology: Topology, *, initial_window: int = INITIAL_WINDOW_PACKETS) -> None:
        """Use ``up`` or ``attach``."""
        self.topology = topology
        self.wiring: Wiring = wire(topology, ledger.name)
        self.dilation = 1.0
        self._ledger = ledger
        self._backend: Backend = NetnsBackend(ledger, topology, initial_window=initial_window)
        self._shaper = RelayShaper(ledger.directory, _relay_socket(ledger), self._relay_alive)

    @classmethod
    def up(
        cls,
        topology: Topology,
        *,
        name: str | None = None,
        seed: int = 0,
        initial_window: int = INITIAL_WINDOW_PACKETS,
    ) -> Self:
        """Bring the network up, prove that TCP crosses every link, and leave nothing behind if it does not.

        ``seed`` decides which packets are lost; ``initial_window`` is what TCP may send before the first
        acknowledgement, in packets.
        """
        capabilities.require_netns()
        ledger = ledger_of(name or topology.name)
        with locked(ledger, create=True):
            if ledger.entries():
                state = "is already up" if ledger.complete else "was left half up or half down"
                raise TestbedError(f"testbed {ledger.name!r} {state}: type `make down` first")
            try:
                return cls._build(ledger, topology, seed, initial_window)
            except BaseException:
                ledger.remove_everything()
                raise

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """The running testbed of that name, or the only one; TestbedError if there is none."""
        ledger = ledger_of(name or only_name())
        if not ledger.complete:
            half = "half up: type `make down`, then" if ledger.entries() else "not up: type"
            raise TestbedError(f"testbed {ledger.name!r} is {half} `make testbed up`")
        topology = msgspec.json.decode((ledger.directory / TOPOLOGY).read_bytes(), type=Topology)
        network = cls(ledger, topology)
        if network._relay_alive():
            network.dilation = network._shaper.dilation
        return network

    @classmethod
    def _build(cls, ledger: Ledger, topology: Topology, seed: int, initial_window: int) -> Self:
        # A name of its own for every relay: one that a crash orphaned before it had started must not take over the
        # socket of the next testbed in the same directory.
        ledger.record({"kind": "begin", "topology": topology.name, "socket": f"relay-{time.time_ns():x}.ipc"})
        ledger.record_process("relay", start_relay(ledger.directory, _relay_socket(ledger), seed=seed))
        (ledger.directory / TOPOLOGY).write_bytes(msgspec.json.encode(topology))
        network = cls(ledger, topology, initial_window=initial_window)
        try:
            network._backend.create(network.wiring)
            network._shaper.plug(network._cables())
            network._backend.connect(network.wiring)
            verify.prove(network)
            ledger.record({"kind": "up"})
        except BaseException:
            network.close()
            raise
        return network

    @property
    def name(self) -> str:
        """The testbed's name."""
        return self._ledger.name

    @property
    def directory(self) -> Path:
        """Its run directory, for sockets and logs; readable by us only, gone after ``down``."""
        return self._ledger.directory

    def netns(self, node: str) -> Path:
        """The path of the node's network namespace."""
        return self._sandbox(node).netns

    def popen(self, node: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
        """Start a program on a node, without privileges; its output is appended to ``log``."""
        process = self._sandbox(node).popen(argv, log=log, env=env)
        self._ledger.record_process("process", process.pid)
        return process

    def end_processes(self) -> int:
        """End the programs that ``popen`` started, here or in a process that is gone; how many still ran."""
        return self._ledger.end_processes()

    def enter(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command that runs ``argv`` on a node, for a person who wants to look around there."""
        return self._sandbox(node).command(argv)

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on ``link`` from ``source``, at once; returns what is applied.

        Nothing else is touched, nothing queued is lost.  Under dilation, ``direction`` is what the emulated world sees.
        """
        try:
            found = self.topology.link(link)
        except KeyError:
            names = ", ".join(each.name for each in self.topology.links)
            raise TestbedError(f"testbed {self.name!r} has no link {link!r}; it has {names}") from None
        if source not in (found.a, found.b):
            raise TestbedError(f"{source!r} is no end of {found.name}")
        return self._shaper.shape(found.name, source, direction)

    def shaping(self) -> dict[tuple[str, str], Direction]:
        """What is in force, read back from the relay: (link, source) -> direction, as the emulated world sees it."""
        return {(report.link, report.source): report.applied for report in self._shaper.report()}

    def counters(self) -> tuple[DirectionReport, ...]:
        """What every direction has carried and dropped since ``up``, and what waits in it now."""
        return self._shaper.report()

    def lateness(self) -> Lateness:
        """How late packets were released since the last reset."""
        return self._shaper.lateness()

    def reset_lateness(self) -> None:
        """Count lateness anew."""
        self._shaper.lateness(reset=True)

    def scale(self, dilation: float) -> None:
        """Run every link ``dilation`` times slower in wall time: rates divided; delays, jitter, timers multiplied."""
        if not 0 < dilation < float("inf"):
            raise TestbedError(f"dilation {dilation} is not a positive number")
        self._shaper.dilate(dilation)
        self._backend.stretch(self.wiring, dilation)
        self.dilation = dilation

    def dilated(self, direction: Direction) -> Direction:
        """What is applied in wall time for a direction of the emulated world."""
        return dilated(direction, self.dilation)

    def status(self) -> Status:
        """What is there and what is broken."""
        broken = []
        relay_alive = self._relay_alive()
        if not relay_alive:
            broken.append("the relay process is gone, and every link with it")
        for node in self.wiring.nodes:
            path = self.netns(node.name)
            if not (path.exists() and path.stat().st_dev != path.parent.stat().st_dev):
                broken.append(f"the namespace of {node.name} is gone")
        changed: list[str] = []
        reports = self._shaper.report() if relay_alive else ()
        wanted = {
            (link.name, source): direction
            for link in self.topology.links
            for source, direction in ((link.a, link.forward), (link.b, link.backward))
        }
        for report in reports:
            if wanted.pop((report.link, report.source)) != report.applied:
                changed.append(f"{report.link} from {report.source}")
        if relay_alive:
            broken += [f"{link} from {source} is not shaped" for link, source in wanted]
        return Status(
            name=self.name,
            up=not broken,
            sandboxes=len(self.wiring.nodes),
            links=len(self.wiring.cables),
            processes=sum(process.alive() for process in self._ledger.processes("process")),
            relay_alive=relay_alive,
            dilation=self.dilation,
            changed=tuple(changed),
            broken=tuple(broken),
        )

    def down(self) -> None:
        """Remove the network and all processes in it, and nothing else."""
        self.close()
        down(self.name)

    def close(self) -> None:
        """Let go of the network, which stays up."""
        self._shaper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _relay_alive(self) -> bool:
        return any(process.alive() for process in self._ledger.processes("relay"))

    def _sandbox(self, node: str) -> Sandbox:
        try:
            return self._backend.sandbox(self.wiring.node(node))
        except KeyError:
            names = ", ".join(each.name for each in self.wiring.nodes)
            raise TestbedError(f"testbed {self.name!r} has no node {node!r}; it has {names}") from None

    def _cables(self) -> list[CablePlan]:
        plans = []
        for link, cable in zip(self.topology.links, self.wiring.cables, strict=True):
            a, b = (
                CableEnd(
                    node=end.node,
                    netns=str(self.netns(end.node)),
                    interface=end.name,
                    forwards=self.wiring.node(end.node).forwards,
                )
                for end in (cable.a, cable.b)
            )
            plans.append(CablePlan(link=link.name, a=a, b=b, forward=link.forward, backward=link.backward))
        return plans


def _relay_socket(ledger: Ledger) -> str:
    try:
        return str(ledger.entries("begin")[0]["socket"])
    except (IndexError, KeyError):
        raise TestbedError(
            f"testbed {ledger.name!r} was brought up by another version: type `make down`, then up again"
        ) from None


def beyond_the_relay(topology: Topology) -> list[str]:
    """Links that ask for more than the relay carries: they are slower than their file unless the run is dilated."""
    return [
        link.name for link in topology.links if max(link.forward.rate_bps, link.backward.rate_bps) > RELAY_CEILING_BPS
    ]


def only_name() -> str:
    """The name of the testbed that is up; TestbedError if there is none or more than one."""
    names = all_names()
    if not names:
        raise TestbedError("no testbed is up: type `make testbed up` first")
    if len(names) > 1:
        raise TestbedError(f"several testbeds are up ({', '.join(names)}): choose one with --name")
    return names[0]


def down(name: str) -> bool:
    """Remove the testbed of that name, in whatever state it is; whether there was one."""
    ledger = ledger_of(name)
    with locked(ledger, create=False) as exists:
        if not exists:
            return False
        capabilities.require_netns()
        relays = ledger.processes("relay")
        ledger.remove_everything()
    for relay in relays:  # ours to wait for only if this very process started it
        with suppress(ChildProcessError):
            os.waitpid(relay.pid, 0)
    return True
