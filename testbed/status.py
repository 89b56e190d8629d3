"""What of a testbed is there, what is broken, and what is shaped unlike its file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from testbed.shaping.base import DirectionReport
from testbed.topology import Engine, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of one testbed."""

    name: str
    backend: str
    up: bool  # everything is there and as the file says, but for changes asked for at run time
    sandboxes: int
    links: int
    engines: dict[Engine, int]  # how many links each shapes
    processes: int  # alive in sandboxes, started by us
    relay_alive: bool  # all of them, or not needed
    dilation: float
    changed: tuple[str, ...]  # directions shaped unlike the file
    broken: tuple[str, ...]  # what is missing, worded for people
    broken_nodes: tuple[str, ...] = ()  # whose sandboxes are not as they were made
    relays: int = 0  # processes that carry what the engine ``relay`` shapes
    gone_relays: tuple[str, ...] = ()  # those that do not run, as messages name them


def named(link: str, source: str) -> str:
    """How messages name one direction: ``s1-s2 from s1``."""
    return f"{link} from {source}"


def compared(
    topology: Topology, reports: Iterable[DirectionReport], *, gone: Collection[str] = ()
) -> tuple[Sequence[str], Sequence[str]]:
    """(directions shaped unlike the file, directions that no engine shapes), each as ``named``.

    Links that are known to be ``gone`` with their relay are in neither.
    """
    wanted = {
        (link.name, source): direction
        for link in topology.links
        if link.name not in gone
        for source, direction in ((link.a, link.forward), (link.b, link.backward))
    }
    changed = [
        named(report.link, report.source)
        for report in reports
        if report.link not in gone and wanted.pop((report.link, report.source)) != report.applied
    ]
    return changed, [named(link, source) for link, source in wanted]
