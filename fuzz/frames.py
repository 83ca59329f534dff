"""HTTP/2 frames and gRPC conversations, good and damaged, as a server or a client would send them (RFC 9113)."""

from __future__ import annotations

import struct
from random import Random

from fuzz.mutation import mutated, noise

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
KINDS = (*range(10), 10, 99, 255)
STREAMS = (0, 1, 1, 1, 2, 3, 5, 0x7FFFFFFF, 0x80000001)
WORDS = (0, 1, 2, 16, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
FLAGS = (0, 1, 4, 5, 8, 12, 13, 32, 36, 37, 44, 45, 255)

ENOUGH_WINDOW = struct.pack(">HI", SETTINGS, 0x7FFFFFFF)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """One header as literal without indexing; both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def message(payload: bytes, flag: int = 0) -> bytes:
    """One length-prefixed gRPC message."""
    return struct.pack(">BI", flag, len(payload)) + payload


def greeting() -> list[bytes]:
    """The frames with which a server begins; the windows take any request."""
    window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFFFFFF - 65535))
    return [frame(SETTINGS, 0, 0, ENOUGH_WINDOW), window, frame(SETTINGS, 1, 0, b"")]


def answer(payload: bytes, *, status: bytes = b"0", text: bytes = b"") -> list[bytes]:
    """The frames of a correct answer on stream 1; without a payload it has trailers only."""
    trailers = literal(b"grpc-status", status) + (literal(b"grpc-message", text[:120]) if text else b"")
    head = b"\x88" + literal(b"content-type", b"application/grpc")
    if not payload:
        return [frame(HEADERS, 5, 1, head + trailers)]
    body = message(payload)
    data = [frame(DATA, 0, 1, body[at : at + 16384]) for at in range(0, len(body), 16384)]
    return [frame(HEADERS, 4, 1, head), *data, frame(HEADERS, 5, 1, trailers)]


def request(method: bytes, payload: bytes, *, stream: int = 1) -> list[bytes]:
    """The frames of a correct call."""
    headers = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", method), (b":authority", b"localhost"), (b"te", b"trailers"),
        (b"content-type", b"application/grpc"), (b"grpc-timeout", b"2S"),
    )  # fmt: skip
    block = b"".join(literal(name, value) for name, value in headers)
    body = message(payload)
    data = [frame(DATA, 0, stream, body[at : at + 16384]) for at in range(0, len(body), 16384)]
    return [frame(HEADERS, END_HEADERS, stream, block), *data, frame(DATA, END_STREAM, stream, b"")]


def any_frame(random: Random) -> bytes:
    """A frame of any kind, often with a payload of the right form."""
    kind = random.choice(KINDS)
    payload = {
        SETTINGS: lambda: b"".join(
            struct.pack(">HI", random.randrange(9), random.choice(WORDS)) for _ in range(random.randrange(4))
        ),
        PING: lambda: bytes(random.choice((0, 7, 8, 8, 8, 9))),
        WINDOW_UPDATE: lambda: struct.pack(">I", random.choice(WORDS)),
        RST_STREAM: lambda: struct.pack(">I", random.choice((*range(14), 0xFFFFFFFF))),
        GOAWAY: lambda: struct.pack(">II", random.choice(WORDS), random.randrange(14)) + noise(random, 20),
        HEADERS: lambda: random.choice(
            (b"\x88", literal(b"grpc-status", b"0"), b"\x88" + literal(b"grpc-status", b"14"), b"\xff")
        ),
    }.get(kind, lambda: noise(random, 100))()
    return frame(kind, random.choice(FLAGS), random.choice(STREAMS), payload)


def damaged(random: Random, frames: list[bytes]) -> bytes:
    """Damage a conversation: frames lost, repeated, moved, inserted, with other flags or stream; then bytes, sometimes."""
    frames = list(frames)
    for _ in range(1 + int(random.random() ** 2 * 5)):
        at = random.randrange(len(frames) + 1)
        kind = random.random()
        if kind < 0.4 or at == len(frames):
            frames.insert(at, any_frame(random))
        elif kind < 0.55:
            frames[at : at + 1] = [frames[at]] * random.choice((0, 2, 3, 300))
        elif kind < 0.75:
            frames.insert(random.randrange(len(frames)), frames.pop(at))
        elif len(frames[at]) >= 9:
            frames[at] = _altered(random, frames[at])
        if not frames:
            break
    data = b"".join(frames)
    return mutated(random, data) if random.random() < 0.4 else data


def _altered(random: Random, one: bytes) -> bytes:
    """Change the head of a frame: its length, kind, flags or stream."""
    length, kind, flags, stream = one[:3], one[3], one[4], struct.unpack(">I", one[5:9])[0]
    which = random.randrange(4)
    if which == 0:
        length = struct.pack(">I", random.choice((0, 1, len(one), 16384, 16385, 0xFFFFFF)))[1:]
    elif which == 1:
        kind = random.choice(KINDS)
    elif which == 2:
        flags = random.choice(FLAGS)
    else:
        stream = random.choice(STREAMS)
    return length + struct.pack(">BBI", kind, flags, stream) + one[9:]
