"""Errors worded for the person who must act.  A command line prints the text alone and exits with ``exit_code``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TestbedError(Exception):
    """Something the user can mend; the message says what and how.  Command lines exit with code 2."""

    __test__ = False  # pytest: not a test class
    exit_code = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'delay'?`` when a known word is close to ``word``, else nothing.

    >>> did_you_mean("delya", ["delay", "rate"])
    "; did you mean 'delay'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
