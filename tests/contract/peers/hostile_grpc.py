"""A gRPC server on a Unix socket that breaks the rules of HTTP/2 and of gRPC: GOAWAY, resets, floods, headers without an end.

It speaks HTTP/2 by hand, because no library lets its user do this. What it sends is bounded, so that a reader without a bound fails a
test and not the machine.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import hpack

from tests.contract.runtime.server import frame

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE_BYTES = 24
FRAME_BYTES = 16_384
FLOOD_BYTES = 64 << 20
"""Where a flood ends."""

ESCAPES = b"debug text\n\x1b[31mERROR forged line\x1b[0m\n"
STATUS_HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))

Send = Callable[[bytes], None]
Behaviour = Callable[[Send, int], None]
"""Gets what sends bytes, and the number of the call's stream; 0 right after the connection was made."""


def goaway(*, code: int = 0, last_stream: int = 0, text: bytes = ESCAPES * 50) -> bytes:
    """One GOAWAY."""
    return frame(GOAWAY, 0, 0, struct.pack("!II", last_stream, code) + text)


def headers(stream: int, fields: tuple[tuple[bytes, bytes], ...], *, ends: bool = False) -> bytes:
    """One header block, over as many frames as it needs."""
    block = hpack.Encoder().encode(fields, huffman=False)
    pieces = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)] or [b""]
    sent = b""
    for number, piece in enumerate(pieces):
        kind = CONTINUATION if number else HEADERS
        flags = (END_HEADERS if number == len(pieces) - 1 else 0) | (END_STREAM if ends and not number else 0)
        sent += frame(kind, flags, stream, piece)
    return sent


def flood(send: Send, piece: bytes) -> None:
    """Send a piece again and again."""
    for _ in range(FLOOD_BYTES // len(piece)):
        send(piece)


def _at_connection(data: bytes) -> Behaviour:
    return lambda send, stream: None if stream else send(data)


def _at_call(make: Callable[[int], bytes]) -> Behaviour:
    return lambda send, stream: send(make(stream)) if stream else None


def _flood_at_call(make: Callable[[int], bytes], *, first: Callable[[int], bytes] = lambda _: b"") -> Behaviour:
    def behave(send: Send, stream: int) -> None:
        if stream:
            send(first(stream))
            flood(send, make(stream))

    return behave


def _trailers(stream: int, *fields: tuple[bytes, bytes]) -> bytes:
    return headers(stream, (*STATUS_HEAD, *fields), ends=True)


BEHAVIOURS: Mapping[str, Behaviour] = {
    "goaway at once": _at_connection(goaway()),
    "goaway at once that lets streams go on": _at_connection(goaway(last_stream=0x7FFFFFFF)),
    "goaway for the call": _at_call(lambda _: goaway()),
    "goaway: too many pings": _at_call(lambda _: goaway(code=11, text=b"too_many_pings")),
    "goaway: enhance your calm, with escapes": _at_call(lambda _: goaway(code=11)),
    "goaways without end": _flood_at_call(lambda _: goaway(text=b"x" * 16_000)),
    "reset: refused": _at_call(lambda stream: frame(RST_STREAM, 0, stream, struct.pack("!I", 7))),
    "reset: enhance your calm": _at_call(lambda stream: frame(RST_STREAM, 0, stream, struct.pack("!I", 11))),
    "settings without end": _flood_at_call(lambda _: frame(SETTINGS, 0, 0, struct.pack("!HI", 3, 100)) * 100),
    "pings without end": _flood_at_call(lambda _: frame(PING, 0, 0, bytes(8)) * 100),
    "a header of a megabyte": _at_call(lambda stream: headers(stream, (*STATUS_HEAD, (b"x", b"y" * (1 << 20))))),
    "a header block without end": _flood_at_call(
        lambda stream: frame(CONTINUATION, 0, stream, hpack.Encoder().encode([(b"x", b"y" * 15_000)], huffman=False)),
        first=lambda stream: frame(HEADERS, 0, stream, hpack.Encoder().encode(STATUS_HEAD)),
    ),
    "ten thousand headers": _at_call(
        lambda stream: headers(stream, (*STATUS_HEAD, *((b"x-%d" % n, b"y") for n in range(10_000))))
    ),
    "a status text with escapes": _at_call(
        lambda stream: _trailers(stream, (b"grpc-status", b"13"), (b"grpc-message", b"a%0A%1B[31mforged%0Ab" * 100))
    ),
    "a status text of a megabyte": _at_call(
        lambda stream: _trailers(stream, (b"grpc-status", b"13"), (b"grpc-message", b"y" * (1 << 20)))
    ),
    "a status that is none": _at_call(lambda stream: _trailers(stream, (b"grpc-status", b"999999999999"))),
    "trailers without a status": _at_call(lambda stream: _trailers(stream)),
    "a message without end": _flood_at_call(
        lambda stream: frame(DATA, 0, stream, b"x" * FRAME_BYTES),
        first=lambda stream: headers(stream, STATUS_HEAD) + frame(DATA, 0, stream, b"\0\xff\xff\xff\xff"),
    ),
    "empty messages without end": _flood_at_call(
        lambda stream: frame(DATA, 0, stream, bytes(5) * 100), first=lambda stream: headers(stream, STATUS_HEAD)
    ),
    "empty frames without end": _flood_at_call(
        lambda stream: frame(DATA, 0, stream, b"") * 100, first=lambda stream: headers(stream, STATUS_HEAD)
    ),
}


@contextmanager
def hostile_peer(path: str, behaviour: Behaviour) -> Iterator[None]:
    """Serve at the path while the block runs."""
    open_sockets: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        accepting = threading.Thread(target=_accept, args=(listener, behaviour, open_sockets), daemon=True)
        accepting.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for sock in open_sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, behaviour: Behaviour, open_sockets: list[socket.socket]) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        open_sockets.append(sock)
        threading.Thread(target=_talk, args=(sock, behaviour), daemon=True).start()


def _talk(sock: socket.socket, behaviour: Behaviour) -> None:
    with suppress(OSError), sock, sock.makefile("rb") as reader:
        reader.read(PREFACE_BYTES)
        sock.sendall(frame(SETTINGS, 0, 0, b""))
        behaviour(sock.sendall, 0)
        while len(head := reader.read(9)) == 9:
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            reader.read(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags & ACK:
                sock.sendall(frame(SETTINGS, ACK, 0, b""))
            if kind == HEADERS:
                behaviour(sock.sendall, stream)
