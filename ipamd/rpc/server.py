"""The socket of our own plugin and of `ipamctl`, in the run directory.

The directory has mode 0700 and is owned by root. A lock file keeps two daemons from serving one node.
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
"""The largest request in bytes. Ours: more than the largest network configuration and the other fields of its request."""

SPARE_THREADS = 8
"""The number of threads beyond the limit of CNI requests, so that introspection answers while all threads for CNI are busy. Ours:
few people and programs use `ipamctl` on one node at a time."""

WATCH_THREADS = 1
"""A further thread, with a connection of its own, for the calls that check whether requests are answered (`ipamd/rpc/watch.py`)."""


class RpcServer(UnixServer):
    """The CNI service, the introspection service and the watch on one socket."""

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
        """See `UnixServer.keep`. Also restore owner and mode of the run directory, because the plugin does not trust a directory with
        another owner or mode.
        """
        return super().keep() or _made_private(self.path.parent, RUN_DIR_MODE)

    def _is_live(self) -> bool:
        """Whether a process listens at the path; False before our own server has started.

        This process holds the instance lock. So before its own server has started, only a killed daemon, whose socket is still
        closing, can listen there.
        """
        return self._own is not None and super()._is_live()
