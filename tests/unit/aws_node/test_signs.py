"""What was seen of the other's daemon: who listens, when it was there last, whose process it is."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from ipamd.migration import aws_node as module
from ipamd.migration import listener as listener_module
from ipamd.model.aws_node import DaemonSign
from ipamd.model.errors import TakeoverError
from tests.fakes.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.unit.aws_node.conftest import ONE, made, write_theirs


@contextmanager
def listening(family: socket.AddressFamily, address: str | tuple[str, int]) -> Iterator[None]:
    """This process accepts connections."""
    with socket.socket(family) as sock:
        sock.bind(address)
        sock.listen()
        yield


LISTENER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def anothers(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process does, until it is killed."""
    with subprocess.Popen([sys.executable, "-c", LISTENER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield process
        finally:
            process.kill()


def test_its_socket_is_seen(place: Path) -> None:
    """The socket of new releases; a dead socket is nobody, and whose it is says the process that listens, not the path."""
    node, path = made(place), str(place / "aws-node/ipamd.sock")
    assert node.listener() == ""
    with anothers(path):
        assert node.listener() == path
        assert made(place, daemon_socket="off").listener() == ""
    assert node.listener() == ""
    Path(path).unlink()
    with listening(socket.AF_UNIX, path):
        assert node.listener() == "", "it is ours"
    Path(path).unlink()
    with anothers(path):
        assert node.listener() == path, "another one at the same place is not ours"


def test_its_last_sign_outlives_its_daemon_and_ours(place: Path) -> None:
    """A daemon that restarts is away for a moment; ours that restarts meanwhile still knows that it was there (I20)."""
    clock, path = FakeClock(), str(place / "aws-node/ipamd.sock")
    node = made(place, clock=clock)
    assert node.last_sign() is None
    with anothers(path):
        assert node.last_sign() == DaemonSign(f"it serves {path}")
    clock.advance(20)
    assert node.last_sign() == DaemonSign(f"it serves {path}", 20.0)
    clock.advance(20)
    assert made(place, clock=clock).last_sign() == DaemonSign(f"it serves {path}", 40.0)
    assert made(place, clock=clock, boot_id="another").last_sign() is None, "of a boot before"
    assert made(place, clock=clock).last_sign(pod="kube-system/aws-node-abcde") == DaemonSign(
        "its pod kube-system/aws-node-abcde runs"
    )
    clock.advance(5)
    node.finish()
    assert node.last_sign() == DaemonSign("its pod kube-system/aws-node-abcde runs", 5.0), "what was read is not what was seen"


def test_off_looks_for_no_pod_either(place: Path) -> None:
    """Who runs vpc-ipamd under the name aws-node says off; a sign would hold ADD for a minute after each roll."""
    assert made(place, daemon_socket="off").last_sign(pod="kube-system/aws-node-abcde") is None


def test_its_last_sign_is_remembered_where_the_note_cannot_be_written(place: Path) -> None:
    """A full disk: who asks gets an error, and holds ADD; not the answer that nothing was ever there (I11, I20)."""
    clock, path, note = FakeClock(), str(place / "aws-node/ipamd.sock"), place / "run/aws-node.json"
    node = made(place, clock=clock)
    note.mkdir()
    with anothers(path), pytest.raises(TakeoverError):
        node.last_sign()
    clock.advance(20)
    with pytest.raises(TakeoverError):
        node.last_sign()
    note.rmdir()
    assert node.last_sign() == DaemonSign(f"it serves {path}", 20.0)
    assert made(place, clock=clock).last_sign() == DaemonSign(f"it serves {path}", 20.0)


def test_an_export_that_begins_during_a_look_is_not_forgotten(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both change the note: its daemon comes at the same moment, and a release back reads the note alone."""
    node = made(place)
    exporting = threading.Thread(target=node.begin_export)

    def listener() -> str:
        exporting.start()
        exporting.join(0.5)
        return "/run/its.sock"

    monkeypatch.setattr(node, "listener", listener)
    assert node.last_sign() == DaemonSign("it serves /run/its.sock")
    exporting.join(PATIENCE_S)
    note = json.loads((place / "run/aws-node.json").read_text())
    assert note["exporting"] is True
    assert "seen" in note


def test_its_file_is_a_sign_of_when_it_was_written(place: Path) -> None:
    """Once: what we read or wrote is none, nor what is older than this boot; a clock that was set back makes it one of now."""
    clock = FakeClock()
    now_ns = int(clock.now().timestamp()) * 10**9
    node = made(place, clock=clock)
    write_theirs(place, ONE, mtime_ns=now_ns - 2000 * 10**9)  # the fake clock's boot is 1000 s old
    assert node.last_sign() is None
    write_theirs(place, ONE, mtime_ns=now_ns - 12 * 10**9)
    wrote = f"it wrote {place / 'aws-node/ipam.json'}"
    assert node.last_sign() == DaemonSign(wrote, 12.0)
    clock.advance(3)
    assert made(place, clock=clock).last_sign() == DaemonSign(wrote, 15.0)
    write_theirs(place, ONE, mtime_ns=now_ns + 9000 * 10**9)
    assert node.last_sign() == DaemonSign(wrote)
    clock.advance(70)
    assert node.last_sign() == DaemonSign(wrote, 70.0), "it was looked at before"
    node.write([ONE], routed=())
    assert node.last_sign() == DaemonSign(wrote, 70.0), "we wrote it"


class Health(grpc.GenericRpcHandler):
    """A gRPC server's health service that knows one name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        def check(request: bytes, context: grpc.ServicerContext) -> bytes:
            if request[2:] != self._name:
                context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return b"\x08\x01"

        is_asked = handler_call_details.method == listener_module.HEALTH_METHOD  # type: ignore[attr-defined]
        return grpc.unary_unary_rpc_method_handler(check) if is_asked else None


@pytest.mark.parametrize(("name", "is_it"), [(listener_module.HEALTH_SERVICE, True), (b"another", False)])
def test_the_port_of_old_releases_counts_only_if_it_is_its(
    place: Path, name: bytes, is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 50051 is everybody's: without traces of the other it is not asked, and it must have its daemon's name."""
    monkeypatch.setattr(
        listener_module, "is_aws_node", partial(listener_module.is_aws_node, timeout_s=PATIENCE_S)
    )  # silence counts as it
    node = made(place)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Health(name)])
    assert server.add_insecure_port(f"127.0.0.1:{module.TCP_ADDRESS[1]}")
    server.start()
    try:
        assert node.listener() == ""
        write_theirs(place, ONE)
        assert node.listener() == (f"127.0.0.1:{module.TCP_ADDRESS[1]}" if is_it else "")
        node.finish()
        assert node.listener() == "", "the node is ours: nothing here waits for a port that is everybody's"
        (place / "net.d/10-aws.conflist").touch()
        assert bool(node.listener()) is is_it
    finally:
        server.stop(None).wait()
    assert node.listener() == ""


def test_a_port_that_says_nothing_may_be_its(place: Path) -> None:
    """Silence is no proof that it is away (I11)."""
    with listening(socket.AF_INET, module.TCP_ADDRESS):
        assert listener_module.is_aws_node(module.TCP_ADDRESS, timeout_s=0.2)


@pytest.mark.parametrize("at_s", ["1" + "0" * 400, "null", '"12"', "[]", "true"])
def test_a_note_with_an_impossible_time_is_none(place: Path, at_s: str) -> None:
    """A number that is no time of a clock is passed over, as all else that is not ours."""
    node = made(place)
    note = place / "run/aws-node.json"
    note.parent.mkdir(exist_ok=True)
    note.write_text(f'{{"seen": ["{node._boot_id}", {at_s}, "it wrote", []]}}')
    assert node.last_sign() is None
    note.write_text(f'{{"seen": ["{node._boot_id}", 12.5, "it wrote", []]}}')
    assert node.last_sign() is not None
