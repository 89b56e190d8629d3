"""The bytes of a file to import, within limits, and the refusals that every reader shares.

Files are written by others, so nothing about their size or their contents is taken for granted: what is read and what
comes out of a compressed file is bounded before memory is taken.

>>> number("2.5e9", "LinkSpeedRaw of line 3")
2500000000.0
"""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

from testbed.errors import TestbedError
from testbed.loading.fileformat import MAX_NODES
from testbed.units import MAX_TEXT, plain_number

MAX_BYTES = 16 * 1024 * 1024
#: Elements, values or rows of one file.  A full mesh of 400 nodes has 80,000 edges.
MAX_ITEMS = 1_000_000
MAX_DEPTH = 32
#: What the refusal of an unreadable file ends with: the form that anything can be brought into.
TABLE_HINT = (
    "write its links as a CSV table with the columns from,to,rtt_ms and import that (docs/importing.md shows every "
    "format)"
)
_UNPACKING_BYTES = 128 * 1024 * 1024  # what xz may use while it unpacks


class ImportRefusedError(TestbedError):
    """A file that cannot be imported as it stands; the message says what to type or to change."""


def read(path: Path) -> bytes:
    """What is in ``path``, unpacked if it is gzip or xz."""
    if not path.exists():
        raise ImportRefusedError(f"{path}: no such file")
    if not path.is_file():
        raise ImportRefusedError(f"{path}: not a regular file; name the file to import")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ImportRefusedError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) <= MAX_BYTES:
        data = _unpacked(data, path.name)
    if len(data) > MAX_BYTES:
        raise ImportRefusedError(f"{path.name}: larger than {MAX_BYTES // 1024**2} MiB; import a smaller network")
    if not data.strip():
        raise ImportRefusedError(f"{path.name}: the file is empty")
    return data


def text_of(data: bytes, filename: str) -> str:
    """``data`` as text; refused unless it is UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ImportRefusedError(
            f"{filename}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from None


def number(text: object, what: str) -> float:
    """A plain decimal number, zero or more or less; ``what`` names it when it is none."""
    written = str(text).strip()
    value = plain_number(written) if len(written) <= MAX_TEXT else None
    if value is None:
        raise ImportRefusedError(f"{what}: {written[:MAX_TEXT]!r} is not a number")
    return value


def check_count(count: int, filename: str) -> None:
    """Refuse more nodes than a topology can have, before they are made."""
    if count > MAX_NODES:
        raise ImportRefusedError(f"{filename}: {count} nodes; a topology has at most {MAX_NODES}")


def _unpacked(data: bytes, filename: str) -> bytes:
    try:
        if data.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MAX_BYTES + 1)
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACKING_BYTES).decompress(data, MAX_BYTES + 1)
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise ImportRefusedError(f"{filename}: cannot be unpacked: {error}") from None
    return data
