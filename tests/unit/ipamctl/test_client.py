"""`ipamctl` beside a daemon of another release: what both know is answered, what one does not know is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.ipamctl import client as client_module
from ipamd.ipamctl.client import SERVICE, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from ipamd.pb import introspection_pb2 as pb


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    """A daemon that knows two RPCs only: it answers one with a field that we do not know, the other after half a second."""

    def enis(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return pb.ListEnisReply(enis=[pb.Eni(eni_id="eni-1")]).SerializeToString() + b"\xfa\x7f\x01x"  # field 2047

    server = grpc.server(ThreadPoolExecutor(1))

    def explain(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        time.sleep(0.5)
        return pb.ExplainReply(sentences=["found"]).SerializeToString()

    handlers = {"ListEnis": enis, "Explain": explain}
    known: Any = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, known),))
    path = str(tmp_path / "ipamd.sock")
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(0).wait()


def test_what_asks_ec2_is_waited_for(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 may throttle for long, and the daemon is not away then; without `--find` it is not asked."""
    monkeypatch.setattr(client_module, "TIMEOUT_S", 0.2)
    with Client(socket) as client:
        assert client.ask("Explain", subject="10.0.0.9", find=True)["sentences"] == ["found"]
        with pytest.raises(AwayError, match="DEADLINE_EXCEEDED"):
            client.ask("Explain", subject="10.0.0.9", find=False)


def test_a_reply_with_more_fields_is_read(socket: str) -> None:
    """A later release may add fields."""
    with Client(socket) as client:
        assert [eni["eni_id"] for eni in client.ask("ListEnis")["enis"]] == ["eni-1"]


def test_an_rpc_that_the_daemon_does_not_know_is_named(socket: str) -> None:
    """With what to do; not gRPC's own words."""
    with Client(socket) as client, pytest.raises(RefusedError, match="does not know Capacity: use its own ipamctl"):
        client.ask("Capacity")


def test_nobody_there(tmp_path: Path) -> None:
    """Away, with the path."""
    with Client(str(tmp_path / "none.sock")) as client, pytest.raises(AwayError, match=r"none\.sock"):
        client.ask("GetStatus")
