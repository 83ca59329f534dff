"""Ending the connections of calls that grpcio has left open past their deadline, over real Unix sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.overdue_calls import GRACE_S, CallsInFlight, shut_connections


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A server's socket that accepts nothing by itself."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server.sock"))
        server.listen(8)
        yield server


def connected_to(path: str) -> socket.socket:
    """A connection of this process to the server at a path."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client


def is_open(client: socket.socket) -> bool:
    """Whether a connection still carries data."""
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


def test_only_connections_to_the_overdue_socket_end(listener: socket.socket, tmp_path: Path) -> None:
    """Another program's connection goes on, and so does the server's own end of ours."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen(8)
        with connected_to(listener.getsockname()) as overdue, connected_to(other.getsockname()) as untouched:
            calls = CallsInFlight()
            with calls.registered(listener.getsockname(), -2 * GRACE_S), calls.registered(other.getsockname(), GRACE_S):
                assert calls.end_overdue() == (listener.getsockname(),)
            assert not is_open(overdue)
            assert is_open(untouched)


def test_a_call_that_has_ended_is_never_overdue(listener: socket.socket) -> None:
    """Its connection serves the next call."""
    calls = CallsInFlight()
    with connected_to(listener.getsockname()) as client:
        with calls.registered(listener.getsockname(), -2 * GRACE_S):
            assert is_open(client)
        assert calls.end_overdue() == ()
        assert is_open(client)


def test_a_socket_is_found_by_the_name_that_its_server_gave(listener: socket.socket, tmp_path: Path) -> None:
    """The daemon may have connected over a link, or over a mount at another path."""
    link = tmp_path / "link.sock"
    link.symlink_to(listener.getsockname())
    with connected_to(str(link)) as client:
        shut_connections(str(link))
        assert not is_open(client)


def test_a_server_that_is_gone_leaves_nothing_to_do(tmp_path: Path) -> None:
    """Its connections have ended by themselves."""
    calls = CallsInFlight()
    with calls.registered(str(tmp_path / "gone.sock"), -2 * GRACE_S):
        assert calls.end_overdue() == (str(tmp_path / "gone.sock"),)
