"""The few system calls that Python 3.11 does not offer: namespaces, mounts, privileges.

Each is one thin function that raises ``OSError`` with the call's name, so that the modules above read like what they
do.  Only the standard library is imported: ``testbed.backends.enter`` runs this in front of every process of a sandbox.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2
PR_CAPBSET_DROP = 24
PR_SET_TIMERSLACK = 29
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
EINVAL = 22

_libc = ctypes.CDLL(None, use_errno=True)


def enter_netns(fd: int) -> None:
    """Move the calling thread into the network namespace behind ``fd``."""
    _check("setns", _libc.setns(fd, CLONE_NEWNET))


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    _check("unshare", _libc.unshare(flags))


def bind_mount(source: str | Path, target: str | Path) -> None:
    """Show ``source`` at ``target``."""
    _check("mount", _libc.mount(os.fsencode(source), os.fsencode(target), b"none", MS_BIND, None))


def make_mounts_private() -> None:
    """Keep the mounts that follow to this mount namespace."""
    _check("mount", _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


def unmount(target: str | Path) -> None:
    """Take away what is mounted at ``target``, even while it is in use."""
    _check("umount2", _libc.umount2(os.fsencode(target), MNT_DETACH))


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at ``path``: the namespace, not the empty file that waits for it."""
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except FileNotFoundError:
        return False


def set_timer_slack(slack_ns: int) -> None:
    """Let the calling thread's sleeps end this precisely."""
    _check("prctl", _libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0))


def drop_privileges() -> None:
    """Give up every capability for good, also across exec and also as user 0."""
    _check("prctl", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if ctypes.get_errno() != EINVAL:  # the kernel's way of saying that there is no such capability any more
        _check("prctl", -1)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    _check("capset", _libc.capset(header, nothing))


@contextmanager
def inside_netns(path: str | Path) -> Iterator[None]:
    """Run the block in another network namespace; sockets and devices opened there stay there."""
    with _opened("/proc/thread-self/ns/net") as home, _opened(path) as away:
        enter_netns(away)
        try:
            yield
        finally:
            enter_netns(home)


def create_netns(path: str | Path) -> None:
    """Make a network namespace that lives as long as it is mounted at ``path``, an existing empty file."""
    with _opened("/proc/thread-self/ns/net") as home:
        unshare(CLONE_NEWNET)
        try:
            bind_mount("/proc/thread-self/ns/net", path)
        finally:
            enter_netns(home)


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _check(call: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
