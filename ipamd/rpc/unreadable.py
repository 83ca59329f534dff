"""Refuse requests that cannot be parsed, without a leak of memory.

grpcio refuses them itself, but leaks: after the refusal its `_unary_request` (grpc/_server.py, seen in 1.85) goes on to wait for the
request, refuses a second time when the peer has closed, and waits for ever for the end of that second answer. Each such request
leaked 27 KiB in the daemon, and held one of our threads until its peer closed. So no deserializer that grpcio calls may fail: ours
returns the failure as a value, and the handler refuses the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc

from ipamd.model.errors import log_text
from ipamd.model.record import dataclass

log = logging.getLogger(__name__)

DETAILS = "the request is no message of this method"


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a request that could not be read."""

    reason: str


class UnreadableRequests(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses an unreadable request with INVALID_ARGUMENT; all others pass. Used by gRPC's thread."""

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method, as gRPC asks of an interceptor, made tolerant of unreadable requests.

        Each existing method gets one handler; methods that peers invent are not remembered.
        """
        method = str(handler_call_details.method)
        tolerant_handler = self._handlers.get(method)
        if tolerant_handler is None:
            handler = continuation(handler_call_details)
            if handler is None or handler.unary_unary is None:
                return handler
            tolerant_handler = self._handlers[method] = tolerant(handler, method)
        return tolerant_handler


def tolerant(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Wrap a handler: its deserializer never fails, and it refuses a request that could not be read."""

    def read(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except Exception as error:  # noqa: BLE001  # the parser's own error type differs between implementations of protobuf
            return _Unreadable(log_text(error))

    def serve(request: Any, context: grpc.ServicerContext) -> Any:
        if isinstance(request, _Unreadable):
            log.warning("refused an unreadable request method=%s error=%s", method, request.reason)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, DETAILS)
        return handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=read, response_serializer=handler.response_serializer)
