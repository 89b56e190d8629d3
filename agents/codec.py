"""Frames on sockets to and from messages: the format that ``agents.protocol`` declares, checked on the way in.

Whatever does not fit is a ``ProtocolError`` that names what was expected.  Sizes are checked before memory is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from agents.protocol import (
    ARRAYS,
    MAGIC,
    MAX_ARRAY_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_MESSAGE_BYTES,
    VERSION,
    Body,
    Command,
    Message,
    ProtocolError,
    Report,
)


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    run: str
    source: str
    sent_s: float
    size_bytes: int
    shapes: list[list[int]]
    body: Body


#: ZMTP 3: flags and length in front of every frame.
SHORT_FRAME_BYTES, LONG_FRAME_BYTES, LONGEST_SHORT_FRAME_BYTES = 2, 9, 255
LARGEST_USUAL_ENVELOPE_BYTES = 8192

_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)
_zeros = memoryview(bytes(1 << 22))


def encode(message: Message) -> list[bytes | memoryview]:
    """Frames of a message; ProtocolError if its arrays are not those of its body."""
    specs = ARRAYS[type(message.body)]
    if len(specs) != len(message.arrays):
        raise ProtocolError(f"{type(message.body).__name__} carries {len(specs)} arrays, not {len(message.arrays)}")
    frames: list[bytes | memoryview] = [MAGIC, b""]
    real_bytes = 0
    for spec, array in zip(specs, message.arrays, strict=True):
        if array.dtype.str != spec.dtype or array.ndim != spec.dimensions:
            raise ProtocolError(
                f"{type(message.body).__name__}.{spec.name} is {array.dtype.str} with {array.ndim} dimensions; "
                f"expected {spec.dtype} with {spec.dimensions}"
            )
        frames.append(np.ascontiguousarray(array).tobytes())
        real_bytes += array.nbytes
    shapes = [list(array.shape) for array in message.arrays]
    frames[1] = _encoder.encode(
        _Envelope(message.run, message.source, message.sent_s, message.size_bytes, shapes, message.body)
    )
    missing_bytes = message.size_bytes - real_bytes - len(frames[1])
    while missing_bytes > 0:
        frames.append(_zeros[: min(missing_bytes, len(_zeros))])
        missing_bytes -= len(_zeros)
    return frames


def wire_bytes(message: Message) -> int:
    """What the frames of a message weigh on a ZeroMQ connection, without making them.

    Of messages that are padded anyway the envelope is not looked at: up to 7 bytes too many.
    """
    arrays = [array.nbytes for array in message.arrays]
    real_bytes = sum(arrays)
    framing_bytes = len(MAGIC) + SHORT_FRAME_BYTES + sum(map(_framing_bytes, arrays))
    if message.size_bytes - real_bytes > LARGEST_USUAL_ENVELOPE_BYTES:
        chunks = -(-(message.size_bytes - real_bytes) // len(_zeros))
        return message.size_bytes + framing_bytes + (1 + chunks) * LONG_FRAME_BYTES
    shapes = [list(array.shape) for array in message.arrays]
    envelope = _Envelope(message.run, message.source, message.sent_s, message.size_bytes, shapes, message.body)
    real_bytes += (envelope_bytes := len(_encoder.encode(envelope)))
    framing_bytes += _framing_bytes(envelope_bytes)
    if message.size_bytes <= real_bytes:
        return real_bytes + framing_bytes
    return message.size_bytes + framing_bytes + _framing_bytes(message.size_bytes - real_bytes)


def _framing_bytes(frame_bytes: int) -> int:
    return SHORT_FRAME_BYTES if frame_bytes <= LONGEST_SHORT_FRAME_BYTES else LONG_FRAME_BYTES


def decode(frames: Sequence[bytes | memoryview]) -> Message:
    """The message that was encoded; ProtocolError naming what was expected otherwise.

    Arrays are copied, so that they are aligned and outlive the frames.
    """
    if len(frames) < 2:
        raise ProtocolError(f"a message has at least 2 frames, not {len(frames)}")
    if bytes(frames[0][:4]) != MAGIC or len(frames[0]) != len(MAGIC):
        raise ProtocolError(f"the first frame must be {MAGIC!r} (wire version {VERSION}), not {bytes(frames[0][:8])!r}")
    if len(frames[1]) > MAX_ENVELOPE_BYTES:
        raise ProtocolError(f"an envelope has at most {MAX_ENVELOPE_BYTES} bytes, not {len(frames[1])}")
    try:
        envelope = _envelope_decoder.decode(frames[1])
    except msgspec.DecodeError as error:
        raise ProtocolError(f"no valid envelope: {error}") from None
    if not 0 <= envelope.size_bytes <= MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message weighs at most {MAX_MESSAGE_BYTES} bytes, not {envelope.size_bytes}")
    specs = ARRAYS[type(envelope.body)]
    name = type(envelope.body).__name__
    if len(envelope.shapes) != len(specs) or len(frames) < 2 + len(specs):
        raise ProtocolError(f"{name} carries {len(specs)} arrays; the message has {len(envelope.shapes)}")
    arrays = []
    for spec, shape, frame in zip(specs, envelope.shapes, frames[2:], strict=False):
        dtype = np.dtype(spec.dtype)
        if len(shape) != spec.dimensions or any(size < 0 for size in shape):
            raise ProtocolError(f"{name}.{spec.name} has {spec.dimensions} dimensions, not shape {shape}")
        expected_bytes = dtype.itemsize
        for size in shape:
            expected_bytes *= size
        if expected_bytes > MAX_ARRAY_BYTES:
            raise ProtocolError(f"{name}.{spec.name} has at most {MAX_ARRAY_BYTES} bytes, not {expected_bytes}")
        if expected_bytes != len(frame):
            raise ProtocolError(f"{name}.{spec.name} of shape {shape} has {expected_bytes} bytes, not {len(frame)}")
        arrays.append(np.frombuffer(frame, dtype=dtype).reshape(shape).copy())
    return Message(
        run=envelope.run,
        source=envelope.source,
        sent_s=envelope.sent_s,
        size_bytes=envelope.size_bytes,
        body=envelope.body,
        arrays=tuple(arrays),
    )


_command_decoder = msgspec.msgpack.Decoder(Command)
_report_decoder = msgspec.msgpack.Decoder(Report)


def encode_management(message: Command | Report) -> bytes:
    """The one frame of a management message."""
    return _encoder.encode(message)


def decode_command(frame: bytes) -> Command:
    """What the orchestrator said; ProtocolError if it is none of ``Command``."""
    try:
        return _command_decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a command of wire version {VERSION}: {error}") from None


def decode_report(frame: bytes) -> Report:
    """What an agent said; ProtocolError if it is none of ``Report``."""
    try:
        return _report_decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a report of wire version {VERSION}: {error}") from None
