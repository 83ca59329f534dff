"""A small HTTP/1.1 server on several listening sockets, which can be made to fail the way networks fail.

The standard library's server listens on one socket of its own; ours takes sockets made elsewhere (inside a node's
network namespace), knows for each the instance that calls, closes its listeners on request so that the kernel refuses
connections, and cuts connections half-way. One thread accepts, one per connection answers; `stop` ends them all.
Over 250 lines because listening, conversing and failing share the same few sockets and one lock.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, cast
from urllib.parse import urlsplit

from lab.vpc.fault_spec import Reach

_BACKLOG = 128
_JOIN_S = 5.0  # ours, because: nothing a handler does takes longer once the server is stopping
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with time 0: close() sends RST


@dataclass(frozen=True)
class Listener:
    """A listening point: a bound socket or (host, port), and the instance whose calls come by it.

    The server owns the socket from then on. A socket bound to port 0 gets another port after a refusal: bind your own.
    """

    address: socket.socket | tuple[str, int]
    instance: str | None = None


@dataclass(frozen=True)
class Request:
    """One HTTP request, read to its end."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes
    instance: str | None


@dataclass(frozen=True)
class Response:
    """One HTTP answer."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Response | None]  # None cuts the connection


class HttpServer:
    """Serves `handler` on every listener between start and stop."""

    def __init__(self, handler: Handler, listeners: Iterable[Listener | socket.socket | tuple[str, int]] = ()) -> None:
        self.handler = handler
        self._changed = threading.Condition()
        self._listeners: dict[socket.socket, str | None] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._reach = Reach.OPEN
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._acceptor: threading.Thread | None = None
        for listener in listeners:
            self.add_listener(listener)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each listener."""
        with self._changed:
            return [sock.getsockname()[:2] for sock in self._listeners]

    @property
    def url(self) -> str:
        """URL of the first listener."""
        host, port = self.addresses[0]
        return f"http://{host}:{port}"

    def add_listener(self, listener: Listener | socket.socket | tuple[str, int]) -> tuple[str, int]:
        """Listen on one more socket, also while running; return its address."""
        point = listener if isinstance(listener, Listener) else Listener(listener)
        sock = point.address if isinstance(point.address, socket.socket) else _bind(point.address)
        sock.setblocking(False)
        with self._changed:
            self._listeners[sock] = point.instance
            if self._reach is not Reach.REFUSE:
                sock.listen(_BACKLOG)
        self._wake()
        address: tuple[str, int] = sock.getsockname()[:2]
        return address

    def remove_listener(self, address: tuple[str, int]) -> None:
        """Close the first listener on (host, port), as when its node goes away; open connections live on."""
        with self._changed:
            sock = next(sock for sock in self._listeners if sock.getsockname()[:2] == address)
            del self._listeners[sock]
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
            sock.close()

    def start(self) -> None:
        """Begin to serve."""
        self._acceptor = threading.Thread(target=self._accept_loop, name="lab-http", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        """Close listeners and connections and wait for every thread. Safe to call twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._wake()
        if self._acceptor is not None:
            self._acceptor.join(_JOIN_S)
        self._cut_connections()
        with self._changed:
            threads = list(self._connections.values())
        for thread in threads:
            thread.join(_JOIN_S)
        for sock in [*self._listeners, self._waker, self._wakened]:
            sock.close()
        self._selector.close()
        self._listeners.clear()

    def set_reach(self, reach: Reach) -> None:
        """Open, refuse (the kernel answers RST) or hang (connections are taken, nothing is read)."""
        with self._changed:
            if self._stopping or reach is self._reach:
                self._changed.notify_all()
                return
            was, self._reach = self._reach, reach
            for sock in self._listeners:
                if reach is Reach.REFUSE:
                    if sock in self._selector.get_map():
                        self._selector.unregister(sock)
                    with contextlib.suppress(OSError):  # not listening yet
                        sock.shutdown(socket.SHUT_RD)  # Linux: leaves LISTEN, keeps the address
                elif was is Reach.REFUSE:
                    sock.listen(_BACKLOG)
            self._changed.notify_all()
        if reach is Reach.REFUSE:
            self._cut_connections()
        self._wake()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the server stops first."""
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, seconds)

    def hold(self, is_held: Callable[[], bool]) -> None:
        """Wait while `is_held`; looked at again after each set_reach, and given up when the server stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not is_held())

    def serve(self, request: Request) -> Response | None:
        """Answer one request, or cut the connection when the server is out of reach."""
        if self._reach is Reach.HANG:
            self.hold(lambda: self._reach is Reach.HANG)
            return None
        return self.handler(request) if self._reach is Reach.OPEN and not self._stopping else None

    def _accept_loop(self) -> None:
        self._selector.register(self._wakened, selectors.EVENT_READ)
        while True:
            with self._changed:
                if self._stopping:
                    return
                if self._reach is not Reach.REFUSE:
                    for sock in self._listeners:
                        if sock not in self._selector.get_map():
                            self._selector.register(sock, selectors.EVENT_READ)
            for key, _ in self._selector.select():
                if key.fileobj is self._wakened:
                    self._wakened.recv(1024)
                else:
                    self._accept(cast(socket.socket, key.fileobj))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, peer = listener.accept()
        except OSError:  # gone again, or the listener was closed meanwhile
            return
        connection.setblocking(True)
        with self._changed:
            instance = self._listeners.get(listener)
            # A thread is forgotten only when it has ended, so that stop() can wait for every one that has not.
            self._connections = {sock: thread for sock, thread in self._connections.items() if thread.is_alive()}
            thread = threading.Thread(
                target=self._converse, args=(connection, peer, instance), name="lab-http-connection", daemon=True
            )
            self._connections[connection] = thread
            thread.start()

    def _converse(self, connection: socket.socket, peer: object, instance: str | None) -> None:
        try:
            with contextlib.suppress(OSError):  # the client went away, or a fault cut the connection
                _Conversation(connection, peer, cast(Any, _Context(self, instance)))
        finally:
            connection.close()

    def _cut_connections(self) -> None:
        with self._changed:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")


@dataclass(frozen=True)
class _Context:
    http: HttpServer
    instance: str | None


class _Conversation(BaseHTTPRequestHandler):
    """One connection; the base class parses, we answer in one write."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_request(self) -> None:
        context = cast(_Context, self.server)
        length = int(self.headers.get("Content-Length") or 0)
        url = urlsplit(self.path)
        body = self.rfile.read(length)
        request = Request(self.command, url.path, url.query, self.headers, body, context.instance)
        response = context.http.serve(request)
        if response is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close_connection = True
            return
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_request

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the call log tells more."""


def _bind(address: tuple[str, int]) -> socket.socket:
    """Bind; port 0 is turned into a port of our own, so that it stays the same after a refusal."""
    sock = _bound(address)
    if address[1] == 0:
        chosen = sock.getsockname()[:2]
        sock.close()
        sock = _bound(chosen)
    return sock


def _bound(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    return sock
