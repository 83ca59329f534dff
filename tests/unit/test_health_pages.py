"""Kubelet's probes: a right answer for each path, on a port that no pod reaches, whatever the metrics port has to bear."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health, Phase
from ipamd.http import health_pages as health_pages_module
from ipamd.http import port as health_pages
from ipamd.http.health_pages import HealthPages, after_start
from ipamd.http.listening import listen, listen_early
from ipamd.http.port import MetricsPort
from ipamd.metrics import page as metrics
from ipamd.metrics.page import Metrics
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.patience import PATIENCE_S


class Node:
    """Pages of a daemon whose state the test sets."""

    def __init__(self, cni_socket: Path) -> None:
        self.is_ready = False
        self.pages = HealthPages(cni_socket=cni_socket, is_ready=lambda: self.is_ready)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A daemon that does not listen yet."""
    return Node(tmp_path / "ipamd.sock")


@pytest.fixture(params=["health", "metrics"])
def port(request: pytest.FixtureRequest, node: Node) -> Iterator[MetricsPort]:
    """The pages on either port."""
    counted = Metrics()
    if request.param == "metrics":
        made = metrics.serve(counted, "127.0.0.1:0", health=node.pages)
    else:
        made = listen("127.0.0.1:0", variable="X", pages=node.pages, refused=counted.scrape_refused)
    assert made is not None
    yield made
    made.close()


def ask(port: MetricsPort, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of an answer."""
    with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_alive_is_who_takes_connections(port: MetricsPort, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/healthz follows the CNI socket: it is not there, it is there, nobody listens on it any more."""
    monkeypatch.setattr(health_pages_module, "LISTENING_AGE_S", 0.0)
    assert ask(port, "/healthz")[0] == 503
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ipamd.sock"))
        listener.listen()
        assert ask(port, "/healthz") == (200, b"alive\n")
        assert ask(port, "/readyz")[0] == 503, "alive and not ready"
    assert ask(port, "/healthz")[0] == 503


def test_a_full_queue_is_alive(node: Node, tmp_path: Path) -> None:
    """Many ADDs at once, or after a pause of the process: whether requests are answered decides, and no restart follows."""
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as held:
        listener.bind(str(tmp_path / "ipamd.sock"))
        listener.listen(0)
        with suppress(BlockingIOError):
            for _ in range(100):
                waiting = held.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(tmp_path / "ipamd.sock"))
        assert node.pages("/healthz")[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_without_a_descriptor_it_is_alive(node: Node, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It was an exception of the port's thread, which closed every connection."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(health_pages.socket, "socket", refuse)
    assert node.pages("/healthz")[0].startswith(b"HTTP/1.1 200")


def test_a_flood_of_questions_is_few_connections(port: MetricsPort, tmp_path: Path) -> None:
    """Every pod reaches the metrics port: what it asks must not become as many connections to the socket of ADD and DEL (I16)."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "ipamd.sock"))
        listener.listen(64)
        began = time.monotonic()
        asked = [ask(port, "/healthz") for _ in range(20)]
        bound = 1 + int((time.monotonic() - began) / health_pages_module.LISTENING_AGE_S)
        listener.setblocking(False)
        count = 0
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                count += 1
    assert set(asked) == {(200, b"alive\n")}
    assert 1 <= count <= bound


def test_ready_is_what_the_daemon_says(port: MetricsPort, node: Node) -> None:
    """/readyz follows `ipamctl status`, query or not; HEAD has no body."""
    assert ask(port, "/readyz") == (503, b"not ready; see ipamctl status\n")
    node.is_ready = True
    assert ask(port, "/readyz") == (200, b"ready\n")
    assert ask(port, "/readyz?verbose")[0] == 200
    assert ask(port, "/readyz", "HEAD") == (200, b"")


@pytest.mark.parametrize("path", ["/", "/health", "/healthz/", "/metric", "/favicon.ico", "/%2e", "*", "//metrics"])
def test_what_is_not_there_is_404(port: MetricsPort, path: str) -> None:
    """Any path used to answer 200, so that a misspelt probe told nothing."""
    assert ask(port, path)[0] == 404


def test_metrics_are_on_their_port_only(port: MetricsPort, request: pytest.FixtureRequest) -> None:
    """The health port shows nothing about the node."""
    is_metrics = "metrics" in request.node.callspec.id
    assert ask(port, "/metrics")[0] == (200 if is_metrics else 404)
    assert ask(port, "/metrics?name[]=x")[0] == (200 if is_metrics else 404)


@pytest.fixture
def health() -> Health:
    """Of a daemon that starts."""
    return Health(SystemClock(), ())


def test_a_probe_that_comes_too_early_waits(node: Node, health: Health) -> None:
    """kubelet asks from the first instant on, and each failure is an event: the question waits for the daemon, and for *ready*."""
    early = listen_early("127.0.0.1:0")
    number = early[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", number), timeout=PATIENCE_S) as asking:
        asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: node\r\n\r\n")
        pages = after_start(node.pages, health=health)
        made = listen(f"127.0.0.1:{number}", variable="X", pages=pages, refused=print, early=early)
        assert made is not None
        assert early == []
        assert made.port == number
        health.enter(Phase.SERVING)
        node.is_ready = True
        health.mark_ready()
        assert asking.recv(100).startswith(b"HTTP/1.1 200")
    made.close()


@pytest.mark.parametrize(
    ("address", "count"), [("127.0.0.1:0", 1), ("[::1]:0", 1), ("off", 0), ("256.1.1.1:0", 0), ("127.0.0.1:70000", 0)]
)
def test_listening_early_is_no_condition(address: str, count: int) -> None:
    """What cannot be is told later, by the port itself; nothing is raised before the log is set up."""
    found = listen_early(address)
    assert len(found) == count
    for one in found:
        one.close()


def test_a_start_that_takes_long_is_told(node: Node, health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds the answer is what it is, and an end is not waited for."""
    pages = after_start(node.pages, health=health)
    health.enter(Phase.DRAINING)
    assert pages("/readyz", False)[0].startswith(b"HTTP/1.1 503")
    monkeypatch.setattr(health_pages_module, "START_S", 0.0)
    starting = Health(SystemClock(), ())
    assert after_start(node.pages, health=starting)("/readyz", False)[0].startswith(b"HTTP/1.1 503")


def test_a_daemon_that_drains_was_ready(health: Health) -> None:
    """The end of a pod is no failed probe; one that was never ready has none to lose."""
    never = Health(SystemClock(), ())
    health.enter(Phase.SERVING)
    health.mark_ready()
    assert not health.is_ending_ready
    for one in (health, never):
        one.enter(Phase.DRAINING)
    assert (health.is_ending_ready, never.is_ending_ready) == (True, False)


def test_the_port_can_be_turned_off_and_a_bad_address_is_named() -> None:
    """As that of the metrics."""
    pages = HealthPages(cni_socket=Path("/nowhere"), is_ready=lambda: True)
    assert listen("off", variable="VPC_IPAMD_HEALTH_ADDRESS", pages=pages, refused=print) is None
    with pytest.raises(SettingsError, check=failed(FailureCode.LISTEN_ADDRESS_WRONG, variable="VPC_IPAMD_HEALTH_ADDRESS")):
        listen("nowhere", variable="VPC_IPAMD_HEALTH_ADDRESS", pages=pages, refused=print)
