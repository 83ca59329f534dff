"""Serve the introspection service, and import its code at the first call.

Reports, audit and the path of a packet are 0.8 MiB of code (measured), which a daemon does not need before the first call. The import
runs in a thread for requests. It must not run in gRPC's own thread, which must neither wait nor raise: that thread only looks up
whether the method exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ipamd.rpc.unreadable import tolerant

SERVICE = "vpc_ipamd.v1.Introspection"

METHODS = frozenset(
    {
        "Audit",
        "Capacity",
        "Explain",
        "Export",
        "Freeze",
        "GetConfig",
        "GetHistory",
        "GetStatus",
        "ListAttachments",
        "ListEnis",
        "Path",
        "Plan",
        "Retry",
        "Thaw",
    }
)
"""The methods in `proto/vpc_ipamd/v1/introspection.proto`. With this list an unknown method is refused without the import."""


class OnDemandIntrospection(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Imports the service and makes its handlers at the first call. Safe from any thread."""

    def __init__(self, make_servicer: Callable[[], object]) -> None:
        """`make_servicer`: returns the object that has a method for each RPC. It is called at the first call of the service."""
        self._make_servicer = make_servicer
        self._handlers: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return a handler for a method of the service; None for a method of another service, or an unknown method."""
        service, _, name = str(handler_call_details.method).lstrip("/").rpartition("/")
        if service != SERVICE or name not in METHODS:
            return None

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            return self._serve(name, request, context)

        return grpc.unary_unary_rpc_method_handler(serve, request_deserializer=bytes, response_serializer=bytes)

    def _serve(self, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not self._handlers:
            self._handlers = self._load()  # no lock: if two threads do this at once, both results are equal
        handler = self._handlers[name]
        reply = handler.unary_unary(handler.request_deserializer(request), context)
        serialized: bytes = handler.response_serializer(reply)
        return serialized

    def _load(self) -> dict[str, Any]:
        """Import the service. Returns: a handler for each of its methods."""
        from ipamd.rpc.introspection import method_handlers

        handlers = {}
        for name, handler in method_handlers(self._make_servicer()).items():
            handlers[name] = tolerant(handler, name)
        return handlers
