"""Numbers on the command lines of this package, judged before anything is fetched or computed.

>>> positive("3")
3
"""

from __future__ import annotations

import argparse

MOST = 10**9


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _between(text, 1)


def counting(text: str) -> int:
    """A whole number of at least 0."""
    return _between(text, 0)


def _between(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} to {MOST}")
    return number
