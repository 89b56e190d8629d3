"""The lines of a file that other people recorded, within limits, and the words in which a mistake in it is reported.

    traces/lte.down:17: '12' comes after '15': times must not decrease

>>> TraceError(Path("lte.down"), 17, "nothing here")
TraceError('lte.down:17: nothing here')
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed import units
from testbed.errors import TestbedError, did_you_mean

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_ROWS = 2_000_000
#: Longer texts are cut in messages.
MAX_SHOWN = 40


class TraceError(TestbedError):
    """A trace file that cannot be used; the message opens with the file and, where there is one, the line."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        """``line`` counts from 1; 0 is the file as a whole."""
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How the numbers of a file become values in SI units, and what they may be."""

    dimension: units.Dimension
    unit: str  # of the file
    most: str  # a larger value is a mistake
    halved: bool = False  # the file has round trips, we want one way

    def value(self, written: str, path: Path, line: int) -> float:
        """The number ``written`` in SI units."""
        number = units.plain_number(written)
        if number is None:
            raise TraceError(path, line, f"{shown(written)} is not a number")
        if number < 0:
            raise TraceError(path, line, f"{shown(written)} is negative; {self.dimension.name} is zero or more")
        value = number * float(self.dimension.units[self.unit]) / (2 if self.halved else 1)
        if value > self.dimension.parse(self.most):
            raise TraceError(path, line, f"{shown(written)} {self.unit} is too large: at most {self.most}")
        return value


def text_of(path: Path) -> str:
    """The whole file; TraceError where there is none, where it is too large or no text."""
    try:
        # A pipe that nobody writes to would keep an ordinary open waiting.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TraceError(path, 0, "not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise TraceError(path, 0, _reason(path, error)) from error
    if len(data) > MAX_FILE_BYTES:
        raise TraceError(path, 0, f"larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(path, line, f"not UTF-8 text (byte 0x{data[error.start]:02x}); is it compressed?") from None


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line."""
    for number, line in enumerate(io.StringIO(text_of(path), newline=None), 1):
        if number > MAX_ROWS:
            raise too_many_rows(path, number)
        yield number, line.removesuffix("\n")


def too_many_rows(path: Path, line: int) -> TraceError:
    """What to raise where a file goes on and on."""
    return TraceError(path, line, f"more than {MAX_ROWS} rows; cut the file")


def shown(text: str) -> str:
    """A text of the file in a message."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _reason(path: Path, error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            there = sorted(near.name for near in path.parent.iterdir()) if path.parent.is_dir() else []
            return f"no such file{did_you_mean(path.name, there)}"
        case IsADirectoryError():
            return "this is a directory; name a file in it"
        case PermissionError():
            return "may not be read by this user"
        case OSError():
            return f"cannot be read: {error.strerror or error}"
    return f"cannot be read: {error}"
