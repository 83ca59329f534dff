"""Call another program's gRPC service over its Unix socket: the container runtime's, kubelet's, or the network policy agent's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import grpc

from ipamd.model.words import printable
from ipamd.overdue_calls import CALLS

GRPC_WAKE_UP_S = 5.0
"""Seconds between wake-ups of grpcio's own waits (`wake_up_rarely`). Ours: about the interval of the daemon's loops. More is not
needed, because events wake grpcio's waits anyway."""

TEXT_MAX = 500
"""The largest number of characters of another program's own text that are quoted. Ours: a few sentences, so that a
log line stays readable."""


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that a channel accepts by default. Ours: four times 16 MiB, containerd's default limit of a gRPC message, for nodes
where an operator raised that limit."""


NO_REPETITION = ("grpc.enable_retries", 0)
"""Channel option that turns off grpcio's retries. With retries grpcio repeats a call that the server has not taken, without a pause,
until the call's deadline, and keeps every attempt in memory. A peer that ended each connection with GOAWAY made grpcio take 100 MiB
a second (`tests/contract/peers`). Our callers retry with pauses of their own.

Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md, transparent retries."""


def wake_up_rarely(modules: Mapping[str, ModuleType] = sys.modules) -> bool:
    """Make grpcio's own waits wake up only every GRPC_WAKE_UP_S, by its variable MAXIMUM_WAIT_TIMEOUT.

    By default they wake up every 0.1 s, so that a waiting main thread receives signals (https://github.com/grpc/grpc/issues/19464).
    Our main thread waits elsewhere, and events wake grpcio's waits anyway. Ten wake-ups a second for a stream without events took a
    quarter of the daemon's CPU time at idle. The variable is not part of grpcio's API, so it is not imported: a release without it
    only costs that CPU time.

    Returns: whether this release of grpcio has the variable.
    """
    common = modules.get("grpc._common")
    if not hasattr(common, "MAXIMUM_WAIT_TIMEOUT"):
        return False
    vars(common)["MAXIMUM_WAIT_TIMEOUT"] = GRPC_WAKE_UP_S
    return True


wake_up_rarely()


def open_channel(socket: str, *, answer_max_bytes: int = MAX_ANSWER_BYTES) -> grpc.Channel:
    """Make a channel; it connects at the first call, and again after the other program restarted."""
    options = [
        ("grpc.max_receive_message_length", answer_max_bytes),
        ("grpc.enable_http_proxy", 0),
        # Without this option grpc sends the socket's path as authority. Go's HTTP/2 server refuses it, because it is not a host name.
        ("grpc.default_authority", "localhost"),
        # grpcio backs off per subchannel. So channels must not share a subchannel: otherwise a failed probe would delay a call of
        # another channel.
        ("grpc.use_local_subchannel_pool", 1),
        # Reconnect soon after the other program came back: the default back-off grows to two minutes, and an ADD may wait for it.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
        NO_REPETITION,
    ]
    return grpc.insecure_channel(f"unix:{socket}", options=options)


class Peer:
    """A program behind a channel.

    If a connection gets GOAWAY before its first call, its channel keeps the connection as long as the other side does, and every call
    fails at once (grpcio 1.85). So the channel is replaced after a call that ended with UNAVAILABLE. This does not disturb the calls
    of other threads: a channel without a reference ends with its last call.
    Concurrency: safe from any thread. If two threads replace the channel at the same time, one of the two new channels remains.
    """

    def __init__(
        self, socket: str, make_stub: Callable[[grpc.Channel], Any], *, answer_max_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self._socket = socket
        self._make_stub = make_stub
        self._answer_max_bytes = answer_max_bytes
        self._open()

    def stub(self) -> Any:
        """The stub for the next call."""
        return self._stub

    def ask(self, call: str, request: Any, *, timeout_s: float, is_patient: bool = False, stub: Any = None) -> Any:
        """Make one unary call.

        Args:
            call: the method's name.
            is_patient: whether to wait, until the timeout, for a program that does not listen yet.
            stub: the stub to call; by default that of the current channel.
        Returns: the answer, or None if the call ended with success but its message was cut off.
        Raises: grpc.RpcError, after about `timeout_s` at most. If the other program does not read from the connection, the error comes
            when the daemon's loop `answers` ends the connection (`overdue_calls.py`).
        """
        stub = stub or self._stub
        try:
            with CALLS.registered(self._socket, timeout_s):
                return getattr(stub, call)(request, timeout=timeout_s, wait_for_ready=is_patient)
        except grpc.RpcError as error:
            self.call_failed(stub, status(error)[0])
            raise

    def call_failed(self, stub: Any, code: grpc.StatusCode) -> None:
        """Report that a call of this stub failed; after UNAVAILABLE the next call gets a new channel."""
        if code is grpc.StatusCode.UNAVAILABLE and stub is self._stub:
            self._open()

    def close(self) -> None:
        """Close the channel; a running call ends."""
        self._channel.close()

    def _open(self) -> None:
        self._channel = open_channel(self._socket, answer_max_bytes=self._answer_max_bytes)
        self._stub = self._make_stub(self._channel)


def status(error: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status code of a failed call, and a text about it.

    `error`: an RpcError that a call raised. Such an error has `code` and `details`, which the type RpcError does not declare.
    """
    return error.code(), f"{error.code().name}: {printable(error.details() or 'no text', most=TEXT_MAX)}"
