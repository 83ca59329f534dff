"""A request whose bytes are no message: refused once, and nothing of it is kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ipamd.pb import cni_pb2
from ipamd.rpc.server import SOCKET_NAME
from ipamd.rpc.unix_server import STREAMS_PER_CONNECTION
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.stories.in_process import listening

EXEC = "/vpc_ipamd.v1.Cni/Exec"
DAMAGED = b"\xff\xff\xff"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that serves."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


@pytest.fixture
def exec_(node: FakeNode) -> Iterator[grpc.UnaryUnaryMultiCallable[bytes, bytes]]:
    """The method that the plugin calls, on one connection, by bytes."""
    with listening(node), grpc.insecure_channel(f"unix:{node.run_dir / SOCKET_NAME}") as channel:
        yield channel.unary_unary(EXEC)  # type: ignore[call-arg]  # the stubs demand serializers, and bytes need none


def refused(exec_: grpc.UnaryUnaryMultiCallable[bytes, bytes]) -> grpc.StatusCode:
    """Send bytes that are no message; returns how that ended."""
    with pytest.raises(grpc.RpcError) as caught:
        exec_(DAMAGED, timeout=PATIENCE_S)
    status = caught.value.code()  # type: ignore[attr-defined]  # the stubs do not know that it is a call too
    assert isinstance(status, grpc.StatusCode)
    return status


def kept_calls() -> int:
    """The calls that grpcio's server still knows in this process."""
    gc.collect()
    return sum(type(one).__name__ == "_RPCState" for one in gc.get_objects())


def test_it_is_refused_and_the_connection_serves_on(exec_: grpc.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
    """More such requests than a connection may have streams: each is INVALID_ARGUMENT, and a good one is answered after them."""
    for _ in range(3 * STREAMS_PER_CONNECTION):
        assert refused(exec_) is grpc.StatusCode.INVALID_ARGUMENT
    good = cni_pb2.ExecRequest(verb="VERSION", protocol_min=1, protocol_max=1).SerializeToString()
    assert cni_pb2.ExecReply.FromString(exec_(good, timeout=PATIENCE_S)) is not None


def test_nothing_of_it_is_kept(exec_: grpc.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
    """grpcio's own refusal kept each call for ever, 27 KiB with its buffers: a hundred leave no more than a few that still end."""
    refused(exec_)
    before = kept_calls()
    for _ in range(100):
        refused(exec_)
    assert kept_calls() - before < 20


def test_a_method_that_nobody_serves_is_not_remembered(node: FakeNode) -> None:
    """Names that peers invent are refused as ever."""
    with listening(node), grpc.insecure_channel(f"unix:{node.run_dir / SOCKET_NAME}") as channel:
        for number in range(3):
            call = channel.unary_unary(f"/vpc_ipamd.v1.Cni/Exec{number}")  # type: ignore[call-arg]  # as above
            with pytest.raises(grpc.RpcError) as caught:
                call(DAMAGED, timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
