"""What gives links their physics, as the rest of the testbed sees it: the interface of every shaper.

A shaper puts the two interfaces of a cable into two sandboxes and lets packets between them meet a ``Direction`` each
way.  ``relay`` does it in user space, ``netem`` in the kernel; each link has one of the two.  ``tests/contract`` says
what each must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testbed.topology import Direction, Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class CableEnd:
    """Where one end of a cable goes."""

    node: str
    netns: str  # path of the network namespace of the node's sandbox
    interface: str  # name to give to the interface there
    forwards: bool = False  # the node forwards packets of others


@dataclass(frozen=True, slots=True, kw_only=True)
class CablePlan:
    """A cable to put in, and what packets meet in it."""

    link: str
    a: CableEnd
    b: CableEnd
    forward: Direction  # a -> b
    backward: Direction  # b -> a


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionReport:
    """One direction of a link: what is in force and what it has carried since it exists."""

    link: str
    source: str
    target: str
    applied: Direction
    packets: int
    bytes: int  # on the cable, with IP headers
    dropped: dict[str, int]  # packets by reason
    queued_bytes: int  # accepted, not yet on the cable
    engine: Engine = "relay"  # what applies it


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How late packets were released, compared with when the model wanted them released."""

    releases: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    p999_s: float = 0.0
    max_s: float = 0.0
    #: releases in buckets of ``bucket_s``; the last holds everything later
    bucket_s: float = 0.0
    buckets: tuple[int, ...] = field(default=(), repr=False)


class Shaper(Protocol):
    """Puts cables between sandboxes and shapes them.

    Directions are what the emulated world sees: under dilation they are applied so many times slower.
    """

    def plug(self, cables: Sequence[CablePlan]) -> None:
        """Create both interfaces of every cable and start shaping.

        A cable that is plugged already is put in anew where an end is missing (a sandbox was made again); what is in
        force on it stays in force.
        """

    def shape(self, link: str, source: str, direction: Direction) -> Direction:
        """Put ``direction`` in force on the direction of ``link`` that starts at ``source``; returns what is applied.

        Touches nothing else and loses nothing that is queued.
        """

    def report(self, *, reachable: bool = False) -> tuple[DirectionReport, ...]:
        """Every direction, read back from where it is applied.

        TestbedError where a process that applies some is gone; with ``reachable``, those are left out instead.
        """

    def lateness(self, *, reset: bool = False) -> Lateness:
        """How late the shaper has been since the last reset."""

    def dilate(self, dilation: float) -> None:
        """Run all links ``dilation`` times slower than what was and will be asked for."""

    @property
    def dilation(self) -> float:
        """How many times slower all links run."""

    def rewind(self, seed: int) -> None:
        """Start traces from their beginning, and chances from ``seed``, so that a run meets what another met."""

    def close(self) -> None:
        """Let go of what this process holds; the links stay."""
