"""Call the daemon over its socket. Answers are plain dictionaries with the field names of the proto (`plain`).

A new RPC needs no change here: `ask` finds the RPC and its request by name in the proto.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ipamd.grpc_client import open_channel
from ipamd.ipamctl.absence import Listener, MissingDaemon, gone, hung, listener
from ipamd.ipamctl.verb import AwayError, RefusedError
from ipamd.model.words import printable
from ipamd.pb import introspection_pb2 as pb

TIMEOUT_S = 5.0
"""Timeout of RPCs that the daemon answers from memory or the kernel."""

MOMENT_S = 1.5
"""After this time without an answer, a line about the daemon's process is printed. Ours: a healthy daemon answers within
milliseconds."""

READING_S = 30.0
"""Timeout of RPCs for which the daemon reads the history files. Ours: 1 GiB, the most that it reads for one question, takes 5 s on an
idle node with the files in the page cache. After this time `ipamctl` takes the daemon for hung, and reads the files itself."""

PATIENT_S = 60.0
"""Timeout of RPCs that take longer: an audit, `explain --find` and `plan --network` wait for EC2, and an export waits for running
ADDs."""

DEFAULT_RUN_DIR = "/run/vpc-ipamd"
SERVICE = pb.DESCRIPTOR.services_by_name["Introspection"]


class Client:
    """One connection to the daemon; a context manager."""

    def __init__(self, socket: str = "") -> None:
        self._path = socket or str(Path(os.environ.get("VPC_IPAMD_RUN_DIR") or DEFAULT_RUN_DIR) / "ipamd.sock")
        self._channel = open_channel(self._path)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, rpc: str, **fields: object) -> dict[str, Any]:
        """Call one RPC of `vpc_ipamd.v1.Introspection`.

        Args:
            rpc: name of the RPC in the proto. Its request is named `<rpc>Request`.
            fields: values of the request's fields. The other fields have the proto's default.
        Raises: AwayError, RefusedError.
        """
        try:
            request = request_of(rpc, **fields)
        except ValueError as error:  # text that is not UTF-8, or a number that no field holds
            raise RefusedError(f"this cannot be sent to vpc-ipamd: {error}") from error
        method = SERVICE.methods_by_name[rpc]
        call: Any = self._channel.unary_unary(
            f"/{SERVICE.full_name}/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        timeout_s = _timeout_s(rpc, fields)
        process = listener(self._path)
        if isinstance(process, MissingDaemon):
            raise self._away(process)
        try:
            return plain(self._wait(call.future(request, timeout=timeout_s), process))
        except grpc.RpcError as error:
            status: Any = error  # at run time every RpcError of a call carries code and details
            if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._away(hung(process)) from error
            if status.code() is grpc.StatusCode.UNAVAILABLE:
                raise self._away(gone(Path(self._path).parent)) from error
            if status.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise RefusedError(f"the daemon is of another release and does not know {rpc}: use its own ipamctl") from error
            raise RefusedError(f"vpc-ipamd refused: {printable(status.details() or status.code().name)}") from error

    def _wait(self, answer: Any, process: Listener) -> Message:
        """Wait for an answer. After MOMENT_S, give up if the process is stopped; otherwise print that it is slow, and wait on."""
        try:
            reply: Message = answer.result(timeout=MOMENT_S)
        except grpc.FutureTimeoutError:
            if process.is_stopped:
                answer.cancel()
                raise self._away(hung(process)) from None
            print(f"ipamctl: no answer for {MOMENT_S} s, still waiting: {hung(process)}", file=sys.stderr)
            reply = answer.result()
        return reply

    def _away(self, absence: MissingDaemon) -> AwayError:
        return AwayError(f"vpc-ipamd does not answer at {self._path}: {absence}", kind=absence.kind)


def request_of(rpc: str, **fields: object) -> Message:
    """Make the request of an RPC.

    Raises: AttributeError if the proto has no such RPC; ValueError if its request has no such field, or the field cannot hold the
        value; TypeError if the value is of another type than the field.
    """
    request: Message = getattr(pb, f"{rpc}Request")(**fields)
    return request


def plain(reply: Message) -> dict[str, Any]:
    """Make a dictionary of a reply. Scalar and repeated fields are always present; a nested message that is not set is absent.

    Numbers of 64 bits stay numbers, although protobuf's JSON writes them as text: no count here is near 2^53, up to which JSON numbers
    are exact.
    """
    document = MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    _read_numbers(document, reply.DESCRIPTOR)
    return document


def _read_numbers(document: dict[str, Any], message: Any) -> None:
    """Replace the text of each number of 64 bits by the number, also in nested messages."""
    for field in message.fields:
        value = document.get(field.name)
        if value is None:
            continue
        if field.message_type is not None:
            if not isinstance(value, list):
                value = [value]
            for nested in value:
                _read_numbers(nested, field.message_type)
        elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            document[field.name] = int(value)


def _timeout_s(rpc: str, fields: Mapping[str, object]) -> float:
    """Return the timeout of an RPC: PATIENT_S if the daemon calls EC2 or waits for running ADDs, READING_S if it reads files."""
    if rpc in ("Audit", "Export") or fields.get("find") or fields.get("network_source"):
        return PATIENT_S
    if rpc in ("GetHistory", "Explain") and fields.get("subject"):
        return READING_S
    return TIMEOUT_S
