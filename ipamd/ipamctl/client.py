"""Ask the daemon over its socket; answers are plain dictionaries with every field present, in the words of the proto.

A new RPC needs no line here: `ask` finds it, and its request, by its name in the proto.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ipamd.grpc_client import open_channel
from ipamd.ipamctl.verb import AwayError, RefusedError
from ipamd.pb import introspection_pb2 as pb

TIMEOUT_S = 5.0
PATIENT_S = 60.0
"""For what needs longer: an audit and `explain --find` ask EC2, which may make them wait; an export waits for ADDs."""

DEFAULT_RUN_DIR = "/run/vpc-ipamd"
SERVICE = pb.DESCRIPTOR.services_by_name["Introspection"]


class Client:
    """One connection; a context manager."""

    def __init__(self, socket: str = "") -> None:
        self._path = socket or str(Path(os.environ.get("VPC_IPAMD_RUN_DIR") or DEFAULT_RUN_DIR) / "ipamd.sock")
        self._channel = open_channel(self._path)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, rpc: str, **fields: object) -> dict[str, Any]:
        """Ask one RPC of `vpc_ipamd.v1.Introspection`.

        Args:
            rpc: its name in the proto; its request is named `<rpc>Request`.
            fields: those of the request; absent ones have the proto's default.
        Raises: AwayError, RefusedError.
        """
        try:
            request = request_of(rpc, **fields)
        except ValueError as error:  # text that is no UTF-8, or a number that no field holds
            raise RefusedError(f"vpc-ipamd cannot be asked this: {error}") from error
        method = SERVICE.methods_by_name[rpc]
        call: Any = self._channel.unary_unary(
            f"/{SERVICE.full_name}/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            return plain(call(request, timeout=PATIENT_S if rpc in ("Audit", "Export") or fields.get("find") else TIMEOUT_S))
        except grpc.RpcError as error:
            status: Any = error  # at run time every RpcError of a call carries code and details
            if status.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise AwayError(
                    f"vpc-ipamd does not answer at {self._path} ({status.code().name}); is the daemon running on this node?"
                ) from error
            if status.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise RefusedError(f"the daemon is of another release and does not know {rpc}: use its own ipamctl") from error
            raise RefusedError(f"vpc-ipamd refused: {status.details()}") from error


def request_of(rpc: str, **fields: object) -> Message:
    """Make the request of an RPC. Raises: AttributeError, ValueError, TypeError if the proto has no such RPC or field."""
    request: Message = getattr(pb, f"{rpc}Request")(**fields)
    return request


def plain(reply: Message) -> dict[str, Any]:
    """Make a dictionary of a reply: scalar and repeated fields are always there, a message that is not set is absent."""
    return MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
