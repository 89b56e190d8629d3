"""Links shaped by the kernel: a ``Shaper`` of veth pairs, htb and netem.  ``kernellinks`` says how one is built.

Nobody has to run for links to work.  What was asked for is kept in a file of the run directory, so that any process can
change links and tell whether the kernel still has what was asked.

>>> from testbed.impairments import CoDel
>>> supports(Direction(rate_bps=1e8, delay_s=0.005, loss=0.01))
''
>>> supports(Direction(rate_bps=1e8, delay_s=0.005, codel=CoDel()))
'netem here has no CoDel'
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from testbed.backends import kernel
from testbed.errors import TestbedError
from testbed.shaping import kernellinks
from testbed.shaping.base import CableEnd, CablePlan, DirectionReport, Lateness
from testbed.shaping.kernellinks import Way, way_of
from testbed.topology import Direction

STATE = "netem.json"
LOCK = "netem.lock"
MODPROBE_PATHS = "/usr/sbin:/sbin"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, whoever asked."""

    dilation: float = 1.0
    cables: tuple[CablePlan, ...] = ()

    def ways(self, cables: Sequence[CablePlan] | None = None) -> list[Way]:
        """Both directions of all cables (or of these)."""
        return [
            way_of(cable, source, self.dilation)
            for cable in (self.cables if cables is None else cables)
            for source in (cable.a.node, cable.b.node)
        ]


def supports(direction: Direction) -> str:
    """Empty if the kernel can shape this direction, or what it cannot do."""
    if direction.traced:
        return "netem cannot follow a recording"
    if direction.codel:
        return "netem here has no CoDel"
    return ""


def trial() -> str:
    """Empty if the kernel of this machine makes a link, or why it does not.  Needs root; leaves nothing behind."""
    reasons: list[str] = []

    def attempt() -> None:
        kernel.unshare(kernel.CLONE_NEWNET)  # of this thread alone; it goes with the thread
        here = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"
        a, b = (CableEnd(node=name, netns=here, interface=f"to-{name}") for name in ("a", "b"))
        usual = Direction(rate_bps=1e9, delay_s=0.001)
        cable = CablePlan(link="a-b", a=a, b=b, forward=usual, backward=usual)
        try:
            _load_modules()
            kernellinks.connect(cable)
            for source in ("a", "b"):
                kernellinks.furnish(way_of(cable, source, 1.0))
        except (OSError, TestbedError) as error:
            reasons.append(str(error).splitlines()[0])

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return reasons[0] if reasons else ""


class NetemShaper:
    """A ``Shaper`` in the kernel.  Any thread of any process may call; changes take turns."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is the run directory, where what is in force is kept."""
        self._directory = directory

    def plug(self, cables: Sequence[CablePlan]) -> None:
        """Create both interfaces of every cable and start shaping; repair those of which an end is missing."""
        _load_modules()
        with self._locked():
            state = self._state()
            plugged = {cable.link: cable for cable in state.cables}
            for cable in cables:
                before = plugged.get(cable.link, cable)
                plugged[cable.link] = replace(cable, forward=before.forward, backward=before.backward)
                _refuse(plugged[cable.link])
            # On record first: what is asked for and not there is reported, the opposite could not be.
            self._save(state := msgspec.structs.replace(state, cables=tuple(plugged.values())))
            missing = kernellinks.missing([plugged[cable.link] for cable in cables])
            for cable in missing:
                kernellinks.connect(cable)
            for way in state.ways(missing):
                kernellinks.furnish(way)

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on one direction of ``link``; returns what is applied."""
        with self._locked():
            state = self._state()
            for number, cable in enumerate(state.cables):
                if cable.link == link and source in (cable.a.node, cable.b.node):
                    forward = source == cable.a.node
                    changed = replace(cable, forward=direction) if forward else replace(cable, backward=direction)
                    _refuse(changed)
                    dilation = state.dilation
                    kernellinks.change(way_of(cable, source, dilation), way_of(changed, source, dilation))
                    cables = (*state.cables[:number], changed, *state.cables[number + 1 :])
                    self._save(msgspec.structs.replace(state, cables=cables))
                    return direction
        raise TestbedError(f"no direction of {link} starts at {source}")

    def report(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:  # noqa: ARG002 - kernels stay
        """Every direction that is there, read back from the kernel."""
        ways = self._state().ways()
        found: dict[tuple[str, str], DirectionReport | None] = {}
        for _, group in itertools.groupby(sorted(ways, key=_netns), key=_netns):
            here = list(group)
            # A namespace that is gone has nothing to report.
            with contextlib.suppress(OSError):
                reports = kernellinks.report(here)
                found.update(zip(((way.link, way.near.node) for way in here), reports, strict=True))
        ordered = (found.get((way.link, way.near.node)) for way in ways)
        return tuple(report for report in ordered if report is not None)

    def lateness(self, *, reset: bool = False) -> Lateness:  # noqa: ARG002 - there is nothing to reset
        """The kernel does not tell how late it releases."""
        return Lateness()

    def dilate(self, dilation: float) -> None:
        """Run all links ``dilation`` times slower than what was and will be asked for."""
        with self._locked():
            before = self._state()
            after = msgspec.structs.replace(before, dilation=dilation)
            for old, new in zip(before.ways(), after.ways(), strict=True):
                kernellinks.change(old, new)
            self._save(after)

    @property
    def dilation(self) -> float:
        """How many times slower all links run."""
        return self._state().dilation

    def rewind(self, seed: int) -> None:
        """Let chances start from ``seed``.  Kernels before 6.6 cannot, and do nothing."""
        with self._locked():
            for way in self._state().ways():
                chance = random.Random(f"{seed}/{way.link}/{way.near.node}")  # noqa: S311 - physics, not secrets
                kernellinks.reseed(way, chance.getrandbits(64))

    def close(self) -> None:
        """Nothing is held."""

    def _state(self) -> State:
        path = self._directory / STATE
        try:
            return msgspec.json.decode(path.read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except msgspec.MsgspecError as error:
            raise TestbedError(f"{path} is damaged ({error}): type `make down`, then up") from error

    def _save(self, state: State) -> None:
        new = self._directory / f"{STATE}.new"
        new.write_bytes(msgspec.json.encode(state))
        new.replace(self._directory / STATE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _refuse(cable: CablePlan) -> None:
    for source, direction in ((cable.a.node, cable.forward), (cable.b.node, cable.backward)):
        if reason := supports(direction):
            raise TestbedError(f"{cable.link} from {source}: {reason}; use the shaper `relay`")


def _netns(way: Way) -> str:
    return way.near.netns


def _load_modules() -> None:
    """Left to itself, the kernel would load ``ifb`` together with two devices that nobody asked for."""
    modprobe = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:{MODPROBE_PATHS}")
    if modprobe and not Path("/sys/module/ifb").exists():
        subprocess.run([modprobe, "--quiet", "ifb", "numifbs=0"], check=False)
