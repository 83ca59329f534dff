"""Refuse requests whose bytes are no message, and keep nothing of them.

grpcio refuses them itself, but badly: its `_unary_request` (grpc/_server.py, seen in 1.85) goes on to wait for the request after the
refusal, refuses a second time when the peer has closed, and waits for ever for the end of that second answer. Each such request left
27 KiB in the daemon behind and held one of our threads until its peer closed. So no deserializer that grpcio calls may fail: ours
hands the failure on as a value, and the call is refused where services run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from ipamd.model.errors import log_text

DETAILS = "the request is no message of this method"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """In place of a request."""

    why: str


class UnreadableRequests(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses an unreadable request with INVALID_ARGUMENT; all others pass. Used by gRPC's thread."""

    def __init__(self) -> None:
        self._known: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See the base class. Handlers are made once for each method that exists; what peers invent is not remembered."""
        method = str(handler_call_details.method)
        found = self._known.get(method)
        if found is None:
            handler = continuation(handler_call_details)
            if handler is None or handler.unary_unary is None:
                return handler
            found = self._known[method] = _tolerant(handler, method)
        return found


def _tolerant(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    def read(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except Exception as error:  # noqa: BLE001  # the parser's own error type differs between implementations of protobuf
            return _Unreadable(log_text(error))

    def serve(request: Any, context: grpc.ServicerContext) -> Any:
        if isinstance(request, _Unreadable):
            log.warning("a request of %s is no message: %s", method, request.why)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, DETAILS)
        return handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=read, response_serializer=handler.response_serializer)
