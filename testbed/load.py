"""A topology file, read: YAML in, a frozen ``Topology`` or a complete list of mistakes out.

>>> text = '''
... name: pair
... devices:
...   small: {peak: 18 TFLOP/s, memory: 300 GB/s, fast: 12 GB, slow: 96 GB, load: 12 GB/s}
... nodes:
...   s1: {device: small}
...   s2: {device: {class: small, fast: 24 GB}}
... links:
...   - {between: [s1, s2], rate: 1 Gbit/s, delay: 5 ms}
... '''
>>> topology = parse_topology(text, "pair.yaml")
>>> topology.node("s2").device.fast_bytes, topology.link("s1-s2").forward.delay_s
(24000000000, 0.005)

docs/topology-files.md is the reference of the format, ``testbed.loading.fileformat`` its source.
"""

from __future__ import annotations

from pathlib import Path

from testbed.loading.build import build
from testbed.loading.document import MAX_FILE_BYTES, compose
from testbed.loading.fileformat import TOPOLOGY
from testbed.loading.problems import WHOLE_FILE, Position, Problem, Report, TopologyError
from testbed.topology import Topology

__all__ = ["Problem", "TopologyError", "load_topology", "parse_topology"]


def load_topology(path: str | Path) -> Topology:
    """The topology in the file at ``path``; TopologyError lists everything that is wrong with it."""
    filename = str(path)
    if Path(path).is_fifo():
        raise _unreadable(filename, "not a regular file")  # reading it might never end
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(filename, _reason(Path(path), error)) from error
    if len(data) > MAX_FILE_BYTES:
        raise _unreadable(filename, f"larger than {MAX_FILE_BYTES // 1024} KiB; this is no topology file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        at = Position(before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        message = f"not UTF-8 text (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        shown = data.decode("utf-8", errors="replace")
        raise TopologyError(filename, shown, [Problem(at=at, path="", message=message)]) from None
    return parse_topology(text, filename, directory=Path(path).parent)


def parse_topology(text: str, filename: str = "<text>", *, directory: Path | None = None) -> Topology:
    """The topology that ``text`` describes; messages name it ``filename``.

    The files that it names are looked for in ``directory``; by default, in the current one.
    """
    report = Report()
    node = compose(text, report)
    root = TOPOLOGY.read(node, "", report) if node is not None else None
    topology = build(root, directory or Path(), report) if root is not None else None
    if topology is None:
        raise TopologyError(filename, text, report.problems)
    return topology


def _unreadable(filename: str, message: str) -> TopologyError:
    return TopologyError(filename, "", [Problem(at=WHOLE_FILE, path="", message=message)])


def _reason(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            similar = sorted(near.name for near in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
            listed = f"; {path.parent} has {', '.join(similar[:8])}" if similar else ""
            return f"no such file{listed}"
        case IsADirectoryError():
            return "this is a directory; name a YAML file in it"
        case PermissionError():
            return "may not be read by this user"
    return f"cannot be read: {error.strerror or error}"
