"""A port that somebody else has is a condition, and is served once it is free; the daemon goes on without it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.http import late_ports
from ipamd.http.late_ports import LatePorts
from ipamd.http.port import MetricsPort
from ipamd.metrics import page as metrics
from ipamd.metrics.page import Metrics
from ipamd.model.errors import SettingsError
from tests.rig import wait_until

SUBJECT = "metrics port"


@pytest.fixture
def health() -> Health:
    """What `ipamctl status` shows."""
    return Health(SystemClock(), ())


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Somebody else's listener."""
    monkeypatch.setattr(late_ports, "RETRY_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def serve(holder: socket.socket) -> Callable[[], MetricsPort | None]:
    """What listens on the port that the other has."""
    address = f"127.0.0.1:{holder.getsockname()[1]}"
    return lambda: metrics.serve(Metrics(), address)


def late(listen: Callable[[], MetricsPort | None], health: Health) -> LatePorts:
    """The daemon's ports, begun."""
    ports = LatePorts({SUBJECT: listen}, health=health, clock=SystemClock())
    ports.start(SUBJECT)
    ports.loop.start()
    return ports


def is_served(port_number: int) -> bool:
    """Whether a scrape is answered."""
    try:
        with socket.create_connection(("127.0.0.1", port_number), timeout=5) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            return sock.recv(20).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def test_a_taken_port_is_served_once_it_is_free(health: Health, holder: socket.socket) -> None:
    """The other's daemon ends a while after ours began."""
    number = holder.getsockname()[1]
    port = late(serve(holder), health)
    said = health.conditions_by_subject()[SUBJECT]
    assert f"cannot serve on 127.0.0.1:{number}" in said
    assert "VPC_IPAMD_METRICS_ADDRESS" in said
    holder.close()
    wait_until(lambda: SUBJECT not in health.conditions_by_subject(), what="it listens")
    assert is_served(number)
    port.close()
    assert not is_served(number)


def test_a_wait_ends_with_the_daemon(health: Health, holder: socket.socket) -> None:
    """What is closed does not listen afterwards, and a second close is fine."""
    asked: list[int] = []
    listen = serve(holder)

    def count() -> MetricsPort | None:
        asked.append(1)
        return listen()

    port = late(count, health)
    wait_until(lambda: len(asked) > 1, what="it is tried again")
    port.close()
    holder.close()
    before = len(asked)
    port.close()
    assert len(asked) == before


def test_wrong_settings_are_refused_at_the_start(health: Health) -> None:
    """A repetition mends nothing; one that is off is nothing."""

    def refuse() -> MetricsPort | None:
        raise SettingsError("malformed")

    with pytest.raises(SettingsError):
        late(refuse, health)
    late(lambda: None, Health(SystemClock(), ())).close()
    assert health.conditions() == []


def test_a_port_without_a_thread_is_served_later(health: Health, holder: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread cannot be made when the port is free at last: a condition, no socket is left, and the next try serves."""
    number = holder.getsockname()[1]
    port = late(serve(holder), health)
    start, refused = threading.Thread.start, threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "metrics" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    holder.close()
    wait_until(lambda: SUBJECT not in health.conditions_by_subject(), what="it listens")
    assert refused.is_set()
    assert is_served(number)
    port.close()
