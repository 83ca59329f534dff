"""An HTTP port with one thread, for metrics and probes, that stays usable under any load.

Every pod of the node reaches the port, and no pod may slow the daemon down through it (I16). So these are bounded: threads;
connections, in all and from one source; the size and the time of a request; and the accepts per second. (`ipamd/metrics/page.py`
bounds the rendered pages.) When CONNECTIONS_MAX are open, a new connection replaces the oldest connection of the source with the most
connections, so that a pod with 1,000 connections cannot keep a scraper out. A connection serves one request. Refusals are counted,
not logged. Rejected: `prometheus_client.start_http_server`, which has a thread for each connection and none of these bounds
(docs/adr/0022-the-metrics-port-is-bounded.md).
"""

from __future__ import annotations

import errno
import logging
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from ipamd.model.errors import log_text
from ipamd.model.record import dataclass, field

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
"""The largest number of connections open at once, in all. Ours: enough for a handful of scrapers, and few in comparison with the 1,024
descriptors that nearly every process may open."""

SOURCE_MAX = 8
"""The largest number of connections open at once from one address. Ours: twice what two Prometheus servers and a person behind one
address need."""

REQUEST_BYTES_MAX = 8192
"""Longest request. Ours: the usual limit of HTTP servers for a request's headers; those of a scrape have 300 bytes."""

LIFE_S = 10.0
"""Longest time from the accept of a connection to its close. Ours: Prometheus' default scrape timeout, after which it has given up."""

ACCEPTS_PER_S = 250
"""Highest rate of accepts, after a burst of BACKLOG. Ours: an accept and its answer take about 0.1 ms, so a flood takes 3 % of a core.
Further connections wait in the kernel."""

BACKLOG = 128
"""Connections that the kernel holds until they are accepted. Ours: half a second of accepts."""

PAUSE_S = 1.0
"""Seconds in which no connection is accepted after the process ran out of descriptors. Ours: CNI requests need the freed descriptors
first."""

END_S = 2.0
"""Longest wait for the end of the thread, in seconds. Ours: ample, because a page takes milliseconds."""

READ_BYTES = 4096
"""Most bytes of one read. Ours: a scrape's request has some hundred bytes, and with READS_MAX reads a connection holds 64 KiB at
most."""

READS_MAX = 16
"""The largest number of reads for one request. Ours: a scrape's request arrives in one piece, and each piece costs the daemon an
event."""

REQUEST = re.compile(rb"(GET|HEAD) ([!-~]+) HTTP/1\.[01]\r?\n")

OPENMETRICS = re.compile(rb"\naccept:[^\n]*application/openmetrics-text", re.IGNORECASE)

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class CloseReason(StrEnum):
    """Why a connection got no page; also the label value of `ipamd_http_refused_connections_total`.

    SOURCE: its source reached SOURCE_MAX.
    TOTAL: CONNECTIONS_MAX was reached.
    TIME: it lasted LIFE_S.
    REQUEST: the request was malformed (answered with status 400) or too large (closed without an answer).
    DESCRIPTORS: the process had no descriptor left, so the connection could not be accepted.
    """

    SOURCE = "source"
    TOTAL = "total"
    TIME = "time"
    REQUEST = "request"
    DESCRIPTORS = "descriptors"


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    source: str
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    read_count: int = 0
    unsent: memoryview | None = None


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


class MetricsPort:
    """Listens from its construction on. `start` makes a thread that serves, and `close` ends it. `respond` and the private methods are
    called only by that thread, or while it does not run."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        page: Callable[[str, bool], tuple[bytes, bytes]],
        refused: Callable[[CloseReason], None],
        name: str = "metrics",
        listener: socket.socket | None = None,
    ) -> None:
        """Listen.

        Args:
            page: makes head and body of the answer to each request. Its arguments are the path without the query, and whether the
                client accepts the format OpenMetrics.
            refused: called for each connection that gets no page, with the reason.
            name: the thread's name.
            listener: a socket that listens on this host and port already.
        Raises: OSError if the address is malformed or taken.
        """
        self._listener = listener or _listener(host, port)
        self._listener.setblocking(False)
        self._page = page
        self._refused = refused
        self._wakened, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._connections: dict[_Connection, None] = {}
        self._tokens, self._filled_monotonic_s = float(BACKLOG), time.monotonic()
        self._is_accepting = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Serve from now on. Raises: RuntimeError if the thread cannot be made; then nothing listens."""
        try:
            self._thread.start()
        except RuntimeError:
            self._release()
            raise

    def close(self) -> None:
        """End the thread, and close every connection. If the thread does not end within END_S, nothing is closed."""
        self._waker.send(b"x")
        self._thread.join(END_S)
        if self._thread.is_alive():
            return  # the thread still renders a page; it is a daemon thread, so the process can end
        for connection in list(self._connections):
            self._drop(connection)
        self._release()

    def _release(self) -> None:
        for part in (self._selector, self._listener, self._wakened, self._waker):
            part.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._turn()
            except Exception as error:  # top of a loop: the port goes on serving
                log.error("metrics port failed, closing its connections error=%s", log_text(error), exc_info=error)
                self._make_room()
                time.sleep(PAUSE_S)

    def _turn(self) -> bool:
        """Wait for an event or a deadline, and handle it. Returns: False once `close` was called."""
        self._accept_if_due()
        has_newcomers = False
        for key, _ in self._selector.select(self._pause_s()):
            if key.fileobj is self._wakened:
                return False
            if key.fileobj is self._listener:
                has_newcomers = True
            else:
                self._serve(key.data)
        if has_newcomers:  # last, so that a peer that has sent a request is answered before a new connection replaces it
            self._accept()
        now = time.monotonic()
        while self._connections:
            oldest = next(iter(self._connections))
            if oldest.deadline > now:
                break
            self._drop(oldest, CloseReason.TIME)
        return True

    def _pause_s(self) -> float | None:
        """Seconds until the oldest connection's deadline or the next accept; None if there is neither."""
        deadlines = [connection.deadline for connection in list(self._connections)[:1]]  # the first connection is the oldest
        if not self._is_accepting:
            deadlines.append(self._filled_monotonic_s + (1.0 - self._tokens) / ACCEPTS_PER_S)
        if not deadlines:
            return None
        return max(min(deadlines) - time.monotonic(), 0.0) + 0.001

    def _accept_if_due(self) -> None:
        """Refill the token bucket, and listen for connections while it holds a token."""
        now = time.monotonic()
        if now > self._filled_monotonic_s:
            self._tokens = min(self._tokens + (now - self._filled_monotonic_s) * ACCEPTS_PER_S, float(BACKLOG))
            self._filled_monotonic_s = now
        may_accept = self._tokens >= 1.0
        if may_accept and not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._is_accepting and not may_accept:
            self._selector.unregister(self._listener)
        self._is_accepting = may_accept

    def _accept(self) -> None:
        while self._tokens >= 1.0:
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:  # free our descriptors, because CNI requests need some
                    self._refused(CloseReason.DESCRIPTORS)
                    self._make_room()
                    return
                continue  # the peer has left already
            self._tokens -= 1.0
            sock.setblocking(False)
            connection = _Connection(sock, str(peer[0]), time.monotonic() + LIFE_S)
            self._make_place_for(connection)
            self._connections[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)
            self._serve(connection)

    def _make_room(self) -> None:
        """Close all connections, and accept none for PAUSE_S."""
        for connection in list(self._connections):
            self._drop(connection)
        self._tokens, self._filled_monotonic_s = 0.0, time.monotonic() + PAUSE_S

    def _make_place_for(self, newcomer: _Connection) -> None:
        """Close one connection if a bound is reached.

        If the newcomer's source has SOURCE_MAX connections, the oldest connection of this source is closed. Otherwise, if there are
        CONNECTIONS_MAX connections in all, the oldest connection of the source with the most connections is closed.
        """
        counts = Counter(connection.source for connection in self._connections)
        if counts[newcomer.source] >= SOURCE_MAX:
            crowded, reason = newcomer.source, CloseReason.SOURCE
        elif len(self._connections) >= CONNECTIONS_MAX:
            crowded, reason = counts.most_common(1)[0][0], CloseReason.TOTAL
        else:
            return
        oldest = next(connection for connection in self._connections if connection.source == crowded)
        self._drop(oldest, reason)

    def _serve(self, connection: _Connection) -> None:
        """Read the available bytes, or write as much as the peer takes. A peer that has left is not an error."""
        try:
            if connection.unsent is None:
                self._read(connection)
            if connection.unsent is not None:
                connection.unsent = connection.unsent[connection.sock.send(connection.unsent) :]
                if not connection.unsent:
                    self._drop(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(READ_BYTES)
        connection.received += data
        connection.read_count += 1
        request = bytes(connection.received)
        if b"\r\n\r\n" in request or b"\n\n" in request:
            request_line = REQUEST.match(request)
            if request_line is None:
                self._refused(CloseReason.REQUEST)
                answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            else:
                method, target = request_line[1], request_line[2]
                head, body = self.respond(target.partition(b"?")[0].decode(), request)
                answer = head
                if method == b"GET":
                    answer += body
            connection.unsent = memoryview(answer)
            self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        elif not data:
            self._drop(connection)
        elif len(request) > REQUEST_BYTES_MAX or connection.read_count >= READS_MAX:
            self._drop(connection, CloseReason.REQUEST)

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Make head and body of the answer to one request, in this port's thread. A subclass that reads headers overrides it."""
        return self._page(path, OPENMETRICS.search(request) is not None)

    def _drop(self, connection: _Connection, reason: CloseReason | None = None) -> None:
        """Close a connection.

        `reason`: why it gets no page; it is counted. None if nothing is to be counted: the connection was answered, its peer left, or
        all connections are closed.
        """
        if reason is not None:
            self._refused(reason)
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()
