"""Errors worded for the person who must act.  A command line prints the text alone and exits with ``exit_code``."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from testbed.words import similar

#: What the system says where nothing more can be written.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TestbedError(Exception):
    """Something the user can mend; the message says what and how.  Command lines exit with code 2."""

    __test__ = False  # pytest: not a test class
    exit_code = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'delay'?`` when a known word is close to ``word``, else nothing.

    >>> did_you_mean("delya", ["delay", "rate"])
    "; did you mean 'delay'?"
    """
    near = similar(word, known)
    return f"; did you mean {near!r}?" if near else ""
