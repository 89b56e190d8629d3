"""What this machine can do, probed once, so that commands refuse early and tests skip with a reason."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.backends import engine, kernel
from testbed.errors import TestbedError

TUN_DEVICE = Path("/dev/net/tun")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing the machine can or cannot do."""

    name: str
    available: bool
    detail: str  # what was found
    needed_for: str
    remedy: str  # what to type or do where it is missing


def missing_for_netns() -> list[Capability]:
    """What the netns backend with the relay lacks here."""
    return missing_for("netns", "relay")


def missing_for(backend: str, shaper: str) -> list[Capability]:
    """What a backend with a shaper lacks here."""
    needed = [root(), congestion_control()]
    needed += {"docker": [docker()], "mininet": [mininet()]}.get(backend, [])
    in_kernel = shaper == "netem" or (shaper == "auto" and netem().available)
    needed += [netem()] if in_kernel else [tun()]
    return [capability for capability in needed if not capability.available]


def require(backend: str, shaper: str) -> None:
    """TestbedError with one line if packets cannot be emulated so here."""
    _refuse(missing_for(backend, shaper))


def require_root() -> None:
    """TestbedError with one line if we may not touch namespaces: all that a testbed needs once it is up."""
    _refuse([] if root().available else [root()])


@functools.cache
def probe() -> tuple[Capability, ...]:
    """Everything the testbed may use, and whether this machine has it."""
    return (root(), tun(), congestion_control(), netem(), docker(), mininet(), processors())


@functools.cache
def root() -> Capability:
    """Whether we may make network namespaces."""
    user = os.geteuid() if hasattr(os, "geteuid") else None  # not on every system
    if user == 0:
        able, detail = _may_unshare()
    else:
        able, detail = False, "no such thing on this system" if user is None else f"user {user}"
    return Capability(
        name="root",
        available=able,
        detail=detail,
        needed_for="network namespaces",
        remedy="type it again with `sudo`, on a machine or in a container that may create network namespaces",
    )


@functools.cache
def tun() -> Capability:
    """Whether TUN devices can be made."""
    exists = TUN_DEVICE.is_char_device()
    usable = exists and os.access(TUN_DEVICE, os.R_OK | os.W_OK)
    return Capability(
        name=str(TUN_DEVICE),
        available=usable,
        detail="usable" if usable else ("no access" if exists else "no such device"),
        needed_for="links through the relay",
        remedy="type `modprobe tun`, or start the container with `--device /dev/net/tun`",
    )


@functools.cache
def congestion_control() -> Capability:
    """Whether TCP cubic, which all sandboxes use, is there."""
    try:
        known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    except OSError:
        known = []
    return Capability(
        name="TCP cubic",
        available="cubic" in known,
        detail=f"kernel offers {', '.join(known) or 'none'}",
        needed_for="the same TCP on every machine",
        remedy="type `modprobe tcp_cubic`",
    )


@functools.cache
def netem() -> Capability:
    """Whether the kernel can shape links by itself: it has the module, and a link comes out of it."""
    release = platform.release()
    modules = Path("/lib/modules") / release
    builtin = modules / "modules.builtin"
    here = [*modules.glob("kernel/net/sched/sch_netem.ko*"), *Path("/sys/module").glob("sch_netem")]
    known = bool(here) or (builtin.exists() and "sch_netem" in builtin.read_text())
    refused = ""
    if known and root().available:
        from testbed.shaping.netem import trial  # loads netlink's library, for those who need it

        refused = trial()
    return Capability(
        name="sch_netem",
        available=known and root().available and not refused,
        detail=f"kernel {release}" + (f": {refused}" if refused else "" if known else " has no such module"),
        needed_for="links shaped by the kernel; the relay needs it not",
        remedy="nothing to do: links go through the relay",
    )


@functools.cache
def docker() -> Capability:
    """Whether a Docker Engine answers."""
    try:
        missing = engine.missing() or ""
    except TestbedError as error:
        missing = str(error)
    return Capability(
        name="docker",
        available=not missing,
        detail=missing.removesuffix(f": {engine.START_REMEDY}") or "the engine answers",
        needed_for="servers in containers; namespaces need it not",
        remedy=engine.START_REMEDY,
    )


@functools.cache
def mininet() -> Capability:
    """Whether Mininet and the helper that starts its hosts are there."""
    package = importlib.util.find_spec("mininet") is not None
    helper = shutil.which("mnexec") is not None
    found = [name for name, there in (("the Python package", package), ("mnexec", helper)) if not there]
    return Capability(
        name="mininet",
        available=not found,
        detail=f"{' and '.join(found)} not found" if found else "package and mnexec found",
        needed_for="servers as Mininet hosts; namespaces need it not",
        remedy="type `apt-get install mininet`",
    )


@functools.cache
def processors() -> Capability:
    """How many processors we may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Capability(
        name="processors",
        available=count >= 2,
        detail=str(count),
        needed_for="the relay beside the servers",
        remedy="use a machine with two processors or more, or a larger dilation",
    )


def _refuse(missing: list[Capability]) -> None:
    if missing:
        raise TestbedError("; ".join(f"{each.name} is missing ({each.detail}): {each.remedy}" for each in missing))


def _may_unshare() -> tuple[bool, str]:
    # In a process of its own: the caller must not change namespace even for a moment if something goes wrong.
    try:
        with kernel.inside_netns("/proc/thread-self/ns/net"):
            return True, "user 0 with the right to enter namespaces"
    except OSError as error:
        return False, f"user 0, but {error}"
