"""`ipamctl` beside a daemon of another release: what both know is answered, what one does not know is named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.ipamctl.client import PATIENT_S, READING_S, SERVICE, TIMEOUT_S, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from ipamd.pb import introspection_pb2 as pb


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    """A daemon that knows few RPCs: it answers one with a field that we do not know, the others with the seconds that they have."""

    def enis(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return pb.ListEnisReply(enis=[pb.Eni(eni_id="eni-1")]).SerializeToString() + b"\xfa\x7f\x01x"  # field 2047

    def explain(_request: bytes, context: grpc.ServicerContext) -> bytes:
        return pb.ExplainReply(sentences=[str(context.time_remaining())]).SerializeToString()

    def history(_request: bytes, context: grpc.ServicerContext) -> bytes:
        return pb.GetHistoryReply(notes=[str(context.time_remaining())]).SerializeToString()

    def status(_request: bytes, context: grpc.ServicerContext) -> bytes:
        return pb.GetStatusReply(verdict=str(context.time_remaining())).SerializeToString()

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"ListEnis": enis, "Explain": explain, "GetHistory": history, "GetStatus": status}
    known: Any = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, known),))
    path = str(tmp_path / "ipamd.sock")
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(0).wait()


def test_each_rpc_has_the_time_that_it_may_need(socket: str) -> None:
    """Status comes from memory, the history from files of up to 1 GiB, and `--find` from EC2. gRPC rounds the time up on the wire."""
    with Client(socket) as client:
        status_s = float(client.ask("GetStatus")["verdict"])
        history_s = float(client.ask("GetHistory", subject="10.0.0.9")["notes"][0])
        latest_s = float(client.ask("GetHistory")["notes"][0])
        explain_s = float(client.ask("Explain", subject="10.0.0.9")["sentences"][0])
        find_s = float(client.ask("Explain", subject="10.0.0.9", find=True)["sentences"][0])
    assert max(status_s, latest_s) < TIMEOUT_S + 1 < min(history_s, explain_s)
    assert max(history_s, explain_s) < READING_S + 1 < find_s < PATIENT_S + 1


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
    with Client(str(tmp_path / "none.sock")) as client, pytest.raises(AwayError):
        client.ask("GetStatus")
