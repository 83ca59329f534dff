"""An HTTP server on loopback that answers as a script says: without an end, in crumbs, in HTML, with nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Script = Callable[[socket.socket, str], None]
"""Gets the connection and the path of a request whose headers and body have been read."""

CHUNK = b"x" * 65536
CRUMB_PAUSE_S = 0.02
SENT_MAX = 256 << 20
"""Where an endless answer does end, so that a reader without a bound fails a test and not the machine."""


class HostileServer:
    """Counts the requests and the bytes that it got rid of."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.request_count = 0
        self.sent_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End every conversation."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._open:
            sock.close()

    def endless(self, sock: socket.socket, piece: bytes, *, pause_s: float = 0.0) -> None:
        """Send a piece again and again, until the reader leaves."""
        sent = 0
        while sent < SENT_MAX:
            sock.sendall(piece)
            sent += len(piece)
            self.sent_bytes += len(piece)
            if pause_s:
                time.sleep(pause_s)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            thread = threading.Thread(target=self._talk, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _talk(self, sock: socket.socket) -> None:
        with suppress(OSError), sock.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while header := reader.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                reader.read(length)
                self.request_count += 1
                self.script(sock, line.split()[1].decode())


@contextmanager
def hostile(script: Script | None = None) -> Iterator[HostileServer]:
    """A server for the time of the block; its script may be set later."""
    server = HostileServer(script or (lambda sock, _: sock.close()))
    try:
        yield server
    finally:
        server.close()


def answer(body: bytes, *, status: str = "200 OK", kind: str = "text/xml") -> Script:
    """A script that answers everything alike."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda sock, _: sock.sendall(head + body)


def misbehaviours(server: HostileServer) -> dict[str, Script]:
    """Answers that do not end, or not in time, by what is wrong with them."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"

    def begin(first: bytes, piece: bytes, pause_s: float = 0.0) -> Script:
        def script(sock: socket.socket, _path: str) -> None:
            sock.sendall(first)
            server.endless(sock, piece, pause_s=pause_s)

        return script

    return {
        "body without length": begin(head + b"\r\n", CHUNK),
        "body of a terabyte": begin(head + b"Content-Length: 1000000000000\r\n\r\n", CHUNK),
        "chunks without end": begin(chunked, b"10000\r\n" + CHUNK + b"\r\n"),
        "one chunk without end": begin(chunked + b"FFFFFFFFFFFF\r\n", CHUNK),
        "size of a chunk without end": begin(chunked, b"0" * 65536),
        "one header without end": begin(head + b"a: ", CHUNK),
        "status line without end": begin(b"HTTP/1.1 200 ", CHUNK),
        "greetings without end": begin(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        "body in crumbs": begin(head + b"Content-Length: 100000\r\n\r\n", b"x", CRUMB_PAUSE_S),
        "chunks in crumbs": begin(chunked, b"1\r\nx\r\n", CRUMB_PAUSE_S),
        "headers in crumbs": begin(head + b"a: ", b"x", CRUMB_PAUSE_S),
        "greetings in crumbs": begin(b"", b"HTTP/1.1 100 Continue\r\n\r\n", CRUMB_PAUSE_S),
    }


MISBEHAVIOURS = (
    "body without length",
    "body of a terabyte",
    "chunks without end",
    "one chunk without end",
    "size of a chunk without end",
    "one header without end",
    "status line without end",
    "greetings without end",
    "body in crumbs",
    "chunks in crumbs",
    "headers in crumbs",
    "greetings in crumbs",
)
