"""Sandboxes made of containers: agents have a file system, limits and process ids of their own.

A container gets no network from the engine (``network=none``).  Its network namespace is mounted in the run directory
like those of the other backends, and the shaper plugs the links into it there; nothing in the container may touch them.
Nothing in it is privileged either: a user other than root, a read-only file system, no capabilities.

What programs see of the host, read-only: the packages of the testbed, the directory with the orchestrator's socket, and
the paths that whoever brings the testbed up names as ``visible``.  Those keep their paths.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import images
from testbed.backends import containers, engine, kernel, programs
from testbed.backends.containers import Limits, Order
from testbed.backends.namespaces import NamespaceBackend
from testbed.errors import TestbedError
from testbed.ledger import Ledger
from testbed.tcp import INITIAL_WINDOW_PACKETS
from testbed.topology import Topology
from testbed.wiring import NodeWiring, Wiring

#: What runs in containers, mounted from where it is installed: an edit needs no new image.
PACKAGES = ("agents", "testbed")
CODE = "/opt/testbed/code"
PYTHON = "/opt/testbed/python"
BECOME = (PYTHON, "-I", "-S", "/opt/testbed/become.py")
#: Below the run directory: the sockets that agents connect to.
SHARED = "agents"
#: Whoever hides these from a container stops it from working.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var", "var/run")
UNLIMITED = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSandbox:
    """A node that is a container."""

    node: str
    netns: Path
    container: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to run on the host so that ``argv`` runs in the sandbox as ``popen`` would run it."""
        terminal = ["--interactive", *(["--tty"] if sys.stdin.isatty() else [])]
        client = ["docker", "--host", engine.url(), "exec", *terminal, self.container]
        return [*client, *BECOME, "keep", "--", *_as_inside(argv)]

    def popen(self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> programs.Program:
        """Start a program in the sandbox, without privileges; its output is appended to ``log``.

        ``env`` is the whole environment; None leaves the container's own, since ours means nothing there.
        """
        given = ["keep"] if env is None else ["only", *(f"{name}={value}" for name, value in env.items())]
        return programs.start(self.container, [*BECOME, *given, "--", *_as_inside(argv)], log=log)


class DockerBackend(NamespaceBackend):
    """Makes, connects and finds containers.  ``engine.missing()`` says beforehand whether there is an engine."""

    def __init__(
        self,
        ledger: Ledger,
        topology: Topology,
        *,
        initial_window: int = INITIAL_WINDOW_PACKETS,
        limits: Mapping[str, Limits] | None = None,
        visible: Sequence[str | Path] = (),
    ) -> None:
        """``limits`` are those of nodes by name; ``visible`` are paths of the host that programs read there."""
        super().__init__(ledger, topology, initial_window=initial_window)
        self._limits = dict(limits or {})
        self._visible = [Path(path) for path in visible]

    def sandbox(self, wiring: NodeWiring) -> DockerSandbox:
        """The sandbox of that node."""
        return DockerSandbox(node=wiring.name, netns=self.netns(wiring.name), container=self._container(wiring))

    def create(self, wiring: Wiring) -> None:
        """Make all containers, with the data-plane address on each loopback and no cables yet."""
        image = images.recipe().image
        with containers.connected() as api:
            containers.check(api, self._limits)
            if not containers.has_image(api, image):
                raise TestbedError(f"the image of the servers ({image}) is not built: type `make testbed`")
            owner = f"{time.time_ns():x}-{os.getpid()}"
            names = [self._container(node) for node in wiring.nodes]
            shared: dict[str, object] = {"kind": "container", "owner": owner, "image": image}
            self._ledger.record(*({**shared, "name": name} for name in names))
            self._prepare(wiring)
            self._shared.mkdir(exist_ok=True)
            # Whatever our umask is: the run directory is closed to everybody else, and this is for our own programs.
            self._shared.chmod(0o755)
            self.hosts.chmod(0o644)
            pids = containers.make(api, self._orders(wiring.nodes))
            for node, pid in zip(wiring.nodes, pids, strict=True):
                self._adopt(node, pid)

    def recreate(self, wiring: Wiring, node: str) -> None:
        """End everything in the container of ``node`` and make it again."""
        wanted = wiring.node(node)
        order = self._orders([wanted])[0]
        with containers.connected() as api:  # first: where no engine answers, what still runs may go on
            containers.remove({order.name: order.owner})
            self._ledger.end_inside(self.netns(node))
            self._forget(node)
            self._adopt(wanted, containers.make(api, [order])[0])

    def broken(self, wiring: Wiring, *, plugged: Collection[str]) -> dict[str, str]:
        """The nodes whose sandbox is not there, and what of it is missing, worded for people."""
        if engine.missing():
            return {node.name: f"no Docker Engine answers for the container of {node.name}" for node in wiring.nodes}
        with containers.connected() as api:
            states = containers.states(api, [self._container(node) for node in wiring.nodes])
        return {
            node.name: problem
            for node, state in zip(wiring.nodes, states, strict=True)
            if (problem := self._problem(node.name, state) or self._lacking(node, plugged)) is not None
        }

    def _problem(self, node: str, state: containers.State | None) -> str | None:
        if state is None:
            return f"the container of {node} is gone"
        if not state.pid:
            return f"the container of {node} has ended{' for lack of memory' if state.out_of_memory else ''}"
        if state.paused:
            return f"the container of {node} is paused"
        if not kernel.is_mounted(self.netns(node)):
            return f"the namespace of {node} is gone"
        try:
            inside = Path(f"/proc/{state.pid}/ns/net").stat()
        except FileNotFoundError:
            return f"the container of {node} has ended"
        if not os.path.samestat(inside, self.netns(node).stat()):
            return f"the container of {node} was started anew by somebody else: no link is plugged into it"
        return None

    @property
    def _shared(self) -> Path:
        return self._ledger.directory / SHARED

    def _container(self, node: NodeWiring) -> str:
        """``lab.s1-5d41ab``: the same testbed name in another run directory is another testbed."""
        return f"{node.sandbox}-{hashlib.sha256(os.fsencode(self._ledger.directory.absolute())).hexdigest()[:6]}"

    def _orders(self, nodes: Sequence[NodeWiring]) -> list[Order]:
        """What to ask of the engine for these nodes, as the ledger names them."""
        recorded = {str(entry["name"]): entry for entry in self._ledger.entries("container")}
        shown = [self._shared.absolute(), *checked_visible(self._visible)]
        visible = {**code(), **{str(path): path for path in shown}}
        orders = []
        for node in nodes:
            name = self._container(node)
            orders.append(
                Order(
                    name=name,
                    hostname=node.name,
                    image=str(recorded[name]["image"]),
                    owner=str(recorded[name]["owner"]),
                    hosts=self.hosts.absolute(),
                    visible=visible,
                    limits=self._limits.get(node.name, UNLIMITED),
                )
            )
        return orders


def code() -> dict[str, Path]:
    """Where the packages that run in containers are, by where they appear there; TestbedError if one is missing."""
    found = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise TestbedError(f"the package {package!r} is not installed here, so containers cannot see it")
        found[f"{CODE}/{package}"] = Path(spec.origin).resolve().parent
        _check_open(found[f"{CODE}/{package}"])
    # Models lie in a package, and agents are told where by the host's path.
    return {**found, **{str(path): path for path in found.values()}}


def checked_visible(paths: Sequence[Path]) -> list[Path]:
    """The paths to mount, absolute, none below another; TestbedError for one that cannot be shown."""
    wanted = sorted({path.resolve() for path in paths}, key=lambda path: len(path.parts))
    kept: list[Path] = []
    for path in wanted:
        if not path.exists():
            raise TestbedError(f"there is no {path} that containers could see")
        if path.parent == path or str(path.relative_to(path.anchor)) in SYSTEM:
            raise TestbedError(f"{path} cannot be shown to containers, which have their own: name a directory below it")
        _check_open(path)
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def _check_open(path: Path) -> None:
    needed = 0o005 if path.is_dir() else 0o004
    if path.stat().st_mode & needed != needed:
        raise TestbedError(f"{path} is closed to other users and so to containers: type `chmod -R o+rX {path}`")


def _as_inside(argv: Sequence[str]) -> list[str]:
    """The host's Python is not there; the container's own stands for it."""
    return [PYTHON if argv[0] == sys.executable else argv[0], *argv[1:]]
