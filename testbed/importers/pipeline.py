"""All steps of an import, in order: bytes, format, graph, network, text that is known to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.importers import names as naming
from testbed.importers.detect import Form, read_graph
from testbed.importers.graph import Graph
from testbed.importers.mininet import is_script, read_script
from testbed.importers.reading import ImportRefusedError, read
from testbed.importers.resolve import Choices, resolve
from testbed.importers.rtt import RttOptions
from testbed.importers.write import write
from testbed.load import TopologyError, parse_topology
from testbed.loading.document import MAX_FILE_BYTES
from testbed.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A topology file that loads."""

    text: str
    topology: Topology
    form: Form
    notes: tuple[str, ...]


def import_topology(
    path: Path,
    choices: Choices,
    *,
    form: Form | None = None,
    name: str = "",
    table: RttOptions | None = None,
    command: str = "",
) -> Imported:
    """The network in ``path`` as a topology file; ImportRefusedError says what to type where something is missing."""
    graph: Graph
    if form in (None, "mininet") and is_script(path):
        form, graph = "mininet", read_script(path)
    else:
        form, graph = read_graph(read(path), path.name, form, table or RttOptions())
    network = resolve(graph, choices, path.name)
    title = name or naming.plain(path.name.split(".")[0])
    if not naming.is_usable(title):
        raise ImportRefusedError(
            f"--name {title!r}: a name starts with a lowercase letter and goes on with lowercase letters, digits and "
            f"'-', {naming.MAX_LENGTH} characters at most"
        )
    text = write(network, name=title, filename=path.name, form=form, command=command or f"testbed import {path.name}")
    size_bytes = len(text.encode())
    if size_bytes > MAX_FILE_BYTES:
        raise ImportRefusedError(
            f"{path.name}: {len(network.members)} nodes and {len(network.links)} links make a topology file of "
            f"{size_bytes / 1024**2:.1f} MiB, and at most {MAX_FILE_BYTES // 1024**2} MiB are read: keep fewer nodes "
            "with --only NAME,NAME,..."
        )
    try:
        topology = parse_topology(text, f"import of {path.name}")
    except TopologyError as error:
        raise ImportRefusedError(
            f"{path.name}: what was made of it does not load.  This is a fault of the importer; please report it, with "
            f"the file and these lines:\n{error}"
        ) from error
    return Imported(text=text, topology=topology, form=form, notes=network.notes)
