"""A peer for plugins that run as processes: one thread on the run directory's socket, which says what it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from fuzz import frames
from fuzz.target import Blob, pieces

WAIT_S = 20.0


class RawPeer:
    """Answers each connection with `greeting`, reads the request to its end if `is_patient`, sends `answer` and half-closes."""

    def __init__(self, path: Path) -> None:
        self.greeting = b""
        self.answer: Blob = b""
        self.is_patient = True
        self.requests: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(WAIT_S)
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        connection.sendall(self.greeting)
        if self.is_patient:
            received = b""
            while not is_complete(received):
                data = connection.recv(1 << 16)
                if not data:
                    return
                received += data
            self.requests.append(received)
        for piece in pieces(self.answer):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            continue


def is_complete(sent: bytes) -> bool:
    """Tell whether a client's bytes have the last frame of stream 1."""
    position = len(frames.PREFACE)
    while position + 9 <= len(sent):
        size, kind, flags = int.from_bytes(sent[position : position + 3], "big"), sent[position + 3], sent[position + 4]
        position += 9 + size
        if kind == frames.DATA and flags & frames.END_STREAM:
            return position <= len(sent)
    return False


def message_in(sent: bytes) -> bytes:
    """Return the gRPC message in a client's DATA frames."""
    position, body = len(frames.PREFACE), []
    while position < len(sent):
        size, kind = int.from_bytes(sent[position : position + 3], "big"), sent[position + 3]
        if kind == frames.DATA:
            body.append(sent[position + 9 : position + 9 + size])
        position += 9 + size
    return b"".join(body)[5:]
