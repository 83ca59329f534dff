"""Peers on the daemon's sockets that are slow, large or silent: bounded, refused with a status, and others are served meanwhile (I16).

Both sockets have the same bounds: ours, and the one for the plugin of amazon-vpc-cni-k8s. Only root reaches them, so these are broken
peers rather than attackers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.migration import backend as cni_backend
from ipamd.migration.backend import MAX_RPCS, CniBackendServer, CniBackendServicer
from ipamd.rpc import unix_server as unix_server_module
from ipamd.rpc.server import MAX_REQUEST_BYTES, SOCKET_NAME, RpcServer
from ipamd.rpc.unix_server import MAX_HEADER_BYTES, SPARE_CONNECTIONS, STREAMS_PER_CONNECTION
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.rig import wait_until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
RPC_COUNT = 16
SETTINGS_MAX_CONCURRENT_STREAMS = 3  # RFC 9113, 6.5.2


class Served:
    """One socket of the daemon, over fakes."""

    method = "/vpc_ipamd.v1.Cni/Exec"
    request_bytes_max = MAX_REQUEST_BYTES

    def __init__(self, directory: Path) -> None:
        self.node = FakeNode(directory)
        self.node.bring_up()
        self.server, self.path, self.connections_max = self.serve(directory)

    def serve(self, directory: Path) -> tuple[Any, str, int]:
        """Start it; returns the server, its socket's path, and how many connections it takes."""
        app = self.node.app
        server = RpcServer(run_dir=directory, cni=app.cni, introspection=lambda: app.introspection, max_concurrent_rpcs=RPC_COUNT)
        server.start()
        return server, str(directory / SOCKET_NAME), RPC_COUNT + SPARE_CONNECTIONS

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

    def call(self, request: bytes = b"", *, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
        """Make one call with these bytes; returns how it ended."""
        # Of its own: a connection that another call could not make is tried again only after a pause.
        with grpc.insecure_channel(f"unix:{self.path}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                channel.unary_unary(self.method)(request, timeout=PATIENCE_S, metadata=metadata)  # type: ignore[call-arg]  # as bytes
            except grpc.RpcError as error:
                status = error.code()  # type: ignore[attr-defined]  # a call's error has it
                assert isinstance(status, grpc.StatusCode)
                return status
        return grpc.StatusCode.OK

    def answers(self) -> bool:
        """Whether a request gets an answer: an empty one is refused, by words of ours. The short life of a connection may end one
        on a busy machine before it is answered, which is asked again.
        """
        return any(self.call() in (grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION) for _ in range(5))


class ServedBackend(Served):
    """The socket for the plugin of amazon-vpc-cni-k8s."""

    method = "/rpc.CNIBackend/AddNetwork"
    request_bytes_max = cni_backend.MAX_REQUEST_BYTES

    def serve(self, directory: Path) -> tuple[Any, str, int]:
        """See the base class."""
        servicer = CniBackendServicer(
            self.node.app.sandbox,
            datastore=self.node.datastore,
            clock=self.node.clock,
            uses_external_snat=bool,
            refused=lambda _: None,
        )
        server = CniBackendServer(servicer, path=directory / "theirs.sock")
        server.start()
        return server, str(server.path), MAX_RPCS + SPARE_CONNECTIONS


@pytest.fixture(params=[Served, ServedBackend], ids=["ours", "cni-backend"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """With short times, so that tests need not wait."""
    monkeypatch.setattr(unix_server_module, "HANDSHAKE_MS", 3000)
    monkeypatch.setattr(unix_server_module, "CONNECTION_AGE_MS", 1000)
    monkeypatch.setattr(unix_server_module, "CONNECTION_GRACE_MS", 1000)
    made: Served = request.param(tmp_path)
    yield made
    made.close()


def fields(served: Served) -> list[bytes]:
    """The header fields of a request, each as a literal. Source: RFC 7541, 6.2.2."""
    named = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", served.method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    return [b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in named]


def headers(served: Served) -> bytes:
    """The header block of a request."""
    return b"".join(fields(served))


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


def send_all(sock: socket.socket, data: bytes) -> None:
    """Send while what comes is thrown away, until all is sent or the daemon has closed."""
    left = [data[at : at + 65536] for at in range(0, len(data), 65536)]

    def is_done() -> bool:
        while left and not is_closed(sock):
            try:
                left[0] = left[0][sock.send(left[0]) :]
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not left[0]:
                left.pop(0)
        return True

    wait_until(is_done, what="all is sent")


def test_a_request_over_the_bound_is_refused(served: Served) -> None:
    """RESOURCE_EXHAUSTED, and the next request is answered."""
    assert served.call(bytes(served.request_bytes_max + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.answers()


def test_bytes_that_are_no_message_are_refused(served: Served) -> None:
    """By us: grpcio's own refusal keeps the call and a thread (ipamd/rpc/server.py)."""
    assert served.call(b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert served.answers()


def test_headers_over_the_bound_are_refused(served: Served) -> None:
    """One long header."""
    assert served.call(metadata=(("x", "y" * 4 * MAX_HEADER_BYTES),)) not in (
        grpc.StatusCode.OK,
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    assert served.answers()


def test_a_connection_has_few_streams(served: Served) -> None:
    """Header blocks that expand are bounded by the number of streams that may be open: without a bound, 1.6 GiB were seen."""
    with served.connect() as sock:
        sock.sendall(PREFACE)
        received = b""
        while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
            part = sock.recv(4096)
            assert part, "the server closed the connection"
            received += part
    assert received[3] == 4, "SETTINGS come first"
    payload = received[9 : 9 + int.from_bytes(received[:3], "big")]
    announced = {
        int.from_bytes(payload[at : at + 2], "big"): int.from_bytes(payload[at + 2 : at + 6], "big")
        for at in range(0, len(payload), 6)
    }
    assert announced[SETTINGS_MAX_CONCURRENT_STREAMS] == STREAMS_PER_CONNECTION <= 16


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
                sock.sendall(frame(1, 0x4, 2 * number + 1, headers(served) + inserted + b"\xbe" * 11_000))
            wait_until(lambda: is_closed(sock), what="cut off")
        except (BrokenPipeError, ConnectionResetError):
            pass  # cut off already
    assert served.answers()
    assert resident_kib() - before < 64 * 1024


def test_headers_on_many_streams_cost_no_more(served: Served) -> None:
    """A field of 3,500 bytes, and three references to it on each of 60,000 streams: 600 MB of headers from 1 MB, which stayed."""
    assert served.answers()
    before = resident_kib()
    remembered = b"".join(b"\x40" + field[1:] for field in fields(served))
    inserted = b"\x40\x01x\x7f" + _integer(3500 - 127) + b"y" * 3500
    referring = bytes(range(0xC4, 0xBE, -1)) + b"\xbe" * 3
    streams = b"".join(frame(1, 0x4, 3 + 2 * number, referring) for number in range(60_000))
    with served.connect() as sock:
        send_all(sock, PREFACE + frame(1, 0x4, 1, remembered + inserted) + streams)
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


def test_connections_without_a_request_are_closed(served: Served) -> None:
    """They speak HTTP/2 and ask nothing: after the connection's age and grace they are gone."""
    with ExitStack() as stack:
        idle = [stack.enter_context(served.connect()) for _ in range(20)]
        for sock in idle:
            sock.sendall(PREFACE)
        assert served.answers()
        wait_until(lambda: all(is_closed(sock) for sock in idle), what="all closed")


def test_requests_that_are_announced_and_never_sent_end_with_their_connection(served: Served) -> None:
    """Each holds a thread: after the connection's age and grace all are free again."""
    with ExitStack() as stack:
        slow = []
        for _ in range(RPC_COUNT // 2):
            sock = stack.enter_context(served.connect())
            sock.sendall(PREFACE + frame(1, 0x4, 1, headers(served)))
            slow.append(sock)
        assert served.answers()
        wait_until(lambda: all(is_closed(sock) for sock in slow), what="all closed")
    assert served.answers()


def test_connections_are_bounded(served: Served) -> None:
    """Those beyond are refused, and when the others are gone there is room again."""
    with ExitStack() as stack:
        held = [stack.enter_context(served.connect()) for _ in range(served.connections_max + 20)]
        for sock in held:
            try:
                sock.sendall(PREFACE)
            except OSError:
                continue  # refused
        wait_until(lambda: sum(is_closed(sock) for sock in held) >= 20, what="those beyond are closed")
    wait_until(served.answers, what="room again")
