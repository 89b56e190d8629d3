"""Which format a file has, by what is in it; the name only breaks ties.

What is recognised and not read is refused by name, with what to do instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, get_args

from testbed.importers import containerlab, nodelink
from testbed.importers.attributes import AttributedGraph
from testbed.importers.gml import read_gml
from testbed.importers.graph import Graph
from testbed.importers.graphml import read_graphml
from testbed.importers.kollaps import read_kollaps
from testbed.importers.reading import TABLE_HINT, ImportRefusedError, text_of
from testbed.importers.rtt import RttOptions, is_matrix, read_rtt_json, read_rtt_text
from testbed.importers.shadow import is_shadow, read_shadow
from testbed.importers.xmltree import parse, root_tag
from testbed.importers.zoo import read_zoo

Form = Literal["graphml", "gml", "nodelink", "containerlab", "kollaps", "rtt", "mininet"]
FORMATS: tuple[Form, ...] = get_args(Form)

_ROOTS: dict[str, Form] = {"graphml": "graphml", "experiment": "kollaps"}


def read_graph(data: bytes, filename: str, form: Form | None, options: RttOptions) -> tuple[Form, Graph]:
    """The format of ``data`` and what it says; without ``form`` it is found out."""
    form = form or _detect(data, filename)
    if form != "rtt" and (options.columns or options.repeated):
        raise ImportRefusedError(f"{filename}: --columns and --repeated are for tables of round trips; this is {form}")
    return form, _READERS[form](data, filename, options)


def _detect(data: bytes, filename: str) -> Form:
    # XML may be in any encoding, which only its parser knows.
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"<" or (data.startswith((b"\xff\xfe", b"\xfe\xff")) and b"<" in data[:8]):
        return _of_xml(data, filename)
    text = text_of(data, filename)
    suffix = filename.lower().removesuffix(".gz").removesuffix(".xz").rpartition(".")[2]
    if start in (b"{", b"["):
        document = load_json(text, filename)
        return "nodelink" if nodelink.is_nodelink(document) else "rtt"
    if text.lstrip().startswith("?SNDlib"):
        raise ImportRefusedError(
            f"{filename}: SNDlib's native format is not read; the topohub collection has the same networks as JSON, "
            f"which is; or {TABLE_HINT}"
        )
    if suffix == "gml" or _starts_gml(text):
        return "gml"
    if suffix in ("csv", "tsv", "md"):
        return "rtt"
    if suffix in ("yaml", "yml"):
        return _of_yaml(text, filename)
    if any("," in line or line.startswith("|") for line in text.splitlines()[:1]):
        return "rtt"
    raise ImportRefusedError(
        f"{filename}: not recognised as any of {', '.join(FORMATS)}; say which it is with --format, or {TABLE_HINT}"
    )


def load_json(text: str, filename: str) -> Any:
    """Plain values of a JSON text; repeated names, which JSON's readers drop silently, are refused."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ImportRefusedError(f"{filename}: {twice[:40]!r} stands twice in one object")
        return entries

    def no_number(word: str) -> Any:
        raise ImportRefusedError(f"{filename}: {word} is not a number")

    try:
        return json.loads(text, object_pairs_hook=distinct, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise ImportRefusedError(f"{filename}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except (RecursionError, ValueError):  # nested, or a number of thousands of digits
        raise ImportRefusedError(f"{filename}: not JSON of a network: nested too deep, or numbers too long") from None


def _of_xml(data: bytes, filename: str) -> Form:
    tag = root_tag(data, filename)
    form = _ROOTS.get(tag)
    if form is None:
        raise ImportRefusedError(f"{filename}: <{tag[:40]}> is neither GraphML nor a Kollaps experiment; {TABLE_HINT}")
    return form


def _of_yaml(text: str, filename: str) -> Form:
    document = containerlab.load_yaml(text, filename)
    if containerlab.is_containerlab(document):
        return "containerlab"
    keys = document.keys() if isinstance(document, dict) else set()
    if "x-fogify" in keys:
        raise ImportRefusedError(
            f"{filename}: a Fogify file, which is not read: it attaches services to shared networks and has no links "
            f"between two nodes; {TABLE_HINT}"
        )
    if {"network", "hosts"} <= keys:
        raise ImportRefusedError(
            f"{filename}: a Shadow configuration; import its graph instead: save what stands under 'network: graph: "
            "inline:' as graph.gml (or take the file that 'path:' names), then type `testbed import graph.gml`"
        )
    if {"nodes", "links"} <= keys and "topology" not in keys:
        raise ImportRefusedError(f"{filename}: this is a topology file already; look at it with `testbed check`")
    raise ImportRefusedError(f"{filename}: YAML without 'topology: nodes:' is no containerlab file; {TABLE_HINT}")


def _starts_gml(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines()[:100])
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.split("[")[0].strip().lower() in ("graph", "creator", "version") and "[" in text


def _attributed(graph: AttributedGraph, filename: str) -> Graph:
    return read_shadow(graph, filename) if is_shadow(graph) else read_zoo(graph)


def _graphml(data: bytes, filename: str, _: RttOptions) -> Graph:
    root = parse(data, filename)
    if root.tag != "graphml":
        raise ImportRefusedError(f"{filename}: <{root.tag[:40]}> is not GraphML")
    return _attributed(read_graphml(root, filename), filename)


def _gml(data: bytes, filename: str, _: RttOptions) -> Graph:
    return _attributed(read_gml(text_of(data, filename), filename), filename)


def _nodelink(data: bytes, filename: str, _: RttOptions) -> Graph:
    document = load_json(text_of(data, filename), filename)
    if not nodelink.is_nodelink(document):
        raise ImportRefusedError(f"{filename}: no lists 'nodes' and 'edges', so this is no node-link JSON")
    return _attributed(nodelink.read_nodelink(document, filename), filename)


def _containerlab(data: bytes, filename: str, _: RttOptions) -> Graph:
    document = containerlab.load_yaml(text_of(data, filename), filename)
    return containerlab.read_containerlab(document, filename)


def _kollaps(data: bytes, filename: str, _: RttOptions) -> Graph:
    root = parse(data, filename)
    if root.tag != "experiment":
        raise ImportRefusedError(f"{filename}: <{root.tag[:40]}> is not a Kollaps experiment")
    return read_kollaps(root, filename)


def _rtt(data: bytes, filename: str, options: RttOptions) -> Graph:
    text = text_of(data, filename)
    if text.lstrip().startswith(("{", "[")):
        document = load_json(text, filename)
        if not is_matrix(document):
            raise ImportRefusedError(
                f'{filename}: JSON, but neither a node-link graph nor round trips as {{"paris": {{"rome": 22.5}}}}; '
                f"{TABLE_HINT}"
            )
        return read_rtt_json(document, filename, options)
    return read_rtt_text(text, filename, options)


def _mininet(_: bytes, filename: str, __: RttOptions) -> Graph:
    # Bytes alone are never run: ``pipeline`` reads scripts from their files.
    raise ImportRefusedError(f"{filename}: a Mininet script is read from a file whose name ends in .py")


_READERS: dict[Form, Callable[[bytes, str, RttOptions], Graph]] = {
    "graphml": _graphml,
    "gml": _gml,
    "nodelink": _nodelink,
    "containerlab": _containerlab,
    "kollaps": _kollaps,
    "rtt": _rtt,
    "mininet": _mininet,
}
