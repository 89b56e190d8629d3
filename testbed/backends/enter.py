"""Step into a sandbox, give up all privileges and become the given program.

    python -m testbed.backends.enter NETNS HOSTS PROGRAM [ARGUMENT ...]

It runs between ``Popen`` and the program, in a process of its own with one thread, because namespaces belong to threads
and forking a process that has others (ZeroMQ, netlink) can deadlock.  The program keeps this process's id, so whoever
started it can wait for it and signal it.  In the sandbox, names resolve through HOSTS to data-plane addresses.
"""

from __future__ import annotations

import os
import signal
import sys

from testbed.backends import kernel

CANNOT_START = 126


def main(argv: list[str]) -> None:
    """Never returns: becomes the program, or exits with 126 and one line."""
    try:
        netns, hosts, *program = argv
        fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        kernel.enter_netns(fd)
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.make_mounts_private()
        kernel.bind_mount(hosts, "/etc/hosts")
        kernel.drop_privileges()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
        try:
            os.execvp(program[0], program)  # noqa: S606 - no shell is the point
        except PermissionError as error:
            why = "programs on servers get no capabilities; where a file asks for some, run a copy of it"
            sys.stderr.write(f"cannot start {program[0]}: {error.strerror} ({why})\n")
            sys.exit(CANNOT_START)
        except OSError as error:
            sys.stderr.write(f"cannot start {program[0]}: {error.strerror}\n")
            sys.exit(CANNOT_START)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot start in the sandbox: {error}\n")
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
