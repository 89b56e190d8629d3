"""A running emulated network: bring it up, use it from any process, change its links, take it down.

    with Network.up(topology) as network:
        agent = network.popen("s1", [sys.executable, "-m", "agents.main", ...], log=directory / "s1.log")
        network.shape("s1-s2", "s1", Direction(rate_bps=1e8, delay_s=0.020))

The network is not this object: it is namespaces (of containers, of Mininet hosts) and what shapes their links, which
stay until ``down``.  Another process finds them by name with ``Network.attach``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed import capabilities, proof
from testbed.backends.base import Backend, Process, Sandbox
from testbed.backends.choice import backend_of
from testbed.errors import TestbedError
from testbed.ledger import KEEPERS, Ledger, all_names, ledger_of, locked
from testbed.paths import Paths
from testbed.setup import BackendName, Setup, setup_of
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport, Lateness, Shaper
from testbed.shaping.dealing import Relays, cores_here, deal, relay_count, weights_of
from testbed.shaping.dilation import dilated
from testbed.shaping.engines import Engines, ShaperName, choose
from testbed.shaping.processes import RelayProcesses
from testbed.shaping.spread import SpreadShaper
from testbed.status import Status, compared
from testbed.tcp import INITIAL_WINDOW_PACKETS
from testbed.topology import Direction, Engine, Topology
from testbed.wiring import Interface, Wiring, wire
from testbed.words import enumerate_words


class Network:
    """One emulated network, brought up by this process or another."""

    def __init__(self, ledger: Ledger, setup: Setup) -> None:
        """Use ``up`` or ``attach``."""
        self.topology = setup.topology
        self.setup = setup
        self.wiring: Wiring = wire(setup.topology, ledger.name)
        self.dilation = 1.0
        self._ledger = ledger
        self._paths = Paths(setup.topology)
        self._backend: Backend = backend_of(setup, ledger)
        self._relays = RelayProcesses(ledger, setup.carried, seed=setup.seed)
        self._shaper = self._engines()

    @classmethod
    def up(
        cls,
        topology: Topology,
        *,
        name: str | None = None,
        seed: int = 0,
        initial_window: int = INITIAL_WINDOW_PACKETS,
        backend: BackendName = "netns",
        shaper: ShaperName = "auto",
        relays: Relays = 1,
        visible: Sequence[Path] = (),
    ) -> Self:
        """Bring the network up, prove that TCP crosses every link, and leave nothing behind if it does not.

        ``seed`` decides which packets are lost; ``initial_window`` is what TCP may send before the first
        acknowledgement, in packets; ``relays`` is how many processes share the links of the relay;
        ``visible`` are paths of this machine that programs in containers may read.
        """
        capabilities.require(backend, shaper)
        engines = choose(topology, shaper, kernel_shapes=capabilities.netem().available)
        relayed = weights_of(link for link in topology.links if engines[link.name] == "relay")
        setup = Setup(
            topology=topology,
            backend=backend,
            engines=engines,
            relay_of=deal(relayed, relay_count(relays, links=len(relayed), cores=cores_here())),
            seed=seed,
            initial_window=initial_window,
            visible=tuple(str(path.resolve()) for path in visible),
        )
        ledger = ledger_of(topology.name if name is None else name)
        with locked(ledger, create=True):
            if ledger.entries():
                state = "is already up" if ledger.complete else "was left half up or half down"
                raise TestbedError(f"testbed {ledger.name!r} {state}: type `make down` first")
            try:
                return cls._build(ledger, setup)
            except BaseException:
                ledger.remove_everything()
                raise

    @classmethod
    def attach(cls, name: str | None = None) -> Self:
        """The running testbed of that name, or the only one; TestbedError if there is none."""
        ledger = ledger_of(only_name() if name is None else name)
        network = cls(ledger, setup_of(ledger))
        network.dilation = network._shaper.dilation
        return network

    @classmethod
    def _build(cls, ledger: Ledger, setup: Setup) -> Self:
        ledger.record({"kind": "begin", "topology": setup.topology.name})
        setup.write(ledger.directory)
        RelayProcesses(ledger, setup.carried, seed=setup.seed).start()
        network = cls(ledger, setup)
        try:
            network._backend.create(network.wiring)
            network._shaper.plug(network._cables())
            network._backend.connect(network.wiring)
            proof.prove(network)
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

    def log_of(self, node: str) -> Path:
        """Where what the agent of a node prints is kept."""
        return self.directory / "logs" / f"{node}.log"

    def netns(self, node: str) -> Path:
        """The path of the node's network namespace."""
        return self._sandbox(node).netns

    def hops(self, source: str, target: str) -> list[tuple[str, str]]:
        """The directions that packets take from one node to another, as (link, source)."""
        path = self._paths.path(source, target)
        return [(self.wiring.node(a).interface_to(b).link, a) for a, b in itertools.pairwise(path)]

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands from changing this testbed meanwhile; TestbedError if one is at it."""
        with locked(self._ledger, create=False) as exists:
            if not exists:
                raise TestbedError(f"testbed {self.name!r} has been taken down: type `make testbed up`")
            yield

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on ``link`` from ``source``, at once; returns what is applied.

        Nothing else is touched, nothing queued is lost.  Under dilation, ``direction`` is what the emulated world sees.
        """
        end = self.end_of(link, source)
        return self._shaper.shape(end.link, source, direction)

    def end_of(self, link: str, node: str | None = None) -> Interface:
        """The end of ``link`` (written from either end) at ``node``, or its first; TestbedError if there is none."""
        try:
            cable = self.wiring.cable(link)
        except KeyError:
            names = enumerate_words(each.link for each in self.wiring.cables)
            raise TestbedError(f"testbed {self.name!r} has no link {link!r}; it has {names or 'none'}") from None
        for end in (cable.a, cable.b):
            if node in (end.node, None):
                return end
        raise TestbedError(f"{node!r} is no end of {cable.link}; it joins {cable.a.node} and {cable.b.node}")

    def shaping(self, *, reachable: bool = False) -> dict[tuple[str, str], Direction]:
        """What is in force, read back from the engines: (link, source) -> direction, as the emulated world sees it.

        TestbedError where a relay is gone; with ``reachable``, its links are left out instead.
        """
        return {(report.link, report.source): report.applied for report in self.counters(reachable=reachable)}

    def counters(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:
        """What every direction has carried and dropped since ``up``, and what waits in it now.

        TestbedError where a relay is gone; with ``reachable``, its links are left out instead.
        """
        return self._shaper.report(reachable=reachable)

    def lateness(self) -> Lateness:
        """How late packets were released since the last reset."""
        return self._shaper.lateness()

    def reset_lateness(self) -> None:
        """Count lateness anew."""
        self._shaper.lateness(reset=True)

    def rewind(self, seed: int | None = None) -> None:
        """Begin recordings and chances anew, so that every run on this network meets the same links."""
        self._shaper.rewind(self.setup.seed if seed is None else seed)

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

    def restart(self, *nodes: str) -> None:
        """Make the sandboxes of ``nodes`` anew, with their links, addresses, routes and what is in force.

        Programs on them end.  A relay that has died is started again first, and then its links are as in the file.
        """
        for node in nodes:
            self._sandbox(node)  # all of them are there, or nothing is done
        with self.alone():
            for node in nodes:
                self._backend.recreate(self.wiring, node)
            if gone := self._relays.gone():
                self._shaper.close()
                self._relays.start(*gone)
                self._shaper = self._engines()
            # Whoever started a relay before us may have been killed before it had its cables.
            missing = self._unplugged()
            if missing and self.dilation != 1:
                self._shaper.dilate(self.dilation)
            loose = [each for each in self._cables() if each.link in missing or {each.a.node, each.b.node} & {*nodes}]
            self._shaper.plug(loose)
            # The far ends of the cables may have gone with the nodes.
            near = {end.node for cable in loose for end in (cable.a, cable.b)} | {*nodes}
            self._backend.connect(self.wiring, nodes=near, dilation=self.dilation)

    def status(self) -> Status:
        """What is there and what is broken."""
        gone = self._relays.gone()
        broken = [self._relays.loss(number) for number in gone]
        reports = self._shaper.report(reachable=True)
        broken_nodes = self._backend.broken(self.wiring, plugged={report.link for report in reports})
        broken += broken_nodes.values()
        engines = self.setup.engines.values()
        gone_links = {link for number in gone for link in self._relays.carried[number]}
        changed, unshaped = compared(self.topology, reports, gone=gone_links)
        broken += [f"{direction} is not shaped" for direction in unshaped]
        return Status(
            name=self.name,
            backend=self.setup.backend,
            up=not broken,
            sandboxes=len(self.wiring.nodes),
            links=len(self.wiring.cables),
            engines={engine: list(engines).count(engine) for engine in dict.fromkeys(engines)},
            processes=sum(process.alive() for process in self._ledger.processes("process")),
            relay_alive=not gone,
            dilation=self.dilation,
            changed=tuple(changed),
            broken=tuple(broken),
            broken_nodes=tuple(broken_nodes),
            relays=len(self._relays.carried),
            gone_relays=tuple(self._relays.name(number) for number in gone),
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

    def _engines(self) -> Engines:
        used = set(self.setup.engines.values())
        shapers: dict[Engine, Shaper] = {}
        if "relay" in used:
            shapers["relay"] = SpreadShaper(self._relays.shapers())
        if "netem" in used:
            from testbed.shaping.netem import NetemShaper

            shapers["netem"] = NetemShaper(self._ledger.directory)
        return Engines(shapers, self.setup.engines)

    def _unplugged(self) -> set[str]:
        """Links that the relays ought to carry and do not know."""
        carried = set(itertools.chain(*self._relays.carried.values()))
        return carried - {report.link for report in self._shaper.report()} if carried else set()

    def _sandbox(self, node: str) -> Sandbox:
        try:
            return self._backend.sandbox(self.wiring.node(node))
        except KeyError:
            names = enumerate_words(each.name for each in self.wiring.nodes)
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
        capabilities.require_root()
        keepers = [process for kind in KEEPERS for process in ledger.processes(kind)]
        ledger.remove_everything()
    for keeper in keepers:  # ours to wait for only if this very process started it
        with suppress(ChildProcessError):
            os.waitpid(keeper.pid, 0)
    return True
