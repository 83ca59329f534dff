"""The connection to the container runtime: socket, limits, and the conversion of its failures.

An existing socket proves little: a removed runtime leaves its file behind, and Docker's containerd serves no CRI. So the first
candidate that answers CRI's Version is used, for the life of the process: in the list of another runtime every sandbox would seem
to be gone (I11).
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import grpc
from grpc import _common

from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.words import printable
from ipamd.pb import cri_pb2, cri_pb2_grpc

USUAL_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/var/run/dockershim.sock",
)
"""Probed in this order if CRI_SOCKET is not set.

Source: https://kubernetes.io/docs/setup/production-environment/container-runtimes/; dockershim.sock is the old default of kubelet,
and some node images keep it as a link.
"""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Ours: four times 16 MiB, containerd's default limit of a gRPC message, for nodes where the limit was raised."""

TEXT_MAX = 500
"""Characters of the runtime's own text that are quoted. Ours."""

PROBE_TIMEOUT_S = 2.0
"""Ours: a runtime answers Version from memory in under a millisecond; a candidate that takes longer is not serving."""

OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # Without it grpc sends the socket's path as authority, and Go's HTTP/2 server refuses that: it is no host name.
    ("grpc.default_authority", "localhost"),
    # Back-off belongs to the subchannel: an earlier failed probe must not delay a call of another channel.
    ("grpc.use_local_subchannel_pool", 1),
    # Reconnect soon after the runtime restarted: the default back-off grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

WAIT_SLICE_S = 5.0
"""How long grpcio's own waits sleep without looking up. It looks up every 0.1 s, so that a main thread that waits hears signals
(https://github.com/grpc/grpc/issues/19464); ours waits elsewhere, and is woken for what comes. Ten looks a second for a stream on
which nothing happens were a quarter of the daemon's CPU time at idle. Ours: as often as other loops turn."""


def choose_socket(configured: str, candidates: tuple[str, ...]) -> str:
    """Find the CRI socket: the configured one, or the first candidate that answers CRI's Version.

    Raises: RuntimeUnreachableError with the problem at each path.
    """
    if configured:
        path = configured.removeprefix("unix://")
        problem = _socket_problem(path)
        if problem:
            raise _nobody({path: problem})
        return path
    problems: dict[str, str] = {}
    for path in candidates:
        problems[path] = _socket_problem(path) or _probe(path)
        if not problems[path]:
            return path
    raise _nobody(problems)


def open_channel(path: str) -> grpc.Channel:
    """Make a channel to a Unix socket; it connects at the first call and reconnects after the runtime restarted."""
    _common.MAXIMUM_WAIT_TIMEOUT = WAIT_SLICE_S  # not part of grpcio's API; where it is not read, waits are as they were
    return grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), *OPTIONS])


def unreachable(error: grpc.RpcError, *, call: str, socket: str) -> RuntimeUnreachableError:
    """Convert a gRPC error into our error: why the call gave no complete answer."""
    code, text = _status(error)
    if code is grpc.StatusCode.UNIMPLEMENTED and call == "GetContainerEvents":
        return EventsUnsupportedError(
            f"the runtime at {socket} does not know {call}", details="re-listing takes its place (containerd < 1.7)"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RuntimeUnreachableError(
            f"what listens at {socket} serves no CRI v1 ({call} is not known there)",
            details="enable the runtime's CRI plugin, or set CRI_SOCKET; nothing is freed until it answers",
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RuntimeUnreachableError(
            f"the answer of the container runtime at {socket} to {call} is larger than {MAX_MESSAGE_BYTES >> 20} MiB",
            details=f"{text}; remove exited sandboxes; nothing is freed until a whole list fits",
        )
    return RuntimeUnreachableError(
        f"the container runtime at {socket} did not answer {call}",
        details=f"{code.name}: {text}; nothing is freed until it answers",
    )


def _nobody(problems: dict[str, str]) -> RuntimeUnreachableError:
    return RuntimeUnreachableError(
        f"no CRI socket at {', '.join(problems)}",
        details="; ".join(f"{path}: {problem}" for path, problem in problems.items())
        + "; start the runtime, mount its socket, or set CRI_SOCKET (or CRI_SOCKET=off)",
    )


def _socket_problem(path: str) -> str:
    try:
        return "" if stat.S_ISSOCK(Path(path).stat().st_mode) else "not a socket"
    except OSError as error:
        return error.strerror or str(error)


def _probe(path: str) -> str:
    with open_channel(path) as channel:
        stub = cri_pb2_grpc.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated code
        try:
            stub.Version(cri_pb2.VersionRequest(version="v1"), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            code, text = _status(error)
            return f"{code.name}: {text}"
    return ""


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    # At run time every RpcError of a call is also a grpc.Call; the type stubs do not know that.
    status: Any = error
    return status.code(), printable(status.details() or "no text", most=TEXT_MAX)
