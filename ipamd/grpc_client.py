"""How another program's gRPC service is asked over its Unix socket: the container runtime's, kubelet's, the network policy agent's."""

from __future__ import annotations

from typing import Any

import grpc
from grpc import _common

from ipamd.model.words import printable

_common.MAXIMUM_WAIT_TIMEOUT = 5.0
"""How long grpcio's own waits sleep without looking up. It looks up every 0.1 s, so that a main thread that waits hears signals
(https://github.com/grpc/grpc/issues/19464); ours waits elsewhere, and is woken for what comes. Ten looks a second for a stream on
which nothing happens were a quarter of the daemon's CPU time at idle. Ours: as often as other loops turn. Not part of grpcio's API;
where it is not read, waits are as they were."""

TEXT_MAX = 500
"""Characters of another program's own text that are quoted. Ours."""


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Ours: four times 16 MiB, containerd's default limit of a gRPC message, for nodes where the limit was raised."""


def open_channel(socket: str, *, answer_max_bytes: int = MAX_ANSWER_BYTES) -> grpc.Channel:
    """Make a channel; it connects at the first call, and again after the other program restarted."""
    options = [
        ("grpc.max_receive_message_length", answer_max_bytes),
        ("grpc.enable_http_proxy", 0),
        # Without it grpc sends the socket's path as authority, and Go's HTTP/2 server refuses that: it is no host name.
        ("grpc.default_authority", "localhost"),
        # Back-off belongs to the subchannel: an earlier failed probe must not delay a call of another channel.
        ("grpc.use_local_subchannel_pool", 1),
        # Soon after the other came back: the default back-off grows to two minutes, and an ADD may wait for it.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]
    return grpc.insecure_channel(f"unix:{socket}", options=options)


def status(error: Any) -> tuple[grpc.StatusCode, str]:
    """Read a failed call's status, and say it. At run time every RpcError of a call has them; its type does not say so."""
    return error.code(), f"{error.code().name}: {printable(error.details() or 'no text', most=TEXT_MAX)}"
