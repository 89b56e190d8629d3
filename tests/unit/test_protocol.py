from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import codec
from agents.codec import decode, decode_command, decode_report, encode, encode_management, wire_bytes
from agents.protocol import (
    MAGIC,
    MAX_NOTES_BYTES,
    Announce,
    Arrived,
    Command,
    Configure,
    Count,
    Counted,
    Enter,
    Failed,
    Message,
    Piece,
    Placement,
    ProtocolError,
    Rearrange,
    Replica,
    Result,
    State,
    Switch,
    Ticket,
)
from tests.support.clusters import cluster


def result_message(tokens: int, size_bytes: int) -> Message:
    rows = np.arange(tokens, dtype="<i4")
    total = np.arange(tokens * 4, dtype="<i8").reshape(tokens, 4)
    return Message(
        run="r",
        source="s1",
        sent_s=1.5,
        size_bytes=size_bytes,
        body=Result(request=1, step=0, layer=3, loaded=0, late_s=0.0),
        arrays=(rows, total),
    )


@given(tokens=st.integers(0, 40), size_bytes=st.integers(0, 6_000_000))
def test_a_message_arrives_as_it_was_sent(tokens: int, size_bytes: int) -> None:
    sent = result_message(tokens, size_bytes)
    received = decode(encode(sent))

    assert (received.run, received.source, received.sent_s) == (sent.run, sent.source, sent.sent_s)
    assert received.body == sent.body
    for ours, theirs in zip(received.arrays, sent.arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_message_weighs_what_the_large_models_would() -> None:
    frames = encode(result_message(37, 303_104))

    assert 303_104 <= sum(len(frame) for frame in frames) <= 303_104 + 16


def test_a_message_larger_than_the_model_says_is_not_padded() -> None:
    assert len(encode(result_message(3, 0))) == 4


def test_arrays_are_writable_and_aligned_whatever_the_buffer() -> None:
    frames = [memoryview(b"x" + bytes(frame))[1:] for frame in encode(result_message(5, 0))]
    total = decode(frames).arrays[1]

    total += 1
    assert total.ctypes.data % total.itemsize == 0


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda frames: frames[:1], "at least 2 frames"),
        (lambda frames: [b"http", *frames[1:]], "first frame must be"),
        (lambda frames: [MAGIC[:3] + b"\x63", *frames[1:]], "wire version"),
        (lambda frames: [frames[0], b"\xc1", *frames[2:]], "no valid envelope"),
        (lambda frames: [frames[0], b"\x80", *frames[2:]], "no valid envelope"),
        (lambda frames: frames[:3], "carries 2 arrays"),
        (lambda frames: [*frames[:2], frames[2][:-1], frames[3]], "bytes, not"),
        (lambda frames: [frames[0], bytes(5_000_000), *frames[2:]], "an envelope has at most"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(damage: object, expected: str) -> None:
    frames = [bytes(frame) for frame in encode(result_message(3, 0))]
    with pytest.raises(ProtocolError, match=expected):
        decode(damage(frames))  # type: ignore[operator]


def test_a_shape_that_would_take_too_much_memory_is_refused_before_it_is_taken() -> None:
    message = result_message(3, 0)
    huge = codec._Envelope("r", "s1", 0.0, 0, [[2**40], [2**40, 4]], message.body)
    frames = [MAGIC, msgspec.msgpack.encode(huge), b"", b""]
    with pytest.raises(ProtocolError, match="at most"):
        decode(frames)


def test_arrays_of_another_type_than_declared_are_refused_at_the_sender() -> None:
    message = Message(
        run="r",
        source="s1",
        sent_s=0.0,
        size_bytes=0,
        body=Result(request=1, step=0, layer=0, loaded=0, late_s=0.0),
        arrays=(np.zeros(1, dtype="<i8"), np.zeros((1, 4), dtype="<i8")),
    )
    with pytest.raises(ProtocolError, match=r"Result.rows is <i8"):
        encode(message)


def test_bodies_without_arrays_travel_too() -> None:
    body = Failed(request=1, step=0, reason="why")
    assert decode(encode(Message(run="r", source="s1", sent_s=0.0, size_bytes=0, body=body))).body == body


def gossip(servers: int) -> Message:
    body = State(backlog_s=0.1, wait_s=0.0, load_backlog_s=0.0, links=[])
    return Message(run="r", source="s1", sent_s=0.0, size_bytes=0, body=body, arrays=(np.zeros((5, servers)),))


def framed_bytes(message: Message) -> int:
    """ZMTP: one byte of flags and one of length in front of a frame, or eight of length if it has over 255 bytes."""
    return sum(len(frame) + (2 if len(frame) <= 255 else 9) for frame in encode(message))


@pytest.mark.parametrize(
    "message",
    [
        gossip(0),
        gossip(100),
        result_message(1, 0),
        result_message(5, 300),
        result_message(37, 303_104),
        result_message(1, 9_000_000),
    ],
    ids=["gossip", "large cluster", "unpadded", "short padding", "padded", "padded in pieces"],
)
def test_the_weight_on_the_wire_is_known_without_encoding(message: Message) -> None:
    assert 0 <= wire_bytes(message) - framed_bytes(message) <= 7 + 7  # the envelope's and the last padding's header


def test_notes_of_a_framework_travel_with_a_request_and_more_of_them_than_that_do_not() -> None:
    def entering(notes: bytes) -> list[bytes | memoryview]:
        ticket = Ticket(request=1, kind="score", home="s1", step=0, start=0, deadline_s=9.0, path=[], notes=notes)
        tokens = np.zeros(3, np.int32)
        return encode(
            Message(run="r", source="s1", sent_s=0.0, size_bytes=0, body=Enter(ticket=ticket), arrays=(tokens,))
        )

    told = decode(entering(b"\x00chain")).body

    assert isinstance(told, Enter)
    assert told.ticket.notes == b"\x00chain"
    with pytest.raises(ProtocolError, match="length <= 2048"):
        decode(entering(bytes(MAX_NOTES_BYTES + 1)))


def test_announcements_of_a_framework_are_bounded() -> None:
    def told(text: bytes) -> list[bytes | memoryview]:
        return encode(Message(run="r", source="s1", sent_s=0.0, size_bytes=0, body=Announce(text=text)))

    assert decode(told(b"\x00one more")).body == Announce(text=b"\x00one more")
    with pytest.raises(ProtocolError, match="length <= 2048"):
        decode(told(bytes(MAX_NOTES_BYTES + 1)))


@given(noise=st.binary(max_size=200))
def test_noise_on_the_data_plane_is_an_error_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([MAGIC, noise])


@given(noise=st.binary(max_size=200))
def test_noise_on_the_management_plane_is_an_error_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(noise)


def test_a_whole_configuration_survives_the_management_plane() -> None:
    command = Configure(
        run_id="r",
        framework="greedy",
        cluster=cluster(2),
        placement=Placement(
            replicas=(Replica(layer=0, expert=1, server="s1", precision="full", fast=True),), notes={"x": [1, 2]}
        ),
        addresses={"s1": "tcp://s1:5555"},
        quality_budget=0.02,
        known_logits=frozenset({b"\x00\xff"}),
        seed=7,
    )
    assert decode_command(encode_management(command)) == command


@pytest.mark.parametrize(
    "command", [Count(review=2), Switch(move=3), Rearrange(move=3, placement=Placement(replicas=(), notes={"a": 1}))]
)
def test_the_steps_of_a_move_survive_the_management_plane(command: Command) -> None:
    assert decode_command(encode_management(command)) == command


def test_what_is_counted_and_what_has_arrived_survive_the_management_plane() -> None:
    for report in (
        Counted(server="s1", review=2, asked=[[0, 3], [1, 2]]),
        Arrived(server="s1", move=2, copies=7, received_bytes=10**10),
    ):
        assert decode_report(encode_management(report)) == report


def test_a_piece_of_weights_weighs_what_it_would_and_has_no_negative_number() -> None:
    def piece(number: int) -> Message:
        body = Piece(move=1, layer=0, expert=1, precision="full", piece=number)
        return Message(run="r", source="s1", sent_s=0.0, size_bytes=10**6, body=body)

    assert 10**6 <= sum(map(len, encode(piece(0)))) < 10**6 + 100
    assert decode(encode(piece(7))).body == piece(7).body
    with pytest.raises(ProtocolError, match="no valid envelope"):
        decode(encode(piece(-1)))
