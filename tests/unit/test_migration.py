"""Moving copies: piece by piece, from the quickest holder, and from another one where it is silent."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec import structs

from agents import migration, wishes
from agents.clock import VirtualClock
from agents.errors import PlacementError
from agents.migration import PIECE_BYTES, SILENT_S, WINDOW, Mover
from agents.protocol import Array, Arrived, Body, Piece, Placement, Pull, Rearrange, Refused, Replica
from agents.store import FAST_SHARE, LINGER_S, ExpertStore
from testbed.simulation.loop import VirtualLoop
from tests.support.clusters import DEVICE, cluster

SIZE_BYTES = {"full": 2 * PIECE_BYTES + 1}
#: s2 is nearer to s1 than s3 is.
NEAR = structs.replace(cluster(3), delay_s=((0.0, 0.001, 0.02), (0.001, 0.0, 0.02), (0.02, 0.02, 0.0)))


def copy(expert: int, server: str, *, fast: bool = False) -> Replica:
    return Replica(layer=0, expert=expert, server=server, precision="full", fast=fast)


def key(expert: int) -> tuple[int, int, str]:
    return 0, expert, "full"


@dataclass
class Sent:
    """A channel that keeps what is sent."""

    messages: list[tuple[str, Body, int]] = field(default_factory=list)

    def send(self, target: str, body: Body, arrays: tuple[Array, ...] = (), size_bytes: int = 0) -> None:
        self.messages.append((target, body, size_bytes))

    def take(self) -> list[tuple[str, int]]:
        """Who was asked for which piece since the last time."""
        asked = [(target, body.piece) for target, body, _ in self.messages if isinstance(body, Pull)]
        self.messages.clear()
        return asked


class Case:
    """Server s1 without any copy, and holders s2 and s3."""

    def __init__(
        self,
        clock: VirtualClock,
        here: list[Replica] | None = None,
        *,
        slow_bytes: int = 10**9,
        size_bytes: int = SIZE_BYTES["full"],
    ) -> None:
        self.sent = Sent()
        self.reports: list[Arrived | Refused] = []
        self.told: list[Replica] = []
        self.dead: set[str] = set()
        self.store = ExpertStore(
            replicas=here or [],
            device=changed(DEVICE, slow_bytes=slow_bytes),
            expert_bytes={"full": size_bytes},
            clock=clock,
        )
        self.mover = Mover(
            server="s1",
            clock=clock,
            channel=self.sent,  # type: ignore[arg-type]
            cluster=NEAR,
            expert_bytes={"full": size_bytes},
            store=self.store,
            alive=lambda server: server not in self.dead,
            arrived=self.told.append,
            report=self.reports.append,
        )

    def rearrange(self, *wanted: Replica, move: int = 1, holders: tuple[str, ...] = ("s3", "s2")) -> None:
        current = Placement(replicas=tuple(copy(e, server) for server in holders for e in range(3)))
        self.mover.rearrange(Rearrange(move=move, placement=Placement(replicas=wanted)), current)

    def piece(self, number: int, *, source: str = "s2", expert: int = 0, move: int = 1) -> None:
        body = Piece(move=move, layer=0, expert=expert, precision="full", piece=number)
        self.mover.receive(source, body)


def at_rest(body: Callable[[VirtualClock], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(body(VirtualClock(loop)))
    finally:
        loop.close()


def test_a_copy_comes_from_the_quickest_holder_a_window_at_a_time() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(0, "s1"))
        assert case.sent.take() == [("s2", piece) for piece in range(WINDOW)]
        case.piece(1)
        assert case.sent.take() == [("s2", 2)]
        case.piece(2)
        assert (case.sent.take(), case.store.holds(key(0)), case.reports) == ([], False, [])
        case.piece(0)
        assert case.told == [copy(0, "s1")]
        assert case.store.holds(key(0))
        assert case.reports == [Arrived(server="s1", move=1, copies=1, received_bytes=SIZE_BYTES["full"])]

    at_rest(body)


def test_one_copy_comes_after_the_other_and_what_is_here_does_not_come_again() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, [copy(1, "s1")])
        case.rearrange(copy(0, "s1"), copy(1, "s1"), copy(2, "s1"), copy(2, "s3"))
        for number in range(3):
            case.piece(number)
        assert case.sent.take()[-WINDOW:] == [("s2", piece) for piece in range(WINDOW)]
        assert case.reports == []
        for number in range(3):
            case.piece(number, expert=2)
        assert case.reports == [Arrived(server="s1", move=1, copies=2, received_bytes=2 * SIZE_BYTES["full"])]

    at_rest(body)


def test_a_server_that_lacks_nothing_says_so_at_once() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, [copy(1, "s1")])
        case.rearrange(copy(1, "s1"), copy(0, "s2"))
        assert case.reports == [Arrived(server="s1", move=1, copies=0, received_bytes=0)]

    at_rest(body)


@pytest.mark.parametrize("dies", [True, False])
def test_a_holder_that_dies_or_is_silent_is_replaced_and_its_late_pieces_do_not_count(dies: bool) -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(0, "s1"))
        case.piece(0)
        case.sent.take()
        if dies:
            case.dead.add("s2")
        else:
            case.mover.tick()
            assert case.sent.take() == []
            await clock.sleep_until_s(clock.now_s() + SILENT_S + 0.1)
        case.mover.tick()
        assert case.sent.take() == [("s3", 1), ("s3", 2)]  # piece 0 is here
        for number in range(3):
            case.piece(number, source="s2")
        assert not case.store.holds(key(0))
        for number in (1, 2):
            case.piece(number, source="s3")
        assert case.store.holds(key(0))

    at_rest(body)


def test_a_sole_holder_that_was_silent_goes_on_where_it_was_and_a_piece_that_comes_twice_widens_no_window() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, size_bytes=6 * PIECE_BYTES)
        case.rearrange(copy(0, "s1"), holders=("s3",))
        case.piece(1, source="s3")
        case.sent.take()
        await clock.sleep_until_s(clock.now_s() + SILENT_S + 0.1)
        case.mover.tick()
        assert case.sent.take() == [("s3", 0), ("s3", 2)]
        case.piece(2, source="s3")  # asked for before the silence
        case.piece(2, source="s3")  # and after it
        assert case.sent.take() == [("s3", 3)]
        for number in (0, 3, 4, 5):
            case.piece(number, source="s3")
        assert case.store.holds(key(0))

    at_rest(body)


def test_a_sole_holder_that_seems_dead_is_asked_again_no_sooner_than_a_silent_one() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(0, "s1"), holders=("s3",))
        case.sent.take()
        case.dead.add("s3")
        case.mover.tick()
        case.mover.tick()
        assert case.sent.take() == []
        await clock.sleep_until_s(clock.now_s() + SILENT_S + 0.1)
        case.mover.tick()
        case.mover.tick()
        assert case.sent.take() == [("s3", piece) for piece in range(WINDOW)]

    at_rest(body)


def test_a_holder_whose_pieces_come_twice_is_not_silent() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(0, "s1"))
        case.piece(0)
        case.sent.take()
        await clock.sleep_until_s(clock.now_s() + SILENT_S - 0.1)
        case.piece(0)
        await clock.sleep_until_s(clock.now_s() + 0.2)
        case.mover.tick()
        assert case.sent.take() == []

    at_rest(body)


def test_a_copy_that_no_other_server_holds_is_refused() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(7, "s1"))
        (report,) = case.reports
        assert isinstance(report, Refused)
        assert "puts expert 7 of layer 0 in precision full here, and no other server holds it" in report.reason
        assert case.mover.switched(1) is None

    at_rest(body)


def test_a_copy_that_was_to_leave_stays_for_the_move_that_wants_it_however_long_that_takes() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, [copy(0, "s1"), copy(1, "s1")])
        case.store.rearrange([copy(0, "s1")], now_s=clock.now_s())
        case.rearrange(copy(1, "s1"), copy(2, "s1", fast=True))
        await clock.sleep_until_s(clock.now_s() + LINGER_S + 1)
        case.store.forget_expired(clock.now_s())
        for number in range(3):
            case.piece(number, expert=2)
        wanted = case.mover.switched(1)
        assert wanted is not None
        case.store.rearrange(wanted.replicas, now_s=clock.now_s())
        assert case.store.holds(key(1))

    at_rest(body)


def test_a_copy_that_was_kept_for_a_move_that_is_given_up_leaves_after_all() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, [copy(0, "s1"), copy(1, "s1")])
        case.store.rearrange([copy(0, "s1")], now_s=clock.now_s())
        case.rearrange(copy(1, "s1"), copy(2, "s1"))
        case.store.rearrange([copy(0, "s1")], now_s=clock.now_s())  # as the agent does when a move is given up
        case.store.forget_expired(clock.now_s() + LINGER_S + 1)
        assert not case.store.holds(key(1))

    at_rest(body)


def test_pieces_of_another_move_or_that_nobody_asked_for_are_ignored() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.piece(0)
        case.rearrange(copy(0, "s1"), move=2)
        case.sent.take()
        case.piece(0, move=1)
        case.piece(2, move=2)
        case.piece(0, move=2, expert=1)
        assert case.sent.take() == []

    at_rest(body)


def test_a_holder_sends_what_it_has_and_nothing_else() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, [copy(1, "s1")])
        for expert, piece in ((1, 0), (1, 2), (1, 3), (0, 0)):
            case.mover.receive("s3", Pull(move=4, layer=0, expert=expert, precision="full", piece=piece))
        sent = [(target, body.piece, size) for target, body, size in case.sent.messages if isinstance(body, Piece)]
        assert sent == [("s3", 0, PIECE_BYTES), ("s3", 2, 1)]

    at_rest(body)


def test_a_placement_is_handed_out_only_when_all_of_it_has_arrived() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock)
        case.rearrange(copy(0, "s1"))
        assert case.mover.switched(1) is None
        for number in range(3):
            case.piece(number)
        assert case.mover.switched(2) is None
        assert case.mover.switched(1) == Placement(replicas=(copy(0, "s1"),))

    at_rest(body)


def test_a_copy_for_which_slow_memory_has_no_room_is_refused() -> None:
    async def body(clock: VirtualClock) -> None:
        case = Case(clock, slow_bytes=SIZE_BYTES["full"] - 1)
        case.rearrange(copy(0, "s1"))
        case.piece(0)
        case.piece(1)
        with pytest.raises(PlacementError, match="a copy that moves here needs slow memory"):
            case.piece(2)
        assert not case.store.holds(key(0))

    at_rest(body)


# --- the store when the placement changes -----------------------------------------------------------------------------


def stored(clock: VirtualClock, *experts: int, room: int = 2) -> ExpertStore:
    """These experts in fast memory, which has room for so many."""
    fast_bytes = round((room * SIZE_BYTES["full"] + 1) / FAST_SHARE + 1)
    device = changed(DEVICE, fast_bytes=fast_bytes, load_bytes_per_s=SIZE_BYTES["full"] / 0.1)
    return ExpertStore(
        replicas=[copy(e, "s1", fast=True) for e in experts], device=device, expert_bytes=SIZE_BYTES, clock=clock
    )


def test_a_new_copy_is_loaded_to_stay_as_soon_as_the_channel_is_free() -> None:
    async def body(clock: VirtualClock) -> None:
        store = stored(clock, 0, 1)
        store.arrive(key(2))
        assert not store.is_fast(key(2))
        store.rearrange([copy(0, "s1", fast=True), copy(2, "s1", fast=True)], now_s=clock.now_s())
        await clock.sleep_until_s(clock.now_s() + 0.15)
        assert store.is_fast(key(2))
        assert store.is_fast(key(0))
        assert store.cached() == []
        assert store.loads.prefetched == 0

    at_rest(body)


def test_a_copy_that_leaves_can_be_called_for_a_while_and_is_gone_then() -> None:
    async def body(clock: VirtualClock) -> None:
        store = stored(clock, 0, 1)
        store.rearrange([copy(0, "s1", fast=True)], now_s=clock.now_s())
        store.hold(key(1))
        began_s = clock.now_s()
        assert await store.fetch(key(1), ready_s=began_s) == pytest.approx(began_s + 0.1)
        store.forget_expired(clock.now_s() + LINGER_S + 1)  # in use: not yet
        assert store.holds(key(1))
        store.release(key(1))
        store.forget_expired(clock.now_s() + LINGER_S + 1)
        with pytest.raises(PlacementError, match="expert 1 of layer 0"):
            store.hold(key(1))

    at_rest(body)


def test_a_copy_whose_time_ends_while_it_is_loaded_ahead_is_gone_from_both_memories_after_it() -> None:
    async def body(clock: VirtualClock) -> None:
        store = stored(clock, 0, 1)
        store.rearrange([copy(0, "s1", fast=True)], now_s=clock.now_s())
        store.prefetch(7, [key(1)])
        await clock.sleep_until_s(clock.now_s() + 0.05)
        gone_s = clock.now_s() + LINGER_S + 1
        store.forget_expired(gone_s)
        await clock.sleep_until_s(clock.now_s() + 0.1)
        assert store.holds(key(1)) == (key(1) in store.cached())
        store.forget_expired(gone_s)
        assert (store.holds(key(1)), store.cached()) == (False, [])

    at_rest(body)


def test_a_copy_that_is_wanted_again_before_it_is_gone_stays() -> None:
    async def body(clock: VirtualClock) -> None:
        store = stored(clock, 0, 1)
        store.rearrange([copy(0, "s1", fast=True)], now_s=clock.now_s())
        store.rearrange([copy(0, "s1", fast=True), copy(1, "s1")], now_s=clock.now_s())
        store.forget_expired(clock.now_s() + LINGER_S + 1)
        assert store.holds(key(1))
        await asyncio.sleep(0)

    at_rest(body)


def test_the_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(migration).failed == doctest.testmod(wishes).failed == 0
