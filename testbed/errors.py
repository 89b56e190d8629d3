"""Errors worded for the person who must act.  A command line prints the text alone and exits with ``exit_code``."""

from __future__ import annotations


class TestbedError(Exception):
    """Something the user can mend; the message says what and how.  Command lines exit with code 2."""

    __test__ = False  # pytest: not a test class
    exit_code = 2
