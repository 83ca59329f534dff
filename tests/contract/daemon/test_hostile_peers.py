"""Peers on the plugin's socket that are slow, large or silent: bounded, refused with a status, and others are served meanwhile (I16).

Only root reaches the socket, so these are broken peers rather than attackers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from ipamd.ipamctl.client import AwayError, Client
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.rpc import server as rpc_server
from ipamd.rpc.server import MAX_HEADER_BYTES, MAX_REQUEST_BYTES, SPARE_CONNECTIONS, RpcServer
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.rig import wait_until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
RPC_COUNT = 16


class Served:
    """The daemon's server over fakes."""

    def __init__(self, directory: Path) -> None:
        self.node = FakeNode(directory)
        self.node.bring_up()
        self.path = str(directory / rpc_server.SOCKET_NAME)
        app = self.node.app
        self.server = RpcServer(run_dir=directory, cni=app.cni, introspection=app.introspection, max_concurrent_rpcs=RPC_COUNT)
        self.server.start()

    def close(self) -> None:
        """Stop at once."""
        self.server.stop(0.0)
        self.node.datastore.close()

    def connect(self) -> socket.socket:
        """A bare connection."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(self.path)
        return sock

    def answers(self) -> bool:
        """Whether `ipamctl` gets its status."""
        with Client(self.path) as client:
            return client.status()["ready"] is not None

    def has_room(self) -> bool:
        """Whether it is answered, or refused for want of room."""
        try:
            return self.answers()
        except AwayError:
            return False


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """With short times, so that tests need not wait."""
    monkeypatch.setattr(rpc_server, "HANDSHAKE_MS", 3000)
    monkeypatch.setattr(rpc_server, "CONNECTION_AGE_MS", 1000)
    monkeypatch.setattr(rpc_server, "CONNECTION_GRACE_MS", 1000)
    made = Served(tmp_path)
    yield made
    made.close()


def headers(*extra: tuple[bytes, bytes]) -> bytes:
    """The header block of a request, every field as a literal."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/vpc_ipamd.v1.Cni/Exec"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame. Source: RFC 9113, 4.1."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def is_closed(sock: socket.socket) -> bool:
    """Whether the daemon has closed it; what it sent before is thrown away."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            continue
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_request_over_the_bound_is_refused(served: Served) -> None:
    """RESOURCE_EXHAUSTED, and the next request is answered."""
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        stub = cni_pb2_grpc.CniStub(channel)  # type: ignore[no-untyped-call]  # generated code
        with pytest.raises(grpc.RpcError) as failed:
            stub.Exec(cni_pb2.ExecRequest(verb="ADD", config=b"x" * MAX_REQUEST_BYTES), timeout=PATIENCE_S)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]  # a call's error has it
    assert served.answers()


def test_headers_over_the_bound_are_refused(served: Served) -> None:
    """One long header."""
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        stub = cni_pb2_grpc.CniStub(channel)  # type: ignore[no-untyped-call]  # generated code
        with pytest.raises(grpc.RpcError):
            stub.Exec(cni_pb2.ExecRequest(verb="ADD"), metadata=[("x", "y" * 4 * MAX_HEADER_BYTES)], timeout=PATIENCE_S)
    assert served.answers()


def resident_kib() -> int:
    """This process's memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_headers_that_unpack_to_much_more_are_refused(served: Served) -> None:
    """A field of 4,000 bytes in HPACK's table, and 15,000 references of a byte each: 60 MB of headers from 19 KB, ten times over."""
    assert served.answers()
    before = resident_kib()
    name, value = b"x", b"y" * 4000
    length = bytes([0x7F, *_integer(len(value) - 127)])
    inserted = b"\x40" + bytes([len(name)]) + name + length + value
    with served.connect() as sock:
        sock.sendall(PREFACE)
        try:
            for number in range(10):
                sock.sendall(frame(1, 0x4, 2 * number + 1, headers() + inserted + b"\xbe" * 11_000))
            wait_until(lambda: is_closed(sock), what="cut off")
        except (BrokenPipeError, ConnectionResetError):
            pass  # cut off already
    assert served.answers()
    assert resident_kib() - before < 64 * 1024


def _integer(value: int) -> bytes:
    """The rest of an HPACK integer. Source: RFC 7541, 5.1."""
    found = b""
    while value >= 128:
        found += bytes([value % 128 + 128])
        value //= 128
    return found + bytes([value])


def test_silent_connections_are_closed(served: Served) -> None:
    """They have HANDSHAKE_MS to say that they speak HTTP/2; meanwhile others are served."""
    with ExitStack() as stack:
        silent = [stack.enter_context(served.connect()) for _ in range(20)]
        assert served.answers()
        wait_until(lambda: all(is_closed(sock) for sock in silent), what="all closed")


def test_requests_that_are_announced_and_never_sent_end_with_their_connection(served: Served) -> None:
    """Each holds a thread: after the connection's age and grace all are free again."""
    with ExitStack() as stack:
        slow = []
        for _ in range(RPC_COUNT // 2):
            sock = stack.enter_context(served.connect())
            sock.sendall(PREFACE + frame(1, 0x4, 1, headers()))
            slow.append(sock)
        assert served.answers()
        wait_until(lambda: all(is_closed(sock) for sock in slow), what="all closed")
    assert served.answers()


def test_connections_are_bounded(served: Served) -> None:
    """Those beyond are refused, and when the others are gone there is room again."""
    with ExitStack() as stack:
        held = [stack.enter_context(served.connect()) for _ in range(RPC_COUNT + SPARE_CONNECTIONS + 20)]
        for sock in held:
            try:
                sock.sendall(PREFACE)
            except OSError:
                continue  # refused
        wait_until(lambda: sum(is_closed(sock) for sock in held) >= 20, what="those beyond are closed")
    wait_until(served.has_room, what="room again")
