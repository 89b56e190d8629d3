"""The conversation with the relay process, declared once: one request, one reply, over ``ipc://`` in the run directory.

    client                         relay
      | -- Plug, Shape, Report ... --> |      msgspec JSON, a ``type`` field names the message
      | <-- Done, Reported ... ------- |      Failed carries a sentence for the person

The directory is readable by its owner only, so whoever can reach the socket may give orders.
"""

from __future__ import annotations

import msgspec

from testbed.shaping.base import CablePlan, DirectionReport, Lateness
from testbed.topology import Direction


class Plug(msgspec.Struct, frozen=True, kw_only=True, tag="plug"):
    """Create these cables, or what is missing of them."""

    cables: tuple[CablePlan, ...]


class Shape(msgspec.Struct, frozen=True, kw_only=True, tag="shape"):
    """Put ``direction`` in force from ``source``."""

    link: str
    source: str
    direction: Direction


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Tell what is in force and what was carried."""


class TellLateness(msgspec.Struct, frozen=True, kw_only=True, tag="lateness"):
    """Tell how late releases were; ``reset`` starts counting anew."""

    reset: bool = False


class Dilate(msgspec.Struct, frozen=True, kw_only=True, tag="dilate"):
    """Run all links ``dilation`` times slower than their directions say."""

    dilation: float


class Rewind(msgspec.Struct, frozen=True, kw_only=True, tag="rewind"):
    """Begin recordings and chances anew, these from ``seed``."""

    seed: int


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End; all interfaces vanish."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The request took effect."""


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag="applied"):
    """What is in force now."""

    direction: Direction


class LaneReport(msgspec.Struct, frozen=True, kw_only=True):
    """A ``DirectionReport`` as the relay writes it: what is applied was encoded when it was put in force.

    Recordings make it long, and the relay forwards nothing while it encodes.
    """

    link: str
    source: str
    target: str
    applied: msgspec.Raw
    packets: int
    bytes: int
    dropped: dict[str, int]
    queued_bytes: int
    engine: str = "relay"


class LanesReported(msgspec.Struct, frozen=True, kw_only=True, tag="reported"):
    """``Reported`` as the relay writes it."""

    directions: tuple[LaneReport, ...]
    dilation: float


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag="reported"):
    """Every direction, in the order of plugging: forward, backward."""

    directions: tuple[DirectionReport, ...]
    dilation: float


class Late(msgspec.Struct, frozen=True, kw_only=True, tag="late"):
    """How late releases were."""

    lateness: Lateness


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The request had no effect, and why."""

    reason: str


Request = Plug | Shape | Report | TellLateness | Dilate | Rewind | Stop
Reply = Done | Applied | Reported | Late | Failed

Written = Done | Applied | LanesReported | Late | Failed

encode = msgspec.json.encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode
