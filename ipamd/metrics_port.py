"""The metrics port: one thread that answers scrapes, whoever else connects.

Every pod of the node reaches the port, and the daemon that hands out addresses must not notice (I16). So threads, connections (in
all and from one source), the size of a request, its time, the accepts and the rendered pages in a second are bounded. Nothing is
refused in favour of who came first: a newcomer takes the place of the oldest connection of whoever has most, so 1,000 connections
held from one pod keep no other scraper out. A connection serves one request. Refusals are counted, not logged.
Rejected: `prometheus_client.start_http_server`, which has a thread for each connection and none of these bounds
(docs/adr/0022-the-metrics-port-is-bounded.md).
"""

from __future__ import annotations

import errno
import logging
import math
import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from ipamd.core.health import Health, Phase
from ipamd.core.loop import Loop
from ipamd.model.errors import PortTakenError, SettingsError, log_text
from ipamd.model.record import dataclass, field
from ipamd.ports import Clock

log = logging.getLogger(__name__)


CONNECTIONS_MAX = 64
"""Open at once, in all. Ours: a handful of scrapers, a fraction of the least limit of descriptors that is usual, 1,024."""

SOURCE_MAX = 8
"""Open at once from one address. Ours: two Prometheus servers and a person behind one address, twice over."""

REQUEST_BYTES_MAX = 8192
"""Ours: the usual limit of a header; a scrape's has 300 bytes."""

LIFE_S = 10.0
"""From accept to close. Ours: Prometheus' default scrape timeout; a longer answer is of no use to it."""

ACCEPTS_PER_S = 250
"""Ours: an accept and its answer cost the daemon about 0.1 ms, so a flood has 3 % of a core. What is over waits in the kernel."""

BACKLOG = 128
"""Connections that the kernel holds until they are accepted. Ours: half a second of accepts."""

PAUSE_S = 1.0
"""Without accepting, after the process ran out of descriptors. Ours."""

END_S = 2.0
"""For the thread to end. Ours."""

READ_BYTES = 4096
READS_MAX = 16
"""In how many pieces a request may come. Ours: a scrape's comes in one, and each piece costs the daemon an event."""

REQUEST = re.compile(rb"(GET|HEAD) ([!-~]+) HTTP/1\.[01]\r?\n")
OPENMETRICS = re.compile(rb"\naccept:[^\n]*application/openmetrics-text", re.IGNORECASE)
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Refusal(StrEnum):
    """Why a connection was closed before it was answered: the label of the metric."""

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
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)


class MetricsPort:
    """Listens from the moment it is made; `start` serves in a thread, `close` ends it. All else is the thread's."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        page: Callable[[str, bool], tuple[bytes, bytes]],
        refused: Callable[[Refusal], None],
        name: str = "metrics",
        listener: socket.socket | None = None,
    ) -> None:
        """Listen.

        Args:
            listener: listens there already.
            page: makes head and body of an answer, from the path without its query, and True for the format OpenMetrics. It is
                called for each request.
            refused: counts.
            name: of the thread.
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
        """Serve from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close every connection."""
        self._waker.send(b"x")
        self._thread.join(END_S)
        if self._thread.is_alive():
            return  # it waits for a figure; the process ends anyway
        for connection in list(self._connections):
            self._drop(connection)
        for part in (self._selector, self._listener, self._wakened, self._waker):
            part.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._turn()
            except Exception as error:  # top of a loop: scrapes go on
                log.error("the metrics port begins anew error=%s", log_text(error), exc_info=error)
                self._make_room()
                time.sleep(PAUSE_S)

    def _turn(self) -> bool:
        """Wait for something, and do what is due; False once `close` was called."""
        self._accept_if_due()
        has_newcomers = False
        for key, _ in self._selector.select(self._pause_s()):
            if key.fileobj is self._wakened:
                return False
            if key.fileobj is self._listener:
                has_newcomers = True
            else:
                self._serve(key.data)
        if has_newcomers:  # last: whoever has sent a request is answered before a newcomer takes its place
            self._accept()
        now = time.monotonic()
        while self._connections and (oldest := next(iter(self._connections))).deadline <= now:
            self._drop(oldest, Refusal.TIME)
        return True

    def _pause_s(self) -> float | None:
        """Until something is due without an event: a connection's end, or the next accept."""
        due = [connection.deadline for connection in list(self._connections)[:1]]  # the others are younger
        if not self._is_accepting:
            due.append(self._filled_monotonic_s + (1.0 - self._tokens) / ACCEPTS_PER_S)
        return max(min(due) - time.monotonic(), 0.0) + 0.001 if due else None

    def _accept_if_due(self) -> None:
        """Fill the bucket, and listen or not as it says."""
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
                if error.errno in NO_DESCRIPTOR:  # CNI needs them more than a scrape does
                    self._refused(Refusal.DESCRIPTORS)
                    self._make_room()
                    return
                continue  # the peer has left already
            self._tokens -= 1.0
            sock.setblocking(False)
            connection = _Connection(sock, str(peer[0]), time.monotonic() + LIFE_S)
            self._take_place(connection)
            self._connections[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)
            self._serve(connection)

    def _make_room(self) -> None:
        """Close all connections, and accept none for a while."""
        for connection in list(self._connections):
            self._drop(connection)
        self._tokens, self._filled_monotonic_s = 0.0, time.monotonic() + PAUSE_S

    def _take_place(self, newcomer: _Connection) -> None:
        """Close the oldest connection of the newcomer's source, or of the source that has most, if a bound is reached."""
        counts = Counter(connection.source for connection in self._connections)
        if counts[newcomer.source] >= SOURCE_MAX:
            crowded, why = newcomer.source, Refusal.SOURCE
        elif len(self._connections) >= CONNECTIONS_MAX:
            crowded, why = counts.most_common(1)[0][0], Refusal.TOTAL
        else:
            return
        self._drop(next(each for each in self._connections if each.source == crowded), why)

    def _serve(self, connection: _Connection) -> None:
        """Read what has come, and write what can go. A peer that has left is nobody's error."""
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
            asked = REQUEST.match(request)
            if asked is None:
                self._refused(Refusal.REQUEST)
                answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            else:
                head, body = self.respond(asked[2].partition(b"?")[0].decode(), request)
                answer = head + body if asked[1] == b"GET" else head
            connection.unsent = memoryview(answer)
            self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        elif not data:
            self._drop(connection)
        elif len(request) > REQUEST_BYTES_MAX or connection.read_count >= READS_MAX:
            self._drop(connection, Refusal.REQUEST)

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Make head and body of the answer to one request, in this port's thread; a port that reads headers has its own."""
        return self._page(path, OPENMETRICS.search(request) is not None)

    def _drop(self, connection: _Connection, why: Refusal | None = None) -> None:
        if why is not None:
            self._refused(why)
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()


# A port of ours that somebody else has: the daemon serves without it, and listens as soon as it is free.
#
# amazon-vpc-cni-k8s serves its metrics on the same port as we do, so on a node that comes over it is taken until the other daemon
# has gone, which is when ours is needed at once. And what people and scrapers look at must never keep a node from its CNI.


RETRY_S = 1.0
"""Ours: a bind that is refused costs 0.05 ms."""


class LatePorts:
    """Every port by its name, which is its condition too; one loop waits for those that somebody else has."""

    def __init__(self, ports: Mapping[str, Callable[[], MetricsPort | None]], *, health: Health, clock: Clock) -> None:
        """Each of `ports` serves one; None if it is turned off."""
        self._waiting = dict(ports)
        self._served: list[MetricsPort] = []
        self._health = health
        self.loop = Loop("ports", self.turn, health=health, clock=clock)

    def start(self, name: str) -> None:
        """Listen now, or once the port is free and the loop runs. Raises: SettingsError if the settings are wrong."""
        try:
            self._listen(name)
        except PortTakenError as error:
            self._tell(name, error)

    def turn(self) -> float:
        """Listen where that was not possible; the loop ends once every port is served. Returns: seconds until the next try."""
        for name in list(self._waiting):
            try:
                self._listen(name)
            except SettingsError as error:  # also one that a file of the settings causes only now
                self._tell(name, error)
        if not self._waiting:
            self.loop.stop()
        return RETRY_S

    def close(self) -> None:
        """End them all, and the wait for them."""
        self.loop.stop()
        while self._served:
            self._served.pop().close()

    def _listen(self, name: str) -> None:
        port = self._waiting[name]()
        del self._waiting[name]
        self._health.report(name, "")
        if port is not None:
            self._served.append(port)

    def _tell(self, name: str, error: SettingsError) -> None:
        self._health.report(name, f"{name}: {log_text(error)}; the daemon serves without it; tried again every second")


# `/healthz` and `/readyz` for kubelet's probes: an answer costs the daemon 0.1 ms, starting `ipamctl` costs 80.
#
# They are served twice: on a port of the node's loopback (`VPC_IPAMD_HEALTH_ADDRESS`), where kubelet asks, and beside the
# metrics. A probe through the metrics port alone would let a pod that floods it have the daemon killed (I16). Alive means that
# the CNI socket takes connections; ready means what `ipamctl status` means by it. Rejected: grpc.health.v1, for which kubelet
# needs gRPC on TCP (docs/adr/0033-a-roll-changes-no-condition.md).


PORT_MAX = 65535
CONNECT_S = 0.5
"""Ours: a listener's queue takes a connection at once, or is full."""

START_S = 20.0
"""For which a probe's answer may wait since the start. Ours: kubelet reports each probe that fails as a Warning event, and waits 30 s
for an answer (manifests/base/daemonset.yaml); a start takes a second or two, on a node short of CPU ten."""

LISTENING_AGE_S = 0.5
"""Questions within it share an answer. Ours: a connection to the CNI socket costs the daemon 0.2 ms, and every pod may ask beside the
metrics; kubelet asks every 2 s."""

Pages = Callable[[str, bool], tuple[bytes, bytes]]
"""Path and whether OpenMetrics is wanted -> head and body of the answer."""


class HealthPages:
    """The two pages, and 404 for anything else. One thread for each port."""

    def __init__(self, *, cni_socket: Path, is_ready: Callable[[], bool]) -> None:
        self._cni_socket = cni_socket
        self._is_ready = is_ready
        self._looked: tuple[float, bool] = (-math.inf, False)

    def __call__(self, path: str, _is_openmetrics: bool = False) -> tuple[bytes, bytes]:
        """Return head and body of the answer."""
        if path == "/healthz":
            return _told(self._is_listening(), "alive", "the CNI socket takes no connection")
        if path == "/readyz":
            return _told(self._is_ready(), "ready", "not ready; see ipamctl status")
        return plain_page("404 Not Found", "there are /metrics, /healthz and /readyz")

    def _is_listening(self) -> bool:
        """Whether the CNI socket takes connections, or did a moment ago. Two threads may ask at once: then both look."""
        looked_monotonic_s, answer = self._looked
        if time.monotonic() - looked_monotonic_s >= LISTENING_AGE_S:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(CONNECT_S)
                try:
                    answer = asking.connect_ex(str(self._cni_socket)) == 0
                except OSError:  # a path that is no address, or the end of the wait
                    answer = False
            self._looked = (time.monotonic(), answer)
        return answer


def listen_early(address: str) -> list[socket.socket]:
    """Listen for kubelet before there is anybody to answer: its question waits in the kernel until `listen`. Returns: one, or none if
    that is not possible; `listen` says why."""
    host, _, port = address.rpartition(":")
    try:
        return [_listener(host.strip("[]"), int(port))] if host and int(port) <= PORT_MAX else []
    except (OSError, ValueError):
        return []


def after_start(pages: Pages, *, health: Health) -> Pages:
    """The pages for kubelet alone: a start is no failure, so the first answers wait for *ready*, START_S at most."""

    def page(path: str, is_openmetrics: bool) -> tuple[bytes, bytes]:
        health.wait_for(lambda: health.is_ready or health.phase is Phase.DRAINING, max(START_S - health.uptime_s(), 0.0))
        return pages(path, is_openmetrics)

    return page


def plain_page(status: str, text: str) -> tuple[bytes, bytes]:
    """Head and body of an answer of one line."""
    return page_of(status, f"{text}\n".encode(), content_type="text/plain")


def page_of(status: str, body: bytes, *, content_type: str) -> tuple[bytes, bytes]:
    """Head and body of an answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode(), body


def listen(
    address: str, *, variable: str, pages: Pages, refused: Callable[[Refusal], None], early: list[socket.socket] | None = None
) -> MetricsPort | None:
    """Serve `pages` on `host:port`; None when the address is "off". `early`: what `listen_early` returned, taken out of it.

    Raises: SettingsError if it is malformed, PortTakenError if somebody else has it.
    """
    if address == "off":
        return None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(f"{variable}={address!r}", details="expected host:port or off")
    everywhere = "0.0.0.0"  # noqa: S104  # scraped from other nodes
    listener = early.pop() if early else None
    try:
        served = MetricsPort(host.strip("[]") or everywhere, int(port), page=pages, refused=refused, listener=listener)
    except OSError as error:
        raise PortTakenError(f"cannot serve on {address}: {error}", details=f"free the port or set {variable} to off") from error
    served.start()
    return served


def _told(is_so: bool, yes: str, no: str) -> tuple[bytes, bytes]:
    return plain_page("200 OK", yes) if is_so else plain_page("503 Service Unavailable", no)
