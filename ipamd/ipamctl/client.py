"""Ask the daemon over its socket and give plain dictionaries back, every field present, in the words of the proto."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from ipamd.pb import introspection_pb2 as pb
from ipamd.pb import introspection_pb2_grpc

TIMEOUT_S = 5.0
AUDIT_TIMEOUT_S = 60.0
"""An audit asks EC2, which may make it wait."""
DEFAULT_RUN_DIR = "/run/vpc-ipamd"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class AwayError(Exception):
    """The daemon does not answer on its socket."""


class RefusedError(Exception):
    """The daemon answered that it cannot answer."""


class Client:
    """One connection; a context manager."""

    def __init__(self, socket: str = "") -> None:
        self._path = socket or str(Path(os.environ.get("VPC_IPAMD_RUN_DIR") or DEFAULT_RUN_DIR) / "ipamd.sock")
        self._channel = grpc.insecure_channel(
            f"unix:{self._path}", options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        )
        self._stub: Any = introspection_pb2_grpc.IntrospectionStub(self._channel)  # type: ignore[no-untyped-call]  # generated code

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()

    def status(self) -> dict[str, Any]:
        """Phase, stages, pool, runtime, cloud, last error (absent if there was none)."""
        return self._ask(self._stub.GetStatus, pb.GetStatusRequest())

    def enis(self) -> dict[str, Any]:
        """`enis`: a list."""
        return self._ask(self._stub.ListEnis, pb.ListEnisRequest())

    def attachments(self) -> dict[str, Any]:
        """`attachments`: a list."""
        return self._ask(self._stub.ListAttachments, pb.ListAttachmentsRequest())

    def history(self, subject: str, *, limit: int = 100) -> dict[str, Any]:
        """`entries`: a list, oldest first."""
        return self._ask(self._stub.GetHistory, pb.GetHistoryRequest(subject=subject, limit=max(limit, 1)))

    def audit(self, *, skip_ec2: bool = False) -> dict[str, Any]:
        """`findings`, worst first, and `silent` witnesses."""
        return self._ask(self._stub.Audit, pb.AuditRequest(skip_ec2=skip_ec2), timeout_s=AUDIT_TIMEOUT_S)

    def explain(self, subject: str) -> dict[str, Any]:
        """`sentences` and `history`."""
        return self._ask(self._stub.Explain, pb.ExplainRequest(subject=subject))

    def _ask(self, method: Callable[..., Any], request: Any, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        try:
            reply = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            status: Any = error  # at run time every RpcError of a call carries code and details
            if status.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise AwayError(
                    f"vpc-ipamd does not answer at {self._path} ({status.code().name}); is the daemon running on this node?"
                ) from error
            raise RefusedError(f"vpc-ipamd refused: {status.details()}") from error
        return MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
