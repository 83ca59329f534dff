"""A local HTTP server that sends the bytes it is told: what a broken or hostile endpoint of AWS may answer."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from random import Random

from fuzz.mutation import mutated, noise

WAIT_S = 5.0
DRAIN_S = 0.05
"""For the client to close, so that a reset does not overtake the answer. Ours: it is on the same machine."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


class HttpAnswers:
    """Answers each request with the next of `answers`, the last one again and again; whole HTTP responses, as bytes.

    An answer of `[(bytes, count), ...]` is sent part by part, so that a long one needs no memory here.
    """

    def __init__(self) -> None:
        self.answers: list[bytes | list[tuple[bytes, int]]] = [b""]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(WAIT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        """One request for each connection: the answer ends with it."""
        received = b""
        while b"\r\n\r\n" not in received:
            data = connection.recv(1 << 16)
            if not data:
                return
            received += data
        head, _, body = received.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        left = int(found.group(1)) - len(body) if found else 0
        while left > 0:
            data = connection.recv(1 << 16)
            if not data:
                return
            left -= len(data)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for part, count in [(answer, 1)] if isinstance(answer, bytes) else answer:
            for _ in range(count):
                connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(DRAIN_S)
        connection.recv(1 << 16)  # nothing once the client has closed; another request, which is not answered here


def response(body: bytes, *, status: int = 200, kind: bytes = b"text/xml;charset=UTF-8") -> bytes:
    """A correct HTTP response that ends the connection."""
    head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, kind, len(body)) + body


def any_response(random: Random, body: bytes, *, status: int = 200) -> bytes | list[tuple[bytes, int]]:
    """Make a response with this body: mostly correct, sometimes HTTP that is none, cut off, chunked, or very long."""
    kind = random.random()
    good = response(body, status=status)
    if kind < 0.8:
        return good
    if kind < 0.9:
        return mutated(random, good)
    if kind < 0.93:
        return noise(random, 500)
    if kind < 0.96:
        length = random.choice((b"-1", b"1e9", b"99999999999999999999", b"", b"0", b"0x10", b"5, 5"))
        return b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\nConnection: close\r\n\r\n" + body
    if kind < 0.999:
        chunk = random.choice(
            (b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"-5\r\nhello", b"FFFFFFFFFFFFFFFF\r\nx", b"%x\r\n" % len(body) + body)
        )
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk
    return random.choice((
        [(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", 1), (b"<a>" * 20_000, 1000)],
        [(b"HTTP/1.1 200 OK\r\n", 1), (b"X-Header: " + b"x" * 1000 + b"\r\n", 5000)],
        [(b"HTTP/1.1 100 Continue\r\n\r\n", 20_000)],
        [(b"x" * 60_000, 1000)],
    ))  # fmt: skip
