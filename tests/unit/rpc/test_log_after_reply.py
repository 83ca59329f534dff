"""A request's log line costs its caller nothing, and is never lost."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.rpc.server import SOCKET_NAME, RpcServer
from tests.fakes.node import FakeNode
from tests.stories.in_process import CONF

PATIENCE_S = 20.0
COUNT = 20


class HeldLog(logging.Handler):
    """Takes a line only once the reply is there, as a slow reader of standard error would."""

    def __init__(self) -> None:
        super().__init__()
        self.replied = threading.Event()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Wait for the reply, then take the line."""
        is_early = not self.replied.wait(PATIENCE_S)
        self.lines.append({**record.args, "is_early": is_early})


@pytest.fixture
def held_log() -> Iterator[HeldLog]:
    """The log of requests, held back."""
    handler, log = HeldLog(), logging.getLogger("ipamd.rpc")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    handler.replied.set()
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


def _serve(node: FakeNode) -> RpcServer:
    node.run_dir.chmod(0o700)
    server = RpcServer(
        run_dir=node.run_dir,
        cni=node.app.cni,
        introspection=object(),  # nobody asks
        max_concurrent_rpcs=4,
    )
    server.start()
    return server


def _ask(stub: cni_pb2_grpc.CniStub, verb: str, name: str) -> cni_pb2.ExecReply:
    request = cni_pb2.ExecRequest(
        verb=verb, container_id=name, ifname="eth0", config=json.dumps(CONF).encode(), protocol_min=1, protocol_max=1
    )
    reply: cni_pb2.ExecReply = stub.Exec(request, timeout=PATIENCE_S / 2)
    return reply


def test_the_line_comes_after_the_reply_and_is_not_lost(tmp_path: Path, held_log: HeldLog) -> None:
    """A reply does not wait for its line; a server that stops has written every line, in the order of the replies."""
    node = FakeNode(tmp_path)
    node.bring_up()
    server = _serve(node)
    try:
        with grpc.insecure_channel(f"unix:{tmp_path / SOCKET_NAME}") as channel:
            stub = cni_pb2_grpc.CniStub(channel)  # type: ignore[no-untyped-call]  # generated code
            _ask(stub, "DEL", "first")
            held_log.replied.set()
            for number in range(COUNT):
                _ask(stub, "DEL", f"name-{number:02d}")
    finally:
        server.stop(PATIENCE_S)
        node.datastore.close()
    assert [line["container_id"] for line in held_log.lines] == ["first", *(f"name-{number:02d}" for number in range(COUNT))]
    assert not any(line["is_early"] for line in held_log.lines)


class EndedCall:
    """The context of a call that its caller has cancelled."""

    def time_remaining(self) -> float:
        """Time was left."""
        return PATIENCE_S

    def is_active(self) -> bool:
        """The caller has gone."""
        return False

    def add_callback(self, _callback: object) -> bool:
        """Too late to be told of the end."""
        return False


def test_a_caller_who_left_is_logged_too(tmp_path: Path, held_log: HeldLog) -> None:
    """A cancelled call has ended before its handler: its line is written all the same."""
    held_log.replied.set()
    node = FakeNode(tmp_path)
    node.bring_up()
    request = cni_pb2.ExecRequest(verb="DEL", container_id="left", ifname="eth0", protocol_min=1, protocol_max=1)
    node.app.cni.Exec(request, EndedCall())  # type: ignore[arg-type]  # what is used of it
    node.datastore.close()
    assert [line["container_id"] for line in held_log.lines] == ["left"]
