"""The socket of our own plugin and of `ipamctl`, in the run directory.

The directory is 0700 and owned by root. A lock file keeps two daemons from serving one node.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from ipamd.pb import cni_pb2_grpc
from ipamd.rpc import watch
from ipamd.rpc.cni import CniServicer
from ipamd.rpc.on_demand import OnDemandIntrospection
from ipamd.rpc.run_dir import RUN_DIR_MODE
from ipamd.rpc.unix_server import SPARE_CONNECTIONS, UnixServer, _made_private

SOCKET_NAME = "ipamd.sock"

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""More than the largest network configuration and the rest of its request. Ours."""

SPARE_THREADS = 8
"""Threads beyond the RPC limit, so that introspection answers while all CNI threads are busy. Ours."""

WATCH_THREADS = 1
"""A further thread, with a connection of its own, for the call that proves that requests are answered (`ipamd/rpc/watch.py`)."""


class RpcServer(UnixServer):
    """Both services on one socket."""

    def __init__(self, *, run_dir: Path, cni: CniServicer, introspection: Callable[[], object], max_concurrent_rpcs: int) -> None:
        """`introspection`: returns the object that has a method for each RPC of that service."""

        def add(server: grpc.Server) -> None:
            cni_pb2_grpc.add_CniServicer_to_server(cni, server)  # type: ignore[no-untyped-call]  # generated code
            server.add_generic_rpc_handlers((OnDemandIntrospection(introspection), watch.handler()))

        super().__init__(
            run_dir / SOCKET_NAME,
            max_rpcs=max_concurrent_rpcs + SPARE_THREADS + WATCH_THREADS,
            max_connections=max_concurrent_rpcs + SPARE_CONNECTIONS + WATCH_THREADS,
            max_request_bytes=MAX_REQUEST_BYTES,
            advice="set VPC_IPAMD_RUN_DIR to a directory that nobody else uses",
            add=add,
        )

    def keep(self) -> str:
        """Restore also the run directory's owner and mode: the plugin trusts no other."""
        return super().keep() or _made_private(self.path.parent, RUN_DIR_MODE)

    def _is_live(self) -> bool:
        """Whether a process listens at the path; False before our own start.

        We have the instance lock, so before our start only a killed predecessor can listen, whose socket is still closing.
        """
        return self._own is not None and super()._is_live()
