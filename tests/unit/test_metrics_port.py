"""The metrics port against clients that hold, drip, flood and lie: bounded, and a scraper is always answered (I16)."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ipamd.http import port as metrics_port
from ipamd.http.port import CONNECTIONS_MAX, REQUEST_BYTES_MAX, SOURCE_MAX, MetricsPort
from ipamd.metrics import page as metrics
from ipamd.metrics.page import Metrics, Page
from ipamd.model.errors import SettingsError
from tests.patience import PATIENCE_S
from tests.rig import wait_until

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"


class Served:
    """A port with its metrics."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        port = metrics.serve(self.metrics, "127.0.0.1:0")
        assert port is not None
        self.port = port

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Connect from one of loopback's many addresses."""
        return socket.create_connection(("127.0.0.1", self.port.port), timeout=PATIENCE_S, source_address=(source, 0))

    def ask(self, request: bytes, source: str = "127.0.0.1") -> bytes:
        """Send a request; the whole answer."""
        with self.connect(source) as sock:
            sock.sendall(request)
            return read_all(sock)

    def refused(self, reason: str) -> float:
        """The counter."""
        found = self.metrics.registry.get_sample_value("ipamd_http_refused_connections_total", {"reason": reason})
        return 0.0 if found is None else found


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


@pytest.fixture
def served() -> Iterator[Served]:
    """A port on loopback."""
    made = Served()
    yield made
    made.port.close()


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_scrape_gets_the_page_that_prometheus_reads(served: Served) -> None:
    """Status, type, length, and metrics; the connection ends with the answer."""
    served.metrics.request_done("ADD", code=0, total_ms=1.0, steps_ms={})
    head, _, body = served.ask(SCRAPE).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain")
    assert f"Content-Length: {len(body)}".encode() in head
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"ipamd_requests", "ipamd_http_refused_connections"} <= names


def test_openmetrics_is_served_to_who_asks_for_it(served: Served) -> None:
    """As Prometheus does; HEAD gets no body."""
    accept = b"Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    answer = served.ask(b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n\r\n")
    assert b"Content-Type: application/openmetrics-text" in answer
    assert answer.endswith(b"# EOF\n")
    assert served.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")


def test_a_request_in_two_pieces_is_a_request(served: Served) -> None:
    """Nothing says that it comes at once."""
    with served.connect() as sock:
        sock.sendall(SCRAPE[:20])
        sock.sendall(SCRAPE[20:])
        assert read_all(sock).startswith(b"HTTP/1.1 200")


def test_who_holds_a_thousand_connections_keeps_no_one_out(served: Served) -> None:
    """One source has SOURCE_MAX of them at most, the newest; another scraper is answered; no thread is added."""
    threads = threading.active_count()
    with ExitStack() as stack:
        held = [stack.enter_context(served.connect("127.0.0.2")) for _ in range(1000)]
        assert served.ask(SCRAPE, "127.0.0.3").startswith(b"HTTP/1.1 200")
        wait_until(lambda: sum(not is_closed(sock) for sock in held) <= SOURCE_MAX, what="the oldest are closed")
        assert not is_closed(held[-1])
        assert threading.active_count() == threads
    assert served.refused("source") == 1000 - SOURCE_MAX


def test_many_sources_share_the_places_and_a_newcomer_is_answered(served: Served) -> None:
    """The places are full of sources with SOURCE_MAX each: the newcomer takes one of theirs."""
    with ExitStack() as stack:
        sources = [f"127.0.1.{number}" for number in range(CONNECTIONS_MAX // SOURCE_MAX)]
        lone = stack.enter_context(served.connect("127.0.2.1"))
        held = [stack.enter_context(served.connect(source)) for source in sources for _ in range(SOURCE_MAX)]
        assert served.ask(SCRAPE, "127.0.0.3").startswith(b"HTTP/1.1 200")
        assert sum(not is_closed(sock) for sock in held) < len(held)
        assert not is_closed(lone), "who has one connection keeps it"
    assert served.refused("total") >= 1


def test_the_newest_of_a_crowded_source_is_answered(served: Served) -> None:
    """A scraper behind the same address as the one who holds connections."""
    with ExitStack() as stack:
        for _ in range(SOURCE_MAX * 2):
            stack.enter_context(served.connect())
        assert served.ask(SCRAPE).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /" + b"x" * (REQUEST_BYTES_MAX * 2), id="endless line"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (REQUEST_BYTES_MAX // 3), id="endless headers"),
    ],
)
def test_a_request_that_does_not_end_is_refused(served: Served, request_bytes: bytes) -> None:
    """What is kept of it is bounded."""
    with served.connect() as sock:
        try:
            sock.sendall(request_bytes)
            assert read_all(sock) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass  # closed with our bytes unread
    assert served.refused("request") == 1
    assert served.ask(SCRAPE).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("request_bytes", [b"POST /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01\n\n", b"GET\n\n", b"\r\n\r\n"])
def test_what_is_no_scrape_is_refused(served: Served, request_bytes: bytes) -> None:
    """Another method, a TLS greeting, nonsense."""
    assert served.ask(request_bytes).startswith(b"HTTP/1.1 400 ")
    assert served.refused("request") == 1


def test_a_request_in_crumbs_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece costs the daemon an event, so their number is bounded."""
    monkeypatch.setattr(metrics_port, "READS_MAX", 3)
    with served.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wait_until(lambda: is_refused_after(sock, served), what="refused")


def is_refused_after(sock: socket.socket, served: Served) -> bool:
    """Send one byte more; whether that was one too many."""
    try:
        sock.send(b"x")
    except OSError:
        return True
    return served.refused("request") == 1


def test_who_does_not_ask_in_time_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has LIFE_S from accept to close, whether it sends nothing or drips."""
    monkeypatch.setattr(metrics_port, "LIFE_S", 0.2)
    with served.connect() as silent, served.connect() as dripping:
        dripping.sendall(b"GET ")
        assert read_all(silent) == b""
        wait_until(lambda: is_closed(dripping), what="closed")
    assert served.refused("time") == 2


def test_who_does_not_read_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer larger than the buffers, to a reader that stops."""
    monkeypatch.setattr(metrics_port, "LIFE_S", 0.3)
    refused: list[str] = []
    port = MetricsPort("127.0.0.1", 0, page=lambda *_: (b"", b"x" * (32 << 20)), refused=lambda why: refused.append(why.value))
    port.start()
    try:
        with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as sock:
            sock.sendall(SCRAPE)
            wait_until(lambda: refused == ["time"], what="given up")
    finally:
        port.close()


def test_peers_that_reset_leave_no_trace(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """Two hundred aborts, before and after the request: no traceback, no refusal, and the next scrape is answered."""
    for number in range(200):
        sock = served.connect(f"127.0.3.{1 + number // 10}")
        if number % 2:
            sock.sendall(SCRAPE)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        sock.close()
    assert served.ask(SCRAPE).startswith(b"HTTP/1.1 200")
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_connections_is_taken_in_at_its_rate(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over ACCEPTS_PER_S they wait in the kernel; all that did not give up are served in the end."""
    monkeypatch.setattr(metrics_port, "ACCEPTS_PER_S", 1000)
    for number in range(metrics_port.BACKLOG * 2):
        assert served.ask(SCRAPE, f"127.0.4.{1 + number % 200}").startswith(b"HTTP/1.1 200")


def test_without_a_descriptor_the_port_gives_its_own_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """CNI needs them more: connections are closed, accepting rests, and goes on when there are descriptors again."""
    monkeypatch.setattr(metrics_port, "PAUSE_S", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served.connect("127.0.0.2") as held, socket.socket() as caller, socket.socket() as spare:
        wait_until(lambda: len(served.port._connections) == 1, what="accepted")
        lowest_free = spare.fileno()
        spare.close()
        caller.settimeout(PATIENCE_S)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            caller.connect(("127.0.0.1", served.port.port))
            wait_until(lambda: is_closed(held), what="its connection is closed")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        caller.sendall(SCRAPE)
        assert read_all(caller).startswith(b"HTTP/1.1 200")
    assert served.refused("descriptors") >= 1


def test_a_defect_ends_the_connections_and_not_the_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One error in the log, and the next scrape is answered."""
    monkeypatch.setattr(metrics_port, "PAUSE_S", 0.1)
    pages = iter([ValueError("a defect"), (b"HTTP/1.1 200 OK\r\n\r\n", b"page")])

    def page(_path: str, _is_openmetrics: bool) -> tuple[bytes, bytes]:
        found = next(pages)
        if isinstance(found, ValueError):
            raise found
        return found

    port = MetricsPort("127.0.0.1", 0, page=page, refused=lambda _: None)
    port.start()
    try:
        for expected in (b"", b"HTTP/1.1 200 OK\r\n\r\npage"):
            with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as sock:
                sock.sendall(SCRAPE)
                assert read_all(sock) == expected
    finally:
        port.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_scrapes_within_half_a_second_share_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the port cannot make the daemon render without end."""
    now = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    counted = Metrics()
    page = Page(counted.registry)
    first = page(False)
    counted.scrape_refused(metrics_port.CloseReason.TIME)
    assert page(False) is first
    now[0] += metrics.PAGE_AGE_S
    assert page(False) != first


def test_metrics_that_cannot_be_told_are_an_error_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """500, one line in the log however often it is asked, and 200 again when it works again."""
    counted = Metrics()
    page = Page(counted.registry)
    monkeypatch.setattr(metrics, "PAGE_AGE_S", 0.0)
    collect: Callable[[], object] = counted.registry.collect
    monkeypatch.setattr(counted.registry, "collect", lambda: 1 / 0)
    assert page(False)[0].startswith(b"HTTP/1.1 500")
    assert page(True)[0].startswith(b"HTTP/1.1 500")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    monkeypatch.setattr(counted.registry, "collect", collect)
    assert page(False)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999", "256.0.0.1:1", "[::g]:1"])
def test_an_address_that_cannot_be_served_is_a_typed_error(address: str) -> None:
    """At start, with what to do."""
    with pytest.raises(SettingsError):
        metrics.serve(Metrics(), address)


def test_off_serves_nothing() -> None:
    """And ipv6 addresses may be bracketed."""
    assert metrics.serve(Metrics(), "off") is None
    port = metrics.serve(Metrics(), "[::1]:0")
    assert port is not None
    port.close()
