"""Moving copies of experts from server to server while requests are under way.

    orchestrator --Rearrange--> all agents             a new placement, not yet in force
    a server that lacks copies  --Pull-->  a holder    the next piece of one copy
    a holder  --Piece-->  that server                  as large as the large model's weights
    that server --Arrived--> orchestrator              when it lacks nothing any more
    orchestrator --Switch--> all agents                from now on plans use the new placement

Weights cross the emulated links as everything else does.  A server receives one copy after the other, ``WINDOW`` pieces
at a time: what else goes the same way waits behind that many at most.  A copy can be called when all its pieces have
arrived.  Copies that leave stay in slow memory for ``agents.store.LINGER_S``, for the passes that were planned before
the switch.

A holder that dies or says nothing for ``SILENT_S`` is replaced by the next one, or asked again if it is the only one;
what has arrived stays.  A server that finds no holder of a copy refuses the move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agents.channel import Channel
from agents.clock import Clock
from agents.cluster import Cluster
from agents.protocol import Arrived, Piece, Placement, Pull, Rearrange, Refused, Replica
from agents.store import ExpertStore

PIECE_BYTES = 2**20
WINDOW = 2
#: Emulated seconds without a piece after which another holder is asked.
SILENT_S = 5.0


def pieces_of(size_bytes: int) -> int:
    """How many pieces a copy is sent in.

    >>> pieces_of(1), pieces_of(2**20), pieces_of(2**20 + 1)
    (1, 1, 2)
    """
    return -(-size_bytes // PIECE_BYTES)


@dataclass(slots=True)
class _Receiving:
    """A copy that is on its way here."""

    copy: Replica
    source: str
    pieces: int
    heard_s: float
    asked: int = 0  # all pieces before this one were asked of the source, or were there already
    arrived: set[int] = field(default_factory=set)


class Mover:
    """What one server sends and receives of copies."""

    def __init__(
        self,
        *,
        server: str,
        clock: Clock,
        channel: Channel,
        cluster: Cluster,
        expert_bytes: Mapping[str, int],
        store: ExpertStore,
        alive: Callable[[str], bool],
        arrived: Callable[[Replica], None],
        report: Callable[[Arrived | Refused], None],
    ) -> None:
        """``arrived`` is told of every copy before it can be called."""
        self._server = server
        self._clock = clock
        self._channel = channel
        self._cluster = cluster
        self._expert_bytes = expert_bytes
        self._store = store
        self._alive = alive
        self._arrived = arrived
        self._report = report
        self._move = 0
        self._wanted: Placement | None = None
        self._holders: dict[tuple[int, int, str], list[str]] = {}
        self._due: deque[Replica] = deque()
        self._receiving: _Receiving | None = None
        self._copies = self._bytes = 0

    def rearrange(self, command: Rearrange, current: Placement) -> None:
        """Get what the placement puts here and this server lacks; an earlier move that is not over is given up."""
        self._move, self._wanted = command.move, command.placement
        self._holders = {}
        for copy in current.replicas:
            if copy.server != self._server:
                self._holders.setdefault(_key(copy), []).append(copy.server)
        here = self._cluster.index(self._server)
        for copy_key, holders in self._holders.items():
            size_bytes = self._expert_bytes[copy_key[2]]
            holders.sort(key=lambda name: (self._cluster.transfer_s(self._cluster.index(name), here, size_bytes), name))
        mine = [copy for copy in command.placement.replicas if copy.server == self._server]
        self._store.keep(map(_key, mine))  # what is here need not come, so it must not leave meanwhile
        self._due = deque([copy for copy in mine if not self._store.holds(_key(copy))])
        self._receiving = None
        self._copies = self._bytes = 0
        self._next_copy()

    def switched(self, move: int) -> Placement | None:
        """The placement of this move, where it has arrived here; it is over with that."""
        if move != self._move or self._due or self._receiving is not None:
            return None
        wanted, self._wanted = self._wanted, None
        return wanted

    def receive(self, source: str, body: Pull | Piece) -> None:
        """A piece is asked for, or has come."""
        if isinstance(body, Pull):
            self._send_piece(source, body)
        else:
            self._take_piece(source, body)

    def tick(self) -> None:
        """Once per round of gossip: ask another holder where one is silent."""
        receiving = self._receiving
        if receiving is None:
            return
        holders = self._holders[_key(receiving.copy)]
        silent = self._clock.now_s() - receiving.heard_s > SILENT_S
        if silent or (not self._alive(receiving.source) and any(map(self._alive, holders))):
            holders.append(holders.pop(holders.index(receiving.source)))  # the last to be asked again
            self._ask(receiving.copy, receiving.arrived)

    def _send_piece(self, target: str, pull: Pull) -> None:
        key = pull.layer, pull.expert, pull.precision
        if not self._store.holds(key):
            return  # the receiver asks somebody else
        size_bytes = self._expert_bytes[pull.precision]
        if pull.piece >= pieces_of(size_bytes):
            return
        weight = min(PIECE_BYTES, size_bytes - pull.piece * PIECE_BYTES)
        piece = Piece(move=pull.move, layer=pull.layer, expert=pull.expert, precision=pull.precision, piece=pull.piece)
        self._channel.send(target, piece, (), weight)

    def _take_piece(self, source: str, piece: Piece) -> None:
        receiving = self._receiving
        if (
            receiving is None
            or (piece.move, source) != (self._move, receiving.source)
            or (piece.layer, piece.expert, piece.precision) != _key(receiving.copy)
            or not piece.piece < receiving.asked
        ):
            return  # of a move or a holder that was given up
        receiving.heard_s = self._clock.now_s()
        if piece.piece in receiving.arrived:
            return  # it was asked for twice; asking for another one now would widen the window
        receiving.arrived.add(piece.piece)
        if len(receiving.arrived) < receiving.pieces:
            self._pull(receiving)
            return
        self._arrived(receiving.copy)
        self._store.arrive(_key(receiving.copy))
        self._copies += 1
        self._bytes += self._expert_bytes[receiving.copy.precision]
        self._receiving = None
        self._next_copy()

    def _next_copy(self) -> None:
        if not self._due:
            self._report(Arrived(server=self._server, move=self._move, copies=self._copies, received_bytes=self._bytes))
            return
        copy = self._due[0]
        if _key(copy) not in self._holders:
            what = f"expert {copy.expert} of layer {copy.layer} in precision {copy.precision}"
            reason = f"the new placement puts {what} here, and no other server holds it to send it"
            self._report(Refused(server=self._server, reason=reason))
            return
        self._due.popleft()
        self._ask(copy, set())

    def _ask(self, copy: Replica, arrived: set[int]) -> None:
        """Ask the first holder that lives, or the first of all, for what has not ``arrived`` of a copy."""
        holders = self._holders[_key(copy)]
        self._receiving = _Receiving(
            copy=copy,
            source=next((name for name in holders if self._alive(name)), holders[0]),
            pieces=pieces_of(self._expert_bytes[copy.precision]),
            heard_s=self._clock.now_s(),
            arrived=arrived,
        )
        for _ in range(WINDOW):
            self._pull(self._receiving)

    def _pull(self, receiving: _Receiving) -> None:
        """Ask for the next piece, if there is one."""
        while receiving.asked in receiving.arrived:
            receiving.asked += 1
        if receiving.asked < receiving.pieces:
            copy = receiving.copy
            pull = Pull(
                move=self._move,
                layer=copy.layer,
                expert=copy.expert,
                precision=copy.precision,
                piece=receiving.asked,
            )
            receiving.asked += 1
            self._channel.send(receiving.source, pull)


def _key(copy: Replica) -> tuple[int, int, str]:
    return copy.layer, copy.expert, copy.precision
