"""Connected components: which nodes can reach each other.

>>> components(["s1", "s2", "s3", "s4"], [("s1", "s3"), ("s4", "s2")])
[['s1', 's3'], ['s2', 's4']]
"""

from __future__ import annotations

from collections.abc import Iterable


def components(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The pieces of the graph of ``names`` joined by ``pairs``, and the nodes of each, in the order of ``names``."""
    neighbours: dict[str, list[str]] = {name: [] for name in names}
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    place = {name: number for number, name in enumerate(neighbours)}
    found: list[list[str]] = []
    reached: set[str] = set()
    for start in neighbours:
        if start in reached:
            continue
        piece, front = {start}, [start]
        while front:
            fresh = {peer for peer in neighbours[front.pop()] if peer not in piece}
            piece |= fresh
            front += fresh
        reached |= piece
        found.append(sorted(piece, key=place.__getitem__))
    return found
