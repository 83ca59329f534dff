"""Refuse requests that cannot be parsed, without a leak of memory.

grpcio refuses such requests itself, but it leaks memory. After the refusal its `_unary_request` (grpc/_server.py, seen in 1.85) goes
on to wait for the request, in one of our threads, until the peer closes. Then it refuses a second time, and keeps the record of the
call for ever, because that second answer never ends. Each such request leaked 27 KiB in the daemon. So no deserializer that grpcio
calls may fail. Our deserializer returns the failure as a value, and the handler refuses the call.
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
    """Refuses an unreadable request with INVALID_ARGUMENT, and passes all other requests on. Only gRPC's own thread may use it."""

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method, wrapped so that it tolerates unreadable requests. gRPC calls this for each request.

        The handler of an existing method is made once and kept. Nothing is kept for an unknown method, because peers may invent any
        number of names.
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
    """Wrap a handler. The new handler's deserializer never fails, and the new handler refuses a request that could not be read."""

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
