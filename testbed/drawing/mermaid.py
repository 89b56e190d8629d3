"""A topology as Mermaid text: a flowchart that GitHub, GitLab and many editors draw inside a Markdown page.

>>> from testbed.topology import Direction, Topology
>>> there = Direction(rate_bps=1e10, delay_s=0.0003)
>>> print(mermaid(View(topology=Topology(name="pair", nodes=(Node(name="s1", metro="north"), Node(name="s2")),
...                                      links=(Link(a="s1", b="s2", forward=there, backward=there),)))))
---
title: "pair: 2 servers, 1 link"
---
flowchart LR
  subgraph m1["north"]
    n_s1(["s1"])
  end
  n_s2(["s2"])
  n_s1 ---|"10 Gbit/s, 0.3 ms"| n_s2
  classDef router fill:#D5DBE3,stroke:#222222
  classDef broken fill:#FFFFFF,stroke:#C8102E,stroke-width:3px,stroke-dasharray:4
<BLANKLINE>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from testbed.drawing.view import View, Way, details
from testbed.topology import Link, Node

#: What Mermaid draws unless whoever embeds it allows more (its ``maxEdges``, ``maxTextSize``).
MOST_LINKS, MOST_CHARACTERS = 500, 50_000
_ALERT = "#C8102E"
_ROUTER = "fill:#D5DBE3,stroke:#222222"
_BROKEN = f"fill:#FFFFFF,stroke:{_ALERT},stroke-width:3px,stroke-dasharray:4"
#: Characters that Mermaid reads as something other than themselves inside quotes.
_SPECIAL = re.compile(r"[\"#&;<>`\\]|[^\x20-\x7e\u00a0-\uffff]")


def mermaid(view: View) -> str:
    """The text of a flowchart with a subgraph for each metro."""
    metros = list(dict.fromkeys(node.metro for node in view.topology.nodes if node.metro))
    lines = ["---", f"title: {json.dumps(view.title)}", "---", "flowchart LR"]
    for number, metro in enumerate(metros, 1):
        inside = [node for node in view.topology.nodes if node.metro == metro]
        lines += [f'  subgraph m{number}["{quoted(metro)}"]', *(f"    {_node(node, view)}" for node in inside), "  end"]
    lines += [f"  {_node(node, view)}" for node in view.topology.nodes if not node.metro]
    lines += [f"  {_link(link, view)}" for link in view.topology.links]
    lines += [f"  classDef router {_ROUTER}", f"  classDef broken {_BROKEN}", *_marks(view)]
    return "\n".join([*lines, ""])


def beyond_mermaid(view: View, text: str) -> str:
    """What to tell who will not see it drawn by default; nothing where it is small enough."""
    if len(view.topology.links) <= MOST_LINKS and len(text) <= MOST_CHARACTERS:
        return ""
    return (
        f"note: Mermaid draws at most {MOST_LINKS} links and {MOST_CHARACTERS} characters unless its page sets "
        f"maxEdges and maxTextSize; here are {len(view.topology.links)} and {len(text)}.  "
        "A picture has no such limit: -o FILE.svg"
    )


def quoted(text: str) -> str:
    """``text`` as it must stand between quotes.

    >>> quoted('R&D "lab" #1')
    'R#38;D #34;lab#34; #35;1'
    """
    return _SPECIAL.sub(lambda match: f"#{ord(match[0])};" if match[0].isprintable() else " ", text)


def _name(node: str) -> str:
    # Mermaid's own words (end, default) are no names of nodes; "_" is in no name of ours.
    return "n_" + node.replace("-", "_")


def _node(node: Node, view: View) -> str:
    words = "<br/>".join(quoted(line) for line in (node.name, *details(node)))
    shape = f'["{words}"]:::router' if node.kind == "router" else f'(["{words}"])'
    if node.name in view.broken:
        shape = shape.removesuffix(":::router") + ":::broken"
    return f"{_name(node.name)}{shape}"


def _link(link: Link, view: View) -> str:
    ways = view.ways(link)
    line = "---" if all(way.shaped for way in ways) else "-.-"
    said = view.words(link)
    of = [[way] for way in ways] if len(said) > 1 else [list(ways)]
    words = "<br/>".join(quoted(f"{each}{_remark(there)}") for each, there in zip(said, of, strict=True))
    return f'{_name(link.a)} {line}|"{words}"| {_name(link.b)}'


def _remark(ways: Sequence[Way]) -> str:
    if not all(way.shaped for way in ways):
        return " (not shaped)"
    return " (changed)" if any(way.changed for way in ways) else ""


def _marks(view: View) -> Iterator[str]:
    odd = [
        str(number)
        for number, link in enumerate(view.topology.links)
        if any(way.changed or not way.shaped for way in view.ways(link))
    ]
    if odd:
        yield f"  linkStyle {','.join(odd)} stroke:{_ALERT},stroke-width:3px,color:{_ALERT}"
