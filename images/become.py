"""Become the given program with exactly the given environment; 126 and one line if it cannot be started.

    become.py keep -- PROGRAM [ARGUMENT ...]
    become.py only [NAME=VALUE ...] -- PROGRAM [ARGUMENT ...]

It runs in the container in front of every program, as ``testbed.backends.enter`` does in a namespace: the engine adds
variables of its own, and words a missing program differently from version to version.
"""

import os
import signal
import sys

CANNOT_START = 126


def main(arguments: list[str]) -> None:
    """Never returns."""
    end = arguments.index("--")
    how, given, program = arguments[0], arguments[1:end], arguments[end + 1 :]
    environment = dict(os.environ) if how == "keep" else dict(each.split("=", 1) for each in given)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    try:
        os.execvpe(program[0], program, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"cannot start in the sandbox: {error}\n")
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
