"""Keeping a veth in order: all that comes in at one interface is received by one processor.

A packet that leaves a veth is put into the backlog of whichever processor sends it, and the kernel's timers send on
any.  Two packets of one link may then be received by two processors at once, and the later one first.  Receive packet
steering (RPS) names the processor instead.  Its switch is a file of sysfs, which shows the interfaces of the namespace
that it was mounted in; so it is mounted here, for a moment and nowhere in the file system.

What TCP hands over at once (``LinkControl.set_bundle``) and checksums need nothing here: a checksum left to the far end
is made up before netem flips a bit, and bundles larger than the link allows are cut between queue and line.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: The same numbers on every architecture: Linux 5.2.
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_CMD_CREATE = 6
#: Bits of one word in a mask of processors.
WORD_BITS = 32

_libc = ctypes.CDLL(None, use_errno=True)


def keep_order(interface: str, *, number: int) -> None:
    """Let one processor receive all that comes in at ``interface``, in the namespace of the calling thread.

    ``number`` spreads interfaces over processors.  A kernel without RPS has one processor and no need.
    """
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        return
    mask = processor_mask(processors[number % len(processors)])
    with _sysfs() as root:
        queues = os.open(f"class/net/{interface}/queues", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
        try:
            for queue in os.listdir(queues):
                if queue.startswith("rx-"):
                    with suppress(FileNotFoundError):
                        _write(f"{queue}/rps_cpus", mask, queues)
        finally:
            os.close(queues)


def processor_mask(processor: int) -> str:
    """A processor as the kernel writes sets of them: words of 32 bits, the highest first.

    >>> processor_mask(1), processor_mask(35)
    ('2', '8,00000000')
    """
    words = ["00000000"] * (processor // WORD_BITS)
    return ",".join([f"{1 << processor % WORD_BITS:x}", *words])


@contextmanager
def _sysfs() -> Iterator[int]:
    """The sysfs of the calling thread's network namespace, attached nowhere."""
    made = _call(SYS_FSOPEN, b"sysfs", FSOPEN_CLOEXEC)
    try:
        _call(SYS_FSCONFIG, made, FSCONFIG_CMD_CREATE, None, None, 0)
        root = _call(SYS_FSMOUNT, made, FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(made)
    try:
        yield root
    finally:
        os.close(root)


def _write(path: str, text: str, directory: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
